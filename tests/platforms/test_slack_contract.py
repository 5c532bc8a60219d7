"""Slack keeps every promise of a platform, driven by the unmodified library against a server on loopback."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from everhold.testing.contracts.platform import PlatformContract, Stage
from tests.platforms.slack_stage import slack_stage


class TestSlack(PlatformContract):
    def stage(self) -> AbstractAsyncContextManager[Stage]:
        return slack_stage()
