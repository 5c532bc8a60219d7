"""Fixtures of the platform tests."""

from __future__ import annotations

import contextlib

import pytest


@pytest.fixture(autouse=True)
def _slow_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slack's history is read before new events are heard, however slow the machine is."""
    with contextlib.suppress(ImportError):
        from everhold.platforms.slack import adapter

        monkeypatch.setattr(adapter, "LOOKUP_SECONDS", 30.0)
