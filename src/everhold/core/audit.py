"""The promises, checked against a session's log alone: entries in, findings out. Trusts no derived row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from everhold.core.entries import (
    GIVES_BACK,
    AddressBound,
    Began,
    BranchedFrom,
    Called,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    Erased,
    Heard,
    Kind,
    Noted,
    OperationsUndone,
    Returned,
    Said,
    Thought,
    Took,
)
from everhold.ports.store import Session

PROMISES: Final = {
    "P1": "a session's id is made once",
    "P2": "nothing accepted is lost, nothing is answered twice",
    "P3": "one thing at a time",
    "P4": "memory writes are never silently lost",
    "P5": "recall never leaks",
    "P6": "temporary work leaves no trace",
    "P7": "change without restart",
    "P8": "auditable",
}


class Finding(Struct, frozen=True, kw_only=True):
    """Something that contradicts a promise (`broken`), or that somebody ought to know (`doubt`)."""

    promise: str
    session: str
    text: str
    seq: int = 0
    level: str = "broken"


class Count(Struct, frozen=True, kw_only=True):
    """What was looked at: an audit that checked nothing proves nothing."""

    entries: int = 0
    heard: int = 0
    turns: int = 0
    folds: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            entries=self.entries + other.entries,
            heard=self.heard + other.heard,
            turns=self.turns + other.turns,
            folds=self.folds + other.folds,
        )


def audit(session: str, entries: Sequence[Entry]) -> tuple[list[Finding], Count]:
    """Every finding about one session's whole log, and how much of it there was."""
    walk = _Walk(session)
    for expected, entry in enumerate(entries, start=1):
        if entry.seq != expected:
            walk.find("P8", f"entry {expected} is missing", seq=expected)
            return walk.findings, walk.count()
        walk.step(entry)
    walk.close()
    return walk.findings, walk.count()


def one_session_each(sessions: Iterable[Session]) -> list[Finding]:
    """An address opens one session, once. A second one that is no branch is the first under another id."""
    opened: dict[tuple[str, str], Session] = {}
    findings: list[Finding] = []
    for session in sessions:
        if session.parent:
            continue  # a branch speaks where its parent does
        first = opened.setdefault((session.agent, session.address), session)
        if first is not session:
            text = f"{session.address} had session {first.id} and was given another: an id changed"
            findings.append(Finding(promise="P1", session=session.id, text=text))
    return findings


class _Walk:
    """One pass over a log, keeping what the promises speak of."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.findings: list[Finding] = []
        self.kinds: Counter[str] = Counter()
        self.running: dict[int, Began] = {}
        self.ended: dict[int, Ended] = {}
        self.whats: dict[int, str] = {}
        self.turn_ends: dict[int, int] = {}
        """turn -> where it ended"""
        self.consumed: dict[int, int] = {}
        """heard seq -> the operation that has it now"""
        self.takes: dict[int, list[int]] = {}
        self.heard: dict[int, bool] = {}
        """heard seq -> asks"""
        self.open_calls: dict[int, set[str]] = {}
        self.started: dict[int, set[str]] = {}
        self.blurred: set[int] = set()
        """Operations of whose newest thought something was erased: which of its calls had a result nobody can tell."""
        self.generation = 0
        self.branch = False
        self.inherited = 0
        """What the erasures of a branch's ancestors, which stand in their logs, add to its generation."""
        self.born = False

    def find(self, promise: str, text: str, *, seq: int = 0, level: str = "broken") -> None:
        self.findings.append(Finding(promise=promise, session=self.session, text=text, seq=seq, level=level))

    def count(self) -> Count:
        return Count(
            entries=self.kinds.total(),
            heard=self.kinds["heard"],
            turns=sum(what == "turn" for what in self.whats.values()),
            folds=self.kinds["compressed"],
        )

    def step(self, entry: Entry) -> None:
        self.kinds[entry.kind] += 1
        self._identity(entry)
        if entry.op is not None and entry.op != entry.seq:
            self._belongs(entry)
        match entry.body:
            case None:
                self._gone(entry)
            case Heard():
                self._hear(entry, entry.body)
            case Began():
                self._begin(entry, entry.body)
            case Took():
                self._take(entry, entry.body.takes)
            case Thought():
                self._think(entry, entry.body)
            case Called(call=call):
                self._start(entry, call)
            case Returned(call=call):
                self._return(entry, call)
            case Noted(stamp=stamp) | Said(stamp=stamp) if not stamp.audience:
                self.find("P5", f"{entry.kind} without an audience", seq=entry.seq)
            case Ended():
                self._end(entry, entry.body)
            case Compressed():
                self._fold(entry, entry.body)
            case Changed(change=OperationsUndone(ops=ops, again=again)):
                self._undo(entry, ops, again=again)
            case Changed(change=ContextReset()) | Erased():
                self.generation += 1
            case Changed(change=BranchedFrom()):
                self.branch = True
            case _:
                pass  # nothing that a promise here speaks of

    def close(self) -> None:
        waiting = [seq for seq, asks in self.heard.items() if asks and seq not in self.consumed]
        if waiting:
            self.find("P2", f"{len(waiting)} messages wait for an answer", seq=waiting[0], level="doubt")
        for op, ended in self.ended.items():
            if self.whats.get(op) == "turn" and ended.outcome == "failed" and self.takes.get(op):
                self.find("P2", f"turn {op} failed, visibly: {ended.reason}", seq=op, level="doubt")

    # -- the promises --------------------------------------------------------------------------------------------------

    def _identity(self, entry: Entry) -> None:
        if entry.session != self.session:
            self.find("P1", f"entry {entry.seq} belongs to session {entry.session}", seq=entry.seq)
        if not self.born:
            # the first thing in a session's life is somebody speaking, or a deliberate branch: never a job
            born = isinstance(entry.body, Heard | Noted) or (
                isinstance(entry.body, Changed) and isinstance(entry.body.change, BranchedFrom | AddressBound)
            )
            if not born and entry.body is not None:
                self.find("P6", f"the session begins with {entry.kind}, not with somebody speaking", seq=entry.seq)
            self.born = True

    def _belongs(self, entry: Entry) -> None:
        op = entry.op or 0
        if op not in self.whats:
            self.find("P3", f"{entry.kind} of operation {op}, which never began", seq=entry.seq)
        elif op in self.ended:
            self.find("P3", f"{entry.kind} of operation {op}, which had ended", seq=entry.seq)

    def _gone(self, entry: Entry) -> None:
        """An erased entry: its place and its kind still count."""
        match entry.kind:
            case Kind.HEARD:
                self.heard[entry.seq] = False
            case Kind.THOUGHT | Kind.RETURNED:
                self.blurred.add(entry.op or 0)
            case Kind.COMPRESSED:
                self.generation += 1
            case _:
                pass

    def _hear(self, entry: Entry, body: Heard) -> None:
        self.heard[entry.seq] = body.asks
        if not body.stamp.audience or not body.stamp.person:
            self.find("P5", "a message without a person or an audience", seq=entry.seq)

    def _begin(self, entry: Entry, body: Began) -> None:
        blocking = [op for op, began in self.running.items() if began.type == "turn" or began.blocking]
        if (body.type == "turn" or body.blocking) and blocking:
            self.find("P3", f"{body.type} {entry.seq} began while {blocking[0]} was running", seq=entry.seq)
        folding = [op for op, began in self.running.items() if began.type == "compression"]
        if body.type == "compression" and folding:
            self.find("P3", f"fold {entry.seq} began while fold {folding[0]} was running", seq=entry.seq)
        if self.branch:
            self.inherited = max(self.inherited, body.generation - self.generation)
        self.running[entry.seq] = body
        self.whats[entry.seq] = body.type
        self._take(entry, body.takes)

    def _take(self, entry: Entry, takes: Sequence[int]) -> None:
        op = entry.op or entry.seq
        for seq in takes:
            if seq in self.consumed:
                self.find("P2", f"message {seq} was taken by {self.consumed[seq]} and again by {op}", seq=entry.seq)
            if seq >= entry.seq:
                self.find("P2", f"operation {op} takes message {seq} before it was heard", seq=entry.seq)
            elif seq not in self.heard:
                self.find("P2", f"operation {op} takes entry {seq}, which is no message", seq=entry.seq)
            self.consumed[seq] = op
            self.takes.setdefault(op, []).append(seq)

    def _think(self, entry: Entry, body: Thought) -> None:
        op = entry.op or 0
        if self.open_calls.get(op) and op not in self.blurred:
            self.find("P2", f"a thought while calls of operation {op} had no result", seq=entry.seq)
        # a job's calls change nothing, and what they returned is not written down
        self.open_calls[op] = {call.id for call in body.calls} if self.whats.get(op) != "job" else set()
        self.started[op] = set()
        self.blurred.discard(op)

    def _start(self, entry: Entry, call: str) -> None:
        op = entry.op or 0
        if op in self.blurred:
            return
        if call in self.started.get(op, set()):
            self.find("P2", f"the call {call!r} of operation {op} was started twice", seq=entry.seq)
        elif call not in self.open_calls.get(op, set()):
            self.find("P2", f"a start of the call {call!r} that nobody waits for", seq=entry.seq)
        self.started.setdefault(op, set()).add(call)

    def _return(self, entry: Entry, call: str) -> None:
        op = entry.op or 0
        if call not in self.open_calls.get(op, set()) and op not in self.blurred:
            self.find("P2", f"a result for the call {call!r} that nobody made", seq=entry.seq)
        self.open_calls.get(op, set()).discard(call)

    def _end(self, entry: Entry, body: Ended) -> None:
        op = entry.op or 0
        if op in self.running:
            del self.running[op]
        self.ended[op] = body
        if self.whats.get(op) == "turn":
            self.turn_ends[op] = entry.seq
        if self.open_calls.pop(op, None) and body.outcome != "erased" and op not in self.blurred:
            self.find("P2", f"operation {op} ended with calls that had no result", seq=entry.seq)
        if body.outcome in GIVES_BACK:
            for seq in self.takes.pop(op, []):
                self.consumed.pop(seq, None)

    def _fold(self, entry: Entry, body: Compressed) -> None:
        inherited = body.generation - self.generation
        if inherited < self.inherited or (inherited > self.inherited and not self.branch):
            self.find("P1", f"fold {entry.op} was made of another view than it replaced", seq=entry.seq)
        covered = [op for op in self.running if op <= body.covers and self.whats[op] == "turn"]
        if covered:
            self.find("P3", f"fold {entry.op} covers turn {covered[0]}, which was running", seq=entry.seq)
        elif self.turn_ends.get(body.covers, 0) > (entry.op or 0):
            self.find(
                "P2", f"fold {entry.op} covers up to {body.covers}, more than its summary was made of", seq=entry.seq
            )
        if body.covers and self.whats.get(body.covers) != "turn":
            self.find(
                "P2", f"fold {entry.op} covers up to {body.covers}, which is no turn of this session", seq=entry.seq
            )
        self.generation += 1

    def _undo(self, entry: Entry, ops: Sequence[int], *, again: bool) -> None:
        self.generation += 1
        for op in ops:
            if op not in self.whats:
                self.find("P8", f"operation {op} was undone but never began", seq=entry.seq)
            elif op in self.running:
                self.find("P3", f"operation {op} was undone while it was running", seq=entry.seq)
            if again:
                for seq in self.takes.pop(op, []):
                    self.consumed.pop(seq, None)
