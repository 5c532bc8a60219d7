"""Spans are made from the log by a consumer with a durable cursor: after any crash, each one arrives with its id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everhold.admin.trace_export import CURSOR_KEY, MAX_KEPT_ENTRIES, TraceExport
from everhold.core.entries import (
    Called,
    ChatLocation,
    Compressed,
    Ended,
    EntryBody,
    EntryDraft,
    ModelUsage,
    Returned,
    Said,
    Thought,
    ToolCall,
)
from everhold.core.recall import MemoryAnswer, RecallRecord, RecallTarget
from everhold.core.recall_blobs import pack_record
from everhold.core.trace_ids import OPERATION_SPAN, make_span_id, make_trace_id, parse_traceparent
from everhold.ports.store import CursorUpdate, DeadLetter, Receipt, StateNamespace, Step, Store, Wakeup
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SqliteStore
from everhold.telemetry.metric_registry import MetricRegistry
from everhold.telemetry.metrics import TRACE_EXPORTS_FAILED_TOTAL, TRACE_SPANS_TOTAL
from everhold.telemetry.traces.otlp import ExportOutcome, TraceSettings
from everhold.telemetry.traces.spans import ModelDescription, TraceSpan
from everhold.testing.contracts.store_scenario import SeededRandom, StoreClock, StoreScenario, make_heard
from everhold.testing.fakes import FakeMemoryProvider
from everhold.testing.gateway import InProcessGateway, RecordingLogger

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

    def start_process(self, *, batch_spans: int = 512, captures_content: bool = False) -> TraceExport:
        """Return the consumer of a process that has just started."""
        return TraceExport(
            self.store,
            exporter=self.collector,
            settings=TraceSettings(delay_seconds=1.0, batch_spans=batch_spans, captures_content=captures_content),
            describe_model=lambda name: ModelDescription("openai", "gpt-x") if name == "smart" else ModelDescription(),
            clock=self.clock,
            log=RecordingLogger(),
            metrics=self.metrics,
            redact=lambda text: text,
        )

    async def start_export(self, **options: Any) -> TraceExport:
        """Return a consumer that has begun at the end of the log."""
        export = self.start_process(**options)
        assert await export.export_new()
        return export

    async def settle(self, consumer: str, upto: int, *receipts: Receipt, **rest: Any) -> None:
        """Let a consumer process the log up to an entry."""
        await self.scenario.commit(wakeups=(Wakeup(consumer=consumer, start=0),), at=20.0)
        claim = await self.scenario.claim_cursor(consumer, at=20.0)
        update = CursorUpdate(processed_seq=upto, release=True)
        await self.scenario.commit(claim=claim, cursor=update, receipts=receipts, at=20.0, **rest)

    async def add(self, op: int, body: EntryBody, at: float, **rest: Any) -> None:
        draft = EntryDraft(body=body, author="agent:main", op=op)
        await self.scenario.commit(draft, at=at, op=op, step=Step.THINK, **rest)

    async def find_seqs(self, op: int) -> tuple[int, int]:
        """Return the seqs of the reply and of the end of an operation."""
        entries = [it for it in await self.store.list_entries("s") if it.op == op]
        return next(it.seq for it in entries if it.kind == "said"), entries[-1].seq

    async def commit_turn(self, at: float = 10.0, *, trace: str = "") -> int:
        """Commit a turn with a recall, two model calls and two tools. Return its operation."""
        heard = msgspec.structs.replace(make_heard(SECRET), trace=trace)
        draft = EntryDraft(body=heard, author="person:ada")
        wakeups = (Wakeup(consumer="turn"),)
        seq = (await self.scenario.commit(draft, at=at - 3, step=Step.ACCEPT, wakeups=wakeups)).seqs[0]
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
        said = Said(text=SECRET, to=ChatLocation(platform="test", account="bot", chat="c"))
        ended = Ended(outcome="done", reason=SECRET, usage=usage)
        drafts = [EntryDraft(body=body, author="agent:main", op=op) for body in (said, ended)]
        await self.scenario.commit(*drafts, at=at, op=op, claim=claim, step=Step.END)


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


async def test_deliveries_are_traces_with_a_link_to_the_turn(traced: TracedStore) -> None:
    export = await traced.start_export()
    op = await traced.commit_turn(at=10.0)
    await traced.scenario.commit(wakeups=(Wakeup(consumer="memory:far", start=0),), at=18.0)
    await export.export_new()
    said, ended = await traced.find_seqs(op)
    traced.collector.spans.clear()
    receipt = Receipt(consumer="platform:test:bot", session="s", seq=said, remote="m1", at=20.5, in_doubt=True)
    await traced.settle("platform:test:bot", said, receipt)
    traced.clock.at += 10
    await export.export_new()
    (span,) = traced.collector.spans
    turn = make_trace_id("s", op)
    assert (span.name, span.kind, span.start, span.end) == ("deliver test", "producer", 18.0, 20.0)
    assert span.links == ((turn, make_span_id(turn, OPERATION_SPAN)),)
    assert span.trace_id != turn
    assert span.attributes == {
        "gen_ai.conversation.id": "s",
        "everhold.op": op,
        "everhold.items": 1,
        "everhold.doubtful": True,
        "everhold.lag_seconds": 2.0,
        "everhold.platform": "test",
        "everhold.account": "bot",
    }
    after = traced.start_process()  # the process died while the memory was behind
    traced.collector.spans.clear()
    dead = DeadLetter(consumer="memory:far", session="s", seq=ended, reason=SECRET, at=21.0)
    await traced.settle("memory:far", ended, dead_letters=(dead,))
    await after.export_new()
    (span,) = traced.collector.spans
    assert (span.name, span.kind, span.error) == ("upsert_memory far", "client", "dead_letter")
    assert span.links == ((turn, make_span_id(turn, OPERATION_SPAN)),)
    assert SECRET not in repr(span)
    traced.clock.at += 1_000
    traced.collector.spans.clear()
    await after.export_new()
    await traced.start_process().export_new()
    assert traced.collector.spans == [], "each delivery has one span"


def test_a_turn_of_a_gateway_has_spans_of_its_deliveries(tmp_path: Path) -> None:
    gateway, collector = InProcessGateway(tmp_path), Collector()
    gateway.runtimes.memories["far"] = FakeMemoryProvider()
    with gateway.run_started():
        export = TraceExport(
            gateway.store,
            exporter=collector,
            settings=TraceSettings(delay_seconds=1.0, batch_spans=512),
            describe_model=lambda name: ModelDescription(),
            clock=gateway.clock,
            log=gateway.logger,
            metrics=MetricRegistry(gateway.clock),
        )
        gateway.run(export.export_new())
        gateway.send_message("hello")
        gateway.run_until_idle(300.0)
        gateway.run(export.export_new())
        assert sorted(collector.list_names()) == [
            "chat echo",
            "deliver fake",
            "invoke_agent main",
            "upsert_memory far",
        ]
        assert {len(span.links) for span in collector.spans if span.name.startswith(("deliver", "upsert"))} == {1}


async def test_deliveries_that_are_followed_are_bounded(traced: TracedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everhold.admin.trace_deliveries.MAX_FOLLOWED", 2)
    export = await traced.start_export()
    await traced.scenario.commit(wakeups=(Wakeup(consumer="memory:far", start=0),), at=2.0)
    for number in range(4):
        await traced.commit_turn(at=100.0 * (number + 1))
    await export.export_new()
    assert traced.metrics.get_counts(TRACE_SPANS_TOTAL)["skipped",] == 2.0
    record = await traced.store.get_state_record(StateNamespace.TRACE_EXPORT, CURSOR_KEY)
    assert record is not None
    assert len(msgspec.json.decode(record.value)["followed"]) == 2


async def test_a_turn_has_a_link_to_the_program_that_asked(traced: TracedStore) -> None:
    export = await traced.start_export()
    await traced.commit_turn(trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    await export.export_new()
    root = get_span(traced.collector.spans, "invoke_agent main")
    assert root.links == (("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-0-0-01",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        f" ff-{'a' * 32}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'b' * 16}-01-more",
        f"00-{'A' * 32}-{'b' * 16}-01",
        f"01-{'a' * 32}-{'b' * 16}-01-{'x' * 9_999}",
    ],
)
def test_an_invalid_traceparent_is_ignored(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_traceparent_of_a_later_version_is_understood_and_only_its_ids_are_kept() -> None:
    found = parse_traceparent(f" 01-{'a' * 32}-{'b' * 16}-00-more ")
    assert found == ("a" * 32, "b" * 16)
    assert found.traceparent == f"00-{'a' * 32}-{'b' * 16}-01"


async def test_words_are_exported_only_on_request(traced: TracedStore) -> None:
    export = await traced.start_export(captures_content=True)
    await traced.commit_turn()
    await export.export_new()
    spans = traced.collector.spans
    asked = get_span(spans, "chat smart").attributes
    assert json.loads(str(asked["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": SECRET}]}
    ]
    (answer,) = json.loads(str(asked["gen_ai.output.messages"]))
    assert [part["type"] for part in answer["parts"]] == ["text", "tool_call", "tool_call"]
    assert "gen_ai.input.messages" not in get_span(spans, "chat other").attributes
    tool = get_span(spans, "execute_tool search").attributes
    assert (tool["gen_ai.tool.call.arguments"], tool["gen_ai.tool.call.result"]) == (
        json.dumps({"q": SECRET}, separators=(",", ":")),
        SECRET,
    )


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
