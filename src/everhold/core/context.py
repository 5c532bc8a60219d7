"""Compute the context, which is what a model sees, from entries. Nothing is copied, moved or deleted in the log.

`select_operations` chooses the operations that are in the context at a given seq, `assemble_context` groups their
entries, and `build_model_request` makes a request. Undo, preview and evaluation use the same functions with another
range.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

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
from everhold.core.provenance import (
    FOREIGN_LINE_PREFIX,
    LINE_BREAK,
    identify_speaker,
    join_all_text,
    needs_speaker_line,
)
from everhold.core.turn import NOT_RUN_TEXT
from everhold.ports.model import ModelMessage, ModelRequest, ToolSpec
from everhold.ports.store import Operation

VISIBLE_OUTCOMES: Final = frozenset({"running", "done", "failed", "stopped", "interrupted"})
"""Outcomes of turns that belong to the conversation. Released, refused and erased turns do not."""

LONG_RESULT_CHARS: Final = 16_000
"""Longest tool result, in characters, that is shown in full while the turn fits the model."""
SHORT_TEXT_CHARS: Final = 2_000
"""Longest text, in characters, that is shown in full even if a request has to be as small as possible."""
STUB_HEAD_CHARS: Final = 1_200
STUB_TAIL_CHARS: Final = 400
STUB_NOTE_CHARS: Final = 128
"""Room for the note between them. No stub is longer than all three, so the stub of a stub is the same."""
MAX_STUB_CHARS: Final = STUB_HEAD_CHARS + STUB_TAIL_CHARS + STUB_NOTE_CHARS

CLOCK_LINE: Final = "It is now {clock}."
PINS_HEADING: Final = "[Pinned by people, so that it stays in view, word for word:]"
ERASED_RESULT_TEXT: Final = "[The result of this was erased.]"

_KEPT_LINE_BREAK: Final = f"\n{FOREIGN_LINE_PREFIX}"
_CONSUMING_BODIES: Final = (Began, Took)
_seq_of: Final = attrgetter("seq")
_ENDING_NOTES: Final = {
    "failed": "[This was not answered: {reason}]",
    "stopped": "[The person stopped this turn before it was finished.]",
    "interrupted": "[This turn was cut short by the message that follows.]",
}


class ContextSelection(Struct, frozen=True, kw_only=True):
    """The operations in the context: a compression that replaces all operations up to its `covers`, and the turns after
    it.
    """

    compression: Operation | None = None
    turns: tuple[Operation, ...] = ()
    is_whole: bool = True
    """The selection reaches back to the session's beginning, so the context of a branch's parent comes before it."""


class TurnEntries(Struct, frozen=True, kw_only=True):
    """A turn's entries: the messages it consumed, in the order of consumption, and the entries it wrote."""

    op: int
    heard: tuple[Entry, ...]
    steps: tuple[Entry, ...]


class SessionContext(Struct, frozen=True, kw_only=True):
    """What a model may see of a session."""

    compression: Entry | None = None
    turns: tuple[TurnEntries, ...] = ()
    pins: tuple[VerbatimMessage, ...] = ()
    """What people pinned, in the order of the pins."""

    def __add__(self, later: SessionContext) -> SessionContext:
        """Return this context with `later` after it. A compression in `later` replaces everything before it."""
        if later.compression is not None:
            return later
        return SessionContext(compression=self.compression, turns=self.turns + later.turns, pins=self.pins + later.pins)


def is_in_context(operation: Operation, at: int) -> bool:
    """Return whether no entry before `at` removed the operation from the context."""
    return not operation.undone_at or operation.undone_at >= at


def select_operations(
    operations: Iterable[Operation], *, at: int, compression: int | None = None, over: bool = False
) -> ContextSelection:
    """Return the context as it was just before seq `at`. `compression` pins one (0: none); by default the newest valid
    one is used.

    A turn may pin a compression that was made after it began. `over`: include only turns that had ended by then.
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
    # A summary of an earlier context is not used after a reset, even if a turn of that context made it later.
    if newest is not None and newest.covers < fresh:
        newest = None
    after = max(fresh, newest.covers if newest else 0)
    return ContextSelection(
        compression=newest,
        turns=tuple(sorted((turn for turn in turns if turn.op > after), key=lambda turn: turn.op)),
        is_whole=newest is None and fresh == 0,
    )


def assemble_context(selection: ContextSelection, entries: Iterable[Entry]) -> SessionContext:
    """Group the entries of the chosen operations. Other entries are ignored."""
    compression_op = selection.compression.op if selection.compression else None
    by_seq: dict[int, Entry] = {}
    steps: dict[int, list[Entry]] = {turn.op: [] for turn in selection.turns}
    compression: Entry | None = None
    for entry in entries:
        op = entry.op
        if op is None or type(entry.body) is Heard:
            by_seq[entry.seq] = entry
        elif op in steps:
            steps[op].append(entry)
        elif op == compression_op and type(entry.body) is Compressed:
            compression = entry
    exchanges = []
    for turn in selection.turns:
        turn_steps = sorted(steps[turn.op], key=_seq_of)
        taken = [seq for entry in turn_steps if isinstance(entry.body, _CONSUMING_BODIES) for seq in entry.body.takes]
        heard = tuple(by_seq[seq] for seq in taken if seq in by_seq)
        exchanges.append(TurnEntries(op=turn.op, heard=heard, steps=tuple(turn_steps)))
    return SessionContext(compression=compression, turns=tuple(exchanges))


def render_messages(
    view: SessionContext, *, stubs: frozenset[int] = frozenset(), recalled: str = ""
) -> tuple[ModelMessage, ...]:
    """Return the context as messages for a model. `stubs` are seqs of entries whose long text is shortened, always in
    the same way.

    `recalled` is put right before the messages of the last turn, and only there.
    """
    out: list[ModelMessage] = []
    if view.compression is not None and isinstance(view.compression.body, Compressed):
        out.append(ModelMessage(role="user", name="everhold", text=_render_compression(view.compression.body)))
    if view.pins:
        out.append(ModelMessage(role="user", name="everhold", text=render_pins(view.pins)))
    for exchange in view.turns:
        out.extend(_render_turn(exchange, stubs, recalled if exchange is view.turns[-1] else ""))
    return tuple(out)


def render_pins(pins: Iterable[VerbatimMessage]) -> str:
    """Return what people pinned as the text of one message."""
    return "\n".join((PINS_HEADING, *_render_verbatim(pins)))


def build_model_request(
    shown: tuple[ModelMessage, ...],
    *,
    system: str,
    tools: Sequence[ToolSpec] = (),
    params: dict[str, Any] | None = None,
) -> ModelRequest:
    """Return the request with these messages. The same context and runtime always give the same bytes."""
    return ModelRequest(system=system, messages=shown, tools=tuple(tools), params=params or {})


class RequestPrefix(Struct, frozen=True, kw_only=True):
    """The beginning of requests whose digest is already known, so that it is not hashed again for the next request."""

    system: str
    messages: tuple[ModelMessage, ...] = ()
    digest: Any

    def extend_with(self, shown: tuple[ModelMessage, ...]) -> RequestPrefix | None:
        """Return this prefix with the messages that follow it in `shown`; None if `shown` does not begin with it."""
        count = len(self.messages)
        if shown[:count] != self.messages:
            return None
        if len(shown) == count:
            return self
        digest = self.digest.copy()
        digest.update((b"," if count else b"") + msgspec.json.encode(shown[count:])[1:-1])
        return RequestPrefix(system=self.system, messages=shown, digest=digest)


def start_request_prefix(system: str) -> RequestPrefix:
    """Return the prefix without messages."""
    return RequestPrefix(
        system=system, digest=hashlib.sha256(b'{"system":%b,"messages":[' % msgspec.json.encode(system))
    )


def fingerprint_request(request: ModelRequest, sealed: RequestPrefix | None = None) -> str:
    """Return the digest of a request's JSON, by which it is recognised later. `sealed` is a prefix whose digest is
    known.
    """
    if sealed is None or sealed.system != request.system:
        sealed = start_request_prefix(request.system)
    whole = sealed.extend_with(request.messages) or start_request_prefix(request.system).extend_with(request.messages)
    assert whole is not None, "a prefix without messages begins every request"
    digest = whole.digest.copy()
    digest.update(
        b'],"tools":%b,"params":%b}' % (msgspec.json.encode(request.tools), msgspec.json.encode(request.params))
    )
    found: str = digest.hexdigest()
    return found


def find_oversized(
    view: SessionContext, *, most: int = LONG_RESULT_CHARS, what: type[Returned | Heard] = Returned
) -> tuple[int, ...]:
    """Return the seqs of tool results, or messages, in the context that are longer than `most` characters."""
    return tuple(
        entry.seq
        for exchange in view.turns
        for entry in (exchange.heard if what is Heard else exchange.steps)
        if isinstance(entry.body, what) and _count_chars(entry.body) > most
    )


def _count_chars(body: Returned | Heard) -> int:
    return len(join_all_text(body) if isinstance(body, Heard) else body.text)


def list_turn_stubs(exchange: TurnEntries) -> frozenset[int]:
    """Return the entries that this turn showed as stubs, or that must be stubs after its end."""
    return frozenset(
        seq for step in exchange.steps if isinstance(step.body, Thought | Ended) for seq in step.body.stubs
    )


def list_context_stubs(view: SessionContext) -> frozenset[int]:
    """Return the entries that the next turn shows as stubs. A stub stays a stub, because requests should begin with the
    same bytes, and a text that did not fit before would not fit now.
    """
    marks = frozenset[int]().union(*map(list_turn_stubs, view.turns))
    if not marks:
        return marks
    return marks & {entry.seq for exchange in view.turns for entry in (*exchange.heard, *exchange.steps)}


def shorten_stubs(view: SessionContext, stubs: Collection[int]) -> SessionContext:
    """Return the context with only the shown parts of the entries that are shown as stubs, so that a few huge texts do
    not take much memory. It is rendered to the same messages."""
    if not stubs:
        return view
    return structs.replace(view, turns=tuple(shorten_turn_stubs(exchange, stubs) for exchange in view.turns))


def shorten_turn_stubs(exchange: TurnEntries, stubs: Collection[int]) -> TurnEntries:
    """Return a turn with only the shown parts of the entries that are shown as stubs."""
    if stubs and any(entry.seq in stubs for entry in (*exchange.heard, *exchange.steps)):
        return TurnEntries(
            op=exchange.op,
            heard=tuple(shorten_stub(it) if it.seq in stubs else it for it in exchange.heard),
            steps=tuple(shorten_stub(it) if it.seq in stubs else it for it in exchange.steps),
        )
    return exchange


def shorten_stub(entry: Entry) -> Entry:
    """Return a message or a tool result with only what is shown of it as a stub."""
    body = entry.body
    if isinstance(body, Heard):
        pieces = tuple(structs.replace(piece, text=render_stub(piece.text, entry.seq)) for piece in body.pieces)
        return structs.replace(entry, body=structs.replace(body, text=render_stub(body.text, entry.seq), pieces=pieces))
    if isinstance(body, Returned):
        return structs.replace(entry, body=structs.replace(body, text=render_stub(body.text, entry.seq)))
    return entry


def _render_turn(exchange: TurnEntries, stubs: frozenset[int], recalled: str = "") -> Iterable[ModelMessage]:
    unsaid = {entry.seq: entry for entry in exchange.heard}
    found: tuple[dict[tuple[int, str], Entry], set[int]] | None = None
    for step in exchange.steps:
        match step.body:
            case Began(takes=takes, clock=clock) | Took(takes=takes, clock=clock):
                if clock:
                    yield ModelMessage(role="user", name="everhold", text=CLOCK_LINE.format(clock=clock))
                if recalled and isinstance(step.body, Began):
                    yield ModelMessage(role="user", name="memory", text=recalled)
                for seq in takes:
                    entry = unsaid.pop(seq, None)
                    if entry is not None and isinstance(entry.body, Heard):  # of an erased one nothing is shown again
                        yield render_heard(entry, entry.body, stubs)
            case Thought(text=text, calls=calls, reasoning=reasoning):
                if text or calls:
                    yield ModelMessage(role="assistant", text=text, calls=calls, reasoning=reasoning)
                for call in calls:
                    results, erased = found = found or _index_results(exchange.steps)
                    yield _render_result(call.id, results.get((step.seq, call.id)), stubs, erased=step.seq in erased)
            case Ended(outcome=outcome, reason=reason) if outcome in _ENDING_NOTES:
                yield ModelMessage(role="user", name="everhold", text=_ENDING_NOTES[outcome].format(reason=reason))
            case _:
                pass  # calls, notes, replies and notices are not the model's words


def render_heard(entry: Entry, body: Heard, stubs: Collection[int]) -> ModelMessage:
    """Return a message as a model sees it. `stubs` are seqs of entries whose long texts are shortened."""
    text, pieces = body.text, body.pieces
    if entry.seq in stubs:
        text = render_stub(text, entry.seq)
        pieces = tuple(structs.replace(piece, text=render_stub(piece.text, entry.seq)) for piece in pieces)
    if body.delegated:
        return ModelMessage(role="user", text=text, name="everhold")
    if body.approval is not None:
        return ModelMessage(role="user", text=text, name="everhold", pieces=pieces)
    speaker = identify_speaker(entry, body) if needs_speaker_line(body) else ""
    return ModelMessage(
        role="user", text=text, name=body.sender, speaker=speaker, pieces=pieces, attachments=body.attachments
    )


def _index_results(steps: tuple[Entry, ...]) -> tuple[dict[tuple[int, str], Entry], set[int]]:
    """Return (seq of the thought, call id) -> its result, because models reuse ids in later rounds.

    Also return the thoughts of which a result was erased. It is unknown which call that result belonged to.
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
        # A model that reads "not run" would run the call again.
        return ModelMessage(
            role="tool", call=call, text=ERASED_RESULT_TEXT if erased else NOT_RUN_TEXT, error=not erased
        )
    text = render_stub(entry.body.text, entry.seq) if entry.seq in stubs else entry.body.text
    return ModelMessage(role="tool", call=call, text=text, error=entry.body.error)


def render_stub(text: str, seq: int) -> str:
    """Return the stub of entry `seq`: the beginning and the end of its text, and where to read the rest."""
    if len(text) <= MAX_STUB_CHARS:
        return text
    return (
        f"{text[:STUB_HEAD_CHARS]}\n"
        f"[… {len(text) - STUB_HEAD_CHARS - STUB_TAIL_CHARS} of {len(text)} characters left out; "
        f"the whole is entry {seq} of this session …]\n{text[-STUB_TAIL_CHARS:]}"
    )


def _render_compression(compressed: Compressed) -> str:
    return render_summary(compressed.summary, compressed.kept, compressed.effects)


def render_summary(summary: str, kept: Sequence[VerbatimMessage], effects: Sequence[str]) -> str:
    """Return a compression as the model reads it: the summary, then the verbatim messages, then the
    external effects.
    """
    parts = [
        "[Summary of the conversation so far, made by everhold so that it fits. "
        "The originals are kept and can be searched; the numbers are their entries.]",
        summary,
    ]
    if kept:
        parts.append("[Said, word for word:]")
        parts += _render_verbatim(kept)
    if effects:
        parts.append("[Done, with its outcome:]")
        parts += effects
    return "\n".join(parts)


def _render_verbatim(kept: Iterable[VerbatimMessage]) -> Iterator[str]:
    """Return kept messages as lines, with a line for each change of the speaker."""
    speaker = None
    for it in kept:
        if it.who != speaker:
            speaker = it.who
            yield f"{it.who or 'unknown'}:"
        # A line break in a kept text must not make a line that looks like another kept text.
        text = LINE_BREAK.sub(_KEPT_LINE_BREAK, it.text)
        yield f"#{it.seq} (not answered) {text}" if it.why == "question" else f"#{it.seq} {text}"
