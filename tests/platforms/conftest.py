"""What the tests of platforms share."""

from __future__ import annotations

import contextlib

import pytest


@pytest.fixture(autouse=True)
def _slow_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, Slack's history is read before anything new is heard."""
    with contextlib.suppress(ImportError):
        from everhold.platforms.slack import adapter

        monkeypatch.setattr(adapter, "FILE_WAIT_SECONDS", 30.0)
