"""The context from the real store: pages and a cache do not change it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from everhold.core.context import SessionContext, assemble_context, render_messages, select_operations
from everhold.core.entries import Compressed, Ended, EntryKind, Heard, ToolCall
from everhold.engine.context_cache import EMPTY_CONTEXT, CachedContext, ContextCache, load_context_at
from everhold.errors import TooLong
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import SeededRandom
from everhold.testing.fakes import FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway
from tests.core.naive_reader import NaiveReader, make_reader, summarize_messages
from tests.core.random_log import RandomLog, make_random_actions
from tests.core.test_context import list_pinned_compressions


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[InProcessGateway]:
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        yield gateway


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom(), inline=True, synchronous="OFF")
    yield store
    asyncio.run(store.close())


async def commit_log(store: SqliteStore, chronicle: RandomLog) -> None:
    """The same history, committed."""
    for change in chronicle.changes:
        await store.commit(change)
    for chapter in chronicle.sessions.values():
        entries = await store.list_entries(chapter.id)
        assert [(e.seq, e.kind, e.op, e.body) for e in entries] == [(e.seq, e.kind, e.op, e.body) for e in chapter.log]


def test_the_context_of_a_store_equals_that_of_a_naive_reader(store: SqliteStore) -> None:
    async def look(seed: int) -> None:
        chronicle = RandomLog(f"h{seed}s").perform(make_random_actions(seed))
        await commit_log(store, chronicle)
        logs = chronicle.logs()
        for chapter in chronicle.sessions.values():
            session = await store.get_session(chapter.id)
            assert session.generation == chronicle.generation(chapter)
            now = await load_context_at(store, session, at=session.last_seq + 1)
            assert summarize_messages(render_messages(now)) == make_reader(logs, chapter.id).read_context()
            for turn in chapter.turns.values():
                for pin in list_pinned_compressions(chapter.log, turn.op):
                    before = await load_context_at(store, session, at=turn.op, compression=pin)
                    assert summarize_messages(render_messages(before)) == NaiveReader(
                        logs, chapter.id, turn.op
                    ).read_context(pin)
            for mark in chapter.marks[::5]:
                over = await load_context_at(store, session, at=mark + 1, over=True)
                assert (
                    summarize_messages(render_messages(over))
                    == NaiveReader(logs, chapter.id, mark + 1, ended=True).read_context()
                )

    async def all_() -> None:
        for seed in range(60):
            await look(seed)
        assert await store.verify() == []

    asyncio.run(all_())


def test_a_cached_context_equals_a_newly_loaded_one(store: SqliteStore) -> None:
    """As the turn worker uses it: kept when a turn begins, extended when it ends, loaded again when anything else
    happened.
    """
    views = ContextCache(max_sessions=2)
    grown = 0

    async def begin(name: str) -> CachedContext:
        glance = await store.get_session_snapshot(name)
        seen = await views.load_current(store, glance)
        read = await load_context_at(store, glance.session, at=glance.session.last_seq + 1)
        assert seen.messages == render_messages(read)
        assert seen.context == read
        return seen

    async def end(name: str, op: int, seen: CachedContext) -> None:
        nonlocal grown
        session = await store.get_session(name)
        if seen.generation != session.generation:
            return
        operation = next(it for it in await store.list_operations(name, after=op - 1, before=op + 1))
        if operation.state in ("released", "erased"):
            return
        alone = assemble_context(
            select_operations([operation], at=session.last_seq + 1), await store.list_entries(name)
        )
        views.put(name, seen.with_turn(alone.turns[0]))
        grown += 1

    async def play(seed: int) -> None:
        chronicle = RandomLog(f"k{seed}s").perform(make_random_actions(seed, 45))
        seen: dict[str, tuple[int, CachedContext]] = {}
        known: set[str] = set()
        for change in chronicle.changes:
            begins = any(draft.kind is EntryKind.BEGAN for draft in change.entries) and change.session in known
            before = await begin(change.session) if begins and change.session not in seen else None
            done = await store.commit(change)
            known.add(change.session)
            for draft, seq in zip(change.entries, done.seqs, strict=True):
                if draft.kind is EntryKind.BEGAN and before is not None and draft.op is None and _turn(draft.body):
                    seen[change.session] = (seq, before)
                running = seen.get(change.session)
                if running is not None and isinstance(draft.body, Ended) and draft.op == running[0]:
                    await end(change.session, *seen.pop(change.session))
        for chapter in chronicle.sessions.values():
            if chapter.running is None:
                await begin(chapter.id)

    async def all_() -> None:
        for seed in range(40):
            await play(seed)

    asyncio.run(all_())
    assert grown > 50, "hardly a view was ever grown"


def _turn(body: object) -> bool:
    return getattr(body, "type", "") == "turn"


# -- in a gateway ------------------------------------------------------------------------------------------------------


def list_shown_texts(gateway: InProcessGateway, session: str) -> list[str]:
    async def look() -> SessionContext:
        found = await gateway.store.get_session(session)
        return await load_context_at(gateway.store, found, at=found.last_seq + 1)

    return [message.text for message in render_messages(gateway.run(look()))]


def test_a_turn_that_outlives_a_context_reset_leaves_no_summary_in_the_new_context(gateway: InProcessGateway) -> None:
    """/new while a turn runs, which then does not fit and compresses what came before it: a compression of the old
    context.
    """
    session = ""
    for n in range(3):
        session = gateway.send_message(f"old {n}").session

    def answer(request: ModelRequest) -> ModelResponse:
        if any(message.text == "old 0" for message in request.messages):
            if request.messages[-1].role == "tool":
                raise TooLong("too many tokens")
            return ModelResponse(calls=(ToolCall(id="c", tool="slow"),))
        return ModelResponse(text="done")

    class Slow(FakeTool):
        async def run(self, arguments: dict[str, object], context: ToolContext) -> ToolResult:
            await asyncio.sleep(5)
            return await super().run(arguments, context)

    gateway.runtimes.tools = {"slow": Slow("slow", ToolEffect.KEYED)}
    gateway.runtimes.model = FakeModel(answer)
    gateway.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="all the old things"))
    gateway.send_message("go on", rest=False)
    gateway.pass_time(1)
    gateway.send_message("/new", rest=False)
    gateway.pass_time(30)
    assert gateway.read_bodies(session, Compressed), "the turn must have compressed after the context reset"
    assert gateway.list_shown_texts()[-1] == "done"
    assert list_shown_texts(gateway, session) == []
    gateway.send_message("something new")
    assert list_shown_texts(gateway, session) == ["something new", "done"]
    gateway.assert_sound()


def make_compressing(gateway: InProcessGateway, text: Callable[[], str] = lambda: "the story so far") -> None:
    gateway.runtimes.model = FakeModel(lambda request: ModelResponse(text="I see"), context_tokens=600)
    gateway.runtimes.summariser = FakeModel(lambda request: ModelResponse(text=text()))
    gateway.runtimes.settings.update(soft_share=0.3, hard_share=0.9, keep_turns=1, compress_in_background=True)


def test_a_branch_of_a_parent_with_an_erased_summary_sees_the_originals(gateway: InProcessGateway) -> None:
    make_compressing(gateway)
    session = ""
    for n in range(4):
        session = gateway.send_message(f"message {n} {'x' * 200}").session
    assert gateway.read_bodies(session, Compressed)
    gateway.runtimes.settings.update(compress_in_background=False, hard_share=9.0)
    gateway.send_message("/branch")
    branch = gateway.send_message("in the branch").session
    assert branch != session
    assert "the story so far" in list_shown_texts(gateway, branch)[0]
    first = next(entry.seq for entry in gateway.read_log(session) if isinstance(entry.body, Heard))
    gateway.run(gateway.control.erase_entries(session, [first]))
    seen = list_shown_texts(gateway, branch)
    assert not any("the story so far" in text for text in seen)
    assert not any(text.startswith("message 0") for text in seen)
    assert [text[:9] for text in seen if text.startswith("message")] == ["message 1", "message 2", "message 3"]
    gateway.assert_sound()


def test_every_model_request_equals_that_of_a_naive_reader(gateway: InProcessGateway) -> None:
    """Through compressions, undo, context resets and branches the model was asked what a naive
    reader would have asked.
    """
    numbers = iter(range(10_000))
    make_compressing(gateway, lambda: f"compression-x-{next(numbers)}")
    gateway.runtimes.tools = {"t": FakeTool("t", ToolEffect.PURE)}

    def answer(request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        if last.role == "user" and last.text.startswith("look"):
            return ModelResponse(calls=(ToolCall(id="c", tool="t"), ToolCall(id="c", tool="t")))
        return ModelResponse(text=f"answer {next(numbers)}")

    gateway.runtimes.model = model = FakeModel(answer, context_tokens=600)
    for n in range(40):
        command = {9: "/undo", 14: "/new", 19: "/branch", 24: "/retry", 29: "/undo compress", 34: "/new"}.get(n, "")
        gateway.send_message(command or f"{'look' if n % 4 == 1 else 'say'} {n} {'x' * 60}")
    logs = {session.id: gateway.read_log(session.id) for session in gateway.run(gateway.store.list_sessions())}
    thoughts = [entry for log in logs.values() for entry in log if entry.kind is EntryKind.THOUGHT]
    asked = list(model.requests)
    assert len(thoughts) == len(asked) > 40
    for thought, request in zip(sorted(thoughts, key=lambda entry: entry.pos), asked, strict=True):
        assert thought.op is not None
        until = {**logs, thought.session: logs[thought.session][: thought.seq - 1]}
        patient = NaiveReader(until, thought.session, thought.op)
        compressions = list_pinned_compressions(until[thought.session], thought.op)
        assert summarize_messages(request.messages) == patient.read_context(compressions[-1]) + patient.read_turn(
            thought.op
        )
        context = gateway.run(gateway.control.load_context(thought.session, at=thought.seq))
        assert context.exact is True
        assert context.request.messages == request.messages
    gateway.assert_sound()


def test_long_contexts_are_dropped_before_many_short_ones() -> None:
    cache = ContextCache(max_bytes=1_000)

    def put(session: str, size: int) -> None:
        cache.put(session, msgspec.structs.replace(EMPTY_CONTEXT, size_bytes=size))

    for number in range(10):
        put(f"s{number}", 100)
    assert len(cache._contexts) == 10
    put("long", 950)
    assert list(cache._contexts) == ["long"]
    put("longer", 5_000)
    assert list(cache._contexts) == ["longer"], "the last one is always cached"
    put("longer", 10)
    put("next", 10)
    assert list(cache._contexts) == ["longer", "next"], "a replaced context no longer counts"
