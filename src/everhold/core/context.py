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

from everhold.core.entries import Began, Compressed, Ended, Entry, Heard, Kept, Kind, Returned, Thought, Took
from everhold.core.turn import NOT_RUN
from everhold.ports.model import Message, Request, ToolSpec
from everhold.ports.store import Operation

IN_VIEW: Final = frozenset({"running", "done", "failed", "stopped", "interrupted"})
"""Outcomes of turns that belong to the conversation. What was released, refused or erased does not."""

LONG_RESULT: Final = 16_000
"""Characters of a tool result that are shown in full while the turn fits."""
SHORT_TEXT: Final = 2_000
"""Characters that are shown in full even where a request has to become as small as it can."""
STUB_HEAD: Final = 1_200
STUB_TAIL: Final = 400

ERASED: Final = "[The result of this was erased.]"

_TAKING: Final = (Began, Took)
_seq: Final = attrgetter("seq")
_ENDINGS: Final = {
    "failed": "[This was not answered: {reason}]",
    "stopped": "[The person stopped this turn before it was finished.]",
    "interrupted": "[This turn was cut short by the message that follows.]",
}


class Selection(Struct, frozen=True, kw_only=True):
    """Which operations are in the view: a fold that stands for all up to its mark, and the turns after it."""

    fold: Operation | None = None
    turns: tuple[Operation, ...] = ()
    whole: bool = True
    """Reaches back to the session's beginning, so that a branch's parent comes before it."""


class Exchange(Struct, frozen=True, kw_only=True):
    """A turn's entries: what it consumed, in the order it did, and what followed."""

    op: int
    heard: tuple[Entry, ...]
    steps: tuple[Entry, ...]


class View(Struct, frozen=True, kw_only=True):
    """What a model may see of a session."""

    fold: Entry | None = None
    exchanges: tuple[Exchange, ...] = ()

    def __add__(self, later: View) -> View:
        """This view with `later` after it; a fold in the later one stands for all that came before it."""
        if later.fold is not None:
            return later
        return View(fold=self.fold, exchanges=self.exchanges + later.exchanges)


def live(operation: Operation, at: int) -> bool:
    """Whether nothing before `at` took the operation out of the view."""
    return not operation.undone_at or operation.undone_at >= at


def choose(operations: Iterable[Operation], *, at: int, fold: int | None = None, over: bool = False) -> Selection:
    """The view as it was just before seq `at`. `fold` pins one (0: none) instead of taking the newest valid one.

    A turn may pin a fold that was made after it began. `over`: only turns that had ended by then.
    """
    fresh = 0
    newest: Operation | None = None
    turns: list[Operation] = []
    for operation in operations:
        if operation.type == "compression" and operation.op == fold:
            newest = operation if operation.state == "done" else None
            continue
        if operation.op >= at or not live(operation, at):
            continue
        if operation.type == "context_reset":
            fresh = max(fresh, operation.op)
        elif operation.type == "turn" and operation.state in IN_VIEW:
            if not over or 0 < operation.last < at:
                turns.append(operation)
        elif operation.type == "compression" and operation.state == "done" and operation.last < at and fold is None:
            if newest is None or operation.last > newest.last:
                newest = operation
    # an earlier context's summary ended with that context, even one that a turn of it still made afterwards
    if newest is not None and newest.covers < fresh:
        newest = None
    after = max(fresh, newest.covers if newest else 0)
    return Selection(
        fold=newest,
        turns=tuple(sorted((turn for turn in turns if turn.op > after), key=lambda turn: turn.op)),
        whole=newest is None and fresh == 0,
    )


def assemble(selection: Selection, entries: Iterable[Entry]) -> View:
    """The entries of the chosen operations, grouped. Everything else in `entries` is passed over."""
    fold_op = selection.fold.op if selection.fold else None
    by_seq: dict[int, Entry] = {}
    steps: dict[int, list[Entry]] = {turn.op: [] for turn in selection.turns}
    fold: Entry | None = None
    for entry in entries:
        op = entry.op
        if op is None or type(entry.body) is Heard:
            by_seq[entry.seq] = entry
        elif op in steps:
            steps[op].append(entry)
        elif op == fold_op and type(entry.body) is Compressed:
            fold = entry
    exchanges = []
    for turn in selection.turns:
        mine = sorted(steps[turn.op], key=_seq)
        taken = [seq for entry in mine if isinstance(entry.body, _TAKING) for seq in entry.body.takes]
        heard = tuple(by_seq[seq] for seq in taken if seq in by_seq)
        exchanges.append(Exchange(op=turn.op, heard=heard, steps=tuple(mine)))
    return View(fold=fold, exchanges=tuple(exchanges))


def messages(view: View, *, stubs: frozenset[int] = frozenset(), recalled: str = "") -> tuple[Message, ...]:
    """The view as a model reads it. `stubs` are entries whose long text is shortened, always in the same way.

    `recalled` stands right before what the last turn heard: beside the message it serves, and in that turn only.
    """
    out: list[Message] = []
    if view.fold is not None and isinstance(view.fold.body, Compressed):
        out.append(Message(role="user", name="everhold", text=_summary(view.fold.body)))
    for exchange in view.exchanges:
        out.extend(_exchange(exchange, stubs, recalled if exchange is view.exchanges[-1] else ""))
    return tuple(out)


def build(
    shown: tuple[Message, ...],
    *,
    system: str,
    tools: Sequence[ToolSpec] = (),
    params: dict[str, Any] | None = None,
) -> Request:
    """The request that shows these messages. The same view and runtime give the same bytes, always."""
    return Request(system=system, messages=shown, tools=tuple(tools), params=params or {})


class Sealed(Struct, frozen=True, kw_only=True):
    """The beginning of requests, as far as their fingerprints are known: nobody has to read it again for the next."""

    system: str
    shown: tuple[Message, ...] = ()
    digest: Any

    def plus(self, shown: tuple[Message, ...]) -> Sealed | None:
        """This with the messages that follow it in `shown`; None if it is not what those begin with."""
        count = len(self.shown)
        if shown[:count] != self.shown:
            return None
        if len(shown) == count:
            return self
        digest = self.digest.copy()
        digest.update((b"," if count else b"") + msgspec.json.encode(shown[count:])[1:-1])
        return Sealed(system=self.system, shown=shown, digest=digest)


def seal(system: str) -> Sealed:
    """Where every request begins."""
    return Sealed(system=system, digest=hashlib.sha256(b'{"system":%b,"messages":[' % msgspec.json.encode(system)))


def fingerprint(request: Request, sealed: Sealed | None = None) -> str:
    """What a request is recognised by later: the digest of its JSON, which may be `sealed` up to some message."""
    if sealed is None or sealed.system != request.system:
        sealed = seal(request.system)
    whole = sealed.plus(request.messages) or seal(request.system).plus(request.messages)
    assert whole is not None, "every request begins with no message"
    digest = whole.digest.copy()
    digest.update(
        b'],"tools":%b,"params":%b}' % (msgspec.json.encode(request.tools), msgspec.json.encode(request.params))
    )
    found: str = digest.hexdigest()
    return found


def oversized(view: View, *, most: int = LONG_RESULT, what: type[Returned | Heard] = Returned) -> tuple[int, ...]:
    """Tool results, or messages, in the view that are longer than `most`, as entries' seqs."""
    return tuple(
        entry.seq
        for exchange in view.exchanges
        for entry in (exchange.heard if what is Heard else exchange.steps)
        if isinstance(entry.body, what) and len(entry.body.text) > most
    )


def marked(exchange: Exchange) -> frozenset[int]:
    """What was shown as a stub in this turn, or has to be from its end on."""
    return frozenset(
        seq for step in exchange.steps if isinstance(step.body, Thought | Ended) for seq in step.body.stubs
    )


def stubbed(view: View) -> frozenset[int]:
    """What of the view the next turn is shown as stubs: what was one stays one, so that the beginning of requests
    stays the same, and what did not fit then would not fit now."""
    marks = frozenset[int]().union(*map(marked, view.exchanges))
    if not marks:
        return marks
    return marks & {entry.seq for exchange in view.exchanges for entry in (*exchange.heard, *exchange.steps)}


def _exchange(exchange: Exchange, stubs: frozenset[int], recalled: str = "") -> Iterable[Message]:
    unsaid = {entry.seq: entry for entry in exchange.heard}
    found: tuple[dict[tuple[int, str], Entry], set[int]] | None = None
    for step in exchange.steps:
        match step.body:
            case Began(takes=takes) | Took(takes=takes):
                if recalled and isinstance(step.body, Began):
                    yield Message(role="user", name="memory", text=recalled)
                for seq in takes:
                    entry = unsaid.pop(seq, None)
                    if entry is not None and (message := _heard(entry, stubs)):
                        yield message
            case Thought(text=text, calls=calls, reasoning=reasoning):
                if text or calls:
                    yield Message(role="assistant", text=text, calls=calls, reasoning=reasoning)
                for call in calls:
                    results, erased = found = found or _results(exchange.steps)
                    yield _result(call.id, results.get((step.seq, call.id)), stubs, erased=step.seq in erased)
            case Ended(outcome=outcome, reason=reason) if outcome in _ENDINGS:
                yield Message(role="user", name="everhold", text=_ENDINGS[outcome].format(reason=reason))
            case _:
                pass  # starts, notes, sayings and notices are not the model's words


def _heard(entry: Entry, stubs: frozenset[int]) -> Message | None:
    if not isinstance(entry.body, Heard):
        return None  # erased: nothing of it may come back
    body = entry.body
    text = shortened(body.text, entry.seq) if entry.seq in stubs else body.text
    return Message(role="user", text=text, name=body.sender, attachments=body.attachments)


def _results(steps: tuple[Entry, ...]) -> tuple[dict[tuple[int, str], Entry], set[int]]:
    """(seq of the thought, call id) -> its result: models use the same id again in a later round.

    And the thoughts of which a result was erased; nobody can tell any more which one it was.
    """
    found: dict[tuple[int, str], Entry] = {}
    erased: set[int] = set()
    thought = 0
    for step in steps:
        if step.kind is Kind.THOUGHT:
            thought = step.seq
        elif isinstance(step.body, Returned):
            found.setdefault((thought, step.body.call), step)
        elif step.kind is Kind.RETURNED:
            erased.add(thought)
    return found, erased


def _result(call: str, entry: Entry | None, stubs: frozenset[int], *, erased: bool) -> Message:
    if entry is None or not isinstance(entry.body, Returned):
        # whoever reads "not run" would run it again
        return Message(role="tool", call=call, text=ERASED if erased else NOT_RUN, error=not erased)
    text = shortened(entry.body.text, entry.seq) if entry.seq in stubs else entry.body.text
    return Message(role="tool", call=call, text=text, error=entry.body.error)


def shortened(text: str, seq: int) -> str:
    """The stub of entry `seq`: the beginning and the end of its text, and where to read the rest."""
    if len(text) <= STUB_HEAD + STUB_TAIL:
        return text
    return (
        f"{text[:STUB_HEAD]}\n[… {len(text) - STUB_HEAD - STUB_TAIL} of {len(text)} characters left out; "
        f"the whole is entry {seq} of this session …]\n{text[-STUB_TAIL:]}"
    )


def _summary(fold: Compressed) -> str:
    return rendered(fold.summary, fold.kept, fold.effects)


def rendered(summary: str, kept: Sequence[Kept], effects: Sequence[str]) -> str:
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
