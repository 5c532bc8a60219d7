"""An erasure also removes the entry from recall records: of this session, of other sessions, and of running turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from everhold.core.entries import EntryKind, Thought, ToolCall
from everhold.engine.recall_records import RecallRecords
from everhold.ports.memory import MemoryHit
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.platform import AcceptResult
from everhold.ports.store import Change, CommitResult, Step
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult
from everhold.testing.fakes import FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway

from .conftest import HeldModel
from .memory_tools import FindingProvider, add_memory_tools
from .test_forgetting import CANARY, everywhere

PLACED = pytest.mark.parametrize("placed", [True, False], ids=["with session and seq", "without session and seq"])


def recalled_elsewhere(
    gateway: InProcessGateway, *, placed: bool, model: FakeModel | None = None, tool: Tool | None = None
) -> tuple[AcceptResult, str]:
    """Something said in one chat is recalled in another one; where it was said, and the other session."""
    finding = FindingProvider()
    gateway.runtimes.memories = {"a": finding}
    gateway.runtimes.settings.update(recall_memories=("a",), recall_seconds=0.5)
    add_memory_tools(gateway)
    gateway.runtimes.tools |= {"fetch": tool} if tool is not None else {}
    first = gateway.send_message(f"the key is under {CANARY}", chat="said", rest=False)
    gateway.pass_time(1)
    place: dict[str, Any] = {"session": first.session, "seq": first.seq} if placed else {}
    finding.answers = [MemoryHit(text=f"the key is under {CANARY}", person="ada", **place)]
    gateway.runtimes.model = model or gateway.runtimes.model
    other = gateway.send_message("where is the key?", chat="asked", rest=False).session
    gateway.pass_time(1)
    return first, other


def records(gateway: InProcessGateway, session: str) -> list[bytes | None]:
    """The records of what the turns of a session were shown."""
    blobs = [
        blob for thought in gateway.read_bodies(session, Thought) for blob in (thought.why, thought.recall) if blob
    ]
    assert blobs, "nothing was recalled"
    return [gateway.run(gateway.store.get_blob(blob)) for blob in blobs]


@PLACED
def test_recall_records_of_an_erased_entry_in_other_sessions_are_erased(
    gateway: InProcessGateway, placed: bool
) -> None:
    first, other = recalled_elsewhere(gateway, placed=placed)
    assert None not in records(gateway, other)
    gateway.run(gateway.control.erase_entries(first.session, [first.seq]))
    assert records(gateway, other) == [None, None]
    assert everywhere(gateway.path, CANARY) == []


def test_recall_records_by_another_entry_of_the_exchange_are_erased(gateway: InProcessGateway) -> None:
    """A memory may file an exchange under its first message."""
    first, other = recalled_elsewhere(gateway, placed=True)
    (said,) = (entry.seq for entry in gateway.read_log(first.session) if entry.kind is EntryKind.SAID)
    gateway.run(gateway.control.erase_entries(first.session, [said]))
    assert records(gateway, other) == [None, None]


def test_recall_records_of_other_entries_stay(gateway: InProcessGateway) -> None:
    before = gateway.send_message("something else", chat="before", rest=False)
    gateway.pass_time(1)
    other = recalled_elsewhere(gateway, placed=True)[1]
    gateway.run(gateway.control.erase_entries(before.session, [before.seq]))
    assert None not in records(gateway, other)


@PLACED
def test_a_running_turn_leaves_no_recall_record_of_an_erased_entry(gateway: InProcessGateway, placed: bool) -> None:
    held = HeldModel()
    first, other = recalled_elsewhere(gateway, placed=placed, model=held)
    assert CANARY in "".join(message.text for message in held.requests[-1].messages)
    gateway.run(gateway.control.erase_entries(first.session, [first.seq]))
    held.free = True
    gateway.run_until_idle()
    assert records(gateway, other) == [None, None]
    assert everywhere(gateway.path, CANARY) == []


class FetchingHeldModel(HeldModel):
    """Calls a tool first, and answers then."""

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        done = await super().answer(request, on_text=on_text)
        return ModelResponse(calls=(ToolCall(id="c", tool="fetch"),)) if len(self.requests) == 1 else done


class WaitingTool(FakeTool):
    """Does something that takes time."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        super().__init__("fetch", ToolEffect.PURE)
        self._work = work

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        await self._work()
        return await super().run(arguments, context)


@PLACED
@pytest.mark.parametrize("during", ["the first request", "the tool call"])
def test_a_running_turn_shows_no_recalled_text_after_its_erasure(
    gateway: InProcessGateway, placed: bool, during: str
) -> None:
    held = FetchingHeldModel()
    said: list[AcceptResult] = []

    async def erase() -> None:
        await gateway.control.erase_entries(said[0].session, [said[0].seq])

    tool = WaitingTool(erase) if during == "the tool call" else None
    said.append(recalled_elsewhere(gateway, placed=placed, model=held, tool=tool)[0])
    if tool is None:
        gateway.run(erase())
    held.free = True
    gateway.run_until_idle()
    shown = ["".join(message.text for message in request.messages) for request in held.requests]
    assert [CANARY in text for text in shown] == [True, False]


def test_a_recall_record_added_during_the_search_is_found(gateway: InProcessGateway) -> None:
    held = HeldModel()
    first, other = recalled_elsewhere(gateway, placed=True, model=held)
    commit, ended = gateway.store.commit, asyncio.Event()

    async def late(change: Change) -> CommitResult:
        if change.step is Step.ERASE and not held.free:
            held.free = True
            await ended.wait()
        done = await commit(change)
        if change.step is Step.END and change.session == other:
            ended.set()
        return done

    gateway.store.commit = late  # type: ignore[method-assign]  # there is no other seam between the look and the commit
    gateway.run(gateway.control.erase_entries(first.session, [first.seq]))
    assert held.free
    assert records(gateway, other) == [None, None]
    assert everywhere(gateway.path, CANARY) == []


def test_an_erased_thought_takes_its_recall_record_with_it(gateway: InProcessGateway) -> None:
    other = recalled_elsewhere(gateway, placed=True)[1]
    (thought,) = gateway.read_bodies(other, Thought)
    (seq,) = (entry.seq for entry in gateway.read_log(other) if entry.kind is EntryKind.THOUGHT)
    gateway.run(gateway.control.erase_entries(other, [seq]))
    assert [gateway.run(gateway.store.get_blob(blob)) for blob in (thought.why, thought.recall)] == [None, None]


def test_recall_records_are_read_once_for_many_erasures(gateway: InProcessGateway) -> None:
    """In whichever order: those of words said earlier than the ones that were asked about first are read then."""
    first, other = recalled_elsewhere(gateway, placed=True)
    last = gateway.send_message("later", chat="later", rest=False)
    gateway.pass_time(1)
    shared = RecallRecords(gateway.store)
    gateway.run(gateway.control.erase_entries(last.session, [last.seq], records=shared))
    assert None not in records(gateway, other)
    gateway.run(gateway.control.erase_entries(first.session, [first.seq], records=shared))
    assert records(gateway, other) == [None, None]
