"""Entries -> what a model sees. The context is a view over the log: nothing is copied, moved or deleted to make it.

`choose` picks the operations that are in the view at a given place of the log, `assemble` groups their entries, and
`build` renders a request. Undo, preview, time travel and evaluation are the same functions over another range.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.core.entries import (
    Began,
    Compressed,
    Ended,
    Entry,
    EntryKind,
    Heard,
    Returned,
    Thought,
    Took,
    VerbatimMessage,
)
from everhold.core.turn import NOT_RUN_TEXT
from everhold.ports.model import ModelMessage, ModelRequest, ToolSpec
from everhold.ports.store import Operation

VISIBLE_OUTCOMES: Final = frozenset({"running", "done", "failed", "stopped", "interrupted"})
"""Outcomes of turns that belong to the conversation. What was released, refused or erased does not."""

LONG_RESULT_CHARS: Final = 16_000
"""Characters of a tool result that are shown in full while the turn fits."""
SHORT_TEXT_CHARS: Final = 2_000
"""Characters that are shown in full even where a request has to become as small as it can."""
STUB_HEAD_CHARS: Final = 1_200
STUB_TAIL_CHARS: Final = 400

ERASED_RESULT_TEXT: Final = "[The result of this was erased.]"

_CONSUMING_BODIES: Final = (Began, Took)
_seq_of: Final = attrgetter("seq")
_ENDING_NOTES: Final = {
    "failed": "[This was not answered: {reason}]",
    "stopped": "[The person stopped this turn before it was finished.]",
    "interrupted": "[This turn was cut short by the message that follows.]",
}


class ContextSelection(Struct, frozen=True, kw_only=True):
    """Which operations are in the view: a fold that stands for all up to its mark, and the turns after it."""

    compression: Operation | None = None
    turns: tuple[Operation, ...] = ()
    is_whole: bool = True
    """Reaches back to the session's beginning, so that a branch's parent comes before it."""


class TurnEntries(Struct, frozen=True, kw_only=True):
    """A turn's entries: what it consumed, in the order it did, and what followed."""

    op: int
    heard: tuple[Entry, ...]
    steps: tuple[Entry, ...]


class SessionContext(Struct, frozen=True, kw_only=True):
    """What a model may see of a session."""

    compression: Entry | None = None
    turns: tuple[TurnEntries, ...] = ()

    def __add__(self, later: SessionContext) -> SessionContext:
        """This view with `later` after it; a fold in the later one stands for all that came before it."""
        if later.compression is not None:
            return later
        return SessionContext(compression=self.compression, turns=self.turns + later.turns)


def is_in_context(operation: Operation, at: int) -> bool:
    """Whether nothing before `at` took the operation out of the view."""
    return not operation.undone_at or operation.undone_at >= at


def select_operations(
    operations: Iterable[Operation], *, at: int, compression: int | None = None, over: bool = False
) -> ContextSelection:
    """The view as it was just before seq `at`. `fold` pins one (0: none) instead of taking the newest valid one.

    A turn may pin a fold that was made after it began. `over`: only turns that had ended by then.
    """
    fresh = 0
    newest: Operation | None = None
    turns: list[Operation] = []
    for operation in operations:
        if operation.type == "compression" and operation.op == compression:
            newest = operation if operation.state == "done" else None
            continue
        if operation.op >= at or not is_in_context(operation, at):
            continue
        if operation.type == "context_reset":
            fresh = max(fresh, operation.op)
        elif operation.type == "turn" and operation.state in VISIBLE_OUTCOMES:
            if not over or 0 < operation.last < at:
                turns.append(operation)
        elif (
            operation.type == "compression"
            and operation.state == "done"
            and operation.last < at
            and compression is None
        ):
            if newest is None or operation.last > newest.last:
                newest = operation
    # an earlier context's summary ended with that context, even one that a turn of it still made afterwards
    if newest is not None and newest.covers < fresh:
        newest = None
    after = max(fresh, newest.covers if newest else 0)
    return ContextSelection(
        compression=newest,
        turns=tuple(sorted((turn for turn in turns if turn.op > after), key=lambda turn: turn.op)),
        is_whole=newest is None and fresh == 0,
    )


def assemble_context(selection: ContextSelection, entries: Iterable[Entry]) -> SessionContext:
    """The entries of the chosen operations, grouped. Everything else in `entries` is passed over."""
    fold_op = selection.compression.op if selection.compression else None
    by_seq: dict[int, Entry] = {}
    steps: dict[int, list[Entry]] = {turn.op: [] for turn in selection.turns}
    compression: Entry | None = None
    for entry in entries:
        op = entry.op
        if op is None or type(entry.body) is Heard:
            by_seq[entry.seq] = entry
        elif op in steps:
            steps[op].append(entry)
        elif op == fold_op and type(entry.body) is Compressed:
            compression = entry
    exchanges = []
    for turn in selection.turns:
        mine = sorted(steps[turn.op], key=_seq_of)
        taken = [seq for entry in mine if isinstance(entry.body, _CONSUMING_BODIES) for seq in entry.body.takes]
        heard = tuple(by_seq[seq] for seq in taken if seq in by_seq)
        exchanges.append(TurnEntries(op=turn.op, heard=heard, steps=tuple(mine)))
    return SessionContext(compression=compression, turns=tuple(exchanges))


def render_messages(
    view: SessionContext, *, stubs: frozenset[int] = frozenset(), recalled: str = ""
) -> tuple[ModelMessage, ...]:
    """The view as a model reads it. `stubs` are entries whose long text is shortened, always in the same way.

    `recalled` stands right before what the last turn heard: beside the message it serves, and in that turn only.
    """
    out: list[ModelMessage] = []
    if view.compression is not None and isinstance(view.compression.body, Compressed):
        out.append(ModelMessage(role="user", name="everhold", text=_render_compression(view.compression.body)))
    for exchange in view.turns:
        out.extend(_render_turn(exchange, stubs, recalled if exchange is view.turns[-1] else ""))
    return tuple(out)


def build_model_request(
    shown: tuple[ModelMessage, ...],
    *,
    system: str,
    tools: Sequence[ToolSpec] = (),
    params: dict[str, Any] | None = None,
) -> ModelRequest:
    """The request that shows these messages. The same view and runtime give the same bytes, always."""
    return ModelRequest(system=system, messages=shown, tools=tuple(tools), params=params or {})


class RequestPrefix(Struct, frozen=True, kw_only=True):
    """The beginning of requests, as far as their fingerprints are known: nobody has to read it again for the next."""

    system: str
    messages: tuple[ModelMessage, ...] = ()
    digest: Any

    def extend_with(self, shown: tuple[ModelMessage, ...]) -> RequestPrefix | None:
        """This with the messages that follow it in `shown`; None if it is not what those begin with."""
        count = len(self.messages)
        if shown[:count] != self.messages:
            return None
        if len(shown) == count:
            return self
        digest = self.digest.copy()
        digest.update((b"," if count else b"") + msgspec.json.encode(shown[count:])[1:-1])
        return RequestPrefix(system=self.system, messages=shown, digest=digest)


def start_request_prefix(system: str) -> RequestPrefix:
    """Where every request begins."""
    return RequestPrefix(
        system=system, digest=hashlib.sha256(b'{"system":%b,"messages":[' % msgspec.json.encode(system))
    )


def fingerprint_request(request: ModelRequest, sealed: RequestPrefix | None = None) -> str:
    """What a request is recognised by later: the digest of its JSON, which may be `sealed` up to some message."""
    if sealed is None or sealed.system != request.system:
        sealed = start_request_prefix(request.system)
    whole = sealed.extend_with(request.messages) or start_request_prefix(request.system).extend_with(request.messages)
    assert whole is not None, "every request begins with no message"
    digest = whole.digest.copy()
    digest.update(
        b'],"tools":%b,"params":%b}' % (msgspec.json.encode(request.tools), msgspec.json.encode(request.params))
    )
    found: str = digest.hexdigest()
    return found


def find_oversized(
    view: SessionContext, *, most: int = LONG_RESULT_CHARS, what: type[Returned | Heard] = Returned
) -> tuple[int, ...]:
    """Tool results, or messages, in the view that are longer than `most`, as entries' seqs."""
    return tuple(
        entry.seq
        for exchange in view.turns
        for entry in (exchange.heard if what is Heard else exchange.steps)
        if isinstance(entry.body, what) and len(entry.body.text) > most
    )


def list_turn_stubs(exchange: TurnEntries) -> frozenset[int]:
    """What was shown as a stub in this turn, or has to be from its end on."""
    return frozenset(
        seq for step in exchange.steps if isinstance(step.body, Thought | Ended) for seq in step.body.stubs
    )


def list_context_stubs(view: SessionContext) -> frozenset[int]:
    """What of the view the next turn is shown as stubs: what was one stays one, so that the beginning of requests
    stays the same, and what did not fit then would not fit now."""
    marks = frozenset[int]().union(*map(list_turn_stubs, view.turns))
    if not marks:
        return marks
    return marks & {entry.seq for exchange in view.turns for entry in (*exchange.heard, *exchange.steps)}


def _render_turn(exchange: TurnEntries, stubs: frozenset[int], recalled: str = "") -> Iterable[ModelMessage]:
    unsaid = {entry.seq: entry for entry in exchange.heard}
    found: tuple[dict[tuple[int, str], Entry], set[int]] | None = None
    for step in exchange.steps:
        match step.body:
            case Began(takes=takes) | Took(takes=takes):
                if recalled and isinstance(step.body, Began):
                    yield ModelMessage(role="user", name="memory", text=recalled)
                for seq in takes:
                    entry = unsaid.pop(seq, None)
                    if entry is not None and (message := _render_heard(entry, stubs)):
                        yield message
            case Thought(text=text, calls=calls, reasoning=reasoning):
                if text or calls:
                    yield ModelMessage(role="assistant", text=text, calls=calls, reasoning=reasoning)
                for call in calls:
                    results, erased = found = found or _index_results(exchange.steps)
                    yield _render_result(call.id, results.get((step.seq, call.id)), stubs, erased=step.seq in erased)
            case Ended(outcome=outcome, reason=reason) if outcome in _ENDING_NOTES:
                yield ModelMessage(role="user", name="everhold", text=_ENDING_NOTES[outcome].format(reason=reason))
            case _:
                pass  # starts, notes, sayings and notices are not the model's words


def _render_heard(entry: Entry, stubs: frozenset[int]) -> ModelMessage | None:
    if not isinstance(entry.body, Heard):
        return None  # erased: nothing of it may come back
    body = entry.body
    text = render_stub(body.text, entry.seq) if entry.seq in stubs else body.text
    return ModelMessage(role="user", text=text, name=body.sender, attachments=body.attachments)


def _index_results(steps: tuple[Entry, ...]) -> tuple[dict[tuple[int, str], Entry], set[int]]:
    """(seq of the thought, call id) -> its result: models use the same id again in a later round.

    And the thoughts of which a result was erased; nobody can tell any more which one it was.
    """
    found: dict[tuple[int, str], Entry] = {}
    erased: set[int] = set()
    thought = 0
    for step in steps:
        if step.kind is EntryKind.THOUGHT:
            thought = step.seq
        elif isinstance(step.body, Returned):
            found.setdefault((thought, step.body.call), step)
        elif step.kind is EntryKind.RETURNED:
            erased.add(thought)
    return found, erased


def _render_result(call: str, entry: Entry | None, stubs: frozenset[int], *, erased: bool) -> ModelMessage:
    if entry is None or not isinstance(entry.body, Returned):
        # whoever reads "not run" would run it again
        return ModelMessage(
            role="tool", call=call, text=ERASED_RESULT_TEXT if erased else NOT_RUN_TEXT, error=not erased
        )
    text = render_stub(entry.body.text, entry.seq) if entry.seq in stubs else entry.body.text
    return ModelMessage(role="tool", call=call, text=text, error=entry.body.error)


def render_stub(text: str, seq: int) -> str:
    """The stub of entry `seq`: the beginning and the end of its text, and where to read the rest."""
    if len(text) <= STUB_HEAD_CHARS + STUB_TAIL_CHARS:
        return text
    return (
        f"{text[:STUB_HEAD_CHARS]}\n[… {len(text) - STUB_HEAD_CHARS - STUB_TAIL_CHARS} of {len(text)} characters left out; "
        f"the whole is entry {seq} of this session …]\n{text[-STUB_TAIL_CHARS:]}"
    )


def _render_compression(compressed: Compressed) -> str:
    return render_summary(compressed.summary, compressed.kept, compressed.effects)


def render_summary(summary: str, kept: Sequence[VerbatimMessage], effects: Sequence[str]) -> str:
    """A fold as the model reads it: the summary, then what stays word for word, then what was done outside."""
    parts = [
        "[Summary of the conversation so far, made by everhold so that it fits. "
        "The originals are kept and can be searched; the numbers are their entries.]",
        summary,
    ]
    if kept:
        parts.append("[Said, word for word:]")
        parts += [f"#{it.seq} {it.who or 'somebody'} ({it.why}): {it.text}" for it in kept]
    if effects:
        parts.append("[Done, with its outcome:]")
        parts += effects
    return "\n".join(parts)
