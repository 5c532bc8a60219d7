"""Discord keeps every promise of a platform, driven by the unmodified library against a server on loopback."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from everhold.testing.contracts.platform import PlatformContract, Stage
from tests.platforms.discord_stage import discord_stage


class TestDiscord(PlatformContract):
    def stage(self) -> AbstractAsyncContextManager[Stage]:
        return discord_stage()
