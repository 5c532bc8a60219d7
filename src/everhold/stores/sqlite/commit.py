"""Applies changes inside the caller's transaction: conditions, entries, and the rows derived from them.

`apply_change` applies one change of any kind. `append_messages` applies several changes that only append a message
each, with one statement per table. It is used when many messages arrive at once. Special cases (a repeated delivery, an
address that leads to another session by now) raise an error there; then the transaction is rolled back, and
`apply_change` applies the changes one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import apsw
import msgspec

from everhold.core.entries import (
    AddressBound,
    Began,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    EntryBody,
    EntryPinned,
    Erased,
    Heard,
    MemoryNameSet,
    OperationsUndone,
    SessionTitled,
    SettingChosen,
    StopRequested,
    Took,
)
from everhold.core.store_rows import SALT_BYTES, DuplicateEntry, build_entry_row
from everhold.errors import Conflict, InvalidRequest, NotFound
from everhold.ports.clock import RandomSource
from everhold.ports.store import SHARED_NAMESPACES, Change, Claim, CommitResult, SessionOpening, Step
from everhold.stores.sqlite import (
    account_leases,
    bindings,
    cursors,
    deliveries,
    entries,
    operations,
    people,
    sessions,
    spending,
    state_records,
)


def apply_change(
    cur: apsw.Cursor, change: Change, chance: RandomSource, *, now: float, pos: int | None = None
) -> CommitResult:
    """Apply `change`. Raises if a condition does not hold; then the caller rolls the transaction back.

    Its cursors are due and claimed from `now` on, which is the store's time. Its entries get positions from `pos` on,
    or after all others.
    """
    held = _guard_claim(cur, change)
    if change.account is not None:
        account_leases.check_account(cur, change.account)
    session, drafts, opens = change.session, change.entries, change.opens
    if not session:
        return _apply_sessionless(cur, change)
    head = _check_conditions(cur, change, _get_head(change, held))
    if (opens is not None or len(drafts) > 1) and (found := _find_duplicate(cur, change)) is not None:
        return _apply_duplicate(cur, change, held, found, now=now)
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
                return _apply_duplicate(cur, change, held, found, now=now)
            raise
        seqs = tuple(range(first, first + len(drafts)))
        generation += raised
    last = first - 1
    claims = cursors.apply_wakeups(cur, session, change.wakeups, before=last, at=now) if change.wakeups else ()
    _apply_side_rows(cur, change)
    rests = _update_cursor(cur, change, held, grown_to=last, now=now)
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


def _update_cursor(
    cur: apsw.Cursor, change: Change, held: cursors.HeldCursor | None, *, grown_to: int, now: float
) -> bool:
    """Update the claimed cursor. Return whether it was released with nothing left to do."""
    if change.cursor is None or change.claim is None or held is None:
        return False
    own = change.claim.cursor.session == change.session
    return cursors.update_cursor(cur, change.claim, held, change.cursor, at=now, grown_to=grown_to if own else None)


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
    if change.people_seen is not None and people.has_changed_since(cur, change.people_seen):
        raise Conflict(f"the people changed after epoch {change.people_seen}")
    if change.state_seen is not None:
        _check_state_version(change, state_records.read_state_version(cur))
    return head


def _check_state_version(change: Change, version: int) -> None:
    if change.state_seen is not None and change.state_seen != version:
        raise Conflict(f"shared state records are at version {version}, not {change.state_seen}")


def _find_duplicate(cur: apsw.Cursor, change: Change) -> DuplicateEntry | None:
    """The existing entry with the dedup key of one of the change's entries."""
    for draft in change.entries:
        if draft.dedup is not None and (found := entries.find_duplicate(cur, draft)) is not None:
            return found
    return None


def _apply_sessionless(cur: apsw.Cursor, change: Change) -> CommitResult:
    """Apply a change that belongs to no session: a state record, a blob, spending."""
    if change.entries or change.opens is not None or change.op is not None or change.wakeups or change.erase:
        raise NotFound("an entry, an operation and a wakeup need a session, but this change names none")
    if change.state_seen is not None:
        _check_state_version(change, state_records.read_state_version(cur))
    _apply_side_rows(cur, change)
    return CommitResult(session="")


def _apply_duplicate(
    cur: apsw.Cursor, change: Change, held: cursors.HeldCursor | None, found: DuplicateEntry, *, now: float
) -> CommitResult:
    """Append nothing, because the entry exists, but write the offset and cursor, so that it is not delivered again."""
    for write in change.state_writes:
        state_records.write_state(cur, write)
    if change.cursor is not None and change.claim is not None and held is not None:
        cursors.update_cursor(cur, change.claim, held, change.cursor, at=now, grown_to=None)
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
        case EntryPinned():
            operations.insert_pin(cur, session, seq)
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
    erased_seqs = set(change.erase)
    if erased_seqs != set(body.seqs):
        raise InvalidRequest("the erased entries and those that the `erased` entry names must be the same")
    if any(erased >= seq for erased in erased_seqs):
        raise NotFound(f"session {session}: an entry that is not yet in the log cannot be erased")
    touched = operations.find_ended_seqs(cur, session, erased_seqs)
    if cursors.has_in_flight(cur, session):
        cursors.void_in_flight(cur, session, erased_seqs | touched)
    deliveries.drop_erased_dead_letters(cur, session, erased_seqs, touched)
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
    if change.receipts:
        deliveries.insert_receipts(cur, change.receipts, at=change.at)
    if change.dead_letters:
        deliveries.add_dead_letters(cur, change.dead_letters, at=change.at)
    if change.replayed:
        deliveries.settle_dead_letters(cur, change.replayed)
    for write in change.state_writes:
        state_records.write_state(cur, write)
    if change.people or change.first_seen or change.peers:
        _apply_people(cur, change)
    if change.spends:
        spending.add_spends(cur, change.spends)
    if change.blobs or change.records or change.drop_blobs:
        _write_blobs(cur, change)
    if change.pause:
        if change.op is None:
            raise InvalidRequest("a change that pauses must name an operation")
        operations.pause_operation(cur, change.session, change.op)


def _apply_people(cur: apsw.Cursor, change: Change) -> None:
    if change.people:
        if change.people_epoch is None:
            raise InvalidRequest("a change of people must name the epoch that it was planned on")
        people.append_events(cur, change.people, at=change.at, epoch=change.people_epoch)
    people.add_first_seen(cur, change.first_seen, at=change.at)
    people.add_peers(cur, change.peers, new_entries=len(change.entries))


def _write_blobs(cur: apsw.Cursor, change: Change) -> None:
    entries.store_blobs(cur, change.blobs)
    if change.records:
        if change.op is None:
            raise InvalidRequest("a change with records must name an operation")
        if not entries.has_erasure_since(cur, change.session, change.op):
            entries.store_blobs(cur, change.records)
    entries.delete_blobs(cur, change.drop_blobs)


# -- many messages at once ---------------------------------------------------------------------------------------------

HANDLED_FIELDS: Final = frozenset(
    {"step", "session", "at", "entries", "bound", "wakeups", "state_writes", "state_seen"}
)
"""The fields of a change that `append_messages` handles. A change that sets any other field needs `apply_change`."""

# `cross join` fixes the order of the joins, so that only the requested rows are read.
_SELECT_HEADS: Final = (
    f"select b.address, s.id, s.title, s.next_seq, {sessions.GENERATION}, "
    "(select due from cursors where session = s.id and consumer = j.value) "
    "from json_each(?) j cross join bindings b on b.address = j.key cross join sessions s on s.id = b.session"
)
_encoder: Final = msgspec.json.Encoder()
_other_fields: Final = attrgetter(*(name for name in Change.__struct_fields__ if name not in HANDLED_FIELDS))
_NO_OTHER_FIELDS: Final = _other_fields(Change(step=Step.ACCEPT, session="", at=0.0))


def is_plain_message(change: Change) -> bool:
    """Return whether a change appends one message to an existing session and does nothing else."""
    drafts = change.entries
    return (
        change.step is Step.ACCEPT
        and change.bound is not None
        and len(drafts) == 1
        and type(drafts[0].body) is Heard
        and drafts[0].op is None
        and bool(_other_fields(change) == _NO_OTHER_FIELDS)
        and not any(write.namespace in SHARED_NAMESPACES for write in change.state_writes)
    )


def append_messages(
    cur: apsw.Cursor, changes: Sequence[Change], chance: RandomSource, *, now: float
) -> list[CommitResult]:
    """Apply `changes` in their order. Each of them satisfies `is_plain_message`. `now` is the store's time."""
    asked = {change.bound[0]: change.wakeups[0].consumer if change.wakeups else "" for change in changes}  # type: ignore[index]
    heads = {row[0]: row for row in cur.execute(_SELECT_HEADS, (_encoder.encode(asked).decode(),))}
    version = state_records.read_state_version(cur)
    salts = chance.bytes(SALT_BYTES * len(changes))
    salt = 0
    grown: dict[str, int] = {}
    rows, pending, placed = [], [], []
    for change in changes:
        (address, title), session, draft = change.bound, change.session, change.entries[0]  # type: ignore[misc]
        _check_state_version(change, version)
        head = heads.get(address)
        if head is None or head[1] != session or head[2] != title:
            raise Conflict(f"{address} no longer leads to session {session} with the title {title!r}")
        seq = grown.get(session) or head[3]
        grown[session] = seq + 1
        rows.append(build_entry_row(session, seq, draft, at=change.at, salt=salts[salt : salt + SALT_BYTES]))
        pending.append((session, seq, draft.body.asks))  # type: ignore[union-attr]
        placed.append((change, seq, head))
        salt += SALT_BYTES
    entries.insert_rows(cur, rows)
    pos = cur.connection.last_insert_rowid() - len(rows)
    operations.add_pending_messages(cur, pending)
    sessions.advance_sessions(cur, [(following, session) for session, following in grown.items()])
    done = []
    woken = set[str]()
    for change, seq, (address, session, _, _, generation, due) in placed:
        pos += 1
        claims: tuple[Claim, ...] = ()
        if wakeups := change.wakeups:
            first = wakeups[0]
            awake = due is not None and due <= now and first.consumer == asked[address] and session not in woken
            if not awake or first.owner or first.waits_for or len(wakeups) > 1:
                claims = cursors.apply_wakeups(cur, session, wakeups, before=seq - 1, at=now)
                woken.add(session)
        for write in change.state_writes:
            state_records.write_state(cur, write)
        done.append(CommitResult(session=session, seqs=(seq,), pos=pos, generation=generation, claims=claims))
    return done
