"""Check deliveries: every item up to a consumer's cursor has a receipt, a dead letter, or a reason in the log.

`DeliveryAudit` reads one session's log and collects what its consumers had to deliver. Then it compares that with the
cursors, receipts and dead letters. It decides by the log alone what an item is, so a destination that skips items is
noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from everhold.core import consumers
from everhold.core.audit import AuditCounts, AuditFinding
from everhold.core.consumers import get_reply_parts, place_consumer
from everhold.core.entries import (
    AddressBound,
    AddressUnbound,
    Began,
    BranchCreated,
    BranchedFrom,
    Changed,
    Ended,
    Entry,
    Heard,
    Noted,
    OperationsUndone,
    Said,
    TaskRequested,
    Took,
)
from everhold.core.exchange import REMEMBERED_OUTCOMES, is_remembered

UNSETTLED_TEXT: Final = "no receipt, dead letter or reason for"
NOTE_ITEM: Final = 0
RETRACTION_ITEM: Final = -1
MAX_NAMED_SEQS: Final = 5
"""How many entries the text of a finding names. The finding lists all of them."""


class AuditedCursor(Struct, frozen=True, kw_only=True):
    """What the audit needs of a cursor."""

    consumer: str
    start_seq: int
    """The cursor began after this entry."""
    processed_seq: int
    in_flight_upto: int = 0
    """The end of its batch in flight; 0 without one."""
    in_flight_items: tuple[tuple[int, int], ...] = ()
    """The seqs and parts of its batch in flight, unless it repeats dead letters."""
    is_waiting: bool = False
    """It is due, waits for a time, or a worker holds it."""


class AuditedBackfill(Struct, frozen=True, kw_only=True):
    """The range that a backfill was ordered to send."""

    after: int
    upto: int
    stood: int
    """Where its cursor was when it was ordered."""


class SettledItem(Struct, frozen=True):
    """A receipt or a dead letter. `part` is negative for a draft."""

    consumer: str
    seq: int
    part: int
    in_doubt: bool = False
    is_receipt: bool = True


class DeliveryAudit:
    """One pass over a log, then one comparison with what was delivered."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.findings: list[AuditFinding] = []
        self._replies: dict[str, dict[int, tuple[int, int]]] = {}
        """Platform consumer -> seq of a reply or notice -> (number of parts, its turn; 0: an undo does not matter)."""
        self._items: dict[int, int] = {}
        """Seq of an item for memories -> its turn, or `NOTE_ITEM` or `RETRACTION_ITEM`."""
        self._replaceable_notes: set[int] = set()
        """Notes that a backfill skips if another note replaced or removed them, perhaps in another session."""
        self._undone: set[int] = set()
        self._running: dict[int, tuple[str, list[int], bool]] = {}
        """Running operation -> (type, the messages it took, whether it said something)."""
        self._turns: set[int] = set()
        self._own_words: set[int] = set()
        """Messages with words of their sender's own."""
        self._requests: list[tuple[str, int, str]] = []
        """(consumer, seq, dedup key) of entries that a consumer answers with one entry under that key."""
        self._keyless: list[int] = []
        self._receiving: set[str] = set()
        """Consumers with receipts."""
        self._counts = AuditCounts()

    # -- reading the log ---------------------------------------------------------------------------------------------

    def add_entry(self, entry: Entry) -> None:
        body = entry.body
        match body:
            case Heard():
                self._add_heard(entry, body)
            case Began(type=what, takes=takes):
                self._running[entry.seq] = (what, list(takes), False)
                if what == "turn":
                    self._turns.add(entry.seq)
            case Took(takes=takes) if entry.op in self._running:
                self._running[entry.op][1].extend(takes)
            case Ended():
                self._add_ended(entry, body)
            case Noted():
                self._items[entry.seq] = NOTE_ITEM
                if body.fact or body.supersedes or body.action != "add":
                    self._replaceable_notes.update((entry.seq, body.supersedes))
            case Changed():
                self._add_change(entry, body)
            case _:
                self._add_reply(entry)

    def _add_heard(self, entry: Entry, body: Heard) -> None:
        if is_remembered(body):
            self._own_words.add(entry.seq)
        if body.origin.message and not _is_key_of(entry.dedup, body):
            self._keyless.append(entry.seq)

    def _add_reply(self, entry: Entry) -> None:
        place, parts = get_reply_parts(entry.body)
        is_said = isinstance(entry.body, Said)
        if is_said and entry.op in self._running:
            what, takes, _ = self._running[entry.op]
            self._running[entry.op] = (what, takes, True)
        if place is not None:
            turn = entry.op or 0 if is_said else 0
            self._replies.setdefault(place_consumer(place), {})[entry.seq] = (len(parts), turn)

    def _add_ended(self, entry: Entry, body: Ended) -> None:
        what, takes, has_said = self._running.pop(entry.op or 0, ("", [], False))
        if what == "turn" and body.outcome in REMEMBERED_OUTCOMES:
            # Of a turn of which nothing is left, a memory receives nothing.
            if has_said or not self._own_words.isdisjoint(takes):
                self._items[entry.seq] = entry.op or 0

    def _add_change(self, entry: Entry, body: Changed) -> None:
        match body.change:
            case OperationsUndone(ops=ops):
                self._undone.update(ops)
                if not self._turns.isdisjoint(ops):
                    self._items[entry.seq] = RETRACTION_ITEM
            case AddressBound(previous=previous) if previous:
                self._requests.append((consumers.BACKLINKS, entry.seq, f"backlink:{self.session}:{entry.seq}"))
            case BranchedFrom():
                self._requests.append((consumers.BACKLINKS, entry.seq, f"backlink:{self.session}:{entry.seq}"))
            case TaskRequested() as task:
                self._requests.append((consumers.task_consumer(task), entry.seq, f"job:{self.session}:{entry.seq}"))
            case AddressUnbound() | BranchCreated() if not entry.dedup:
                self._keyless.append(entry.seq)

    # -- comparing ---------------------------------------------------------------------------------------------------

    def check(
        self,
        cursors: Sequence[AuditedCursor],
        settled: Iterable[SettledItem],
        *,
        backfills: Mapping[str, AuditedBackfill],
        has_key: Callable[[str], bool],
    ) -> AuditCounts:
        """Compare the log with the deliveries. `backfills` are the orders by memory; `has_key` looks up a dedup key."""
        done = self._collect_settled(settled)
        for cursor in cursors:
            match consumers.parse_consumer(cursor.consumer).kind:
                case consumers.PLATFORM:
                    self._check_replies(cursor, done.pop(cursor.consumer, {}))
                case consumers.MEMORY:
                    self._check_memory(cursor, done.pop(cursor.consumer, {}))
                case consumers.BACKFILL:
                    memory = consumers.get_memory_name(cursor.consumer)
                    own = done.pop(cursor.consumer, {})
                    if memory in backfills:
                        self._check_backfill(cursor, own, backfills[memory])
                case _:
                    done.pop(cursor.consumer, None)
                    self._check_requests(cursor, has_key)
        for consumer, seqs in done.items():
            if consumer in self._receiving:
                self._add(consumer, "no cursor, but receipts of {entries}", [*seqs])
        if self._keyless:
            text = "no matching dedup key for {entries}, so a repeated delivery would not be recognised"
            self._add("", text, self._keyless)
        return self._counts

    def _collect_settled(self, settled: Iterable[SettledItem]) -> dict[str, dict[int, int]]:
        """Return consumer -> seq -> the settled parts as bits. Items that may be there twice are listed."""
        done: dict[str, dict[int, int]] = {}
        resent: dict[str, list[int]] = {}
        for item in settled:
            if item.part >= 0:
                own = done.setdefault(item.consumer, {})
                own[item.seq] = own.get(item.seq, 0) | 1 << item.part
                if item.is_receipt:
                    self._receiving.add(item.consumer)
            if item.in_doubt and item.is_receipt:
                resent.setdefault(item.consumer, []).append(item.seq)
        for consumer, seqs in resent.items():
            text = "sent again after the answer was lost, so there may be a copy: {entries}"
            self._add(consumer, text, seqs, level="doubt")
            self._counts += AuditCounts(resent=len(seqs))
        return done

    def _check_replies(self, cursor: AuditedCursor, done: Mapping[int, int]) -> None:
        replies = self._replies.get(cursor.consumer, {})
        missing, unsent, parts_due = [], [], 0
        for seq, (parts, turn) in replies.items():
            every = (1 << parts) - 1
            if seq <= cursor.start_seq or turn in self._undone:
                continue
            is_done = done.get(seq, 0) & every == every
            if seq <= cursor.processed_seq:
                parts_due += parts
                if not is_done:
                    missing.append(seq)
            elif not is_done:
                unsent.append(seq)
        # A reply in several parts is behind the cursor until its last part is sent. Of an erased one no part is left.
        again = [
            seq
            for seq, bits in done.items()
            if seq > max(cursor.processed_seq, cursor.in_flight_upto)
            and seq in replies
            and bits & (1 << replies[seq][0]) - 1 == (1 << replies[seq][0]) - 1
        ]
        self._add_delivery_findings(cursor, missing, again, unsent)
        if sent := [seq for seq, part in cursor.in_flight_items if part >= 0 and done.get(seq, 0) & 1 << part]:
            self._add(cursor.consumer, "the batch in flight would send {entries} again", sent)
        self._counts += AuditCounts(replies=parts_due)

    def _check_memory(self, cursor: AuditedCursor, done: Mapping[int, int]) -> None:
        due = [seq for seq in self._items if cursor.start_seq < seq <= cursor.processed_seq]
        missing = [seq for seq in due if seq not in done]
        again = [seq for seq in done if seq > max(cursor.processed_seq, cursor.in_flight_upto)]
        unsent = [seq for seq in self._items if seq > cursor.processed_seq and seq not in done]
        self._add_delivery_findings(cursor, missing, again, unsent)
        self._counts += AuditCounts(memory_items=len(due))

    def _add_delivery_findings(
        self, cursor: AuditedCursor, missing: list[int], again: list[int], unsent: list[int]
    ) -> None:
        consumer = cursor.consumer
        if missing:
            self._add(consumer, f"{UNSETTLED_TEXT} {{entries}}, but the cursor is at {cursor.processed_seq}", missing)
        if again:
            self._add(consumer, f"the cursor is at {cursor.processed_seq}, so it would send {{entries}} again", again)
        if unsent and not cursor.is_waiting:
            # The memory or the account may have been removed from the configuration.
            self._add(consumer, "no delivery is due of {entries}", unsent, level="doubt")

    def _check_backfill(self, cursor: AuditedCursor, done: Mapping[int, int], order: AuditedBackfill) -> None:
        if cursor.processed_seq == order.stood:
            return  # it has not begun
        upto = min(cursor.processed_seq, order.upto)
        missing = [
            seq
            for seq, turn in self._items.items()
            if order.after < seq <= upto
            and seq not in done
            and (seq not in self._replaceable_notes if turn == NOTE_ITEM else turn > 0 and turn not in self._undone)
        ]
        if missing:
            self._add(cursor.consumer, f"{UNSETTLED_TEXT} {{entries}}, which the backfill has passed", missing)

    def _check_requests(self, cursor: AuditedCursor, has_key: Callable[[str], bool]) -> None:
        missing = [
            seq
            for consumer, seq, key in self._requests
            if consumer == cursor.consumer and cursor.start_seq < seq <= cursor.processed_seq and not has_key(key)
        ]
        if missing:
            self._add(
                cursor.consumer,
                f"nothing follows from {{entries}}, but the cursor is at {cursor.processed_seq}",
                missing,
            )

    def _add(self, consumer: str, text: str, seqs: Sequence[int], *, level: str = "broken") -> None:
        seqs = sorted(seqs)
        named = ", ".join(map(str, seqs[:MAX_NAMED_SEQS]))
        more = f" and {len(seqs) - MAX_NAMED_SEQS:,} more" if len(seqs) > MAX_NAMED_SEQS else ""
        text = text.format(entries=f"{'entry' if len(seqs) == 1 else 'entries'} {named}{more}")
        self.findings.append(
            AuditFinding(
                promise="P4" if consumers.get_memory_name(consumer) else "P2",
                session=self.session,
                text=f"{consumer}: {text}" if consumer else text,
                seq=seqs[0],
                level=level,
                seqs=tuple(seqs),
            )
        )


def _is_key_of(key: str | None, body: Heard) -> bool:
    """Return whether a dedup key belongs to a message. Keys of platform messages begin with the message's place."""
    if not key:
        return False
    origin = body.origin
    place = (origin.platform, origin.account, origin.chat, origin.message)
    return not key.startswith("[") or key.startswith(msgspec.json.encode(place).decode()[:-1])
