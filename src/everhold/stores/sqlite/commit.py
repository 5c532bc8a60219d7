"""Applies one change inside the caller's transaction: conditions, entries, and the rows derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import apsw

from everhold.core.entries import (
    AddressBound,
    Began,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    EntryBody,
    Erased,
    Heard,
    MemoryNameSet,
    OperationsUndone,
    SessionTitled,
    SettingChosen,
    StopRequested,
    Took,
)
from everhold.errors import Conflict, InvalidRequest, NotFound
from everhold.ports.clock import RandomSource
from everhold.ports.store import Change, CommitResult, SessionOpening, Step
from everhold.stores.sqlite import (
    bindings,
    blobs,
    cursors,
    dead_letters,
    entries,
    operations,
    receipts,
    sessions,
    spending,
    state_records,
)


def apply_change(cur: apsw.Cursor, change: Change, chance: RandomSource, *, pos: int | None = None) -> CommitResult:
    """Apply `change`. Raises if a condition does not hold; then the caller rolls the transaction back.

    Its entries get positions from `pos` on, or after all others.
    """
    held = _guard_claim(cur, change)
    session, drafts, opens = change.session, change.entries, change.opens
    if not session:
        return _apply_sessionless(cur, change)
    head = _check_conditions(cur, change, _get_head(change, held))
    if (opens is not None or len(drafts) > 1) and (found := _find_duplicate(cur, change)) is not None:
        return _apply_duplicate(cur, change, held, found)
    if opens is not None:
        _open(cur, session, opens, at=change.at)
    first, generation = head or sessions.read_head(cur, session)
    seqs: tuple[int, ...] = ()
    if drafts:
        try:
            pos, raised = _append(cur, change, chance, first=first, pos=pos)
        except entries.DedupKeyTaken:
            # A change's only entry is written first, so there is nothing to undo if it is a duplicate.
            if opens is None and len(drafts) == 1 and (found := _find_duplicate(cur, change)) is not None:
                return _apply_duplicate(cur, change, held, found)
            raise
        seqs = tuple(range(first, first + len(drafts)))
        generation += raised
    last = first - 1
    claims = cursors.apply_wakeups(cur, session, change.wakeups, before=last, at=change.at) if change.wakeups else ()
    _apply_side_rows(cur, change)
    rests = _update_cursor(cur, change, held, grown_to=last)
    return CommitResult(session=session, seqs=seqs, pos=pos or 0, generation=generation, claims=claims, rests=rests)


def _guard_claim(cur: apsw.Cursor, change: Change) -> cursors.HeldCursor | None:
    """Return the claimed cursor's row if the change names a claim. Raises LeaseLost if it is no longer held."""
    if change.claim is not None:
        return cursors.check_claim(cur, change.claim)
    if change.cursor is not None:
        raise InvalidRequest("a cursor can only be updated under a claim")
    return None


def _get_head(change: Change, held: cursors.HeldCursor | None) -> sessions.SessionHead | None:
    """The session's head, if it was read together with the claimed cursor."""
    if held is None or change.claim is None or change.claim.cursor.session != change.session:
        return None
    return held.head


def _open(cur: apsw.Cursor, session: str, opens: SessionOpening, *, at: float) -> None:
    sessions.insert_session(cur, session, opens, at=at)
    if opens.bind:
        bindings.bind_new_session(cur, opens.address, session)


def _append(cur: apsw.Cursor, change: Change, chance: RandomSource, *, first: int, pos: int | None) -> tuple[int, int]:
    """Append the entries and write the derived rows. Return the last pos and by how much the generation rises."""
    session, drafts = change.session, change.entries
    ops = entries.append_entries(
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
    sessions.advance_session(cur, session, first + len(drafts))
    raised = 0
    for seq, op, draft in zip(range(first, first + len(drafts)), ops, drafts, strict=True):
        follows = _DERIVE_BY_BODY.get(type(draft.body))
        if follows is not None:
            raised += follows(cur, change, seq, op, draft.body)
    if raised:
        erasures = sum(type(draft.body) is Erased for draft in drafts)
        sessions.raise_generation(cur, session, by=raised, erasures=erasures)
    return last_pos, raised


def _update_cursor(cur: apsw.Cursor, change: Change, held: cursors.HeldCursor | None, *, grown_to: int) -> bool:
    """Update the claimed cursor. Return whether it was released with nothing left to do."""
    if change.cursor is None or change.claim is None or held is None:
        return False
    own = change.claim.cursor.session == change.session
    return cursors.update_cursor(
        cur, change.claim, held, change.cursor, at=change.at, grown_to=grown_to if own else None
    )


def _check_conditions(
    cur: apsw.Cursor, change: Change, head: sessions.SessionHead | None
) -> sessions.SessionHead | None:
    """Raise Conflict if the change was decided on an outdated state. Return the session's head if it was read."""
    session = change.session
    if change.bound is not None:
        address, title = change.bound
        head = sessions.read_bound_head(cur, address, session=session, title=title)
        if head is None:
            raise Conflict(f"{address} no longer leads to session {session} with the title {title!r}")
    if change.generation is not None or change.seen is not None:
        head = head or sessions.read_head(cur, session)
        first, generation = head
        if change.generation is not None and change.generation != generation:
            raise Conflict(f"session {session} is now at generation {generation}, not {change.generation}")
        if change.seen is not None and first - 1 > change.seen:
            raise Conflict(f"session {session} has grown to {first - 1}, beyond {change.seen}")
    if change.op is not None:
        operations.check_operation(cur, session, change.op, change.claim)
    if change.read is not None and entries.has_thought_after(cur, change.read):
        raise Conflict(f"a `thought` was committed after pos {change.read}")
    return head


def _find_duplicate(cur: apsw.Cursor, change: Change) -> entries.DuplicateEntry | None:
    """The existing entry with the dedup key of one of the change's entries."""
    for draft in change.entries:
        if draft.dedup is not None and (found := entries.find_duplicate(cur, draft)) is not None:
            return found
    return None


def _apply_sessionless(cur: apsw.Cursor, change: Change) -> CommitResult:
    """Apply a change that belongs to no session: a state record, a blob, spending."""
    if change.entries or change.opens is not None or change.op is not None or change.wakeups or change.erase:
        raise NotFound("an entry, an operation and a wakeup need a session, but this change names none")
    _apply_side_rows(cur, change)
    return CommitResult(session="")


def _apply_duplicate(
    cur: apsw.Cursor, change: Change, held: cursors.HeldCursor | None, found: entries.DuplicateEntry
) -> CommitResult:
    """Append nothing, because the entry exists, but write the offset and cursor, so that it is not delivered again."""
    for write in change.state_writes:
        state_records.write_state(cur, write)
    if change.cursor is not None and change.claim is not None and held is not None:
        cursors.update_cursor(cur, change.claim, held, change.cursor, at=change.at, grown_to=None)
    _, generation = sessions.read_head(cur, found.session)
    return CommitResult(
        session=found.session,
        seqs=(found.seq,),
        pos=found.pos,
        generation=generation,
        duplicate=True,
        differs=found.differs,
    )


def apply_derived_rows(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: EntryBody) -> int:
    """Write the rows that follow from one entry. Return by how much it raises the context's generation."""
    follows = _DERIVE_BY_BODY.get(type(body))
    return 0 if follows is None else follows(cur, change, seq, op, body)


def _derive_heard(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Heard) -> int:
    operations.add_pending(cur, change.session, seq, body)
    return 0


def _derive_began(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Began) -> int:
    operations.begin_operation(cur, change.session, seq, body, fence=0 if change.claim is None else change.claim.fence)
    return 0


def _derive_took(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Took) -> int:
    operations.consume_pending(cur, change.session, body.takes)
    return 0


def _derive_ended(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Ended) -> int:
    operations.end_operation(cur, change.session, seq, op, body.outcome)
    return 0


def _derive_compressed(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Compressed) -> int:
    operations.set_covered(cur, change.session, op, body.covers)
    return 1


def _derive_changed(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Changed) -> int:
    session = change.session
    match body.change:
        case ContextReset():
            operations.insert_context_reset(cur, session, seq)
            return 1
        case OperationsUndone() as undone:
            operations.undo_operations(cur, session, seq, undone)
            return 1
        case StopRequested(op=op):
            operations.request_stop(cur, session, op)
        case SessionTitled(title=title):
            sessions.set_title(cur, session, title)
        case MemoryNameSet(memory=memory, name=name):
            sessions.set_session_value(cur, session, "names", memory, name)
        case SettingChosen(setting=setting, value=value):
            sessions.set_session_value(cur, session, "choices", setting, value)
        case AddressBound() as bound:
            bindings.bind_address(cur, session, bound)
    return 0


def _derive_erased(cur: apsw.Cursor, change: Change, seq: int, op: int | None, body: Erased) -> int:
    session = change.session
    gone = set(change.erase)
    if gone != set(body.seqs):
        raise InvalidRequest("the erased entries and those that the `erased` entry names must be the same")
    if any(erased >= seq for erased in gone):
        raise NotFound(f"session {session}: an entry that is not yet in the log cannot be erased")
    touched = operations.find_ended_seqs(cur, session, gone)
    if cursors.has_in_flight(cur, session):
        cursors.void_in_flight(cur, session, gone | touched)
    dead_letters.drop_erased_dead_letters(cur, session, gone, touched)
    entries.erase_entries(cur, session, change.erase)
    operations.clear_pending(cur, session, change.erase)
    operations.hide_operations(cur, session, seq, body.compressions)
    sessions.restore_names(cur, session)
    return 1


_DERIVE_BY_BODY: Final[Mapping[type, Callable[[apsw.Cursor, Change, int, int | None, Any], int]]] = {
    Heard: _derive_heard,
    Began: _derive_began,
    Took: _derive_took,
    Ended: _derive_ended,
    Compressed: _derive_compressed,
    Erased: _derive_erased,
    Changed: _derive_changed,
}
"""Writes the derived rows of an entry. Entries of other kinds have none."""


def _apply_side_rows(cur: apsw.Cursor, change: Change) -> None:
    """Write everything of a change besides its entries and cursors."""
    if change.erase and not any(type(draft.body) is Erased for draft in change.entries):
        raise InvalidRequest("a change that erases must contain an `erased` entry")
    if change.receipts or change.dead_letters or change.replayed:
        receipts.insert_receipts(cur, change.receipts, at=change.at)
        dead_letters.add_dead_letters(cur, change.dead_letters, at=change.at)
        dead_letters.settle_dead_letters(cur, change.replayed)
    for write in change.state_writes:
        state_records.write_state(cur, write)
    if change.spends:
        spending.add_spends(cur, change.spends)
    if change.blobs or change.records or change.drop_blobs:
        _write_blobs(cur, change)
    if change.pause:
        if change.op is None:
            raise InvalidRequest("a change that pauses must name an operation")
        operations.pause_operation(cur, change.session, change.op)


def _write_blobs(cur: apsw.Cursor, change: Change) -> None:
    blobs.store_blobs(cur, change.blobs)
    if change.records:
        if change.op is None:
            raise InvalidRequest("a change with records must name an operation")
        if not entries.has_erasure_since(cur, change.session, change.op):
            blobs.store_blobs(cur, change.records)
    blobs.delete_blobs(cur, change.drop_blobs)
