"""A complete gateway with Telegram, through stops and starts: no message is lost."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everhold.core.entries import ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply
from everhold.testing.platforms.telegram import TelegramServer, TelegramServerError
from tests.clients import client_of
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section
from tests.platforms.remote_telegram import TOKEN

OTHER = "220201543:BBHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw-canary"


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        server.add_bot(TOKEN)
        yield server


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer(key=KEY) as server:
        yield server


def config(telegram: TelegramServer, model: ModelServer, account: str = "", **more: str) -> str:
    import json

    return "\n".join(
        [
            f"models: {{m: {json.dumps(make_model_section(model.openai))}}}",
            "defaults: {memories: [], tools: []}",
            f"platforms: {{telegram: {{main: {{token_env: BOT, base_url: '{telegram.url}', poll_seconds: 1, "
            f"access: {{direct: [ada], groups: {{'-100': [ada]}}}}{account}}}}}}}",
            "people: [{name: ada, identities: ['telegram:1001']}]",
            *(f"{key}: {value}" for key, value in more.items()),
        ]
    )


ENV = f"MODEL_KEY={KEY}\nBOT={TOKEN}\n"


async def wait_for_replies(gateway: RunningGateway, telegram: TelegramServer, chat: int, count: int) -> list[str]:
    def are_complete() -> bool:
        shown = telegram.list_bot_texts(chat)
        return len(shown) >= count and not shown[-1].endswith(" …")  # otherwise it still grows

    await gateway.wait_until(are_complete)
    return telegram.list_bot_texts(chat)


async def test_an_admitted_person_is_answered(tmp_path: Path, telegram: TelegramServer, model: ModelServer) -> None:
    async with RunningGateway(tmp_path, config(telegram, model), env=ENV) as gateway:
        await telegram.write_message("hello")
        assert await wait_for_replies(gateway, telegram, 1001, 1) == ["You said: [Ada · telegram:1001] hello"]
        (account,) = gateway.app.describe()["accounts"]
        assert (account["platform"], account["listening"]) == ("telegram", True)
        (session,) = await gateway.app.store.list_sessions()
        assert session.address == "agent:main:telegram:dm:1001"
        await gateway.wait_until_idle()
        await gateway.assert_sound()


async def test_a_reply_is_drafted_in_one_message(tmp_path: Path, telegram: TelegramServer, model: ModelServer) -> None:
    text = "It began on a Tuesday, " + "and it went on and on, " * 40
    model.add_steps(ModelServerReply(text=text, pause_seconds=0.01))
    async with RunningGateway(tmp_path, config(telegram, model), env=ENV) as gateway:
        await telegram.write_message("tell me a story")
        await gateway.wait_until(lambda: telegram.list_bot_texts(1001) == [text])
        (shown,) = [it for it in telegram.list_shown_messages(1001) if it.sender_id != 1001]
        assert shown.edits >= 1, "it was seen to grow, and the final text took its place"
        assert telegram.typing, "it was seen to be at work"
        await gateway.wait_until_idle()
        await gateway.assert_sound()


async def test_a_long_reply_is_sent_in_parts(tmp_path: Path, telegram: TelegramServer, model: ModelServer) -> None:
    text = "A paragraph of some length. " * 400
    model.add_steps(ModelServerReply(text=text, stream=False))
    async with RunningGateway(tmp_path, config(telegram, model), env=ENV) as gateway:
        await telegram.write_message("everything, please")
        await gateway.wait_until(lambda: "".join(telegram.list_bot_texts(1001)) == text)
        assert len(telegram.list_bot_texts(1001)) == 3


async def test_a_stranger_is_paired_and_then_answered(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer
) -> None:
    async with RunningGateway(tmp_path, config(telegram, model), env=ENV) as gateway:
        await telegram.write_message("let me in", user=666, name="Eve")
        (told,) = await wait_for_replies(gateway, telegram, 666, 1)
        found = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", told)
        assert found
        assert not model.requests, "no model is asked on behalf of a stranger"
        await client_of(gateway.app).approve_pairing(found[0], person="")
        assert (await wait_for_replies(gateway, telegram, 666, 2))[1] == "You have access now. What can I do for you?"
        await telegram.write_message("thank you", user=666)
        assert (await wait_for_replies(gateway, telegram, 666, 3))[2] == "You said: [Ada · telegram:666] thank you"
        assert found[0] not in gateway.log.getvalue()


async def test_accounts_change_while_the_gateway_runs(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer
) -> None:
    async with RunningGateway(tmp_path, config(telegram, model), env=ENV) as gateway:
        await telegram.write_message("one")
        await wait_for_replies(gateway, telegram, 1001, 1)
        telegram.add_bot(OTHER, username="other_bot")
        gateway.write_secrets(ENV.replace(TOKEN, OTHER))
        await telegram.write_message("two")
        await gateway.wait_until(lambda: any(name == "getUpdates" for name, _ in telegram.calls[-3:]))
        await gateway.app.watcher.get_fresh_settings()
        # the old bot keeps its unread update; the new one receives messages
        before = len(telegram.list_bot_texts(1001))
        await telegram.write_message("three")
        await gateway.wait_until(
            lambda: "You said: [Ada · telegram:1001] three" in telegram.list_bot_texts(1001)[before - 1 :]
        )


async def test_a_missing_token_disables_the_account_and_nothing_else(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer
) -> None:
    async with RunningGateway(tmp_path, config(telegram, model), env=f"MODEL_KEY={KEY}\n") as gateway:
        assert await gateway.send_and_wait("hello") == "You said: hello"
        (problem,) = gateway.app.describe()["problems"]
        assert (problem["disables"], "BOT=" in problem["remedy"]) == ("platforms.telegram.main", True)
        await telegram.write_message("anybody?")
        gateway.write_secrets(ENV)
        await gateway.app.watcher.get_fresh_settings()
        assert await wait_for_replies(gateway, telegram, 1001, 1) == ["You said: [Ada · telegram:1001] anybody?"], (
            "and what was written meanwhile is heard"
        )


@pytest.mark.parametrize("policy, shown", [("resend", 2), ("hold", 1)])
async def test_a_lost_answer_follows_the_policy_and_is_counted(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer, policy: str, shown: int
) -> None:
    model.default = lambda _: ModelServerReply(text="short", stream=False)
    async with RunningGateway(tmp_path, config(telegram, model, f", in_doubt: {policy}"), env=ENV) as gateway:
        gateway.app.supervisor.send_deadline = 1.0  # until then the hanging request may still be carried out
        telegram.plan_fault("sendMessage", "drop after")
        await telegram.write_message("hello")
        await wait_for_replies(gateway, telegram, 1001, shown)
        await gateway.wait_until_idle()
        assert telegram.list_bot_texts(1001) == ["short"] * shown
        status = await client_of(gateway.app).show_status()
        assert status["in_doubt"] == 1, "with either policy the doubt is visible"


async def test_a_message_sent_while_the_gateway_is_down_is_answered_once(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer
) -> None:
    model.default = lambda received: ModelServerReply(
        text="noted: " + received.json["messages"][-1]["content"], stream=False
    )
    async with RunningGateway(tmp_path, config(telegram, model), env=ENV) as gateway:
        await telegram.write_message("one")
        await wait_for_replies(gateway, telegram, 1001, 1)
    for text in ("two", "three"):
        await telegram.write_message(text)
    async with gateway:
        await gateway.wait_until(lambda: "three" in "".join(telegram.list_bot_texts(1001)))
        await gateway.wait_until_idle()
        (session,) = await gateway.app.store.list_sessions()
        assert await gateway.read_heard(session.id) == ["one", "two", "three"]
        await gateway.assert_sound()


async def test_a_halt_word_stops_the_running_turn_of_a_group(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer
) -> None:
    model.default = lambda _: ModelServerReply(text="on and on " * 500, pause_seconds=0.05)
    async with RunningGateway(tmp_path, config(telegram, model), env=ENV) as gateway:
        await telegram.write_message("/status", chat=-100)
        await wait_for_replies(gateway, telegram, -100, 1)
        await telegram.write_message("@everhold_bot talk", chat=-100)
        await gateway.wait_until(lambda: any("on and on" in text for text in telegram.list_bot_texts(-100)))
        await telegram.write_message("/halt", chat=-100)
        await gateway.wait_until(lambda: any("Halted" in text for text in telegram.list_bot_texts(-100)))
        await gateway.wait_until_idle()
        (draft,) = [text for text in telegram.list_bot_texts(-100) if "on and on" in text]
        assert draft.endswith("… (stopped)"), "the draft is marked as stopped"
        asked = len(model.requests)
        await telegram.write_message("@everhold_bot are you there?", chat=-100)
        await telegram.wait_until_confirmed(TOKEN)
        await gateway.wait_until_idle()
        assert len(model.requests) == asked
        await telegram.write_message("/wake", chat=-100)
        model.default = lambda _: ModelServerReply(text="here I am", stream=False)
        await telegram.write_message("@everhold_bot and now?", chat=-100)
        await gateway.wait_until(lambda: "here I am" in telegram.list_bot_texts(-100))
        await gateway.assert_sound()


async def test_no_secret_is_written_anywhere(tmp_path: Path, telegram: TelegramServer, model: ModelServer) -> None:
    async with RunningGateway(tmp_path, config(telegram, model), env=ENV) as gateway:
        gateway.app.supervisor.send_deadline = 1.0
        telegram.plan_fault("sendMessage", "drop before")
        telegram.plan_fault("getUpdates", "drop after")
        await telegram.write_message("hello")
        await wait_for_replies(gateway, telegram, 1001, 1)
        status = str(await client_of(gateway.app).show_status())
    for file in [
        file
        for file in tmp_path.rglob("*")  # noqa: ASYNC240  # nothing else is waiting
        if file.is_file() and file.name != ".env"
    ]:
        assert TOKEN.encode() not in file.read_bytes(), file
    assert TOKEN not in gateway.log.getvalue() + status


async def test_a_group_that_becomes_a_supergroup_keeps_its_session(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer
) -> None:
    async with RunningGateway(tmp_path, config(telegram, model), env=ENV) as gateway:
        await telegram.write_message("@everhold_bot one", chat=-100)
        await wait_for_replies(gateway, telegram, -100, 1)
        await telegram.upgrade_group(-100, -1009)
        await telegram.write_message("@everhold_bot two", chat=-1009)
        assert await wait_for_replies(gateway, telegram, -1009, 1) == [
            "You said: [Ada · telegram:1001] @everhold_bot two"
        ]
        (session,) = await gateway.app.store.list_sessions()
        assert session.address.startswith("agent:main:telegram:group:-100:")
        assert "@everhold_bot one" in str(model.requests[-1].body), "it remembers"
        await gateway.wait_until_idle()
        await gateway.assert_sound()


async def test_a_reply_reaches_a_group_that_moved_during_the_turn(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer
) -> None:
    async with RunningGateway(tmp_path, config(telegram, model), env=ENV) as gateway:
        telegram.chat_errors[-100] = TelegramServerError(
            400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-1009
        )
        model.add_steps(ModelServerReply(text="It is one."), ModelServerReply(text="It is two."))
        await telegram.write_message("@everhold_bot one", chat=-100)
        assert await wait_for_replies(gateway, telegram, -1009, 1) == ["It is one."]
        await telegram.write_message("@everhold_bot two", chat=-1009)  # and nobody ever told that it moved
        await wait_for_replies(gateway, telegram, -1009, 2)
        assert len(await gateway.app.store.list_sessions()) == 1


async def test_a_file_is_sent_with_a_reply(tmp_path: Path, telegram: TelegramServer, model: ModelServer) -> None:
    call = ToolCall(id="c1", tool="attach", arguments={"name": "table.csv", "text": "a,b"})
    model.add_steps(ModelServerReply(text="", calls=(call,)), ModelServerReply(text="Here it is."))
    settings = config(telegram, model).replace("tools: []", "tools: [attach]")
    async with RunningGateway(tmp_path, settings, env=ENV) as gateway:
        await telegram.write_message("as a table, please")
        await gateway.wait_until(lambda: any(it.file for it in telegram.list_shown_messages(1001)))
        await gateway.wait_until_idle()
        assert [it.file or it.text for it in telegram.list_shown_messages(1001)][1:] == [
            "Here it is.",
            ("table.csv", b"a,b"),
        ]
        await gateway.assert_sound()


async def test_a_token_changed_during_a_send_loses_no_reply(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer
) -> None:
    """A send hangs at the old bot until it is given up; the new bot sends it, and the repeat is counted."""
    model.default = lambda received: ModelServerReply(text=received.json["messages"][-1]["content"], stream=False)
    async with RunningGateway(tmp_path, config(telegram, model), env=ENV) as gateway:
        gateway.app.supervisor.send_deadline = 1.0
        telegram.plan_fault("sendMessage", "hang")
        await telegram.write_message("one")
        await gateway.wait_until(telegram.held.is_set)
        telegram.add_bot(OTHER, username="other_bot")
        gateway.write_secrets(ENV.replace(TOKEN, OTHER))
        await gateway.app.watcher.get_fresh_settings()
        await telegram.write_message("two")
        await wait_for_replies(gateway, telegram, 1001, 2)
        await gateway.wait_until_idle()
        assert telegram.list_bot_texts(1001) == ["[Ada · telegram:1001] one", "[Ada · telegram:1001] two"]
        assert (await client_of(gateway.app).show_status())["in_doubt"] == 1
        await gateway.assert_sound()
