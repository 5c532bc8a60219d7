"""Features of Telegram: topics, replies, mentions, anonymous admins, migrated groups, and the secrecy of the token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everhold.core.access import NOTICE_PREFIX
from everhold.core.entries import AGENT_ITSELF, Heard
from everhold.errors import Refused, Transient
from everhold.infra.secret import SecretString
from everhold.platforms.telegram.adapter import TelegramPlatform
from everhold.platforms.telegram.settings import TelegramSettings
from everhold.testing.contracts.platform import PlatformHarness
from everhold.testing.platforms.loopback import LoopbackResponse
from everhold.testing.platforms.telegram import TelegramServer, TelegramServerError
from tests.platforms.remote_telegram import TOKEN, RemoteTelegram, open_remote_telegram

GROUP = -100123


@pytest.fixture
async def remote() -> AsyncIterator[RemoteTelegram]:
    async with open_remote_telegram() as remote:
        yield remote


@pytest.fixture
async def harness(remote: RemoteTelegram, tmp_path: Path) -> AsyncIterator[PlatformHarness]:
    harness = PlatformHarness(remote, tmp_path)
    yield harness
    await harness.close()


@pytest.fixture
def server(remote: RemoteTelegram) -> TelegramServer:
    return remote.server


async def heard(harness: PlatformHarness, server: TelegramServer, text: str, **more: Any) -> Heard:
    """Write a message and return its entry."""
    harness.start()
    await server.write_message(text, **more)
    await server.write_message("that was it")
    await harness.wait_until_heard("that was it")
    return (await harness.read_heard())[0]


async def test_a_topic_is_a_thread(harness: PlatformHarness, server: TelegramServer) -> None:
    body = await heard(harness, server, "/status", chat=GROUP, thread=42)
    assert (body.origin.chat, body.origin.thread) == (str(GROUP), "42")
    assert body.stamp.address.endswith(":thread:42")
    await harness.platform.send(harness.make_outgoing("fine", to=body.origin))
    assert (server.list_shown_messages(GROUP)[-1].text, server.list_shown_messages(GROUP)[-1].thread) == ("fine", 42)


@pytest.mark.parametrize(
    "text, meant",
    [
        ("hello all", False),
        ("@everhold_bot hello", True),
        ("hello @EVERHOLD_BOT", True),
        ("hello @everhold_bot2", False),
        ("mail me at x@everhold_bot", False),
        ("/status", True),
        ("/status@everhold_bot", True),
        ("/status@other_bot", False),
        ("see /status", False),
        ("😀 @everhold_bot", True),
    ],
)
async def test_messages_that_address_the_bot(
    harness: PlatformHarness, server: TelegramServer, text: str, meant: bool
) -> None:
    assert (await heard(harness, server, text, chat=GROUP)).asks is meant


async def test_a_reply_to_the_bot_addresses_it_and_a_reply_to_a_person_does_not(
    harness: PlatformHarness, server: TelegramServer
) -> None:
    remote_id = await harness.platform.send(
        harness.make_outgoing("what do you think?", to=harness.make_location(chat=str(GROUP)))
    )
    mine = await heard(harness, server, "a lot", chat=GROUP, reply_to=int(remote_id))
    assert mine.asks
    assert mine.text == "a lot", "what is answered is not the sender's own"
    assert [(piece.by, piece.text) for piece in mine.pieces] == [(AGENT_ITSELF, "what do you think?")]
    human = await server.write_message("I think so", chat=GROUP)
    await server.write_message("me too", chat=GROUP, reply_to=human)
    await harness.wait_until_heard("me too")
    assert not (await harness.read_heard())[-1].asks


async def test_a_command_after_a_mention_is_a_command(harness: PlatformHarness, server: TelegramServer) -> None:
    body = await heard(harness, server, "@everhold_bot /status", chat=GROUP)
    assert body.command is not None
    assert body.command.name == "status"


async def test_an_answer_in_a_group_is_a_reply(harness: PlatformHarness, server: TelegramServer) -> None:
    body = await heard(harness, server, "/status", chat=GROUP)
    await harness.platform.send(harness.make_outgoing("fine", to=body.origin))
    assert server.list_shown_messages(GROUP)[-1].reply_to == int(body.origin.message)
    await harness.platform.send(harness.make_outgoing("hi", to=harness.make_location(message="1"), key="s:2:0"))
    assert server.list_shown_messages(1001)[-1].reply_to is None


async def test_an_admin_who_speaks_as_the_group_is_not_a_person(
    harness: PlatformHarness, server: TelegramServer
) -> None:
    as_group = {"sender_chat": {"id": GROUP, "type": "supergroup", "title": "a group"}}
    body = await heard(harness, server, "/status", chat=GROUP, user=1087968824, is_bot=True, **as_group)
    assert body.stamp.person == str(GROUP)
    assert not body.bot


async def test_a_sender_is_an_id_whatever_the_display_name(harness: PlatformHarness, server: TelegramServer) -> None:
    body = await heard(harness, server, "hello", user=666, name="1001")
    assert (body.stamp.person, body.sender) == ("666", "1001")


async def test_notices_are_marked_where_other_bots_can_read_them(
    harness: PlatformHarness, server: TelegramServer
) -> None:
    group = harness.make_location(chat=str(GROUP))
    await harness.platform.send(harness.make_outgoing("halted", to=group, notice=True))
    await harness.platform.send(harness.make_outgoing("halted", notice=True, key="s:2:0"))
    assert server.list_bot_texts(GROUP) == [f"{NOTICE_PREFIX}halted"]
    assert server.list_bot_texts(1001) == ["halted"]


async def test_the_commands_are_announced_in_a_form_that_telegram_accepts(
    harness: PlatformHarness, server: TelegramServer
) -> None:
    harness.start()
    await server.write_message("hello")
    await harness.wait_until_heard("hello")
    names = [command["command"] for command in server.bots[TOKEN].commands]
    assert {"new", "compress", "status", "halt", "link"} <= set(names)


async def test_a_reply_whose_draft_was_deleted_is_sent(harness: PlatformHarness, server: TelegramServer) -> None:
    await harness.platform.send(harness.make_outgoing("the whole text", edits="4711"))
    assert server.list_bot_texts(1001) == ["the whole text"]


async def test_an_edit_may_be_repeated_so_a_lost_answer_is_transient(
    harness: PlatformHarness, server: TelegramServer
) -> None:
    assert isinstance(harness.platform, TelegramPlatform)
    remote_id = await harness.platform.draft(harness.make_outgoing("the wh …"))
    server.plan_fault("editMessageText", "drop after")
    with pytest.raises(Transient):
        await harness.platform.send(harness.make_outgoing("the whole text", edits=remote_id))
    await harness.platform.send(harness.make_outgoing("the whole text", edits=remote_id))
    assert server.list_bot_texts(1001) == ["the whole text"]


async def test_a_rate_limited_chat_is_not_called_too_early(harness: PlatformHarness, server: TelegramServer) -> None:
    server.retry_after_seconds[1001] = 7
    with pytest.raises(Transient):
        await harness.platform.send(harness.make_outgoing("hello"))
    calls = len(server.calls)
    with pytest.raises(Transient) as caught:
        await harness.platform.send(harness.make_outgoing("hello"))
    assert caught.value.retry_after is not None
    assert 6 < caught.value.retry_after <= 7
    assert len(server.calls) == calls
    await harness.platform.send(
        harness.make_outgoing("you are another", to=harness.make_location(chat="1002"), key="s:2:0")
    )


async def test_a_migrated_group_is_found_at_its_new_id(harness: PlatformHarness, server: TelegramServer) -> None:
    moved = "Bad Request: group chat was upgraded to a supergroup chat"
    server.chat_errors[-55] = TelegramServerError(400, moved, migrate_to_chat_id=-10055)
    await harness.platform.send(harness.make_outgoing("hello", to=harness.make_location(chat="-55")))
    assert server.list_bot_texts(-10055) == ["hello"]
    assert harness.chat_moves == [("-55", "-10055")]
    remote_id = await harness.platform.send(
        harness.make_outgoing("and this", to=harness.make_location(chat="-55"), key="s:2:0", edits="1")
    )
    assert (server.list_bot_texts(-10055), server.list_shown_messages(-10055)[-1].id) == (
        ["hello", "and this"],
        int(remote_id),
    )


async def test_both_reports_of_a_migrated_group_add_one_alias(harness: PlatformHarness, server: TelegramServer) -> None:
    harness.start()
    await server.upgrade_group(-55, -10055)
    await server.write_message("here we are", chat=-10055)
    await harness.wait_until_heard("here we are")
    assert harness.chat_moves == [("-55", "-10055")] * 2
    assert await harness.read_texts() == ["here we are"], "a migration is not a message"


async def test_a_stranger_s_migrated_group_is_stored_only_once_an_admitted_sender_writes_there(
    harness: PlatformHarness, server: TelegramServer
) -> None:
    """Strangers can add the bot to any number of groups and upgrade them."""
    harness.configured_chats = set()
    harness.denied.add("666")
    harness.start()
    await server.upgrade_group(-55, -10055)
    await server.upgrade_group(-66, -10066)
    for chat in (-10055, -10066):
        await server.write_message("let me in", chat=chat, user=666)
    await harness.wait_until_results(2)
    assert harness.chat_moves == []
    await server.write_message("here we are", chat=-10055)
    await harness.wait_until_heard("here we are")
    assert harness.chat_moves == [("-55", "-10055")]


@pytest.mark.parametrize(
    "failed",
    [
        TelegramServerError(400, "Bad Request: chat not found"),
        TelegramServerError(403, "Forbidden: bot was kicked from the supergroup chat"),
        TelegramServerError(403, "Forbidden: user is deactivated"),
        TelegramServerError(400, "Bad Request: message thread not found"),
    ],
    ids=lambda it: it.description,
)
async def test_an_undeliverable_message_is_refused(
    harness: PlatformHarness, server: TelegramServer, failed: TelegramServerError
) -> None:
    server.chat_errors[1001] = failed
    with pytest.raises(Refused):
        await harness.platform.send(harness.make_outgoing("hello"))


async def test_a_rate_limit_of_polling_is_respected(harness: PlatformHarness, server: TelegramServer) -> None:
    told = {"ok": False, "error_code": 429, "description": "Too Many Requests", "parameters": {"retry_after": 33}}
    server.plan_fault("getUpdates", "answer", answer=LoopbackResponse.json(told, status=429))
    await heard(harness, server, "hello")
    assert 33.0 in harness.sleeps


@pytest.mark.parametrize("kind, media", [("photo", "image/jpeg"), ("voice", "audio/ogg"), ("document", "text/plain")])
async def test_files_of_every_kind_are_kept(
    harness: PlatformHarness, server: TelegramServer, kind: str, media: str
) -> None:
    body = await heard(harness, server, "look", file=("a.txt", b"bytes"), kind=kind)
    (file,) = body.attachments
    assert (file.media, await harness.store.get_blob(file.blob)) == (media, b"bytes")


async def test_a_message_is_heard_without_a_file_that_cannot_be_fetched(
    harness: PlatformHarness, server: TelegramServer
) -> None:
    server.plan_fault("getFile", "drop before", times=3)
    body = await heard(harness, server, "look", file=("a.txt", b"bytes"))
    assert body.text.startswith("look\n[a.txt was not stored")
    server.plan_fault("file", "drop before", times=1)
    await server.write_message("again", file=("b.txt", b"more bytes"))
    await harness.wait_until_heard("again")
    assert (await harness.read_heard())[-1].attachments[0].blob, "one failure is tried again"


async def test_a_path_on_this_machine_is_not_opened(
    harness: PlatformHarness, server: TelegramServer, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("not for you")
    told = {"file_id": "x", "file_unique_id": "x", "file_size": 11, "file_path": str(secret)}
    server.plan_fault("getFile", "answer", answer=LoopbackResponse.json({"ok": True, "result": told}))
    body = await heard(harness, server, "look", file=("a.txt", b"bytes"))
    assert body.attachments[0].blob == ""
    assert "not for you" not in body.text


async def test_skipped_updates_are_confirmed_and_only_telegram_stores_the_offset(
    harness: PlatformHarness, server: TelegramServer
) -> None:
    harness.start()
    await server.push_update({"poll_answer": {}})
    await server.wait_until_confirmed(TOKEN)
    await heard(harness, server, "hello")
    await server.wait_until_confirmed(TOKEN)
    assert await harness.store.list_state_records() == []


async def test_a_leftover_webhook_is_deleted_without_loss(harness: PlatformHarness, server: TelegramServer) -> None:
    server.bots[TOKEN].webhook = "https://elsewhere.example"
    assert (await heard(harness, server, "hello")).text == "hello"


async def test_an_unknown_token_ends_the_listener_and_is_not_shown(
    harness: PlatformHarness, server: TelegramServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="httpx")
    wrong = "110201543:a-wrong-token-that-must-not-be-shown-anywhere"
    settings = TelegramSettings(token=SecretString(wrong), base_url=server.url)
    for listens in (True, False):
        telegram = TelegramPlatform(settings, harness.make_context())
        with pytest.raises((Refused, Transient)) as caught:
            await (telegram.listen(harness._accept) if listens else telegram.send(harness.make_outgoing("hello")))
        assert "does not know this token" in caught.value.message
        assert "BotFather" in caught.value.remedy
        assert wrong not in str(caught.value)
        await telegram.aclose()
    assert wrong not in caplog.text


class Calendar:
    """A clock that a test moves by days."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return 1_700_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead


async def test_new_update_numbers_after_a_long_silence_lose_nothing(
    harness: PlatformHarness, server: TelegramServer
) -> None:
    calendar = Calendar()
    settings = TelegramSettings(token=SecretString(TOKEN), base_url=server.url, poll_seconds=0)
    harness.platform = TelegramPlatform(settings, msgspec.structs.replace(harness.make_context(), clock=calendar))
    harness.start()
    await server.write_message("before the holidays")
    await harness.wait_until_heard("before the holidays")

    async def confirmed() -> bool:
        return "offset" in server.calls[-1][1]

    async def asked_for_anything() -> bool:
        return "offset" not in server.calls[-1][1]

    await harness.wait_until(confirmed, what="a poll after the heard message")
    calendar.ahead = 6 * 86_400.0
    await harness.wait_until(asked_for_anything, what="a poll without an offset")
    server.renumber_updates(5)
    for text in ("and now", "for something else"):
        await server.write_message(text)
        await harness.wait_until_heard(text)
    assert await harness.read_texts() == ["before the holidays", "and now", "for something else"]
