"""What is erased is erased from what turns are on record as having been shown, too: here, elsewhere, and at work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everhold.core.entries import Kind, Thought
from everhold.flow.records import Records
from everhold.ports.memory import Found
from everhold.ports.platform import Verdict
from everhold.ports.store import Change, Committed, Step
from everhold.testing.fakes import ScriptedModel
from everhold.testing.house import House

from .conftest import HeldModel
from .noting import Finding, furnish
from .test_forgetting import CANARY, everywhere

PLACED = pytest.mark.parametrize("placed", [True, False], ids=["placed", "from somewhere"])


def recalled_elsewhere(house: House, *, placed: bool, model: ScriptedModel | None = None) -> tuple[Verdict, str]:
    """Something said in one chat is recalled in another one; where it was said, and the other session."""
    finding = Finding()
    house.furniture.memories = {"a": finding}
    house.furniture.settings.update(recalls=("a",), recall_seconds=0.5)
    furnish(house)
    first = house.say(f"the key is under {CANARY}", chat="said", rest=False)
    house.tick(1)
    place: dict[str, Any] = {"session": first.session, "seq": first.seq} if placed else {}
    finding.answers = [Found(text=f"the key is under {CANARY}", person="ada", **place)]
    house.furniture.model = model or house.furniture.model
    other = house.say("where is the key?", chat="asked", rest=False).session
    house.tick(1)
    return first, other


def records(house: House, session: str) -> list[bytes | None]:
    """The records of what the turns of a session were shown."""
    blobs = [blob for thought in house.bodies(session, Thought) for blob in (thought.why, thought.recall) if blob]
    assert blobs, "nothing was recalled"
    return [house.run(house.store.get_blob(blob)) for blob in blobs]


@PLACED
def test_what_other_sessions_were_shown_goes_with_it(house: House, placed: bool) -> None:
    first, other = recalled_elsewhere(house, placed=placed)
    assert None not in records(house, other)
    house.run(house.control.erase(first.session, [first.seq]))
    assert records(house, other) == [None, None]
    assert everywhere(house.path, CANARY) == []


def test_what_is_known_by_another_entry_of_its_exchange_goes_with_it(house: House) -> None:
    """A memory may file an exchange under its first message."""
    first, other = recalled_elsewhere(house, placed=True)
    (said,) = (entry.seq for entry in house.log(first.session) if entry.kind is Kind.SAID)
    house.run(house.control.erase(first.session, [said]))
    assert records(house, other) == [None, None]


def test_what_was_recorded_of_others_stays(house: House) -> None:
    before = house.say("something else", chat="before", rest=False)
    house.tick(1)
    other = recalled_elsewhere(house, placed=True)[1]
    house.run(house.control.erase(before.session, [before.seq]))
    assert None not in records(house, other)


@PLACED
def test_a_turn_at_work_meanwhile_leaves_no_record_of_it(house: House, placed: bool) -> None:
    held = HeldModel()
    first, other = recalled_elsewhere(house, placed=placed, model=held)
    assert CANARY in "".join(message.text for message in held.asked[-1].messages)
    house.run(house.control.erase(first.session, [first.seq]))
    held.free = True
    house.rest()
    assert records(house, other) == [None, None]
    assert everywhere(house.path, CANARY) == []


def test_a_record_that_comes_while_others_are_looked_for_is_found(house: House) -> None:
    held = HeldModel()
    first, other = recalled_elsewhere(house, placed=True, model=held)
    commit, ended = house.store.commit, asyncio.Event()

    async def late(change: Change) -> Committed:
        if change.step is Step.ERASE and not held.free:
            held.free = True
            await ended.wait()
        done = await commit(change)
        if change.step is Step.END and change.session == other:
            ended.set()
        return done

    house.store.commit = late  # type: ignore[method-assign]  # there is no other seam between the look and the commit
    house.run(house.control.erase(first.session, [first.seq]))
    assert held.free
    assert records(house, other) == [None, None]
    assert everywhere(house.path, CANARY) == []


def test_a_thought_takes_its_own_record_with_it(house: House) -> None:
    other = recalled_elsewhere(house, placed=True)[1]
    (thought,) = house.bodies(other, Thought)
    (seq,) = (entry.seq for entry in house.log(other) if entry.kind is Kind.THOUGHT)
    house.run(house.control.erase(other, [seq]))
    assert [house.run(house.store.get_blob(blob)) for blob in (thought.why, thought.recall)] == [None, None]


def test_records_that_are_read_once_serve_many_erasures(house: House) -> None:
    """In whichever order: those of words said earlier than the ones that were asked about first are read then."""
    first, other = recalled_elsewhere(house, placed=True)
    last = house.say("later", chat="later", rest=False)
    house.tick(1)
    shared = Records(house.store)
    house.run(house.control.erase(last.session, [last.seq], records=shared))
    assert None not in records(house, other)
    house.run(house.control.erase(first.session, [first.seq], records=shared))
    assert records(house, other) == [None, None]
