"""Check the promises against a session's log: entries in, findings out. The audit does not use derived tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from everhold.core.approval_audit import ApprovalAudit
from everhold.core.consumers import DELEGATE, parse_consumer
from everhold.core.entries import (
    RELEASING_OUTCOMES,
    AddressBound,
    Began,
    BranchedFrom,
    Called,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    EntryKind,
    EntryPinned,
    Erased,
    Heard,
    Noted,
    OperationsUndone,
    Returned,
    Said,
    Thought,
    Took,
)
from everhold.core.wording import describe_count

PROMISES: Final = {
    "P1": "a session's id is made once",
    "P2": "nothing accepted is lost, nothing is answered twice",
    "P3": "one thing at a time",
    "P4": "memory writes are never silently lost",
    "P5": "recall never leaks",
    "P6": "temporary work leaves no trace",
    "P7": "change without restart",
    "P8": "auditable",
    "P9": "an agent acts only with permission, and never twice",
}


class AuditFinding(Struct, frozen=True, kw_only=True):
    """A contradiction to a promise (`broken`), or something an operator should know (`doubt`)."""

    promise: str
    session: str
    text: str
    seq: int = 0
    level: str = "broken"
    seqs: tuple[int, ...] = ()
    """All entries that it is about, if they are several."""


class AuditCounts(Struct, frozen=True, kw_only=True):
    """How much the audit checked."""

    sessions: int = 0
    entries: int = 0
    heard: int = 0
    turns: int = 0
    compressions: int = 0
    replies: int = 0
    """Parts of replies and notices that a platform account had to deliver up to its cursor."""
    memory_items: int = 0
    """Items that a memory had to receive up to its cursor."""
    resent: int = 0
    """Items that were sent again after their answer was lost, so they may be there twice."""
    recalled: int = 0
    """Recalled entries whose audience was compared with the people who were shown them."""
    choices: int = 0
    """Settings that were chosen in a session."""
    approvals: int = 0
    """Requests for permission, with what became of them."""

    def __add__(self, other: AuditCounts) -> AuditCounts:
        return AuditCounts(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class StoreAudit(Struct, frozen=True, kw_only=True):
    """What an audit of the store found."""

    contradictions: list[str]
    """Contradictions between the log and the rest of the store (P8)."""
    findings: list[AuditFinding]
    checked: AuditCounts


ReportProgress: TypeAlias = Callable[[int, int], None]
"""Receives how many entries were read, and how many there are. It is called on another thread."""


def audit_session(session: str, entries: Sequence[Entry]) -> tuple[list[AuditFinding], AuditCounts]:
    """Return all findings about one session's log, and how much of it was checked."""
    log = LogAudit(session)
    for entry in entries:
        log.check_entry(entry)
    log.check_end()
    return log.findings, log.count_checked()


def find_duplicate_openings(opened: Iterable[tuple[str, str, str]]) -> list[AuditFinding]:
    """Return a finding for each address that opened a second session. `opened` has agent, address and id of sessions
    that are no branches, in the order of their creation.
    """
    first: dict[tuple[str, str], str] = {}
    findings: list[AuditFinding] = []
    for agent, address, session in opened:
        before = first.setdefault((agent, address), session)
        if before != session:
            text = f"{address} had session {before} and was given another: its id changed"
            findings.append(AuditFinding(promise="P1", session=session, text=text))
    return findings


class LogAudit:
    """One pass over a log, with the state that the promises need. It ends at the first missing entry."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.next_seq = 1
        self.is_cut_off = False
        """An entry is missing or cannot be read, so the rest of the log is not checked."""
        self.findings: list[AuditFinding] = []
        self.kinds: Counter[str] = Counter()
        self.running: dict[int, Began] = {}
        self.ended: set[int] = set()
        self.failed: dict[int, str] = {}
        """Failed turn -> its reason."""
        self.operation_types: dict[int, str] = {}
        self.turn_end_seqs: dict[int, int] = {}
        """Turn -> the seq of its end."""
        self.consumed_by_op: dict[int, int] = {}
        """Heard seq -> the operation that consumes it now."""
        self.taken_seqs: dict[int, list[int]] = {}
        self.heard_asks: dict[int, bool] = {}
        """Heard seq -> whether it asks."""
        self.heard_words: dict[int, int] = {}
        """Heard seq -> the hash of its text. The texts themselves would fill the memory."""
        self.shortened_seqs: set[int] = set()
        """Entries that a context showed as stubs, so that a compression keeps the stub."""
        self.heard_audiences: dict[int, int] = {}
        """Heard seq -> the hash of its audience."""
        self.open_calls: dict[int, set[str]] = {}
        self.started_calls: dict[int, set[str]] = {}
        self.partly_erased_ops: set[int] = set()
        """Operations whose newest thought was partly erased. It is unknown which of their calls had a result."""
        self.generation = 0
        self.is_branch = False
        self.inherited_generation = 0
        """What erasures in the logs of a branch's ancestors add to its generation."""
        self.has_first_entry = False
        self.approvals = ApprovalAudit(lambda text, seq: self.add_finding("P9", text, seq=seq))

    def add_finding(self, promise: str, text: str, *, seq: int = 0, level: str = "broken") -> None:
        self.findings.append(AuditFinding(promise=promise, session=self.session, text=text, seq=seq, level=level))

    def count_checked(self) -> AuditCounts:
        return AuditCounts(
            sessions=1,
            entries=self.kinds.total(),
            heard=self.kinds["heard"],
            turns=sum(what == "turn" for what in self.operation_types.values()),
            compressions=self.kinds["compressed"],
            approvals=self.kinds["approval_requested"],
        )

    def check_entry(self, entry: Entry) -> None:
        if self.is_cut_off:
            return
        if entry.seq != self.next_seq:
            self.add_finding("P8", f"entry {self.next_seq} is missing", seq=self.next_seq)
            self.is_cut_off = True
            return
        self.next_seq += 1
        self.kinds[entry.kind] += 1
        self._check_identity(entry)
        if entry.op is not None and entry.op != entry.seq:
            self._check_operation(entry)
        self.approvals.check_entry(entry)
        match entry.body:
            case None:
                self._check_erased(entry)
            case Heard():
                self._check_heard(entry, entry.body)
            case Began():
                self._check_began(entry, entry.body)
            case Took():
                self._check_taken(entry, entry.body.takes)
            case Thought():
                self._check_thought(entry, entry.body)
            case Called(call=call):
                self._check_called(entry, call)
            case Returned(call=call):
                self._check_returned(entry, call)
            # Nobody may have heard all that a note cites. Then nobody is shown it.
            case Noted(stamp=stamp, cites=()) | Said(stamp=stamp) if not stamp.audience:
                self.add_finding("P5", f"{entry.kind} without an audience", seq=entry.seq)
            case Said():
                self._check_said(entry, entry.body)
            case Ended():
                self._check_ended(entry, entry.body)
            case Compressed():
                self._check_compressed(entry, entry.body)
            case Changed() | Erased():
                self._change(entry, entry.body)
            # the promises say nothing about other kinds

    def check_end(self) -> None:
        if self.is_cut_off:
            return
        waiting = [seq for seq, asks in self.heard_asks.items() if asks and seq not in self.consumed_by_op]
        if waiting:
            self.add_finding(
                "P2", f"{describe_count(len(waiting), 'message')} without an answer yet", seq=waiting[0], level="doubt"
            )
        for op, reason in self.failed.items():
            if self.taken_seqs.get(op):
                self.add_finding("P2", f"turn {op} failed, visibly: {reason}", seq=op, level="doubt")

    # -- the promises --------------------------------------------------------------------------------------------------

    def _check_identity(self, entry: Entry) -> None:
        if entry.session != self.session:
            self.add_finding("P1", f"entry {entry.seq} belongs to session {entry.session}", seq=entry.seq)
        if not self.has_first_entry:
            # A session begins with a message, a note or a deliberate branch, never with a job.
            born = isinstance(entry.body, Heard | Noted) or (
                isinstance(entry.body, Changed) and isinstance(entry.body.change, BranchedFrom | AddressBound)
            )
            if not born and entry.body is not None:
                self.add_finding("P6", f"the session begins with {entry.kind}, not with a message", seq=entry.seq)
            self.has_first_entry = True

    def _check_operation(self, entry: Entry) -> None:
        op = entry.op or 0
        if op not in self.operation_types:
            self.add_finding("P3", f"{entry.kind} of operation {op}, which never began", seq=entry.seq)
        elif op in self.ended:
            self.add_finding("P3", f"{entry.kind} of operation {op}, which had ended", seq=entry.seq)

    def _check_erased(self, entry: Entry) -> None:
        """Check an erased entry. Its seq and its kind still count."""
        match entry.kind:
            case EntryKind.HEARD:
                self.heard_asks[entry.seq] = False
            case EntryKind.THOUGHT | EntryKind.RETURNED:
                self.partly_erased_ops.add(entry.op or 0)
            case EntryKind.COMPRESSED:
                self.generation += 1
            case _:
                pass

    def _check_heard(self, entry: Entry, body: Heard) -> None:
        self.heard_asks[entry.seq] = body.asks
        self.heard_words[entry.seq] = hash(body.text)
        self.heard_audiences[entry.seq] = hash(body.stamp.audience)
        if not body.stamp.audience or not body.stamp.person:
            self.add_finding("P5", "a message without a person or an audience", seq=entry.seq)

    def _check_said(self, entry: Entry, body: Said) -> None:
        """Check that a turn's reply is for the people of a message that the turn took. An erased message has none."""
        taken = self.taken_seqs.get(entry.op or 0, []) if self.operation_types.get(entry.op or 0) == "turn" else []
        known = {self.heard_audiences.get(seq) for seq in taken}
        if known and None not in known and hash(body.stamp.audience) not in known:
            self.add_finding("P5", f"reply {entry.seq} is for other people than the messages it answers", seq=entry.seq)

    def _check_began(self, entry: Entry, body: Began) -> None:
        blocking = [op for op, began in self.running.items() if began.type == "turn" or began.blocking]
        if (body.type == "turn" or body.blocking) and blocking:
            self.add_finding("P3", f"{body.type} {entry.seq} began while {blocking[0]} was running", seq=entry.seq)
        compressing = [op for op, began in self.running.items() if began.type == "compression"]
        if body.type == "compression" and compressing:
            self.add_finding(
                "P3", f"compression {entry.seq} began while compression {compressing[0]} was running", seq=entry.seq
            )
        if self.is_branch:
            self.inherited_generation = max(self.inherited_generation, body.generation - self.generation)
        self.running[entry.seq] = body
        self.operation_types[entry.seq] = body.type
        self._check_taken(entry, body.takes)

    def _check_taken(self, entry: Entry, takes: Sequence[int]) -> None:
        op = entry.op or entry.seq
        for seq in takes:
            if seq in self.consumed_by_op:
                self.add_finding(
                    "P2", f"message {seq} was taken by {self.consumed_by_op[seq]} and again by {op}", seq=entry.seq
                )
            if seq >= entry.seq:
                self.add_finding("P2", f"operation {op} takes message {seq} before it was heard", seq=entry.seq)
            elif seq not in self.heard_asks:
                self.add_finding("P2", f"operation {op} takes entry {seq}, which is not a message", seq=entry.seq)
            self.consumed_by_op[seq] = op
            self.taken_seqs.setdefault(op, []).append(seq)

    def _check_thought(self, entry: Entry, body: Thought) -> None:
        self.shortened_seqs.update(body.stubs)
        op = entry.op or 0
        if self.open_calls.get(op) and op not in self.partly_erased_ops:
            self.add_finding("P2", f"a thought while calls of operation {op} had no result", seq=entry.seq)
        self.open_calls[op] = {call.id for call in body.calls} if self._records_calls(op) else set()
        self.started_calls[op] = set()
        self.partly_erased_ops.discard(op)

    def _records_calls(self, op: int) -> bool:
        """Return whether an operation records the results of its calls. A job that changes nothing does not."""
        began = self.running.get(op)
        if began is None or began.type != "job":
            return True
        return parse_consumer(began.consumer).kind == DELEGATE

    def _check_called(self, entry: Entry, call: str) -> None:
        op = entry.op or 0
        if op in self.partly_erased_ops or self.operation_types.get(op) == "action":
            return  # of an approved call, the request names the thought
        if call in self.started_calls.get(op, set()):
            self.add_finding("P2", f"the call {call!r} of operation {op} was started twice", seq=entry.seq)
        elif call not in self.open_calls.get(op, set()):
            self.add_finding("P2", f"the call {call!r} was started, but no thought asked for it", seq=entry.seq)
        self.started_calls.setdefault(op, set()).add(call)

    def _check_returned(self, entry: Entry, call: str) -> None:
        op = entry.op or 0
        if self.operation_types.get(op) == "action":
            return
        if call not in self.open_calls.get(op, set()) and op not in self.partly_erased_ops:
            self.add_finding("P2", f"a result for the call {call!r}, which no thought asked for", seq=entry.seq)
        self.open_calls.get(op, set()).discard(call)

    def _check_ended(self, entry: Entry, body: Ended) -> None:
        self.shortened_seqs.update(body.stubs)
        op = entry.op or 0
        if op in self.running:
            del self.running[op]
        self.ended.add(op)
        if self.operation_types.get(op) == "turn":
            self.turn_end_seqs[op] = entry.seq
            if body.outcome == "failed":
                self.failed[op] = body.reason
        self.started_calls.pop(op, None)
        if self.open_calls.pop(op, None) and body.outcome != "erased" and op not in self.partly_erased_ops:
            self.add_finding("P2", f"operation {op} ended with calls that had no result", seq=entry.seq)
        if body.outcome in RELEASING_OUTCOMES:
            for seq in self.taken_seqs.pop(op, []):
                self.consumed_by_op.pop(seq, None)

    def _check_compressed(self, entry: Entry, body: Compressed) -> None:
        inherited = body.generation - self.generation
        if inherited < self.inherited_generation or (inherited > self.inherited_generation and not self.is_branch):
            self.add_finding(
                "P1", f"compression {entry.op} was made from another context than the one it replaced", seq=entry.seq
            )
        self._check_kept(entry, body)
        covered = [op for op in self.running if op <= body.covers and self.operation_types[op] == "turn"]
        if covered:
            self.add_finding("P3", f"compression {entry.op} covers turn {covered[0]}, which was running", seq=entry.seq)
        elif self.turn_end_seqs.get(body.covers, 0) > (entry.op or 0):
            self.add_finding(
                "P2",
                f"compression {entry.op} covers up to {body.covers}, more than its summary was made from",
                seq=entry.seq,
            )
        if body.covers and self.operation_types.get(body.covers) != "turn":
            self.add_finding(
                "P2",
                f"compression {entry.op} covers up to {body.covers}, which is not a turn of this session",
                seq=entry.seq,
            )
        self.generation += 1

    def _check_kept(self, entry: Entry, body: Compressed) -> None:
        """Check what a compression was made from, and the words that stay verbatim. In a branch they may be the
        parent's. Earlier builds kept parts of messages as rules and corrections; an imported compression does not say
        at its beginning what it is based on."""
        began = self.running.get(entry.op or 0)
        if began is not None and began.compression not in (0, body.based_on):
            self.add_finding(
                "P2",
                f"compression {entry.op} was based on {began.compression}, but says {body.based_on}",
                seq=entry.seq,
            )
        whole = [kept for kept in body.kept if kept.why in ("said", "aside", "question") and not self.is_branch]
        changed = [
            it.seq
            for it in whole
            if it.seq not in self.shortened_seqs and self.heard_words.get(it.seq, hash(it.text)) != hash(it.text)
        ]
        if changed:
            self.add_finding(
                "P2", f"compression {entry.op} keeps other words than message {changed[0]} has", seq=entry.seq
            )

    def _change(self, entry: Entry, body: Changed | Erased) -> None:
        match body:
            case Changed(change=OperationsUndone(ops=ops, again=again)):
                self._check_undone(entry, ops, again=again)
            case Changed(change=ContextReset()) | Erased():
                self.generation += 1
            case Changed(change=EntryPinned()):
                self.operation_types[entry.seq] = "pin"
                self.generation += 1
            case Changed(change=BranchedFrom()):
                self.is_branch = True

    def _check_undone(self, entry: Entry, ops: Sequence[int], *, again: bool) -> None:
        self.generation += 1
        for op in ops:
            if op not in self.operation_types:
                self.add_finding("P8", f"operation {op} was undone but never began", seq=entry.seq)
            elif op in self.running:
                self.add_finding("P3", f"operation {op} was undone while it was running", seq=entry.seq)
            if again:
                for seq in self.taken_seqs.pop(op, []):
                    self.consumed_by_op.pop(seq, None)
