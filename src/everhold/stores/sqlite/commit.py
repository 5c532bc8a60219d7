"""Applies one change inside a transaction that somebody else opened: conditions, entries, and all that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import apsw

from everhold.core.entries import (
    Began,
    Body,
    Bound,
    Changed,
    Chose,
    Ended,
    Erased,
    Folded,
    Fresh,
    Halted,
    Heard,
    Named,
    Titled,
    Took,
    Undone,
)
from everhold.errors import Conflict, Misuse, NotFound
from everhold.ports.clock import Chance
from everhold.ports.store import Change, Committed, Step
from everhold.stores.sqlite import bindings, entries, lanes, ledger, operations, outcomes, sessions


def perform(cur: apsw.Cursor, change: Change, chance: Chance, *, pos: int | None = None) -> Committed:
    """Apply `change` whole; raises, and leaves the undoing to the transaction, when a condition does not hold.

    Its entries stand at `pos`, or behind all there is.
    """
    session, drafts, claim, lane = change.session, change.entries, change.claim, change.lane
    held = head = None
    if claim is not None:
        held = lanes.guard(cur, claim)
        if claim.lane.session == session:
            head = held.head
    elif lane is not None:
        raise Misuse("only who holds a lane can say what becomes of it")
    if not session:
        return _aside(cur, change)
    head = _check(cur, change, head)
    opens = change.opens
    if (opens is not None or len(drafts) > 1) and (found := _twin(cur, change)) is not None:
        return _repeated(cur, change, held, found)
    if opens is not None:
        sessions.open_session(cur, session, opens, at=change.at)
        if opens.bind:
            bindings.bind_first(cur, opens.address, session)
    if head is None:
        head = sessions.look(cur, session)
    first, generation = head
    last = first - 1
    seqs: tuple[int, ...] = ()
    if drafts:
        try:
            ops = entries.append(
                cur, session, first, drafts,
                at=change.at, chance=chance, pos=pos, named=change.op, erases=change.step is Step.ERASE,
            )  # fmt: skip
        except entries.Taken:
            # nothing was done before a change's only entry: it need not look for a twin unless there is one
            if opens is None and len(drafts) == 1 and (found := _twin(cur, change)) is not None:
                return _repeated(cur, change, held, found)
            raise
        pos = cur.connection.last_insert_rowid()
        seqs = tuple(range(first, first + len(drafts)))
        sessions.advance(cur, session, first + len(drafts))
        raised = 0
        for seq, op, draft in zip(seqs, ops, drafts, strict=True):
            follows = _FOLLOWS.get(type(draft.body))
            if follows is not None:
                raised += follows(cur, change, seq, op, draft.body)
        if raised:
            erasures = sum(type(draft.body) is Erased for draft in drafts)
            sessions.raise_generation(cur, session, by=raised, erasures=erasures)
            generation += raised
    if change.erase and not any(type(draft.body) is Erased for draft in drafts):
        raise Misuse("nothing is erased without an entry that says so")
    claims = lanes.wake(cur, session, change.wakes, before=last, at=change.at) if change.wakes else ()
    _rest(cur, change)
    rests = False
    if lane is not None and claim is not None and held is not None:
        grown_to = last if claim.lane.session == session else None
        rests = lanes.update(cur, claim, held, lane, at=change.at, grown_to=grown_to)
    return Committed(session=session, seqs=seqs, pos=pos or 0, generation=generation, claims=claims, rests=rests)


def _check(cur: apsw.Cursor, change: Change, head: sessions.Head | None) -> sessions.Head | None:
    """Refuse a change that was decided on another state than the one there is. Gives the head if anybody looked."""
    session = change.session
    if change.bound is not None:
        address, title = change.bound
        head = sessions.behind(cur, address, session=session, title=title)
        if head is None:
            raise Conflict(f"{address} does not lead to session {session} under the title {title!r} any more")
    if change.generation is not None or change.seen is not None:
        head = head or sessions.look(cur, session)
        first, generation = head
        if change.generation is not None and change.generation != generation:
            raise Conflict(f"session {session} is at generation {generation} by now, not {change.generation}")
        if change.seen is not None and first - 1 > change.seen:
            raise Conflict(f"session {session} has grown to {first - 1}, beyond {change.seen}")
    if change.op is not None:
        operations.guard(cur, session, change.op, change.claim)
    if change.read is not None and entries.thought_behind(cur, change.read):
        raise Conflict(f"somebody thought of something behind position {change.read} of the log")
    return head


def _twin(cur: apsw.Cursor, change: Change) -> entries.Twin | None:
    """The entry that stands already under the key of one of these."""
    for draft in change.entries:
        if draft.dedup is not None and (found := entries.twin(cur, draft)) is not None:
            return found
    return None


def _aside(cur: apsw.Cursor, change: Change) -> Committed:
    """A change that belongs to no session: a platform's position, a blob, a cost."""
    if change.entries or change.opens is not None or change.op is not None or change.wakes or change.erase:
        raise NotFound("an entry, an operation and a lane need a session; this change names none")
    _rest(cur, change)
    return Committed(session="")


def _repeated(cur: apsw.Cursor, change: Change, held: lanes.Held | None, found: entries.Twin) -> Committed:
    """The same thing came again: nothing is appended, but whoever brought it need not bring it a third time."""
    if change.position is not None:
        ledger.move(cur, change.position)
    if change.lane is not None and change.claim is not None and held is not None:
        lanes.update(cur, change.claim, held, change.lane, at=change.at, grown_to=None)
    _, generation = sessions.look(cur, found.session)
    return Committed(
        session=found.session,
        seqs=(found.seq,),
        pos=found.pos,
        generation=generation,
        duplicate=True,
        differs=found.differs,
    )


def follow(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Body) -> int:
    """Write the rows that follow from one entry; by how much it raises the view's generation."""
    follows = _FOLLOWS.get(type(body))
    return 0 if follows is None else follows(cur, change, seq, op, body)


def _heard(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Heard) -> int:
    operations.hear(cur, change.session, seq, body)
    return 0


def _began(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Began) -> int:
    operations.begin(cur, change.session, seq, body, fence=0 if change.claim is None else change.claim.fence)
    return 0


def _took(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Took) -> int:
    operations.consume(cur, change.session, body.takes)
    return 0


def _ended(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Ended) -> int:
    operations.end(cur, change.session, seq, op, body.outcome)
    return 0


def _folded(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Folded) -> int:
    operations.cover(cur, change.session, op, body.covers)
    return 1


def _changed(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Changed) -> int:
    session = change.session
    match body.change:
        case Fresh():
            operations.freshen(cur, session, seq)
            return 1
        case Undone() as undone:
            operations.undo(cur, session, seq, undone)
            return 1
        case Halted(op=op):
            operations.halt(cur, session, op)
        case Titled(title=title):
            sessions.title(cur, session, title)
        case Named(memory=memory, name=name):
            sessions.put(cur, session, "names", memory, name)
        case Chose(setting=setting, value=value):
            sessions.put(cur, session, "choices", setting, value)
        case Bound() as bound:
            bindings.bind(cur, session, bound)
    return 0


def _erased(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Erased) -> int:
    session = change.session
    gone = set(change.erase)
    if gone != set(body.seqs):
        raise Misuse("what is erased and what the log says was erased must be the same")
    if any(erased >= seq for erased in gone):
        raise NotFound(f"session {session}: what is not yet in the log cannot be erased from it")
    touched = operations.endings(cur, session, gone)
    if lanes.has_flights(cur, session):
        lanes.void_flights(cur, session, gone | touched)
    outcomes.drop(cur, session, gone, touched)
    entries.erase(cur, session, change.erase)
    operations.forget_pending(cur, session, change.erase)
    operations.hide(cur, session, seq, body.folds)
    sessions.step_back(cur, session)
    return 1


_FOLLOWS: Final[Mapping[type, Callable[[apsw.Cursor, Change, int, int | None, Any], int]]] = {
    Heard: _heard,
    Began: _began,
    Took: _took,
    Ended: _ended,
    Folded: _folded,
    Erased: _erased,
    Changed: _changed,
}
"""What follows from an entry. The others only stand in the log."""


def _rest(cur: apsw.Cursor, change: Change) -> None:
    if change.receipts:
        outcomes.receive(cur, change.receipts, at=change.at)
    if change.parks:
        outcomes.park(cur, change.parks, at=change.at)
    if change.unparks:
        outcomes.unpark(cur, change.unparks)
    if change.position is not None:
        ledger.move(cur, change.position)
    if change.spends:
        ledger.spend(cur, change.spends)
    if change.blobs:
        ledger.keep(cur, change.blobs)
    if change.records:
        if change.op is None:
            raise Misuse("no operation is named that was shown what is recorded")
        if not entries.erased_since(cur, change.session, change.op):
            ledger.keep(cur, change.records)
    if change.drop_blobs:
        ledger.drop(cur, change.drop_blobs)
    if change.pause:
        if change.op is None:
            raise Misuse("no operation is named that could pause")
        operations.pause(cur, change.session, change.op)
