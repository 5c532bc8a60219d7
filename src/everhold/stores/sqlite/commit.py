"""Applies one change inside a transaction that somebody else opened: conditions, entries, and all that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import apsw

from everhold.core.entries import (
    AddressBound,
    Began,
    Body,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    Erased,
    Heard,
    MemoryNameSet,
    OperationsUndone,
    SessionTitled,
    SettingChosen,
    StopRequested,
    Took,
)
from everhold.errors import Conflict, Misuse, NotFound
from everhold.ports.clock import Chance
from everhold.ports.store import Change, Committed, Opening, Step
from everhold.stores.sqlite import bindings, entries, lanes, ledger, operations, outcomes, sessions


def perform(cur: apsw.Cursor, change: Change, chance: Chance, *, pos: int | None = None) -> Committed:
    """Apply `change` whole. Raises when a condition does not hold, and leaves the undoing to the transaction.

    Its entries get places from `pos` on, or after all others.
    """
    held = _guard_claim(cur, change)
    session, drafts, opens = change.session, change.entries, change.opens
    if not session:
        return _aside(cur, change)
    head = _check(cur, change, _get_head(change, held))
    if (opens is not None or len(drafts) > 1) and (found := _twin(cur, change)) is not None:
        return _repeated(cur, change, held, found)
    if opens is not None:
        _open(cur, session, opens, at=change.at)
    first, generation = head or sessions.look(cur, session)
    seqs: tuple[int, ...] = ()
    if drafts:
        try:
            pos, raised = _append(cur, change, chance, first=first, pos=pos)
        except entries.Taken:
            # A change's only entry is written first, so there is nothing to undo if its twin is there already.
            if opens is None and len(drafts) == 1 and (found := _twin(cur, change)) is not None:
                return _repeated(cur, change, held, found)
            raise
        seqs = tuple(range(first, first + len(drafts)))
        generation += raised
    last = first - 1
    claims = lanes.wake(cur, session, change.wakeups, before=last, at=change.at) if change.wakeups else ()
    _rest(cur, change)
    rests = _update_cursor(cur, change, held, grown_to=last)
    return Committed(session=session, seqs=seqs, pos=pos or 0, generation=generation, claims=claims, rests=rests)


def _guard_claim(cur: apsw.Cursor, change: Change) -> lanes.Held | None:
    """The claimed cursor's row, if the change names a claim and that is still held."""
    if change.claim is not None:
        return lanes.guard(cur, change.claim)
    if change.cursor is not None:
        raise Misuse("a cursor can only be updated under a claim")
    return None


def _get_head(change: Change, held: lanes.Held | None) -> sessions.Head | None:
    """The session's head, if reading the claimed cursor brought it along."""
    if held is None or change.claim is None or change.claim.cursor.session != change.session:
        return None
    return held.head


def _open(cur: apsw.Cursor, session: str, opens: Opening, *, at: float) -> None:
    sessions.open_session(cur, session, opens, at=at)
    if opens.bind:
        bindings.bind_first(cur, opens.address, session)


def _append(cur: apsw.Cursor, change: Change, chance: Chance, *, first: int, pos: int | None) -> tuple[int, int]:
    """Append the entries and write what follows from them; the last pos, and by how much the generation rises."""
    session, drafts = change.session, change.entries
    ops = entries.append(
        cur,
        session,
        first,
        drafts,
        at=change.at,
        chance=chance,
        pos=pos,
        named=change.op,
        erases=change.step is Step.ERASE,
    )
    last_pos = cur.connection.last_insert_rowid()
    sessions.advance(cur, session, first + len(drafts))
    raised = 0
    for seq, op, draft in zip(range(first, first + len(drafts)), ops, drafts, strict=True):
        follows = _FOLLOWS.get(type(draft.body))
        if follows is not None:
            raised += follows(cur, change, seq, op, draft.body)
    if raised:
        erasures = sum(type(draft.body) is Erased for draft in drafts)
        sessions.raise_generation(cur, session, by=raised, erasures=erasures)
    return last_pos, raised


def _update_cursor(cur: apsw.Cursor, change: Change, held: lanes.Held | None, *, grown_to: int) -> bool:
    """Write what becomes of the claimed cursor; whether it was released with nothing left to do."""
    if change.cursor is None or change.claim is None or held is None:
        return False
    own = change.claim.cursor.session == change.session
    return lanes.update(cur, change.claim, held, change.cursor, at=change.at, grown_to=grown_to if own else None)


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
        raise Conflict(f"a `thought` was committed after pos {change.read}")
    return head


def _twin(cur: apsw.Cursor, change: Change) -> entries.Twin | None:
    """The entry that stands already under the key of one of these."""
    for draft in change.entries:
        if draft.dedup is not None and (found := entries.twin(cur, draft)) is not None:
            return found
    return None


def _aside(cur: apsw.Cursor, change: Change) -> Committed:
    """A change that belongs to no session: a state record, a blob, a cost."""
    if change.entries or change.opens is not None or change.op is not None or change.wakeups or change.erase:
        raise NotFound("an entry, an operation and a wakeup need a session, but this change names none")
    _rest(cur, change)
    return Committed(session="")


def _repeated(cur: apsw.Cursor, change: Change, held: lanes.Held | None, found: entries.Twin) -> Committed:
    """The same thing came again: nothing is appended, but whoever brought it need not bring it a third time."""
    for write in change.state_writes:
        ledger.write_state(cur, write)
    if change.cursor is not None and change.claim is not None and held is not None:
        lanes.update(cur, change.claim, held, change.cursor, at=change.at, grown_to=None)
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


def _compressed(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Compressed) -> int:
    operations.cover(cur, change.session, op, body.covers)
    return 1


def _changed(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Changed) -> int:
    session = change.session
    match body.change:
        case ContextReset():
            operations.freshen(cur, session, seq)
            return 1
        case OperationsUndone() as undone:
            operations.undo(cur, session, seq, undone)
            return 1
        case StopRequested(op=op):
            operations.halt(cur, session, op)
        case SessionTitled(title=title):
            sessions.title(cur, session, title)
        case MemoryNameSet(memory=memory, name=name):
            sessions.put(cur, session, "names", memory, name)
        case SettingChosen(setting=setting, value=value):
            sessions.put(cur, session, "choices", setting, value)
        case AddressBound() as bound:
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
    if lanes.has_in_flight(cur, session):
        lanes.void_in_flight(cur, session, gone | touched)
    outcomes.drop(cur, session, gone, touched)
    entries.erase(cur, session, change.erase)
    operations.forget_pending(cur, session, change.erase)
    operations.hide(cur, session, seq, body.compressions)
    sessions.step_back(cur, session)
    return 1


_FOLLOWS: Final[Mapping[type, Callable[[apsw.Cursor, Change, int, int | None, Any], int]]] = {
    Heard: _heard,
    Began: _began,
    Took: _took,
    Ended: _ended,
    Compressed: _compressed,
    Erased: _erased,
    Changed: _changed,
}
"""What follows from an entry. The others only stand in the log."""


def _rest(cur: apsw.Cursor, change: Change) -> None:
    """Write what a change brings besides entries and cursors."""
    if change.erase and not any(type(draft.body) is Erased for draft in change.entries):
        raise Misuse("nothing is erased without an entry that says so")
    if change.receipts or change.dead_letters or change.replayed:
        outcomes.receive(cur, change.receipts, at=change.at)
        outcomes.add_dead_letters(cur, change.dead_letters, at=change.at)
        outcomes.settle_dead_letters(cur, change.replayed)
    for write in change.state_writes:
        ledger.write_state(cur, write)
    if change.spends:
        ledger.spend(cur, change.spends)
    if change.blobs or change.records or change.drop_blobs:
        _write_blobs(cur, change)
    if change.pause:
        if change.op is None:
            raise Misuse("no operation is named that could pause")
        operations.pause(cur, change.session, change.op)


def _write_blobs(cur: apsw.Cursor, change: Change) -> None:
    ledger.keep(cur, change.blobs)
    if change.records:
        if change.op is None:
            raise Misuse("no operation is named that was shown what is recorded")
        if not entries.erased_since(cur, change.session, change.op):
            ledger.keep(cur, change.records)
    ledger.drop(cur, change.drop_blobs)
