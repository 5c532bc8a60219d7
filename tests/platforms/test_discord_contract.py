"""Discord keeps every promise of a platform. The unmodified library talks to a server on loopback."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from everhold.platforms.discord.adapter import DiscordPlatform
from everhold.testing.contracts.platform import PlatformContract, RemotePlatform
from tests.platforms.remote_discord import open_remote_discord


class TestDiscord(PlatformContract):
    def open_remote(self) -> AbstractAsyncContextManager[RemotePlatform]:
        return open_remote_discord()


def play_strangers(adapter: type[DiscordPlatform], path: Path) -> None:
    """Let a denied person write in a chat that the adapter does not know."""

    class Strangers(PlatformContract):
        def open_remote(self) -> AbstractAsyncContextManager[RemotePlatform]:
            return open_remote_discord(adapter)

    Strangers().test_nothing_of_a_denied_sender_is_stored(path)


def test_the_chat_of_a_stranger_is_not_stored(tmp_path: Path) -> None:
    """In the other tests the chat is known before."""
    play_strangers(DiscordPlatform, tmp_path)


class RemembersStrangers(DiscordPlatform):
    async def _remember_direct_chat(self, channel: Any, heard: Any) -> bool:
        if channel.is_direct:
            await self._backlog.add_direct_chat(channel.id)
        return True


class AdvancesForStrangers(DiscordPlatform):
    async def _remember_direct_chat(self, channel: Any, heard: Any) -> bool:
        return True


@pytest.mark.parametrize("adapter", [RemembersStrangers, AdvancesForStrangers])
def test_a_stored_chat_of_a_stranger_is_noticed(tmp_path: Path, adapter: type[DiscordPlatform]) -> None:
    with pytest.raises(AssertionError, match="a stranger's chat is stored"):
        play_strangers(adapter, tmp_path)
