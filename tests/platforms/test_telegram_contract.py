"""Telegram keeps every promise of a platform. The unmodified library talks to a server on loopback."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from everhold.testing.contracts.platform import PlatformContract, RemotePlatform
from tests.platforms.remote_telegram import open_remote_telegram


class TestTelegram(PlatformContract):
    def open_remote(self) -> AbstractAsyncContextManager[RemotePlatform]:
        return open_remote_telegram()
