"""What is erased is erased from what turns are on record as having been shown, too: here, elsewhere, and at work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everhold.core.entries import EntryKind, Thought
from everhold.engine.recall_records import RecallRecords
from everhold.ports.memory import MemoryHit
from everhold.ports.platform import AcceptResult
from everhold.ports.store import Change, CommitResult, Step
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway

from .conftest import HeldModel
from .memory_tools import FindingProvider, add_memory_tools
from .test_forgetting import CANARY, everywhere

PLACED = pytest.mark.parametrize("placed", [True, False], ids=["placed", "from somewhere"])


def recalled_elsewhere(
    house: InProcessGateway, *, placed: bool, model: FakeModel | None = None
) -> tuple[AcceptResult, str]:
    """Something said in one chat is recalled in another one; where it was said, and the other session."""
    finding = FindingProvider()
    house.runtimes.memories = {"a": finding}
    house.runtimes.settings.update(recalls=("a",), recall_seconds=0.5)
    add_memory_tools(house)
    first = house.send_message(f"the key is under {CANARY}", chat="said", rest=False)
    house.pass_time(1)
    place: dict[str, Any] = {"session": first.session, "seq": first.seq} if placed else {}
    finding.answers = [MemoryHit(text=f"the key is under {CANARY}", person="ada", **place)]
    house.runtimes.model = model or house.runtimes.model
    other = house.send_message("where is the key?", chat="asked", rest=False).session
    house.pass_time(1)
    return first, other


def records(house: InProcessGateway, session: str) -> list[bytes | None]:
    """The records of what the turns of a session were shown."""
    blobs = [blob for thought in house.read_bodies(session, Thought) for blob in (thought.why, thought.recall) if blob]
    assert blobs, "nothing was recalled"
    return [house.run(house.store.get_blob(blob)) for blob in blobs]


@PLACED
def test_what_other_sessions_were_shown_goes_with_it(house: InProcessGateway, placed: bool) -> None:
    first, other = recalled_elsewhere(house, placed=placed)
    assert None not in records(house, other)
    house.run(house.control.erase_entries(first.session, [first.seq]))
    assert records(house, other) == [None, None]
    assert everywhere(house.path, CANARY) == []


def test_what_is_known_by_another_entry_of_its_exchange_goes_with_it(house: InProcessGateway) -> None:
    """A memory may file an exchange under its first message."""
    first, other = recalled_elsewhere(house, placed=True)
    (said,) = (entry.seq for entry in house.read_log(first.session) if entry.kind is EntryKind.SAID)
    house.run(house.control.erase_entries(first.session, [said]))
    assert records(house, other) == [None, None]


def test_what_was_recorded_of_others_stays(house: InProcessGateway) -> None:
    before = house.send_message("something else", chat="before", rest=False)
    house.pass_time(1)
    other = recalled_elsewhere(house, placed=True)[1]
    house.run(house.control.erase_entries(before.session, [before.seq]))
    assert None not in records(house, other)


@PLACED
def test_a_turn_at_work_meanwhile_leaves_no_record_of_it(house: InProcessGateway, placed: bool) -> None:
    held = HeldModel()
    first, other = recalled_elsewhere(house, placed=placed, model=held)
    assert CANARY in "".join(message.text for message in held.requests[-1].messages)
    house.run(house.control.erase_entries(first.session, [first.seq]))
    held.free = True
    house.run_until_idle()
    assert records(house, other) == [None, None]
    assert everywhere(house.path, CANARY) == []


def test_a_record_that_comes_while_others_are_looked_for_is_found(house: InProcessGateway) -> None:
    held = HeldModel()
    first, other = recalled_elsewhere(house, placed=True, model=held)
    commit, ended = house.store.commit, asyncio.Event()

    async def late(change: Change) -> CommitResult:
        if change.step is Step.ERASE and not held.free:
            held.free = True
            await ended.wait()
        done = await commit(change)
        if change.step is Step.END and change.session == other:
            ended.set()
        return done

    house.store.commit = late  # type: ignore[method-assign]  # there is no other seam between the look and the commit
    house.run(house.control.erase_entries(first.session, [first.seq]))
    assert held.free
    assert records(house, other) == [None, None]
    assert everywhere(house.path, CANARY) == []


def test_a_thought_takes_its_own_record_with_it(house: InProcessGateway) -> None:
    other = recalled_elsewhere(house, placed=True)[1]
    (thought,) = house.read_bodies(other, Thought)
    (seq,) = (entry.seq for entry in house.read_log(other) if entry.kind is EntryKind.THOUGHT)
    house.run(house.control.erase_entries(other, [seq]))
    assert [house.run(house.store.get_blob(blob)) for blob in (thought.why, thought.recall)] == [None, None]


def test_records_that_are_read_once_serve_many_erasures(house: InProcessGateway) -> None:
    """In whichever order: those of words said earlier than the ones that were asked about first are read then."""
    first, other = recalled_elsewhere(house, placed=True)
    last = house.send_message("later", chat="later", rest=False)
    house.pass_time(1)
    shared = RecallRecords(house.store)
    house.run(house.control.erase_entries(last.session, [last.seq], records=shared))
    assert None not in records(house, other)
    house.run(house.control.erase_entries(first.session, [first.seq], records=shared))
    assert records(house, other) == [None, None]
