"""Features of Slack: envelopes and their time limit, threads, the history, and mrkdwn."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.core.access import NOTICE_PREFIX
from everhold.core.attachments import build_attachment
from everhold.core.entries import Heard
from everhold.errors import InDoubt, Refused, TooLong, Transient
from everhold.infra.secret import SecretString
from everhold.platforms.slack import catch_up, formatting, parsing
from everhold.platforms.slack.adapter import SlackPlatform
from everhold.platforms.slack.settings import SlackSettings, factory
from everhold.ports.platform import AcceptResult, IncomingMessage
from everhold.testing.contracts.platform import PlatformHarness
from everhold.testing.platforms.loopback import LoopbackResponse
from everhold.testing.platforms.slack import ACK_SECONDS, SlackServer
from everhold.testing.timed_waits import TimedWaits
from tests.platforms.remote_slack import APP_TOKEN, BOT_TOKEN, RemoteSlack, open_remote_slack
from tests.waiting import LIMIT_SECONDS

PATIENCE = LIMIT_SECONDS


@pytest.fixture
async def remote() -> AsyncIterator[RemoteSlack]:
    async with open_remote_slack() as remote:
        yield remote


@pytest.fixture
async def harness(remote: RemoteSlack, tmp_path: Path) -> AsyncIterator[PlatformHarness]:
    harness = PlatformHarness(remote, tmp_path)
    yield harness
    await harness.close()


@pytest.fixture
def server(remote: RemoteSlack) -> SlackServer:
    return remote.server


async def heard(harness: PlatformHarness, server: SlackServer, text: str, **more: Any) -> Heard:
    """Write a message and return its entry."""
    harness.start()
    await wait_until_caught_up(harness)
    await server.write_message(text, **{"channel": "C1", **more})
    await server.write_message("that was it", channel="D1")
    await harness.wait_until_heard("that was it")

    async def met() -> bool:
        return len(await harness.read_heard()) > 1

    await harness.wait_until(met, what=f"hearing {text}")
    return next(body for body in await harness.read_heard() if body.text != "that was it")


async def wait_until_caught_up(harness: PlatformHarness) -> None:
    """Wait until missed messages are read, so that the following events are not read from the history."""

    async def met() -> bool:
        return await harness.offset("alive") is not None

    await harness.wait_until(met, what="reading missed messages")


async def many(harness: PlatformHarness, of: list[str], count: int) -> None:
    """Wait until this many events are confirmed or given up."""

    async def met() -> bool:
        return len(of) >= count

    await harness.wait_until(met, what=f"{count} of them")


# -- envelopes ---------------------------------------------------------------------------------------------------------


async def test_an_event_is_confirmed_only_after_the_commit(harness: PlatformHarness, server: SlackServer) -> None:
    kept, entered = asyncio.Event(), asyncio.Event()
    app = server.apps[0]

    async def accept(incoming: IncomingMessage) -> AcceptResult:
        if incoming.text == "hello":
            entered.set()
            await kept.wait()
        return await harness._accept(incoming)

    listening = asyncio.create_task(harness.platform.listen(accept))
    await server.write_message("before", channel="D1")
    await many(harness, app.confirmed, 1)
    await server.write_message("hello", channel="D1")
    async with asyncio.timeout(harness.patience):
        await entered.wait()
    await harness.platform.send(harness.make_outgoing("time for a word on the way"))
    assert len(app.confirmed) == 1
    kept.set()
    await many(harness, app.confirmed, 2)
    assert await harness.read_texts() == ["before", "hello"]
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_a_burst_is_confirmed_within_the_time_limit(harness: PlatformHarness, server: SlackServer) -> None:
    # the test does not depend on the machine's load: Slack waits longer here, and the test counts CPU time and timers
    server.ack_seconds = harness.patience
    with TimedWaits() as waits:
        harness.start()
    await server.write_message("before", channel="D1")
    await many(harness, server.apps[0].confirmed, 1)
    waits.reset()
    before = time.process_time()
    for number in range(100):
        await server.write_message(str(number), channel="D1")
    await many(harness, server.apps[0].confirmed, 101)
    used = time.process_time() - before + waits.total_seconds
    assert used < ACK_SECONDS, "the last of them would have been late"
    assert [name for name, _ in server.calls].count("users.info") == 1, "each of them would have waited for a name"
    assert len(await harness.read_texts()) == 101
    outcomes = [result.outcome for result in harness.results]
    # the first message is in the history too
    assert outcomes.count("duplicate") <= 1, "something was not confirmed, and came again"


async def test_an_unconfirmed_event_is_redelivered_and_heard_once(tmp_path: Path) -> None:
    async with SlackServer(ack_seconds=0.05) as server:
        server.add_app(BOT_TOKEN, APP_TOKEN)
        harness = PlatformHarness(RemoteSlack(server), tmp_path, patience=PATIENCE)
        slow = harness._accept

        async def accept(incoming: IncomingMessage) -> AcceptResult:
            await asyncio.sleep(0.1)  # slower than Slack's time limit
            return await slow(incoming)

        listening = asyncio.create_task(harness.platform.listen(accept))
        await wait_until_caught_up(harness)
        await server.write_message("hello", channel="D1")

        async def came_again() -> bool:
            return len([it for it in harness.results if it.outcome == "duplicate"]) >= 1

        await harness.wait_until(came_again, what="its coming again")
        assert await harness.read_texts() == ["hello"]
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await harness.close()


async def test_connections_are_renewed_without_a_report(harness: PlatformHarness, server: SlackServer) -> None:
    harness.start()
    await server.write_message("before", channel="D1")
    await harness.wait_until_heard("before")
    await server.disconnect_sockets()
    await server.write_message("behind", channel="D1")
    await harness.wait_until_heard("behind")
    assert harness.troubles == []
    assert await harness.read_texts() == ["before", "behind"]


async def test_disabled_socket_mode_is_reported_to_the_operator(harness: PlatformHarness, server: SlackServer) -> None:
    listening = asyncio.create_task(harness.platform.listen(harness._accept))
    await server.write_message("hello", channel="D1")
    await harness.wait_until_heard("hello")
    await server.disconnect_sockets("link_disabled")
    with pytest.raises(Refused, match="switched off"):
        async with asyncio.timeout(harness.patience):
            await listening


# -- history -----------------------------------------------------------------------------------------------------------


async def test_events_that_slack_gave_up_are_read_from_the_history(tmp_path: Path) -> None:
    async with SlackServer(minute_seconds=0.01) as server:
        app = server.add_app(BOT_TOKEN, APP_TOKEN)
        server.invite_app(app, "C1")
        harness = PlatformHarness(RemoteSlack(server), tmp_path, patience=PATIENCE)
        old = await server.write_message("an old thread", channel="C1", ts="1600000000.000001")
        await many(harness, server.apps[0].forgotten, 1)
        harness.start()

        async def connected() -> bool:
            return harness.healthy_reports > 0

        await harness.wait_until(connected, what="connecting")
        await server.write_message("before", channel="C1")
        await server.write_message("in the thread", channel="C1", thread=old)
        await harness.wait_until_heard("before", "in the thread")
        await harness.stop()
        parent = await server.write_message("a new thread", channel="C1")
        await server.write_message("in the old one", channel="C1", thread=old)
        await server.write_message("in the new one", channel="C1", thread=parent)
        await server.write_message("in a chat nobody had opened", channel="D9", user="UEVE")
        for number in range(250):
            await server.write_message(f"much more {number}", channel="C1")
        await many(harness, server.apps[0].forgotten, 1 + 254)
        await harness.restart()
        await harness.wait_until_heard("much more 249", "in a chat nobody had opened")
        texts = await harness.read_texts()
        assert [it for it in texts if "nobody" not in it][-253:] == [
            "a new thread",
            "in the old one",
            "in the new one",
            *(f"much more {number}" for number in range(250)),
        ]
        assert "an old thread" not in texts, "messages from before the first start are not heard"
        before = len(texts)
        await harness.restart()
        await server.write_message("and on", channel="C1")
        await harness.wait_until_heard("and on")
        assert len(await harness.read_texts()) == before + 1
        await harness.close()


async def test_new_messages_do_not_move_the_offset_past_a_gap(harness: PlatformHarness, server: SlackServer) -> None:
    server.ack_seconds = harness.patience
    harness.start()
    first = await server.write_message("before", channel="D1")
    await harness.wait_until_heard("before")
    await harness.stop()
    server.hang_calls("conversations.history")
    server.messages["D1"]["1"] = {
        "type": "message",
        "user": "UADA",
        "text": "missed",
        "ts": f"{float(first) + 1e-5:.6f}",
    }
    server.held.clear()
    await harness.restart()
    async with asyncio.timeout(harness.patience):
        await server.held.wait()
    confirmed = len(server.apps[0].confirmed)
    await server.write_message("new", channel="D1")
    await server.send_event({"type": "hologram_shared"})  # without a conversation, so it does not wait
    await many(harness, server.apps[0].confirmed, confirmed + 1)
    assert await harness.read_texts() == ["before"]
    assert await harness.offset("history/D1") == first
    server.release_calls("conversations.history")
    await harness.wait_until_heard("new")
    assert await harness.read_texts() == ["before", "missed", "new"]


def test_timestamps_are_compared_to_their_last_digit() -> None:
    assert catch_up.is_later_ts("1700000000.000002", "1700000000.000001")
    assert not catch_up.is_later_ts("1700000000.000001", "1700000000.000001")
    assert catch_up.is_later_ts("1700000000.1", "1700000000.000001")
    assert not catch_up.is_later_ts("", "")


# -- receiving ---------------------------------------------------------------------------------------------------------


async def test_a_mention_that_comes_as_two_events_is_heard_once(harness: PlatformHarness, server: SlackServer) -> None:
    body = await heard(harness, server, f"hi <@{server.apps[0].user}>, what now?")
    assert (body.text, body.asks) == ("hi @everhold, what now?", True)
    await many(harness, server.apps[0].confirmed, 3)
    assert [result.outcome for result in harness.results].count("duplicate") >= 1
    assert "differs" not in [result.outcome for result in harness.results]
    assert len(await harness.read_texts()) == 2
    assert ":channel:C1" in body.stamp.address


async def test_a_thread_is_a_conversation_and_is_answered_there(harness: PlatformHarness, server: SlackServer) -> None:
    remote_id = await harness.platform.send(harness.make_outgoing("a thought", to=harness.make_location(chat="C1")))
    body = await heard(harness, server, "tell me more", thread=remote_id)
    assert body.asks, "it is in the thread of our message"
    assert (body.origin.chat, body.origin.thread) == ("C1", remote_id)
    assert body.stamp.address.endswith(f":thread:{remote_id}")
    await harness.platform.send(harness.make_outgoing("there is no more", to=body.origin, key="s:2:0"))
    assert server.list_shown_messages("C1")[-1]["thread_ts"] == remote_id
    assert (
        await harness.platform.probe(harness.make_outgoing("", to=body.origin, key="s:2:0"))
        == server.list_shown_messages("C1")[-1]["ts"]
    )


async def test_a_thread_without_the_agent_does_not_address_it(harness: PlatformHarness, server: SlackServer) -> None:
    parent = await server.write_message("we talk", channel="C1")
    harness.start()
    await server.write_message("indeed", channel="C1", thread=parent)
    await harness.wait_until_heard("indeed")
    assert not next(body for body in await harness.read_heard() if body.text == "indeed").asks


@pytest.mark.parametrize("text", ["<@UBOT1> /status", " <@UBOT1|everhold>  /status"])
async def test_a_command_after_a_mention_is_a_command(harness: PlatformHarness, server: SlackServer, text: str) -> None:
    body = await heard(harness, server, text)
    assert body.command is not None
    assert body.command.name == "status"


@pytest.mark.parametrize("command, text", [("/everhold", "title A better one"), ("/title", "A better one")])
async def test_a_slash_command_is_heard(harness: PlatformHarness, server: SlackServer, command: str, text: str) -> None:
    harness.start()
    await server.write_message("hello", channel="D1")
    await harness.wait_until_heard("hello")
    await server.use_command(command, text, channel="C1")

    async def met() -> bool:
        return len(await harness.read_heard()) == 2

    await harness.wait_until(met, what="hearing a command")
    body = (await harness.read_heard())[1]
    assert body.command is not None
    assert (body.command.name, body.command.argument) == ("title", "A better one")
    assert (body.origin.chat, body.stamp.person) == ("C1", "UADA")


async def test_malformed_events_are_stored_unparsed_if_their_sender_can_be_read(
    harness: PlatformHarness, server: SlackServer
) -> None:
    harness.start()
    await server.write_message("hello", channel="D1")
    await harness.wait_until_heard("hello")
    await server.send_event({"type": "message", "channel": {"id": 7}, "text": 5, "user": "UADA", "ts": None})
    await server.send_event(["no", "event"])

    await server.write_message("behind", channel="D1")
    await harness.wait_until_heard("behind")
    assert [body.asks for body in await harness.read_heard()] == [True, False, True]


async def test_previews_and_our_own_messages_are_not_heard(harness: PlatformHarness, server: SlackServer) -> None:
    harness.start()
    ts = await server.write_message("see https://example.org", channel="D1")
    before = dict(server.messages["D1"][ts])
    await server._send_message_change("D1", {**before, "attachments": [{"title": "Example"}]}, before)
    remote_id = await harness.platform.send(harness.make_outgoing("I th …"))
    await harness.platform.send(harness.make_outgoing("I think", edits=remote_id))
    await server.write_message("joined", channel="D1", subtype="channel_join")
    await server.write_message("the end", channel="D1")
    await harness.wait_until_heard("the end")
    assert await harness.read_texts() == ["see https://example.org", "the end"]


async def test_another_bot_is_recognised(harness: PlatformHarness, server: SlackServer) -> None:
    bot = {"bot_id": "B77", "user": None, "subtype": "bot_message", "bot_profile": {"name": "Jira"}}
    body = await heard(harness, server, "done", **bot)
    assert (body.bot, body.stamp.person, body.sender) == (True, "B77", "Jira")


async def test_a_sender_is_an_id_whatever_the_display_name(harness: PlatformHarness, server: SlackServer) -> None:
    body = await heard(harness, server, "hello", channel="D1", user="UEVE")
    assert (body.stamp.person, body.sender) == ("UEVE", "eve")


async def test_a_file_at_another_host_is_not_fetched_with_the_token(
    harness: PlatformHarness, server: SlackServer
) -> None:
    async with SlackServer() as elsewhere:
        file = {
            "id": "F9",
            "name": "plan.doc",
            "mimetype": "text/plain",
            "size": 3,
            "url_private": f"{elsewhere.url}/x",
        }
        harness.start()
        message = {"type": "message", "subtype": "file_share", "user": "UADA", "text": "look", "channel": "D1"}
        await server.send_event({**message, "ts": "1800000000.000001", "files": [file]})
        await server.send_event(
            {**message, "ts": "1800000000.000002", "text": "drive", "files": [{**file, "is_external": True}]}
        )

        async def met() -> bool:
            return len(await harness.read_heard()) == 2

        await harness.wait_until(met, what="hearing both")
        for body in await harness.read_heard():
            assert [(it.name, it.blob) for it in body.attachments] == [("plan.doc", "")]
        assert elsewhere.calls == []


# -- sending -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain", "plain"),
        ("a < b && c > d", "a &lt; b &amp;&amp; c &gt; d"),
        ("**bold** and *it* and 2 ** 3 ** 4", "*bold* and *it* and 2 ** 3 ** 4"),
        ("# Title\ntext", "*Title*\ntext"),
        ("## **Title** #", "*Title*"),
        ("[here](https://e.org/a_b?x=1&y=2)", "<https://e.org/a_b?x=1&amp;y=2|here>"),
        ("`**not** <b>` and ```\n# no\n```", "`**not** &lt;b&gt;` and ```\n# no\n```"),
        ("<!channel> <@U1> hello", "&lt;!channel&gt; &lt;@U1&gt; hello"),
        ("[x](javascript:alert)", "[x](javascript:alert)"),
        ("```\nunfinished **", "```\nunfinished **"),
    ],
)
def test_outgoing_text_is_converted_to_mrkdwn(text: str, shown: str) -> None:
    assert formatting.to_mrkdwn(text) == shown


@pytest.mark.parametrize(
    "text, read",
    [
        ("a &lt; b &amp;amp; c", "a < b &amp; c"),
        ("<@U1> <@U2> <@U3|cy>", "@me @U2 @cy"),
        ("<#C1|general> <#C2>", "#general #C2"),
        ("<!here> <!subteam^S1|@team>", "@here @team"),
        ("<https://e.org|here> <https://e.org>", "here (https://e.org) https://e.org"),
        ("<mailto:a@e.org|a@e.org>", "a@e.org"),
        ("&lt;@U1&gt;", "<@U1>"),
    ],
)
def test_incoming_mrkdwn_is_converted_to_text(text: str, read: str) -> None:
    assert formatting.from_mrkdwn(text, names={"U1": "me"}) == read


async def test_notices_are_marked_where_other_bots_can_read_them(harness: PlatformHarness, server: SlackServer) -> None:
    await harness.platform.send(harness.make_outgoing("halted", to=harness.make_location(chat="C1"), notice=True))
    await harness.platform.send(harness.make_outgoing("halted", notice=True, key="s:2:0"))
    assert [it["text"] for it in (*server.list_shown_messages("C1"), *server.list_shown_messages("D1"))] == [
        f"{NOTICE_PREFIX}halted",
        "halted",
    ]


async def test_a_text_too_long_for_an_edit_is_sent_as_a_new_message(
    harness: PlatformHarness, server: SlackServer
) -> None:
    assert isinstance(harness.platform, SlackPlatform)
    remote_id = await harness.platform.draft(harness.make_outgoing("if a <", key="s:1:draft"))
    text = "a < b; " * 550
    assert len(text) <= harness.platform.text_limit
    said = await harness.platform.send(harness.make_outgoing(text, edits=remote_id))
    (shown,) = server.list_shown_messages("D1")
    assert (shown["ts"], formatting.from_mrkdwn(shown["text"], names={})) == (said, text)
    server.plan_fault("chat.delete", "drop before")
    remote_id = await harness.platform.draft(harness.make_outgoing("if a <", key="s:3:draft"))
    await harness.platform.send(harness.make_outgoing(text, edits=remote_id, key="s:3:0"))
    assert len(server.list_shown_messages("D1")) == 3, "a draft that could not be deleted is left"
    with pytest.raises(TooLong):
        await harness.platform.send(harness.make_outgoing("<" * 11_000, key="s:2:0"))


async def test_a_draft_is_updated_within_slack_s_rate_limit(harness: PlatformHarness, server: SlackServer) -> None:
    assert isinstance(harness.platform, SlackPlatform)
    remote_id = await harness.platform.draft(harness.make_outgoing("I", key="s:1:draft"))
    for text in ("I th", "I think", "I think th"):
        await harness.platform.revise(remote_id, harness.make_outgoing(text, key="s:1:draft"))
    await harness.platform.send(harness.make_outgoing("I think that", edits=remote_id))
    assert [it["text"] for it in server.list_shown_messages("D1")] == ["I think that"]
    assert server.edits["D1", remote_id] == 2


async def test_a_reply_whose_draft_was_deleted_is_sent(harness: PlatformHarness, server: SlackServer) -> None:
    await harness.platform.send(harness.make_outgoing("the whole text", edits="1.000001"))
    assert [it["text"] for it in server.list_shown_messages("D1")] == ["the whole text"]


@pytest.mark.parametrize("lost", ["files.getUploadURLExternal", "upload", "files.completeUploadExternal"])
@pytest.mark.parametrize("how", ["drop before", "drop after"])
async def test_a_file_arrives_once_whichever_answer_was_lost(
    harness: PlatformHarness, server: SlackServer, lost: str, how: Any
) -> None:
    await harness.store_blob(b"one")
    out = harness.make_outgoing("", file=build_attachment(b"one", name="a.txt"))
    server.plan_fault(lost, how)
    with pytest.raises((Transient, InDoubt)):
        await harness.platform.send(out)
    if await harness.platform.probe(out) is None:
        await harness.platform.send(out)
    assert await harness.platform.probe(out) is not None
    assert [file["name"] for it in server.list_shown_messages("D1") for file in it.get("files", ())] == ["a.txt"]


async def test_a_probe_reads_back_to_the_replied_to_message(harness: PlatformHarness, server: SlackServer) -> None:
    question = await server.write_message("well?", channel="C1")
    out = harness.make_outgoing("yes", to=harness.make_location(chat="C1", message=question))
    remote_id = await harness.platform.send(out)
    for number in range(450):
        server._add_message("C1", {"type": "message", "user": "UADA", "text": str(number), "ts": server._next_ts()})
    assert await harness.platform.probe(out) == remote_id
    assert await harness.platform.probe(harness.make_outgoing("yes", to=out.to, key="s:3:0")) is None


async def test_another_app_cannot_forge_our_reply(harness: PlatformHarness, server: SlackServer) -> None:
    """Other apps can read the key of a sent message. If they repeat it, our reply must still be sent."""
    out = harness.make_outgoing("yes", to=harness.make_location(chat="C1"))
    payload = {"event_type": "everhold_message", "event_payload": {"key": out.key, "hops": 0}}
    await server.write_message("no", channel="C1", user="UEVE", bot_id="BEVE", metadata=payload)
    assert await harness.platform.probe(out) is None
    remote_id = await harness.platform.send(out)
    assert await harness.platform.probe(out) == remote_id


async def test_a_rate_limit_is_respected_without_another_call(harness: PlatformHarness, server: SlackServer) -> None:
    server.retry_after_seconds["D1"] = 7
    for _ in range(3):
        with pytest.raises(Transient):
            await harness.platform.send(harness.make_outgoing("hello"))
    assert [name for name, _ in server.calls].count("chat.postMessage") == 1
    await harness.platform.send(harness.make_outgoing("elsewhere", to=harness.make_location(chat="C1")))


# -- tokens ------------------------------------------------------------------------------------------------------------


async def test_no_token_gets_into_a_log(
    harness: PlatformHarness, remote: RemoteSlack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    harness.start()
    await remote.server.write_message("look", channel="D1", files=[("a.txt", b"some bytes")])
    await harness.wait_until_heard("look")
    remote.fail_next_send("broken")
    with pytest.raises(InDoubt):
        await harness.platform.send(harness.make_outgoing("hello"))
    assert caplog.text
    for token in (BOT_TOKEN, APP_TOKEN):
        assert token not in caplog.text


@pytest.mark.parametrize("wrong", ["bot_token", "app_token"])
async def test_a_wrong_token_is_reported_to_the_operator(
    harness: PlatformHarness, remote: RemoteSlack, wrong: str
) -> None:
    settings = remote.settings().model_copy(update={wrong: SecretString("xox-wrong")})
    slack = SlackPlatform(settings, harness.make_context())
    with pytest.raises(Refused, match="does not accept this token") as caught:
        await slack.listen(harness._accept)
    assert "xox-wrong" not in str(caught.value)
    assert caught.value.remedy
    if wrong == "bot_token":
        with pytest.raises(Transient):  # the message is valid, and waits
            await slack.send(harness.make_outgoing("hello"))
    await slack.aclose()


async def test_the_introduction_works_with_all_scopes(harness: PlatformHarness, remote: RemoteSlack) -> None:
    assert isinstance(harness.platform, SlackPlatform)
    assert (await harness.platform.introduce()).name == "@everhold"
    for wrong in ("bot_token", "app_token"):
        slack = SlackPlatform(
            remote.settings().model_copy(update={wrong: SecretString("xox-wrong")}), harness.make_context()
        )
        with pytest.raises(Refused, match="does not accept this token"):
            await slack.introduce()
        await slack.aclose()
    remote.server.apps[0].scopes = "chat:write,im:read"
    slack = SlackPlatform(remote.settings(), harness.make_context())
    with pytest.raises(Refused, match="im:history"):
        await slack.introduce()
    await slack.aclose()


async def test_a_missing_scope_is_named(harness: PlatformHarness, server: SlackServer) -> None:
    told = {"ok": False, "error": "missing_scope", "needed": "chat:write", "provided": "files:read"}
    server.plan_fault("chat.postMessage", "answer", answer=LoopbackResponse.json(told))
    with pytest.raises(Refused, match="chat:write"):
        await harness.platform.send(harness.make_outgoing("hello"))


def test_the_factory_brings_the_settings_and_the_adapter(harness: PlatformHarness, remote: RemoteSlack) -> None:
    assert factory.Settings is SlackSettings
    assert isinstance(factory(remote.settings(), harness.make_context()), SlackPlatform)


def test_a_command_in_another_direct_chat_belongs_to_its_sender() -> None:
    """Slack lets people use a command in their direct chats with each other, and reports those like ours."""
    payload = {"channel_id": "D9", "command": "/status", "trigger_id": "t1", "user_id": "UADA"}
    assert parsing.parse_command(payload, account="main").can_change_owner


# -- strangers and other workspaces ------------------------------------------------------------------------------------


async def test_a_stranger_s_thread_is_not_stored(harness: PlatformHarness, server: SlackServer) -> None:
    harness.denied.add("UEVE")
    harness.start()
    first = await server.write_message("a question", channel="C1")
    await harness.wait_until_heard("a question")
    await server.write_message("mine, too", channel="C1", user="UEVE", thread=first)

    async def met() -> bool:
        return [it.outcome for it in harness.results].count("denied") == 1

    await harness.wait_until(met, what="the stranger")
    assert await harness.offset("threads/C1") is None
    await server.write_message("an answer", channel="C1", thread=first)
    await harness.wait_until_heard("an answer")
    assert await harness.offset("threads/C1") == f'["{first}"]'


async def test_what_other_installations_of_the_app_receive_is_not_heard(
    harness: PlatformHarness, server: SlackServer
) -> None:
    """Slack signs the events of every workspace with the same secret, and Ada's id may be somebody else's there."""
    harness.start()
    app = server.apps[0]
    message = {"type": "message", "channel": "D1", "user": "UADA", "text": "it is me", "ts": "1700000000.000100"}
    payload = {"type": "event_callback", "event": message, "event_id": "Ev1", "team_id": "T666"}
    elsewhere = {"authorizations": [{"team_id": "T666", "user_id": "UOTHERBOT", "is_bot": True}]}
    await server.write_message("before", channel="D1")
    await harness.wait_until_heard("before")
    assert await server._send_envelope(app, "events_api", {**payload, **elsewhere}, attempt=0)
    command = {"command": "/everhold", "text": "status", "channel_id": "D1", "user_id": "UADA", "trigger_id": "1.2"}
    assert await server._send_envelope(
        app, "slash_commands", {**command, "team_id": "T666", "trigger_id": "6.6"}, attempt=0
    )
    assert await server._send_envelope(app, "slash_commands", {**command, "team_id": "T1"}, attempt=0)
    await server.write_message("behind", channel="D1")
    await harness.wait_until_heard("behind")
    assert await harness.read_texts() == ["before", "/status", "behind"]


@pytest.mark.parametrize(
    "frame", ["", "x", "5", "null", "[]", '"x"', "{}", '{"type": []}', '{"envelope_id": {}}', "[" * 100_000]
)
async def test_a_malformed_frame_does_not_end_the_connection(
    harness: PlatformHarness, server: SlackServer, frame: str
) -> None:
    harness.start()
    await server.write_message("before", channel="D1")
    await harness.wait_until_heard("before")
    opened = [name for name, _ in server.calls].count("apps.connections.open")
    await server.broadcast_raw_text(frame.encode())
    await server.write_message("behind", channel="D1")
    await harness.wait_until_heard("behind")
    assert [name for name, _ in server.calls].count("apps.connections.open") == opened


async def test_a_deep_event_is_stored_and_confirmed(harness: PlatformHarness, server: SlackServer) -> None:
    """Another app of the workspace can put anything into the metadata of its message."""
    harness.start()
    await server.write_message("before", channel="D1")
    await harness.wait_until_heard("before")
    event = {"type": "message", "channel": "C1", "user": "UADA", "text": "deep", "ts": "1700000000.000100"}
    envelope = {"envelope_id": "deep-1", "type": "events_api", "payload": {"event": event, "event_id": "Ev9"}}
    deep = json.dumps(envelope).replace('"deep"', '"deep", "metadata": ' + '{"a":' * 50_000 + "1" + "}" * 50_000)
    server.apps[0].pending_acks["deep-1"] = confirmed = asyncio.Event()
    await server.broadcast_raw_text(deep.encode())
    await harness.wait_until_heard("deep")
    async with asyncio.timeout(PATIENCE):
        await confirmed.wait()
