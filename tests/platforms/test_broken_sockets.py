"""The tests of Discord and Slack can fail: each fault here is one that real adapters have, and one test finds it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from discord.http import Route

from everhold.errors import EverholdError
from everhold.platforms import catch_up
from everhold.platforms.discord import adapter as discord_adapter, catch_up as discord_backlog
from everhold.platforms.discord.adapter import DiscordPlatform
from everhold.platforms.discord.parsing import DiscordChannel
from everhold.platforms.slack import catch_up as slack_backlog
from everhold.platforms.slack.adapter import SlackPlatform
from everhold.ports.platform import AcceptMessage, OutgoingMessage
from everhold.testing.contracts.platform import PlatformContract, PlatformHarness, RemotePlatform
from tests.platforms import test_discord, test_slack
from tests.platforms.remote_discord import open_remote_discord
from tests.platforms.remote_slack import open_remote_slack

PATIENCE = 1.5
Plant = Callable[[pytest.MonkeyPatch], None]


def instead(owner: type, name: str, fault: Any) -> Plant:
    return lambda patch: patch.setattr(owner, name, fault)


# -- Slack -------------------------------------------------------------------------------------------------------------


async def confirms_first(self: SlackPlatform, envelope: Any, line: Any, accept: AcceptMessage) -> None:
    await line.confirm(envelope.id)
    heard = await self._parse_envelope(envelope)
    await self._accept_message(heard, accept)


async def reads_no_history(self: Any, hear: Any, queues: Any, *, now: float) -> None:
    queues._unread = {}
    await self.record_alive(now)


async def never_waits(self: Any, chat: str, event: Any, *, id: str) -> None:
    await self._accept(event)


async def never_finds(self: Any, out: OutgoingMessage) -> None:
    return None


async def forgets_threads(self: Any, channel: str, thread: str, since: str) -> list[Any]:
    return []


async def fetches_from_anywhere(self: SlackPlatform, file: Any) -> bytes:
    return (await self._account_context.fetch(file.url)).data


# -- Discord -----------------------------------------------------------------------------------------------------------


async def looks_for_nothing(self: DiscordPlatform, out: OutgoingMessage, *, always: bool = False) -> str:
    return ""


async def goes_on_from_now(self: discord_backlog.DiscordCatchUp, hear: Any, queues: Any, *, now: float) -> None:
    queues._unread = {}
    await self.record_alive(now)


async def forgets_direct_chats(self: discord_backlog.DiscordCatchUp, id: str) -> None:
    self.channels[id] = DiscordChannel(id=id, is_direct=True)


async def one_page_is_all(self: discord_backlog.DiscordCatchUp, channel: Any, since: int, hear: Any) -> Any:
    for message in reversed(await self._call_until_answered(lambda rest: rest.logs_from(channel.id, 100, after=since))):
        await hear(channel, message)
    return ()


async def takes_threads_for_channels(self: discord_backlog.DiscordCatchUp, id: str) -> Any:
    return DiscordChannel(id=id)


async def confirms_commands_first(self: DiscordPlatform, data: Any, accept: AcceptMessage) -> None:
    route = Route("POST", f"/interactions/{data['id']}/{data['token']}/callback")
    await self._call_api(lambda rest: rest.request(route, json={}))
    await accept(self._build_unparsed_message(data, ValueError("too late"), DiscordChannel(id="1")))


SLACK: list[tuple[Plant, Any]] = [
    (
        instead(SlackPlatform, "_accept_envelope", confirms_first),
        test_slack.test_an_event_is_confirmed_only_after_the_commit,
    ),
    (
        instead(slack_backlog.SlackCatchUp, "run", reads_no_history),
        test_slack.test_events_that_slack_gave_up_are_read_from_the_history,
    ),
    (
        instead(slack_backlog.SlackCatchUp, "_fetch_replies", forgets_threads),
        test_slack.test_events_that_slack_gave_up_are_read_from_the_history,
    ),
    (
        instead(catch_up.LiveEventQueues, "add_event", never_waits),
        test_slack.test_new_messages_do_not_move_the_offset_past_a_gap,
    ),
    (
        instead(catch_up.LiveEventQueues, "add_event", never_waits),
        "missed_messages_are_heard_before_newer_ones_in_each_chat",
    ),
    (instead(SlackPlatform, "probe", never_finds), "a_lost_answer_is_reported_as_in_doubt"),
    (instead(SlackPlatform, "probe", never_finds), "a_lost_answer_about_a_file_is_reported_as_in_doubt"),
    (instead(SlackPlatform, "probe", never_finds), test_slack.test_a_probe_reads_back_to_the_replied_to_message),
    (
        instead(SlackPlatform, "_download_file", fetches_from_anywhere),
        test_slack.test_a_file_at_another_host_is_not_fetched_with_the_token,
    ),
]
DISCORD: list[tuple[Plant, Any]] = [
    (
        instead(catch_up.LiveEventQueues, "add_event", never_waits),
        "missed_messages_are_heard_before_newer_ones_in_each_chat",
    ),
    (
        instead(discord_backlog.DiscordCatchUp, "run", goes_on_from_now),
        test_discord.test_after_a_lost_session_missed_messages_are_read_from_the_history,
    ),
    (
        instead(discord_backlog.DiscordCatchUp, "_read_channel_history", one_page_is_all),
        test_discord.test_after_a_lost_session_missed_messages_are_read_from_the_history,
    ),
    (
        instead(discord_backlog.DiscordCatchUp, "add_direct_chat", forgets_direct_chats),
        test_discord.test_after_a_lost_session_missed_messages_are_read_from_the_history,
    ),
    (
        instead(discord_backlog.DiscordCatchUp, "get_channel", takes_threads_for_channels),
        test_discord.test_a_thread_belongs_to_its_channel_and_is_answered_there,
    ),
    (
        lambda patch: patch.setattr(
            DiscordPlatform, "_resume", property(lambda self: None, lambda self, value: None), raising=False
        ),
        test_discord.test_a_broken_connection_is_resumed_and_gets_missed_events,
    ),
    (
        instead(DiscordPlatform, "_accept_command", confirms_commands_first),
        test_discord.test_a_slash_command_that_was_not_committed_is_not_confirmed,
    ),
    (
        lambda patch: patch.setattr(discord_adapter, "_has_same_file", lambda message, out: True),
        test_discord.test_a_probe_does_not_confuse_two_files,
    ),
    (
        lambda patch: patch.setattr(discord_adapter, "make_nonce", lambda key: secrets.token_hex(12)),
        "a_lost_answer_about_a_file_is_reported_as_in_doubt",
    ),
    (
        lambda patch: patch.setattr(discord_adapter, "make_nonce", lambda key: secrets.token_hex(12)),
        "a_lost_answer_is_reported_as_in_doubt",
    ),
    (
        lambda patch: patch.setattr(discord_adapter, "make_nonce", lambda key: secrets.token_hex(12)),
        test_discord.test_a_reply_to_a_new_message_relies_on_its_nonce_without_a_probe,
    ),
]


def name(value: Any) -> str:
    return value.removeprefix("test_") if isinstance(value, str) else getattr(value, "__name__", "")


def found(stages: Any, plant: Plant, promise: Any, path: Path, patch: pytest.MonkeyPatch) -> None:
    """Plant a fault and run the test that shall find it, with short time limits."""

    class Broken(PlatformContract):
        patience = PATIENCE

        def open_remote(self) -> AbstractAsyncContextManager[RemotePlatform]:
            made: AbstractAsyncContextManager[RemotePlatform] = stages()
            return made

    async def play() -> None:
        wanted = inspect.signature(promise).parameters
        async with stages() as remote:
            given = {"remote": remote, "server": remote.server, "tmp_path": path, "monkeypatch": patch}
            if "harness" in wanted:
                given["harness"] = PlatformHarness(remote, path, patience=PATIENCE)
            try:
                await promise(**{key: given[key] for key in wanted})
            finally:
                if "harness" in wanted:
                    await given["harness"].close()

    plant(patch)
    patch.setattr(test_slack, "PATIENCE", PATIENCE)
    run = getattr(Broken(), f"test_{promise}") if isinstance(promise, str) else lambda _: asyncio.run(play())
    with pytest.raises((AssertionError, TimeoutError, KeyError, EverholdError)):
        run(path)


@pytest.mark.parametrize("plant, promise", SLACK, ids=name)
def test_a_fault_of_slack_is_found(plant: Plant, promise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found(open_remote_slack, plant, promise, tmp_path, monkeypatch)


@pytest.mark.parametrize("plant, promise", DISCORD, ids=name)
def test_a_fault_of_discord_is_found(
    plant: Plant, promise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(functools.partial(open_remote_discord, DiscordPlatform), plant, promise, tmp_path, monkeypatch)
