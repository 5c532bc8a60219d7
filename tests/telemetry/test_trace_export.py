"""Spans are made from the log by a consumer with a durable cursor: after any crash, each one arrives with its id."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from everhold.admin.trace_export import CURSOR_KEY, MAX_KEPT_ENTRIES, TraceExport
from everhold.core.entries import (
    Called,
    Compressed,
    Ended,
    EntryBody,
    EntryDraft,
    ModelUsage,
    Returned,
    Thought,
    ToolCall,
)
from everhold.core.recall import MemoryAnswer, RecallRecord, RecallTarget
from everhold.core.recall_blobs import pack_record
from everhold.core.trace_ids import OPERATION_SPAN, make_span_id, make_trace_id
from everhold.ports.store import StateNamespace, Step, Store
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SqliteStore
from everhold.telemetry.metric_registry import MetricRegistry
from everhold.telemetry.metrics import TRACE_EXPORTS_FAILED_TOTAL, TRACE_SPANS_TOTAL
from everhold.telemetry.traces.otlp import ExportOutcome, TraceSettings
from everhold.telemetry.traces.spans import ModelDescription, TraceSpan
from everhold.testing.contracts.store_scenario import SeededRandom, StoreClock, StoreScenario
from everhold.testing.gateway import RecordingLogger

SECRET = "the words of a message"


class ManualClock:
    def __init__(self) -> None:
        self.at = 1_000.0

    def now(self) -> float:
        return self.at

    monotonic = now


class Collector:
    """Keeps the spans that it takes. It stands for the exporter and the collector behind it."""

    def __init__(self) -> None:
        self.spans: list[TraceSpan] = []
        self.outcome: ExportOutcome = "exported"
        self.is_dead = False
        """The process dies when the spans have arrived."""
        self.batches: list[int] = []
        self.is_closed = False

    def is_sampled(self, trace_id: str) -> bool:
        return True

    async def export(self, spans: Sequence[TraceSpan]) -> ExportOutcome:
        self.batches.append(len(spans))
        if self.outcome == "exported":
            self.spans += spans
        if self.is_dead:
            raise ProcessDied
        return self.outcome

    def close(self) -> None:
        self.is_closed = True

    def list_names(self) -> list[str]:
        return [span.name for span in self.spans]


class ProcessDied(Exception):
    pass


class TracedStore:
    def __init__(self, store: Store, clock: StoreClock) -> None:
        self.store = store
        self.scenario = StoreScenario(store, clock)
        self.collector = Collector()
        self.clock = ManualClock()
        self.metrics = MetricRegistry(self.clock)

    def start_process(self, *, batch_spans: int = 512) -> TraceExport:
        """Return the consumer of a process that has just started."""
        return TraceExport(
            self.store,
            exporter=self.collector,
            settings=TraceSettings(delay_seconds=1.0, batch_spans=batch_spans),
            describe_model=lambda name: ModelDescription("openai", "gpt-x") if name == "smart" else ModelDescription(),
            clock=self.clock,
            log=RecordingLogger(),
            metrics=self.metrics,
        )

    async def start_export(self, **options: Any) -> TraceExport:
        """Return a consumer that has begun at the end of the log."""
        export = self.start_process(**options)
        assert await export.export_new()
        return export

    async def add(self, op: int, body: EntryBody, at: float, **rest: Any) -> None:
        draft = EntryDraft(body=body, author="agent:main", op=op)
        await self.scenario.commit(draft, at=at, op=op, step=Step.THINK, **rest)

    async def commit_turn(self, at: float = 10.0) -> int:
        """Commit a turn with a recall, two model calls and two tools. Return its operation."""
        seq = await self.scenario.commit_heard(SECRET, at=at - 3)
        claim = await self.scenario.claim_cursor(at=at)
        op = await self.scenario.begin_operation(seq, claim=claim, at=at)
        record = RecallRecord(
            asked=RecallTarget(session="s", generation=0, takes=(seq,)),
            audience=("ada",),
            answers={"builtin": MemoryAnswer(seconds=0.25, found=3), "far": MemoryAnswer(seconds=0.5, answered=False)},
        )
        why = pack_record(record)
        calls = (ToolCall("c1", "search", {"q": SECRET}), ToolCall("c2", "send", {"text": SECRET}))
        thought = Thought(
            text=SECRET,
            calls=calls,
            model="smart",
            why=hashlib.sha256(why).hexdigest(),
            usage=ModelUsage(90, 40, 8, 0.5),
        )
        await self.add(op, thought, at + 2, claim=claim, blobs=(why,))
        await self.add(op, Returned("c1", SECRET), at + 3, claim=claim)
        await self.add(op, Called("c2", "send", "once", "k2"), at + 4, claim=claim)
        await self.add(op, Returned("c2", SECRET, error=True), at + 6, claim=claim)
        await self.add(op, Thought(text=SECRET, model="other", finish="length"), at + 7, claim=claim)
        await self.end(op, at + 8, claim=claim, usage=ModelUsage(90, 40, 8, 0.5))
        await self.scenario.update_cursor(claim, at=at + 8, release=True, idle_at=10_000)
        return op

    async def end(self, op: int, at: float, *, claim: Any, usage: ModelUsage) -> None:
        ended = EntryDraft(body=Ended(outcome="done", reason=SECRET, usage=usage), author="agent:main", op=op)
        await self.scenario.commit(ended, at=at, op=op, claim=claim, step=Step.END)


@pytest.fixture(params=["sqlite", "postgres"])
async def traced(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TracedStore]:
    async with AsyncExitStack() as stack:
        clock = StoreClock()
        store: Store
        if request.param == "sqlite":
            store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom(), now=clock)
        else:
            url = request.getfixturevalue("postgres_url")
            store = await PostgresStore.open(
                url, chance=SeededRandom(), now=clock, writers=2, readers=2, exclusive=True
            )
        stack.push_async_callback(store.close)
        found = TracedStore(store, clock)
        await found.scenario.open_session("s")
        yield found


def get_span(spans: list[TraceSpan], name: str) -> TraceSpan:
    (found,) = [span for span in spans if span.name == name]
    return found


async def test_a_turn_is_one_trace_with_its_recall_model_and_tool_spans(traced: TracedStore) -> None:
    export = await traced.start_export()
    op = await traced.commit_turn(at=10.0)
    assert await export.export_new()
    spans = traced.collector.spans
    trace = make_trace_id("s", op)
    assert {span.trace_id for span in spans} == {trace}
    root = get_span(spans, "invoke_agent main")
    assert (root.span_id, root.parent_id) == (make_span_id(trace, OPERATION_SPAN), "")
    assert (root.start, root.end) == (10.0, 18.0)
    assert root.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "main",
        "gen_ai.conversation.id": "s",
        "gen_ai.usage.input_tokens": 90,
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.usage.cache_read.input_tokens": 40,
        "everhold.cost_usd": 0.5,
        "everhold.op": op,
        "everhold.operation_type": "turn",
        "everhold.outcome": "done",
        "everhold.wait_seconds": 3.0,
    }
    assert {span.parent_id for span in spans if span is not root} == {root.span_id}
    assert [(span.name, span.kind, span.start, span.end, span.error) for span in spans[1:]] == [
        ("search_memory builtin", "client", 10.0, 10.25, ""),
        ("search_memory far", "client", 10.0, 10.5, "timeout"),
        ("chat smart", "client", 10.5, 12.0, ""),
        ("execute_tool search", "internal", 12.0, 13.0, ""),
        ("execute_tool send", "internal", 14.0, 16.0, "tool_error"),
        ("chat other", "client", 16.0, 17.0, ""),
    ]
    assert len({span.span_id for span in spans}) == len(spans) == 7
    first = get_span(spans, "chat smart").attributes
    assert (first["gen_ai.provider.name"], first["gen_ai.request.model"]) == ("openai", "gpt-x")
    assert first["gen_ai.response.finish_reasons"] == ("tool_calls",)
    assert get_span(spans, "chat other").attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert get_span(spans, "execute_tool send").attributes["everhold.effect"] == "once"
    assert get_span(spans, "search_memory builtin").attributes["everhold.items"] == 3
    assert SECRET not in repr(spans), "no word of a message is exported"


async def test_a_compression_has_a_trace_and_a_command_has_none(traced: TracedStore) -> None:
    export = await traced.start_export()
    made = Compressed(summary=SECRET, covers=0, model="smart", tokens_before=900, tokens_after=90)
    for type_, body in (("compression", made), ("command", None)):
        op = await traced.scenario.begin_operation(type=type_, consumer="x", at=2.0)
        ended = EntryDraft(body=Ended(), author="system", op=op)
        bodies = [EntryDraft(body=body, author="system", op=op)] if body else []
        await traced.scenario.commit(*bodies, ended, op=op, at=3.0, step=Step.END)
    await export.export_new()
    (span,) = traced.collector.spans
    assert (span.name, span.start, span.end) == ("everhold.compression", 2.0, 3.0)
    assert span.attributes["everhold.tokens_after"] == 90
    assert span.attributes["gen_ai.request.model"] == "gpt-x"


async def test_the_first_export_begins_with_what_is_committed_from_then_on(traced: TracedStore) -> None:
    await traced.commit_turn()
    export = await traced.start_export()
    assert traced.collector.spans == []
    op = await traced.commit_turn(at=30.0)
    await export.export_new()
    assert {span.trace_id for span in traced.collector.spans} == {make_trace_id("s", op)}


async def test_what_was_not_exported_before_a_crash_is_exported_after_it(traced: TracedStore) -> None:
    await traced.start_export()  # and the process dies
    op = await traced.commit_turn()
    await traced.start_process().export_new()
    assert len(traced.collector.spans) == 7
    assert {span.trace_id for span in traced.collector.spans} == {make_trace_id("s", op)}


async def test_a_turn_that_was_half_done_at_a_crash_has_one_whole_trace(traced: TracedStore) -> None:
    seq = await traced.scenario.commit_heard(at=2.0)
    export = await traced.start_export()
    claim = await traced.scenario.claim_cursor(at=3.0)
    op = await traced.scenario.begin_operation(seq, claim=claim, at=3.0)
    await traced.add(op, Thought(model="smart"), 4.0, claim=claim)
    await export.export_new()  # its cursor is now behind the beginning of the turn
    assert traced.collector.spans == []
    after = traced.start_process()
    await traced.end(op, 9.0, claim=claim, usage=ModelUsage())
    await after.export_new()
    assert [(it.name, it.start, it.end) for it in traced.collector.spans] == [
        ("invoke_agent main", 3.0, 9.0),
        ("chat smart", 3.0, 4.0),
    ]
    assert traced.collector.spans[0].attributes["everhold.wait_seconds"] == 1.0


async def test_spans_that_are_sent_again_after_a_crash_have_the_same_ids(traced: TracedStore) -> None:
    export = await traced.start_export()
    await traced.commit_turn()
    traced.collector.is_dead = True
    with pytest.raises(ProcessDied):
        await export.export_new()
    traced.collector.is_dead = False
    first, traced.collector.spans = traced.collector.spans, []
    again = traced.start_process()
    await again.export_new()
    assert traced.collector.spans == first
    await again.export_new()
    await traced.start_process().export_new()
    assert len(traced.collector.spans) == 7, "the cursor moved, so nothing is sent a third time"


async def test_a_collector_that_is_down_delays_spans_and_loses_none(traced: TracedStore) -> None:
    export = await traced.start_export(batch_spans=10)
    traced.collector.outcome = "failed"
    for number in range(6):
        await traced.commit_turn(at=100.0 * (number + 1))
    traced.clock.at = 1_000.0
    assert not await export.export_new()
    assert not await export.export_new()
    assert max(traced.collector.batches) < 10 + 7, "memory is bounded: it reads on when the spans are taken"
    assert traced.metrics.get_counts(TRACE_EXPORTS_FAILED_TOTAL) == {(): 2.0}
    assert export.get_seconds_behind() == 1_000.0 - 97.0
    traced.collector.outcome = "exported"
    assert await export.export_new()
    assert len(traced.collector.spans) == len({span.span_id for span in traced.collector.spans}) == 42
    assert export.get_seconds_behind() == 0.0
    assert traced.metrics.get_counts(TRACE_SPANS_TOTAL) == {("exported",): 42.0}


async def test_spans_that_the_collector_refuses_hold_up_nothing(traced: TracedStore) -> None:
    export = await traced.start_export()
    traced.collector.outcome = "rejected"
    await traced.commit_turn()
    assert await export.export_new()
    traced.collector.outcome = "exported"
    await traced.commit_turn(at=50.0)
    assert await export.export_new()
    assert traced.metrics.get_counts(TRACE_SPANS_TOTAL) == {("rejected",): 7.0, ("exported",): 7.0}


async def test_a_cursor_of_another_host_wins(traced: TracedStore) -> None:
    one = await traced.start_export()
    two = await traced.start_export()
    await traced.commit_turn()
    assert await one.export_new()
    assert await two.export_new(), "it repeats the spans, notices, and reads the cursor again"
    await traced.commit_turn(at=50.0)
    traced.collector.spans.clear()
    assert await two.export_new()
    assert len(traced.collector.spans) == 7


async def test_an_erased_turn_has_no_spans(traced: TracedStore) -> None:
    await traced.start_export()
    await traced.commit_turn()
    everything = [entry.seq for entry in await traced.store.list_entries("s")]
    await traced.scenario.erase_entries(*everything)
    assert await traced.start_process().export_new()
    assert traced.collector.spans == []


async def test_entries_that_are_kept_are_bounded(traced: TracedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everhold.admin.trace_export.MAX_KEPT_ENTRIES", 3)
    assert MAX_KEPT_ENTRIES > 100
    export = await traced.start_export()
    await traced.commit_turn()
    await export.export_new()
    assert len(traced.collector.spans) == 7, "what was dropped is read again"


async def test_a_stop_exports_what_is_left(traced: TracedStore) -> None:
    export = await traced.start_export()
    await traced.commit_turn()
    await export.close()
    assert len(traced.collector.spans) == 7
    assert traced.collector.is_closed
    record = await traced.store.get_state_record(StateNamespace.TRACE_EXPORT, CURSOR_KEY)
    assert record is not None
    assert str(await traced.store.last_pos()) in record.value
