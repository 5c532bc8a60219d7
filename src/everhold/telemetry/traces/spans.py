"""Build the spans of an operation from its entries. They are plain data, with the times and ids that the log implies.

No person and no chat is in them, and no word of a message unless a `ContentCapture` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from everhold.core.consumers import MEMORY, parse_consumer
from everhold.core.entries import Began, Called, Compressed, Ended, Entry, Heard, ModelUsage, Returned, Thought
from everhold.core.recall import MemoryAnswer
from everhold.core.trace_ids import OPERATION_SPAN, SpanReference, make_span_id, make_trace_id, parse_traceparent
from everhold.ports.store import DeadLetter, Receipt
from everhold.telemetry.traces import names
from everhold.telemetry.traces.content import ContentCapture

AttributeValue: TypeAlias = str | int | float | bool | tuple[str, ...]
SpanKind: TypeAlias = Literal["internal", "client", "producer"]

TRACED_TYPES = frozenset({"turn", "compression", "job"})
FAILED_OUTCOMES = frozenset({"failed"})
DEAD_LETTER = "dead_letter"


class TraceSpan(Struct, frozen=True, kw_only=True):
    """One span. Times are seconds since 1970. `error`: the type of what went wrong; empty if nothing did."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str
    kind: SpanKind = "internal"
    start: float
    end: float
    attributes: Mapping[str, AttributeValue]
    links: tuple[SpanReference, ...] = ()
    error: str = ""


class ModelDescription(NamedTuple):
    """What the configuration says of a model."""

    provider: str = ""
    name: str = ""
    """Its name at the provider."""


class TracedOperation(Struct, frozen=True, kw_only=True):
    """An operation that ended, with what its spans need."""

    session: str
    agent: str
    op: int
    entries: Sequence[Entry]
    """Its own entries, from `began` to `ended`."""
    heard: Sequence[Entry] = ()
    """The messages that it answers, as far as they are there."""
    recalls: Mapping[str, Mapping[str, MemoryAnswer]] = {}
    """Digest of a recall record -> memory -> how it answered."""


def is_traced(entries: Sequence[Entry]) -> bool:
    """Return whether an operation with these entries has a trace. Nothing is known of an erased one."""
    return bool(entries) and isinstance(entries[0].body, Began) and entries[0].body.type in TRACED_TYPES


def build_operation_spans(
    traced: TracedOperation,
    describe_model: Callable[[str], ModelDescription],
    *,
    capture: ContentCapture | None = None,
) -> list[TraceSpan]:
    """Return the spans of an operation, its root first. `capture` adds what was said."""
    return list(_SpanBuilder(traced, describe_model, capture).build())


class TracedDelivery(Struct, frozen=True, kw_only=True):
    """What one consumer did with an operation's replies, or with its exchange."""

    session: str
    op: int
    consumer: str
    committed_at: float
    receipts: Sequence[Receipt]
    dead_letters: Sequence[DeadLetter] = ()


def build_delivery_span(delivery: TracedDelivery) -> TraceSpan:
    """Return the span of a delivery. It is a trace of its own with a link to the operation, because it may end much
    later."""
    consumer = parse_consumer(delivery.consumer)
    trace_id = make_trace_id(delivery.session, delivery.op, delivery.consumer)
    cause = make_trace_id(delivery.session, delivery.op)
    is_memory = consumer.kind == MEMORY
    settled: tuple[Receipt | DeadLetter, ...] = (*delivery.receipts, *delivery.dead_letters)
    end = max(it.at for it in settled)
    lag = max(end - delivery.committed_at, 0.0)
    attributes: dict[str, AttributeValue] = {
        names.CONVERSATION_ID: delivery.session,
        names.OP: delivery.op,
        names.ITEMS: len(delivery.receipts),
        names.DOUBTFUL: any(it.in_doubt for it in settled),
        names.LAG_SECONDS: lag,
    }
    if is_memory:
        attributes |= {names.OPERATION_NAME: names.UPSERT_MEMORY, names.MEMORY: consumer.served}
    else:
        attributes |= {names.PLATFORM: consumer.platform, names.ACCOUNT: consumer.account}
    if delivery.dead_letters:
        attributes[names.ERROR_TYPE] = DEAD_LETTER
    return TraceSpan(
        trace_id=trace_id,
        span_id=make_span_id(trace_id, OPERATION_SPAN),
        name=f"{names.UPSERT_MEMORY} {consumer.served}" if is_memory else f"{names.DELIVER} {consumer.platform}",
        kind="client" if is_memory else "producer",
        start=delivery.committed_at,
        end=delivery.committed_at + lag,
        attributes=attributes,
        links=(SpanReference(cause, make_span_id(cause, OPERATION_SPAN)),),
        error=DEAD_LETTER if delivery.dead_letters else "",
    )


class _SpanBuilder:
    def __init__(
        self,
        traced: TracedOperation,
        describe_model: Callable[[str], ModelDescription],
        capture: ContentCapture | None,
    ) -> None:
        self.capture = capture
        self.traced = traced
        self.describe_model = describe_model
        self.trace_id = make_trace_id(traced.session, traced.op)
        self.root_id = make_span_id(self.trace_id, OPERATION_SPAN)
        self.previous_at = traced.entries[0].at
        """When the step before was recorded, so the next one began then at the earliest."""
        self.thought = 0
        self.tools: dict[str, str] = {}
        """Call -> tool, of the last model call."""
        self.started: dict[str, Entry] = {}
        """Call -> its `called` entry."""
        self.recalled = False
        self.arguments: dict[str, Mapping[str, Any]] = {}
        """Call -> its arguments."""
        self.has_asked = False

    def build(self) -> Iterator[TraceSpan]:
        yield self._build_root()
        for entry in self.traced.entries:
            match entry.body:
                case Thought():
                    yield from self._build_model_call(entry, entry.body)
                case Called(call=call):
                    self.started[call] = entry
                case Returned():
                    yield self._build_tool_call(entry, entry.body)
                case _:
                    pass
            self.previous_at = entry.at

    def _build_root(self) -> TraceSpan:
        traced, first, last = self.traced, self.traced.entries[0], self.traced.entries[-1]
        began, ended = first.body, last.body
        assert isinstance(began, Began)
        attributes: dict[str, AttributeValue] = {
            names.CONVERSATION_ID: traced.session,
            names.AGENT_NAME: traced.agent,
            names.OP: traced.op,
            names.OPERATION_TYPE: began.type,
        }
        if traced.heard:
            attributes[names.WAIT_SECONDS] = max(first.at - min(it.at for it in traced.heard), 0.0)
        outcome = ""
        if isinstance(ended, Ended):
            outcome = attributes[names.OUTCOME] = ended.outcome
            attributes |= _render_usage(ended.usage)
        name = f"{names.INVOKE_AGENT} {traced.agent}"
        if began.type == "compression":
            name = names.COMPRESSION
            attributes |= self._describe_compression(began)
        else:
            attributes[names.OPERATION_NAME] = names.INVOKE_AGENT
        return self._make_span(
            OPERATION_SPAN,
            name=name,
            start=first.at,
            end=last.at,
            attributes=attributes,
            links=self._list_callers(),
            error=outcome if outcome in FAILED_OUTCOMES else "",
        )

    def _list_callers(self) -> tuple[SpanReference, ...]:
        """Return the spans of the programs that sent the messages."""
        named = (it.body.trace for it in self.traced.heard if isinstance(it.body, Heard) and it.body.trace)
        found = (parse_traceparent(text) for text in named)
        return tuple(dict.fromkeys(it for it in found if it is not None))

    def _describe_compression(self, began: Began) -> dict[str, AttributeValue]:
        made = next((it.body for it in self.traced.entries if isinstance(it.body, Compressed)), None)
        described: dict[str, AttributeValue] = {names.TRIGGER: began.trigger, names.MESSAGES: began.messages}
        if made is not None:
            described |= {names.TOKENS_BEFORE: made.tokens_before, names.TOKENS_AFTER: made.tokens_after}
        if model := made.model if made is not None else began.model:
            described[names.REQUEST_MODEL] = self.describe_model(model).name or model
        return described

    def _build_model_call(self, entry: Entry, thought: Thought) -> Iterator[TraceSpan]:
        start = self.previous_at
        if not self.recalled and (answers := self.traced.recalls.get(thought.why)):
            self.recalled = True
            yield from self._build_recalls(entry, answers)
            start = min(start + max(it.seconds for it in answers.values()), entry.at)
        self.thought = entry.seq
        self.tools = {call.id: call.tool for call in thought.calls}
        self.arguments = {call.id: call.arguments for call in thought.calls}
        model = self.describe_model(thought.model)
        finish = thought.finish or ("tool_calls" if thought.calls else "stop")
        attributes: dict[str, AttributeValue] = {
            names.OPERATION_NAME: names.CHAT,
            names.CONVERSATION_ID: self.traced.session,
            names.REQUEST_MODEL: model.name or thought.model,
            names.FINISH_REASONS: (finish,),
            **_render_usage(thought.usage),
        }
        if model.provider:
            attributes[names.PROVIDER_NAME] = model.provider
        if self.capture is not None:
            attributes |= self.capture.describe_answer(thought, finish)
            if not self.has_asked:
                attributes |= self.capture.describe_question(self.traced.heard)
        self.has_asked = True
        yield self._make_span(
            names.CHAT,
            entry.seq,
            name=f"{names.CHAT} {thought.model}",
            kind="client",
            start=start,
            end=entry.at,
            attributes=attributes,
        )

    def _build_recalls(self, entry: Entry, answers: Mapping[str, MemoryAnswer]) -> Iterator[TraceSpan]:
        for memory, answer in answers.items():
            yield self._make_span(
                names.SEARCH_MEMORY,
                entry.seq,
                memory,
                name=f"{names.SEARCH_MEMORY} {memory}",
                kind="client",
                start=self.previous_at,
                end=min(self.previous_at + answer.seconds, entry.at),
                attributes={
                    names.OPERATION_NAME: names.SEARCH_MEMORY,
                    names.MEMORY: memory,
                    names.ITEMS: answer.found,
                    names.OUTCOME: "answered" if answer.answered else "silent",
                },
                error="" if answer.answered else "timeout",
            )

    def _build_tool_call(self, entry: Entry, returned: Returned) -> TraceSpan:
        called = self.started.pop(returned.call, None)
        tool = self.tools.get(returned.call, "")
        attributes: dict[str, AttributeValue] = {
            names.OPERATION_NAME: names.EXECUTE_TOOL,
            names.TOOL_NAME: tool,
            names.TOOL_CALL_ID: returned.call,
        }
        if called is not None and isinstance(called.body, Called):
            attributes[names.EFFECT] = called.body.effect
        if self.capture is not None:
            attributes |= self.capture.describe_call(self.arguments.get(returned.call, {}), returned)
        return self._make_span(
            names.EXECUTE_TOOL,
            self.thought,
            returned.call,
            name=f"{names.EXECUTE_TOOL} {tool}",
            start=self.previous_at if called is None else called.at,
            end=entry.at,
            attributes=attributes,
            error="unknown_outcome" if returned.unknown else "tool_error" if returned.error else "",
        )

    def _make_span(
        self,
        *id_parts: str | int,
        name: str,
        start: float,
        end: float,
        attributes: dict[str, AttributeValue],
        kind: SpanKind = "internal",
        links: tuple[SpanReference, ...] = (),
        error: str = "",
    ) -> TraceSpan:
        span_id = make_span_id(self.trace_id, *id_parts)
        if error:
            attributes[names.ERROR_TYPE] = error
        return TraceSpan(
            trace_id=self.trace_id,
            span_id=span_id,
            parent_id="" if span_id == self.root_id else self.root_id,
            name=name,
            kind=kind,
            start=start,
            end=max(start, end),
            attributes=attributes,
            links=links,
            error=error,
        )


def _render_usage(usage: ModelUsage) -> dict[str, AttributeValue]:
    """Return tokens and cost as attributes. Input tokens include the cached ones, whatever a vendor reports."""
    if not (usage.input or usage.output):
        return {}
    return {
        names.INPUT_TOKENS: usage.input,
        names.OUTPUT_TOKENS: usage.output,
        names.CACHED_TOKENS: usage.cached,
        names.COST_USD: usage.usd,
    }
