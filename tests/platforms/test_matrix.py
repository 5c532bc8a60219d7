"""What is Matrix's own: gaps, invitations, threads, mentions, other agents' drafts, and a token nobody gets to see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from everhold.core.address import parse_address
from everhold.core.entries import ChatLocation, Heard
from everhold.errors import Transient
from everhold.infra.secret import SecretString
from everhold.platforms.matrix.parsing import EVERHOLD_CONTENT_KEY
from everhold.platforms.matrix.settings import MatrixSettings
from everhold.ports.platform import AcceptResult, IncomingMessage, SupportsDrafts, SupportsPresence
from everhold.testing.contracts.platform import PlatformHarness
from everhold.testing.platforms.loopback import LoopbackResponse
from everhold.testing.platforms.synapse import CLIENT_API_PATH, MatrixTestMember, SynapseServer
from tests.platforms.remote_matrix import RemoteMatrix, open_remote_matrix


@pytest.fixture
async def stage(synapse: SynapseServer) -> AsyncIterator[RemoteMatrix]:
    async with open_remote_matrix(synapse) as stage:
        yield stage


@pytest.fixture
async def desk(stage: RemoteMatrix, tmp_path: Path) -> AsyncIterator[PlatformHarness]:
    desk = PlatformHarness(stage, tmp_path)
    yield desk
    await desk.close()


async def heard(desk: PlatformHarness, stage: RemoteMatrix, content: dict[str, Any], *, to: str = "") -> Heard:
    """Put something into a room and see what became of it."""
    desk.start()
    await stage.ada.send_event(to or stage.group, content)
    await stage.write("that was it", to=to or stage.group)
    await desk.wait_until_heard("that was it")
    return (await desk.read_heard())[0]


def text(body: str, **more: Any) -> dict[str, Any]:
    return {"msgtype": "m.text", "body": body, **more}


async def members(who: MatrixTestMember, room: str) -> list[str]:
    return list((await who.call("GET", f"{CLIENT_API_PATH}/rooms/{room}/joined_members"))["joined"])


# -- hearing


async def test_a_gap_that_the_homeserver_leaves_is_filled(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    """A look brings only so much; what stands between it and our position is fetched from before, page by page."""
    stage.proxy.cap = 10
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.wait_until_heard("before")
    await desk.stop()
    await asyncio.gather(*(stage.write(f"meanwhile {number}", to=stage.chat) for number in range(45)))
    await desk.restart()
    await stage.write("the end", to=stage.chat)
    await desk.wait_until_heard("the end")
    there = [seen.text for seen in await stage.ada.read_timeline(stage.chat)]
    assert await desk.read_texts() == there
    assert len(there) == 47
    pages = [name for name, _ in stage.proxy.calls if name.endswith("/messages")]
    assert len(pages) >= 4


async def test_a_gap_that_is_cut_off_is_begun_anew(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    stage.proxy.cap = 3
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.wait_until_heard("before")
    await desk.stop()
    for number in range(12):
        await stage.write(f"meanwhile {number}", to=stage.chat)
    stage.proxy.plan_fault(
        f"{CLIENT_API_PATH}/rooms/{stage.chat}/messages",
        "answer",
        answer=LoopbackResponse(502, b"", "text/html"),
        times=2,
    )
    await desk.restart()
    await desk.wait_until_heard("meanwhile 11")
    assert await desk.read_texts() == ["before", *(f"meanwhile {number}" for number in range(12))]


async def test_somebody_who_came_in_a_gap_that_cannot_be_had_is_company(
    desk: PlatformHarness, stage: RemoteMatrix
) -> None:
    stage.proxy.cap = 2
    desk.start()
    await stage.write("alone", to=stage.chat)
    await desk.wait_until_heard("alone")
    refused = LoopbackResponse.json({"errcode": "M_FORBIDDEN", "error": "no"}, status=403)
    stage.proxy.plan_fault(f"{CLIENT_API_PATH}/rooms/{stage.chat}/messages", "answer", answer=refused)
    stage.proxy.plan_fault("sync", "hang")
    async with asyncio.timeout(desk.patience):
        await stage.proxy.held.wait()  # the look before it is over, too
    await stage.ada.call("POST", f"{CLIENT_API_PATH}/rooms/{stage.chat}/invite", {"user_id": stage.eve.id})
    for number in range(4):
        await stage.write(f"meanwhile {number}", to=stage.chat)
    stage.proxy.disconnect()
    stage.proxy.reconnect()
    await desk.wait_until_heard("meanwhile 3")
    await stage.proxy.wait_for_faults(f"{CLIENT_API_PATH}/rooms/{stage.chat}/messages")
    kinds = {body.text: parse_address(body.stamp.address).kind for body in await desk.read_heard()}
    assert (kinds["alone"], kinds["meanwhile 3"]) == ("dm", "group")


async def test_what_stood_there_before_we_came_was_not_said_to_us(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    room = await stage.ada.create_room(name="old")
    await stage.ada.send_text(room, f"hello {stage.bot.id}")
    desk.start()
    await stage.write("connected", to=stage.chat)
    await desk.wait_until_heard("connected")
    await stage.ada.call("POST", f"{CLIENT_API_PATH}/rooms/{room}/invite", {"user_id": stage.bot.id})
    await stage.ada.send_text(room, "said after inviting")
    await desk.wait_until_heard("said after inviting")
    assert await desk.read_texts() == ["connected", f"[{stage.ada.id} invited you here]", "said after inviting"]


async def test_a_first_look_answers_nothing_that_was_answered(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    await stage.write("a question", to=stage.chat)
    await stage.bot.send_text(stage.chat, "an answer, from another home")
    await stage.write("another question", to=stage.chat)
    desk.start()
    await desk.wait_until_heard("another question")
    assert await desk.read_texts() == ["another question"]


async def test_a_homeserver_that_was_set_back_is_looked_at_anew(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    await desk.make_context().account_context.offsets.advance("since", "s9999999_nonsense")  # type: ignore[union-attr]
    stage.proxy.cap = 3
    for number in range(8):
        await stage.write(f"meanwhile {number}", to=stage.chat)
    desk.start()
    await stage.write("hello", to=stage.chat)
    await desk.wait_until_heard("hello")
    assert await desk.read_texts() == [*(f"meanwhile {number}" for number in range(8)), "hello"], "by pages, too"
    assert any("does not know the position" in trouble for trouble in desk.troubles)


@pytest.mark.parametrize(
    "refused",
    [
        LoopbackResponse(403, b"<html>blocked</html>", "text/html"),
        LoopbackResponse(404, b"<html>nginx</html>", "text/html"),
        LoopbackResponse(400, b"{}", "application/json"),
        LoopbackResponse.json({"errcode": "M_FORBIDDEN", "error": "not now"}, status=403),
    ],
)
async def test_a_look_that_is_turned_away_leaves_the_position_where_it_is(
    desk: PlatformHarness, stage: RemoteMatrix, refused: LoopbackResponse
) -> None:
    """A proxy in between, or a homeserver that has something else against it, says nothing about our position."""
    stage.proxy.cap = 3
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.wait_until_heard("before")
    stage.proxy.plan_fault("sync", "hang")
    async with asyncio.timeout(desk.patience):
        await stage.proxy.held.wait()
    for number in range(8):
        await stage.write(f"meanwhile {number}", to=stage.chat)
    stage.proxy.plan_fault("sync", "answer", answer=refused)
    calls = len(stage.proxy.calls)
    stage.proxy.disconnect()
    stage.proxy.reconnect()
    await desk.wait_until_heard("meanwhile 7")
    assert await desk.read_texts() == ["before", *(f"meanwhile {number}" for number in range(8))]
    looks = [call for name, call in stage.proxy.calls[calls:] if name == "sync"]
    assert all("since" in look for look in looks), "nothing is looked at anew"
    assert len({look["since"] for look in looks[:2]}) == 1


async def test_our_own_words_are_not_heard(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    desk.start()
    await desk.platform.send(desk.make_outgoing("from here"))
    await stage.bot.send_text(stage.chat, "from another device")
    await stage.write("hello", to=stage.chat)
    await desk.wait_until_heard("hello")
    assert await desk.read_texts() == ["hello"]


async def test_a_reply_to_our_words_is_meant_for_us(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    ours = await desk.platform.send(desk.make_outgoing("a proposal", to=desk.make_location(stage.group)))
    quoted = f"> <{stage.bot.id}> a proposal\n\nfine with me"
    body = await heard(desk, stage, text(quoted, **{"m.relates_to": {"m.in_reply_to": {"event_id": ours}}}))
    assert (body.text, body.asks) == ("fine with me", True)


async def test_a_thread_is_a_thread_and_answered_there(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    root = await stage.write("a topic", to=stage.group)
    relation = {"rel_type": "m.thread", "event_id": root, "is_falling_back": True, "m.in_reply_to": {"event_id": root}}
    mentioned = {"m.mentions": {"user_ids": [stage.bot.id]}}
    desk.start()
    await stage.ada.send_event(stage.group, text("inside", **mentioned, **{"m.relates_to": relation}))
    await desk.wait_until_heard("inside")
    body = next(body for body in await desk.read_heard() if body.text == "inside")
    assert body.origin.thread == root
    assert body.asks
    await desk.platform.send(desk.make_outgoing("fine", to=body.origin))
    (answer,) = [seen for seen in await stage.ada.read_timeline(stage.group) if seen.sender == stage.bot.id]
    assert answer.content["m.relates_to"]["rel_type"] == "m.thread"
    assert answer.content["m.relates_to"]["event_id"] == root
    assert answer.content["m.mentions"]["user_ids"] == [stage.ada.id]


# -- other everholds


async def test_another_agent_s_draft_is_heard_when_it_is_done(
    desk: PlatformHarness, stage: RemoteMatrix, tmp_path: Path
) -> None:
    """Eve's agent streams its reply: what it says is heard once, at the end, with its count of hops."""
    (tmp_path / "eve").mkdir()
    eve = PlatformHarness(stage, tmp_path / "eve")
    settings = MatrixSettings(homeserver=stage.proxy.url, token=SecretString(stage.eve.token))
    other = stage.adapter(settings, eve.make_context())
    assert isinstance(other, SupportsDrafts)
    await stage.eve.join_room(stage.group)
    desk.start()
    to = desk.make_location(stage.group)
    remote = await other.draft(desk.make_outgoing("I think …", key="e:1:draft", to=to))
    await other.revise(remote, desk.make_outgoing("I think that …", key="e:1:draft", to=to))
    final = f"I think that you are right, {stage.bot.id}"
    await other.send(desk.make_outgoing(final, key="e:2:0", to=to, edits=remote, hops=3))
    await other.aclose()
    await eve.close()
    await stage.write("that was it", to=stage.group)
    await desk.wait_until_heard("that was it")
    said = (await desk.read_heard())[0]
    assert (said.text, said.bot, said.hops, said.asks, said.revision) == (final, True, 3, True, stage.eve.id)
    assert said.origin.message == remote
    assert len(await desk.read_heard()) == 2


async def test_a_draft_that_another_finishes_first_is_heard_of_its_author_too(
    desk: PlatformHarness, stage: RemoteMatrix
) -> None:
    desk.start()
    await stage.eve.join_room(stage.group)
    draft = await stage.eve.send_event(stage.group, text("I think …", **{EVERHOLD_CONTENT_KEY: {"draft": True}}))

    def finished(body: str) -> dict[str, Any]:
        relation = {"rel_type": "m.replace", "event_id": draft}
        return text(
            f"* {body}", **{"m.new_content": text(body), "m.relates_to": relation, EVERHOLD_CONTENT_KEY: {"hops": 1}}
        )

    await stage.ada.send_event(stage.group, finished("nothing at all"))
    await stage.eve.send_event(stage.group, finished("I think that you are right"))
    await desk.wait_until_heard("I think that you are right")
    assert [(body.text, body.stamp.person) for body in await desk.read_heard()] == [
        ("nothing at all", stage.ada.id),
        ("I think that you are right", stage.eve.id),
    ]


# -- invitations


async def test_an_invitation_of_somebody_who_may_speak_is_followed(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    desk.start()
    room = await stage.ada.create_room(stage.bot.id, name="another")
    await stage.ada.send_text(room, "welcome")
    await desk.wait_until_heard("welcome")
    assert stage.bot.id in await members(stage.ada, room)
    assert not (await desk.read_heard())[0].asks


async def test_a_stranger_s_invitation_is_left_until_it_is_answered(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    """Nobody enters a stranger's room, except to say how to be let in."""
    asked: list[IncomingMessage] = []
    done = asyncio.Event()

    async def refuse(incoming: IncomingMessage) -> AcceptResult:
        asked.append(incoming)
        done.set()
        return AcceptResult(outcome="denied")

    room = await stage.ada.create_room(stage.bot.id, direct=True)
    listening = asyncio.get_running_loop().create_task(desk.platform.listen(refuse))
    async with asyncio.timeout(desk.patience):
        await done.wait()
    assert [(it.kind, it.sender, it.event) for it in asked] == [("dm", stage.ada.id, "invite")]
    assert stage.bot.id not in await members(stage.ada, room)
    await desk.platform.send(
        desk.make_outgoing("give them this code", to=ChatLocation("matrix", "main", room), notice=True)
    )
    (seen,) = await stage.ada.read_timeline(room)
    assert (seen.text, seen.content["msgtype"]) == ("give them this code", "m.notice")
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_an_invitation_from_while_we_were_away_is_found(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.wait_until_heard("before")
    await desk.stop()
    room = await stage.ada.create_room(stage.bot.id, name="meanwhile")
    await stage.ada.send_text(room, "are you there?")
    await desk.restart()
    await desk.wait_until_heard("are you there?")


@pytest.mark.prove
async def test_the_last_words_before_we_are_thrown_out_are_heard_as_they_were_said(
    desk: PlatformHarness, stage: RemoteMatrix
) -> None:
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.wait_until_heard("before")
    await desk.stop()
    await stage.write("the last words", to=stage.chat)
    await stage.ada.call("POST", f"{CLIENT_API_PATH}/rooms/{stage.chat}/kick", {"user_id": stage.bot.id})
    await desk.restart()
    await desk.wait_until_heard("the last words")
    assert {parse_address(body.stamp.address).kind for body in await desk.read_heard()} == {"dm"}


async def alone(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    """It is known who would read what is said."""
    adapter = desk.platform
    assert isinstance(adapter, SupportsPresence)
    assert await adapter.is_alone_with(desk.make_location(), stage.ada.id)
    assert not await adapter.is_alone_with(desk.make_location(), stage.eve.id)
    assert not await adapter.is_alone_with(desk.make_location(stage.group), stage.ada.id), (
        "an invited Eve is company enough"
    )


@pytest.mark.prove
async def test_a_room_that_was_upgraded_is_the_conversation_it_was(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.wait_until_heard("before")
    await alone(desk, stage)
    upgraded = await stage.ada.call("POST", f"{CLIENT_API_PATH}/rooms/{stage.chat}/upgrade", {"new_version": "11"})
    new: str = upgraded["replacement_room"]
    await stage.ada.call("POST", f"{CLIENT_API_PATH}/rooms/{new}/invite", {"user_id": stage.bot.id})
    await stage.ada.send_text(new, "after")
    await desk.wait_until_heard("after")
    assert desk.chat_moves == [(stage.chat, new)]
    await desk.restart()
    await alone(desk, stage)
    remote = await desk.platform.send(desk.make_outgoing("what was promised in the old one"))
    assert [seen.id for seen in stage.list_shown(new)] == [remote]


@pytest.mark.prove
async def test_a_room_that_only_claims_to_replace_another_does_not(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    desk.start()
    claim = {"predecessor": {"room_id": stage.chat, "event_id": "$x"}}
    given = {"preset": "private_chat", "invite": [stage.bot.id], "is_direct": True, "creation_content": claim}
    end = {"body": "moved", "replacement_room": "!elsewhere:localhost"}
    for text in ("it is me, Ada", "it is really me"):
        room: str = (await stage.eve.call("POST", f"{CLIENT_API_PATH}/createRoom", given))["room_id"]
        await stage.eve.send_text(room, text)
        await desk.wait_until_heard(text)
        # the first time the old room says nothing of an heir, the second time it names another
        await stage.ada.call("PUT", f"{CLIENT_API_PATH}/rooms/{stage.chat}/state/m.room.tombstone/", end)
    assert desk.chat_moves == []


# -- saying


async def test_an_answer_in_a_room_hangs_on_what_it_answers(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    body = await heard(desk, stage, text(f"{stage.bot.id}, how are you?"))
    await desk.platform.send(desk.make_outgoing("fine", to=body.origin))
    (answer,) = [seen for seen in await stage.ada.read_timeline(stage.group) if seen.sender == stage.bot.id]
    assert answer.content["m.relates_to"] == {"m.in_reply_to": {"event_id": body.origin.message}}
    assert answer.content["m.mentions"] == {"user_ids": [stage.ada.id]}


async def test_alone_with_somebody_it_is_just_said(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    body = await heard(desk, stage, text("how are you?"), to=stage.chat)
    await alone(desk, stage)
    await desk.platform.send(desk.make_outgoing("fine", to=body.origin))
    (answer,) = [seen for seen in await stage.ada.read_timeline(stage.chat) if seen.sender == stage.bot.id]
    assert "m.relates_to" not in answer.content


async def test_the_same_words_for_two_messages_are_said_twice(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    for key in ("s:1:0", "s:2:0"):
        await desk.platform.send(desk.make_outgoing("yes", key=key))
    assert [seen.text for seen in stage.list_shown(stage.chat)] == ["yes", "yes"]


async def test_a_room_that_must_wait_is_left_alone_and_others_are_not(
    desk: PlatformHarness, stage: RemoteMatrix
) -> None:
    stage.fail_next_send("limit")
    with pytest.raises(Transient):
        await desk.platform.send(desk.make_outgoing("hello"))
    calls = len(stage.proxy.calls)
    with pytest.raises(Transient) as waits:
        await desk.platform.send(desk.make_outgoing("hello"))
    assert (waits.value.retry_after or 0) > 5
    assert len(stage.proxy.calls) == calls, "it asked again all the same"
    await desk.platform.send(desk.make_outgoing("hello", key="s:2:0", to=desk.make_location(stage.group)))


# -- the account


async def test_a_token_that_is_not_known_is_told_and_replies_wait(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    told = {"errcode": "M_UNKNOWN_TOKEN", "error": f"no such token: {stage.bot.token}"}
    stage.proxy.plan_fault("send", "answer", answer=LoopbackResponse.json(told, status=401))
    with pytest.raises(Transient) as gone:
        await desk.platform.send(desk.make_outgoing("hello"))
    assert stage.bot.token not in str(gone.value)
    assert ".env" in gone.value.remedy


async def test_the_token_is_in_no_address(desk: PlatformHarness, stage: RemoteMatrix) -> None:
    desk.start()
    await stage.attach("look", "a.txt", b"some bytes", to=stage.chat)
    await desk.wait_until_heard("look")
    await desk.platform.send(desk.make_outgoing("hello"))
    assert len(stage.proxy.calls) >= 4
    assert stage.bot.token not in str(stage.proxy.calls)


async def test_another_user_s_token_is_refused(stage: RemoteMatrix, tmp_path: Path) -> None:
    desk = PlatformHarness(stage, tmp_path)
    settings = MatrixSettings(homeserver=stage.proxy.url, token=SecretString(stage.bot.token), user="@else:localhost")
    desk.platform = stage.adapter(settings, desk.make_context())
    desk.start()

    async def told() -> bool:
        return any("@else:localhost" in trouble for trouble in desk.troubles)

    await desk.wait_until(told, what="the mistake being told")
    assert not desk.healthy_reports
    await desk.close()


@pytest.mark.parametrize("wrong", [{"homeserver": "matrix.org"}, {"user": "agent"}, {"bots": ["eve"]}, {"tokn": "x"}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MatrixSettings.model_validate({"homeserver": "https://example.org", "token": "x", **wrong})
