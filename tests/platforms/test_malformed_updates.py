"""Malformed updates are stored or skipped, whatever is wrong in them, and the adapter continues."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from everhold.platforms.discord.adapter import DiscordPlatform
from everhold.platforms.slack.adapter import SlackPlatform
from everhold.platforms.slack.socket_mode import SlackEnvelope
from everhold.platforms.telegram.adapter import TelegramPlatform
from everhold.testing.contracts.platform import PlatformHarness
from tests.platforms.remote_discord import open_remote_discord
from tests.platforms.remote_slack import open_remote_slack
from tests.platforms.remote_telegram import open_remote_telegram

Bring = Callable[[dict[str, Any]], Awaitable[None]]
ADA = {"id": 1001, "is_bot": False, "first_name": "Ada", "username": "ada"}
TELEGRAM: dict[str, Any] = {
    "update_id": 5,
    "message": {
        "message_id": 3,
        "date": 1_700_000_000,
        "chat": {"id": -100123, "type": "supergroup", "title": "all", "is_forum": True},
        "from": ADA,
        "caption": "look, @everhold_bot",
        "is_topic_message": True,
        "message_thread_id": 4,
        "caption_entities": [{"type": "mention", "offset": 6, "length": 13}],
        "reply_to_message": {"message_id": 2, "date": 1, "chat": {"id": -100123, "type": "supergroup"}, "from": ADA},
        "document": {"file_id": "f", "file_unique_id": "u", "file_name": "a.txt", "mime_type": "text/plain"},
    },
}
SLACK: dict[str, Any] = {
    "type": "message",
    "channel": "C1",
    "user": "U1",
    "text": "<@U0> hello <http://x|y>",
    "ts": "1700000000.000100",
    "thread_ts": "1690000000.000100",
    "parent_user_id": "U2",
    "user_profile": {"name": "ada"},
    "metadata": {"event_type": "everhold_message", "event_payload": {"hops": 1}},
    "files": [{"id": "F1", "name": "a", "mimetype": "text/plain", "size": 3, "url_private": "http://127.0.0.1:1/x"}],
}
SLACK_EDIT: dict[str, Any] = {
    "type": "message",
    "subtype": "message_changed",
    "channel": "D1",
    "message": {"user": "U1", "text": "new", "ts": "1700000000.000200", "edited": {"ts": "1700000001.000100"}},
    "previous_message": {"text": "old"},
}
DISCORD: dict[str, Any] = {
    "id": "1100000000000000001",
    "channel_id": "2001",
    "guild_id": "300",
    "type": 0,
    "content": "<@1> hi",
    "author": {"id": "55", "username": "ada", "global_name": "Ada", "bot": False},
    "mentions": [{"id": "1", "username": "b"}],
    "mention_roles": ["7"],
    "attachments": [{"filename": "a", "size": 3, "url": "http://127.0.0.1:1/x", "content_type": "text/plain"}],
    "edited_timestamp": "2020-01-01",
}
COMMAND: dict[str, Any] = {
    "id": "1100000000000000002",
    "type": 2,
    "token": "t",
    "channel_id": "2001",
    "member": {"user": {"id": "55", "username": "ada"}},
    "data": {"name": "status", "options": [{"value": "x"}]},
}
TELEGRAM_PRESS: dict[str, Any] = {
    "update_id": 6,
    "callback_query": {
        "id": "77",
        "from": ADA,
        "chat_instance": "c",
        "data": "/approve 7K2P4QXM",
        "message": {
            "message_id": 4,
            "date": 1_700_000_000,
            "chat": {"id": -100123, "type": "supergroup", "title": "all", "is_forum": True},
            "from": {"id": 1, "is_bot": True, "first_name": "b"},
            "text": "asks",
            "is_topic_message": True,
            "message_thread_id": 4,
        },
    },
}
SLACK_PRESS: dict[str, Any] = {
    "type": "block_actions",
    "team": {"id": "T1", "domain": "t"},
    "user": {"id": "U1", "username": "ada", "team_id": "T1"},
    "channel": {"id": "C1", "name": "general"},
    "message": {"ts": "1700000000.000100", "thread_ts": "1690000000.000100", "text": "asks"},
    "trigger_id": "1334.1.8fbd46",
    "actions": [{"type": "button", "action_id": "choice-0", "value": "/approve 7K2P4QXM"}],
}
DISCORD_PRESS: dict[str, Any] = {
    **COMMAND,
    "id": "1100000000000000003",
    "type": 3,
    "data": {"custom_id": "/approve 7K2P4QXM", "component_type": 2},
    "message": {"id": "1100000000000000001", "channel_id": "2001"},
}
JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 10**400, math.inf, math.nan, "", "x", "\ud800", "\0", "9" * 500, [], [1], [None], [{}], {},
    {"id": 1},
)  # fmt: skip


class BroughtPlatform:
    """One platform's adapter, and a way to send it a malformed update."""

    def __init__(self, harness: PlatformHarness, bring: Bring, *bases: dict[str, Any]) -> None:
        self.harness = harness
        self.bring = bring
        self.bases = bases


async def telegram(harness: PlatformHarness) -> Bring:
    adapter = harness.platform
    assert isinstance(adapter, TelegramPlatform)
    await adapter._connect()

    async def bring(raw: dict[str, Any]) -> None:
        await adapter._accept_update(raw, harness._ingress)

    return bring


async def slack(harness: PlatformHarness) -> Bring:
    adapter = harness.platform
    assert isinstance(adapter, SlackPlatform)
    await adapter._identify()

    async def bring(raw: dict[str, Any]) -> None:
        if "trigger_id" in raw or "actions" in raw:
            heard = await adapter._parse_envelope(SlackEnvelope(id="Ev1", type="interactive", payload=raw))
        else:
            heard = await adapter._parse_event(raw, id="Ev1")
        await adapter._accept_message(heard, harness._ingress)

    return bring


async def discord(harness: PlatformHarness) -> Bring:
    adapter = harness.platform
    assert isinstance(adapter, DiscordPlatform)
    await adapter._connect()

    async def bring(raw: dict[str, Any]) -> None:
        for event in ("INTERACTION_CREATE",) if "token" in raw else ("MESSAGE_CREATE", "MESSAGE_UPDATE"):
            await adapter._accept_event((event, raw), accept=harness._ingress)

    return bring


@pytest.fixture(params=["telegram", "slack", "discord"])
async def side(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BroughtPlatform]:
    async with AsyncExitStack() as stack:
        match request.param:
            case "telegram":
                harness = PlatformHarness(await stack.enter_async_context(open_remote_telegram()), tmp_path)
                found = BroughtPlatform(harness, await telegram(harness), TELEGRAM, TELEGRAM_PRESS)
            case "slack":
                harness = PlatformHarness(await stack.enter_async_context(open_remote_slack()), tmp_path)
                found = BroughtPlatform(harness, await slack(harness), SLACK, SLACK_EDIT, SLACK_PRESS)
            case _:
                harness = PlatformHarness(await stack.enter_async_context(open_remote_discord()), tmp_path)
                found = BroughtPlatform(harness, await discord(harness), DISCORD, COMMAND, DISCORD_PRESS)
        yield found
        await harness.close()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


def changed(raw: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(raw)
    *outer, last = path
    holder: Any = raw
    for key in outer:
        holder = holder[key]
    holder[last] = copy.deepcopy(value)
    return raw


WRONG: dict[str, list[tuple[tuple[Any, ...], Any]]] = {
    "telegram": [
        (("message", "from", "first_name"), []),
        (("message", "from", "is_bot"), None),
        (("message", "document", "file_size"), [1]),
        (("message", "document", "file_name"), math.nan),
        (("message", "message_id"), "\ud800"),
    ],
    "slack": [
        (("thread_ts",), [1]),
        (("thread_ts",), "\ud800"),
        (("ts",), "x"),
        (("user",), "\ud800"),
        (("files", 0, "size"), math.inf),
    ],
    "discord": [
        (("channel_id",), [1]),
        (("channel_id",), "9" * 500),
        (("edited_timestamp",), "\ud800"),
        (("attachments", 0, "size"), math.inf),
        (("author", "id"), ""),
    ],
}


async def test_known_malformed_updates_are_stored_or_skipped(side: BroughtPlatform) -> None:
    """Each of these once made a listener fail at every start, or left an entry that could not be read."""
    for path, value in WRONG[side.harness.remote.platform]:
        await side.bring(changed(side.bases[0], path, value))
    bodies = await side.harness.read_heard()
    kept = [body for body in bodies if body.origin.chat == "unreadable"]
    assert kept, "an update that cannot be parsed is stored"
    assert not any(body.asks for body in kept)
    await side.bring(side.bases[0])
    assert any(body.origin.chat != "unreadable" for body in await side.harness.read_heard()), "the adapter continues"


@pytest.mark.prove
@pytest.mark.timeout(900)
async def test_any_value_in_any_field_is_stored_or_skipped(side: BroughtPlatform) -> None:
    chance = random.Random(7)
    for base in side.bases:
        for path in places(base):
            for value in chance.sample(JUNK, 6):
                await side.bring(changed(base, path, value))
    await side.harness.read_heard()  # and can be read again
