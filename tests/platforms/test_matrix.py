"""What is Matrix's own: gaps, invitations, threads, mentions, other agents' drafts, and a token nobody gets to see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from everhold.core.address import parse
from everhold.core.entries import Heard, Place
from everhold.errors import Transient
from everhold.platforms.matrix.reading import OURS
from everhold.platforms.matrix.settings import MatrixSettings
from everhold.ports.platform import Attended, Drafting, Incoming, Verdict
from everhold.secret import Secret
from everhold.testing.contracts.platform import Desk
from everhold.testing.platforms.loopback import Answer
from everhold.testing.platforms.synapse import V3, Member, Synapse
from tests.platforms.matrix_stage import MatrixStage, matrix_stage


@pytest.fixture
async def stage(synapse: Synapse) -> AsyncIterator[MatrixStage]:
    async with matrix_stage(synapse) as stage:
        yield stage


@pytest.fixture
async def desk(stage: MatrixStage, tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(stage, tmp_path)
    yield desk
    await desk.close()


async def heard(desk: Desk, stage: MatrixStage, content: dict[str, Any], *, to: str = "") -> Heard:
    """Put something into a room and see what became of it."""
    desk.start()
    await stage.ada.put(to or stage.group, content)
    await stage.write("that was it", to=to or stage.group)
    await desk.until_heard("that was it")
    return (await desk.heard())[0]


def text(body: str, **more: Any) -> dict[str, Any]:
    return {"msgtype": "m.text", "body": body, **more}


async def members(who: Member, room: str) -> list[str]:
    return list((await who.call("GET", f"{V3}/rooms/{room}/joined_members"))["joined"])


# -- hearing


async def test_a_gap_that_the_homeserver_leaves_is_filled(desk: Desk, stage: MatrixStage) -> None:
    """A look brings only so much; what stands between it and our position is fetched from before, page by page."""
    stage.door.cap = 10
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.until_heard("before")
    await desk.stop()
    await asyncio.gather(*(stage.write(f"meanwhile {number}", to=stage.chat) for number in range(45)))
    await desk.restart()
    await stage.write("the end", to=stage.chat)
    await desk.until_heard("the end")
    there = [seen.text for seen in await stage.ada.timeline(stage.chat)]
    assert await desk.texts() == there
    assert len(there) == 47
    pages = [name for name, _ in stage.door.calls if name.endswith("/messages")]
    assert len(pages) >= 4


async def test_a_gap_that_is_cut_off_is_begun_anew(desk: Desk, stage: MatrixStage) -> None:
    stage.door.cap = 3
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.until_heard("before")
    await desk.stop()
    for number in range(12):
        await stage.write(f"meanwhile {number}", to=stage.chat)
    stage.door.fault(f"{V3}/rooms/{stage.chat}/messages", "answer", answer=Answer(502, b"", "text/html"), times=2)
    await desk.restart()
    await desk.until_heard("meanwhile 11")
    assert await desk.texts() == ["before", *(f"meanwhile {number}" for number in range(12))]


async def test_somebody_who_came_in_a_gap_that_cannot_be_had_is_company(desk: Desk, stage: MatrixStage) -> None:
    stage.door.cap = 2
    desk.start()
    await stage.write("alone", to=stage.chat)
    await desk.until_heard("alone")
    refused = Answer.json({"errcode": "M_FORBIDDEN", "error": "no"}, status=403)
    stage.door.fault(f"{V3}/rooms/{stage.chat}/messages", "answer", answer=refused)
    stage.door.fault("sync", "hang")
    async with asyncio.timeout(desk.patience):
        await stage.door.held.wait()  # the look before it is over, too
    await stage.ada.call("POST", f"{V3}/rooms/{stage.chat}/invite", {"user_id": stage.eve.id})
    for number in range(4):
        await stage.write(f"meanwhile {number}", to=stage.chat)
    stage.door.disconnect()
    stage.door.reconnect()
    await desk.until_heard("meanwhile 3")
    await stage.door.struck(f"{V3}/rooms/{stage.chat}/messages")
    kinds = {body.text: parse(body.stamp.address).kind for body in await desk.heard()}
    assert (kinds["alone"], kinds["meanwhile 3"]) == ("dm", "group")


async def test_what_stood_there_before_we_came_was_not_said_to_us(desk: Desk, stage: MatrixStage) -> None:
    room = await stage.ada.create(name="old")
    await stage.ada.say(room, f"hello {stage.bot.id}")
    desk.start()
    await stage.write("connected", to=stage.chat)
    await desk.until_heard("connected")
    await stage.ada.call("POST", f"{V3}/rooms/{room}/invite", {"user_id": stage.bot.id})
    await stage.ada.say(room, "said after inviting")
    await desk.until_heard("said after inviting")
    assert await desk.texts() == ["connected", f"[{stage.ada.id} invited you here]", "said after inviting"]


async def test_a_first_look_answers_nothing_that_was_answered(desk: Desk, stage: MatrixStage) -> None:
    await stage.write("a question", to=stage.chat)
    await stage.bot.say(stage.chat, "an answer, from another home")
    await stage.write("another question", to=stage.chat)
    desk.start()
    await desk.until_heard("another question")
    assert await desk.texts() == ["another question"]


async def test_a_homeserver_that_was_set_back_is_looked_at_anew(desk: Desk, stage: MatrixStage) -> None:
    await desk.context().station.positions.move("since", "s9999999_nonsense")  # type: ignore[union-attr]
    stage.door.cap = 3
    for number in range(8):
        await stage.write(f"meanwhile {number}", to=stage.chat)
    desk.start()
    await stage.write("hello", to=stage.chat)
    await desk.until_heard("hello")
    assert await desk.texts() == [*(f"meanwhile {number}" for number in range(8)), "hello"], "by pages, too"
    assert any("does not know the position" in trouble for trouble in desk.troubles)


@pytest.mark.parametrize(
    "refused",
    [
        Answer(403, b"<html>blocked</html>", "text/html"),
        Answer(404, b"<html>nginx</html>", "text/html"),
        Answer(400, b"{}", "application/json"),
        Answer.json({"errcode": "M_FORBIDDEN", "error": "not now"}, status=403),
    ],
)
async def test_a_look_that_is_turned_away_leaves_the_position_where_it_is(
    desk: Desk, stage: MatrixStage, refused: Answer
) -> None:
    """A proxy in between, or a homeserver that has something else against it, says nothing about our position."""
    stage.door.cap = 3
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.until_heard("before")
    stage.door.fault("sync", "hang")
    async with asyncio.timeout(desk.patience):
        await stage.door.held.wait()
    for number in range(8):
        await stage.write(f"meanwhile {number}", to=stage.chat)
    stage.door.fault("sync", "answer", answer=refused)
    calls = len(stage.door.calls)
    stage.door.disconnect()
    stage.door.reconnect()
    await desk.until_heard("meanwhile 7")
    assert await desk.texts() == ["before", *(f"meanwhile {number}" for number in range(8))]
    looks = [call for name, call in stage.door.calls[calls:] if name == "sync"]
    assert all("since" in look for look in looks), "nothing is looked at anew"
    assert len({look["since"] for look in looks[:2]}) == 1


async def test_our_own_words_are_not_heard(desk: Desk, stage: MatrixStage) -> None:
    desk.start()
    await desk.platform.send(desk.out("from here"))
    await stage.bot.say(stage.chat, "from another device")
    await stage.write("hello", to=stage.chat)
    await desk.until_heard("hello")
    assert await desk.texts() == ["hello"]


async def test_a_reply_to_our_words_is_meant_for_us(desk: Desk, stage: MatrixStage) -> None:
    ours = await desk.platform.send(desk.out("a proposal", to=desk.place(stage.group)))
    quoted = f"> <{stage.bot.id}> a proposal\n\nfine with me"
    body = await heard(desk, stage, text(quoted, **{"m.relates_to": {"m.in_reply_to": {"event_id": ours}}}))
    assert (body.text, body.asks) == ("fine with me", True)


async def test_a_thread_is_a_thread_and_answered_there(desk: Desk, stage: MatrixStage) -> None:
    root = await stage.write("a topic", to=stage.group)
    relation = {"rel_type": "m.thread", "event_id": root, "is_falling_back": True, "m.in_reply_to": {"event_id": root}}
    mentioned = {"m.mentions": {"user_ids": [stage.bot.id]}}
    desk.start()
    await stage.ada.put(stage.group, text("inside", **mentioned, **{"m.relates_to": relation}))
    await desk.until_heard("inside")
    body = next(body for body in await desk.heard() if body.text == "inside")
    assert body.origin.thread == root
    assert body.asks
    await desk.platform.send(desk.out("fine", to=body.origin))
    (answer,) = [seen for seen in await stage.ada.timeline(stage.group) if seen.sender == stage.bot.id]
    assert answer.content["m.relates_to"]["rel_type"] == "m.thread"
    assert answer.content["m.relates_to"]["event_id"] == root
    assert answer.content["m.mentions"]["user_ids"] == [stage.ada.id]


# -- other everholds


async def test_another_agent_s_draft_is_heard_when_it_is_done(desk: Desk, stage: MatrixStage, tmp_path: Path) -> None:
    """Eve's agent streams its reply: what it says is heard once, at the end, with its count of hops."""
    (tmp_path / "eve").mkdir()
    eve = Desk(stage, tmp_path / "eve")
    settings = MatrixSettings(homeserver=stage.door.url, token=Secret(stage.eve.token))
    other = stage.adapter(settings, eve.context())
    assert isinstance(other, Drafting)
    await stage.eve.join(stage.group)
    desk.start()
    to = desk.place(stage.group)
    remote = await other.draft(desk.out("I think …", key="e:1:draft", to=to))
    await other.revise(remote, desk.out("I think that …", key="e:1:draft", to=to))
    final = f"I think that you are right, {stage.bot.id}"
    await other.send(desk.out(final, key="e:2:0", to=to, edits=remote, hops=3))
    await other.aclose()
    await eve.close()
    await stage.write("that was it", to=stage.group)
    await desk.until_heard("that was it")
    said = (await desk.heard())[0]
    assert (said.text, said.bot, said.hops, said.asks, said.revision) == (final, True, 3, True, stage.eve.id)
    assert said.origin.message == remote
    assert len(await desk.heard()) == 2


async def test_a_draft_that_another_finishes_first_is_heard_of_its_author_too(desk: Desk, stage: MatrixStage) -> None:
    desk.start()
    await stage.eve.join(stage.group)
    draft = await stage.eve.put(stage.group, text("I think …", **{OURS: {"draft": True}}))

    def finished(body: str) -> dict[str, Any]:
        relation = {"rel_type": "m.replace", "event_id": draft}
        return text(f"* {body}", **{"m.new_content": text(body), "m.relates_to": relation, OURS: {"hops": 1}})

    await stage.ada.put(stage.group, finished("nothing at all"))
    await stage.eve.put(stage.group, finished("I think that you are right"))
    await desk.until_heard("I think that you are right")
    assert [(body.text, body.stamp.person) for body in await desk.heard()] == [
        ("nothing at all", stage.ada.id),
        ("I think that you are right", stage.eve.id),
    ]


# -- invitations


async def test_an_invitation_of_somebody_who_may_speak_is_followed(desk: Desk, stage: MatrixStage) -> None:
    desk.start()
    room = await stage.ada.create(stage.bot.id, name="another")
    await stage.ada.say(room, "welcome")
    await desk.until_heard("welcome")
    assert stage.bot.id in await members(stage.ada, room)
    assert not (await desk.heard())[0].asks


async def test_a_stranger_s_invitation_is_left_until_it_is_answered(desk: Desk, stage: MatrixStage) -> None:
    """Nobody enters a stranger's room, except to say how to be let in."""
    asked: list[Incoming] = []
    done = asyncio.Event()

    async def refuse(incoming: Incoming) -> Verdict:
        asked.append(incoming)
        done.set()
        return Verdict(outcome="denied")

    room = await stage.ada.create(stage.bot.id, direct=True)
    listening = asyncio.get_running_loop().create_task(desk.platform.listen(refuse))
    async with asyncio.timeout(desk.patience):
        await done.wait()
    assert [(it.kind, it.sender, it.event) for it in asked] == [("dm", stage.ada.id, "invite")]
    assert stage.bot.id not in await members(stage.ada, room)
    await desk.platform.send(desk.out("give them this code", to=Place("matrix", "main", room), notice=True))
    (seen,) = await stage.ada.timeline(room)
    assert (seen.text, seen.content["msgtype"]) == ("give them this code", "m.notice")
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_an_invitation_from_while_we_were_away_is_found(desk: Desk, stage: MatrixStage) -> None:
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.until_heard("before")
    await desk.stop()
    room = await stage.ada.create(stage.bot.id, name="meanwhile")
    await stage.ada.say(room, "are you there?")
    await desk.restart()
    await desk.until_heard("are you there?")


@pytest.mark.prove
async def test_the_last_words_before_we_are_thrown_out_are_heard_as_they_were_said(
    desk: Desk, stage: MatrixStage
) -> None:
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.until_heard("before")
    await desk.stop()
    await stage.write("the last words", to=stage.chat)
    await stage.ada.call("POST", f"{V3}/rooms/{stage.chat}/kick", {"user_id": stage.bot.id})
    await desk.restart()
    await desk.until_heard("the last words")
    assert {parse(body.stamp.address).kind for body in await desk.heard()} == {"dm"}


async def alone(desk: Desk, stage: MatrixStage) -> None:
    """It is known who would read what is said."""
    adapter = desk.platform
    assert isinstance(adapter, Attended)
    assert await adapter.alone_with(desk.place(), stage.ada.id)
    assert not await adapter.alone_with(desk.place(), stage.eve.id)
    assert not await adapter.alone_with(desk.place(stage.group), stage.ada.id), "an invited Eve is company enough"


@pytest.mark.prove
async def test_a_room_that_was_upgraded_is_the_conversation_it_was(desk: Desk, stage: MatrixStage) -> None:
    desk.start()
    await stage.write("before", to=stage.chat)
    await desk.until_heard("before")
    await alone(desk, stage)
    upgraded = await stage.ada.call("POST", f"{V3}/rooms/{stage.chat}/upgrade", {"new_version": "11"})
    new: str = upgraded["replacement_room"]
    await stage.ada.call("POST", f"{V3}/rooms/{new}/invite", {"user_id": stage.bot.id})
    await stage.ada.say(new, "after")
    await desk.until_heard("after")
    assert desk.moves == [(stage.chat, new)]
    await desk.restart()
    await alone(desk, stage)
    remote = await desk.platform.send(desk.out("what was promised in the old one"))
    assert [seen.id for seen in stage.shown(new)] == [remote]


@pytest.mark.prove
async def test_a_room_that_only_claims_to_replace_another_does_not(desk: Desk, stage: MatrixStage) -> None:
    desk.start()
    claim = {"predecessor": {"room_id": stage.chat, "event_id": "$x"}}
    given = {"preset": "private_chat", "invite": [stage.bot.id], "is_direct": True, "creation_content": claim}
    end = {"body": "moved", "replacement_room": "!elsewhere:localhost"}
    for text in ("it is me, Ada", "it is really me"):
        room: str = (await stage.eve.call("POST", f"{V3}/createRoom", given))["room_id"]
        await stage.eve.say(room, text)
        await desk.until_heard(text)
        # the first time the old room says nothing of an heir, the second time it names another
        await stage.ada.call("PUT", f"{V3}/rooms/{stage.chat}/state/m.room.tombstone/", end)
    assert desk.moves == []


# -- saying


async def test_an_answer_in_a_room_hangs_on_what_it_answers(desk: Desk, stage: MatrixStage) -> None:
    body = await heard(desk, stage, text(f"{stage.bot.id}, how are you?"))
    await desk.platform.send(desk.out("fine", to=body.origin))
    (answer,) = [seen for seen in await stage.ada.timeline(stage.group) if seen.sender == stage.bot.id]
    assert answer.content["m.relates_to"] == {"m.in_reply_to": {"event_id": body.origin.message}}
    assert answer.content["m.mentions"] == {"user_ids": [stage.ada.id]}


async def test_alone_with_somebody_it_is_just_said(desk: Desk, stage: MatrixStage) -> None:
    body = await heard(desk, stage, text("how are you?"), to=stage.chat)
    await alone(desk, stage)
    await desk.platform.send(desk.out("fine", to=body.origin))
    (answer,) = [seen for seen in await stage.ada.timeline(stage.chat) if seen.sender == stage.bot.id]
    assert "m.relates_to" not in answer.content


async def test_the_same_words_for_two_messages_are_said_twice(desk: Desk, stage: MatrixStage) -> None:
    for key in ("s:1:0", "s:2:0"):
        await desk.platform.send(desk.out("yes", key=key))
    assert [seen.text for seen in stage.shown(stage.chat)] == ["yes", "yes"]


async def test_a_room_that_must_wait_is_left_alone_and_others_are_not(desk: Desk, stage: MatrixStage) -> None:
    stage.fail("limit")
    with pytest.raises(Transient):
        await desk.platform.send(desk.out("hello"))
    calls = len(stage.door.calls)
    with pytest.raises(Transient) as waits:
        await desk.platform.send(desk.out("hello"))
    assert (waits.value.retry_after or 0) > 5
    assert len(stage.door.calls) == calls, "it asked again all the same"
    await desk.platform.send(desk.out("hello", key="s:2:0", to=desk.place(stage.group)))


# -- the account


async def test_a_token_that_is_not_known_is_told_and_replies_wait(desk: Desk, stage: MatrixStage) -> None:
    told = {"errcode": "M_UNKNOWN_TOKEN", "error": f"no such token: {stage.bot.token}"}
    stage.door.fault("send", "answer", answer=Answer.json(told, status=401))
    with pytest.raises(Transient) as gone:
        await desk.platform.send(desk.out("hello"))
    assert stage.bot.token not in str(gone.value)
    assert ".env" in gone.value.remedy


async def test_the_token_is_in_no_address(desk: Desk, stage: MatrixStage) -> None:
    desk.start()
    await stage.attach("look", "a.txt", b"some bytes", to=stage.chat)
    await desk.until_heard("look")
    await desk.platform.send(desk.out("hello"))
    assert len(stage.door.calls) >= 4
    assert stage.bot.token not in str(stage.door.calls)


async def test_another_user_s_token_is_refused(stage: MatrixStage, tmp_path: Path) -> None:
    desk = Desk(stage, tmp_path)
    settings = MatrixSettings(homeserver=stage.door.url, token=Secret(stage.bot.token), user="@else:localhost")
    desk.platform = stage.adapter(settings, desk.context())
    desk.start()

    async def told() -> bool:
        return any("@else:localhost" in trouble for trouble in desk.troubles)

    await desk.until(told, what="the mistake being told")
    assert not desk.well
    await desk.close()


@pytest.mark.parametrize("wrong", [{"homeserver": "matrix.org"}, {"user": "agent"}, {"bots": ["eve"]}, {"tokn": "x"}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MatrixSettings.model_validate({"homeserver": "https://example.org", "token": "x", **wrong})
