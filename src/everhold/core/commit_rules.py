"""Decides what a change does: its conditions, its entries, and the rows that follow from them.

`list_needs` says which rows a batch of changes has to be decided on; `apply_change` decides one change on a working
set that contains them. A change that raises leaves no trace in the set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, structs

from everhold.core import cursor_rules, operation_rules, people_rules
from everhold.core.entries import (
    OWN_OPERATION,
    RELEASING_OUTCOMES,
    AddressBound,
    Began,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    EntryDraft,
    EntryKind,
    EntryPinned,
    Erased,
    Heard,
    MemoryNameSet,
    OperationsUndone,
    SessionTitled,
    SettingChosen,
    StopRequested,
    Took,
    decode_body,
)
from everhold.core.store_rows import (
    SALT_BYTES,
    CursorRow,
    DuplicateEntry,
    KeyedEntry,
    LogExcerpt,
    SessionRow,
    WorkingSet,
    build_entry_row,
    compare_duplicate,
)
from everhold.errors import Conflict, InvalidRequest, LeaseLost, NotFound, Refused
from everhold.ports.clock import RandomSource
from everhold.ports.store import SHARED_NAMESPACES, Change, CommitResult, StateWrite, Step

SCRUBBED: Final = "something of it was erased since"
"""Replaces an error that may repeat an erased text."""


# -- what is needed ----------------------------------------------------------------------------------------------------


class StoreNeeds(Struct):
    """The rows that a batch of changes has to be decided on."""

    sessions: set[str] = set()
    cursors: set[tuple[str, str]] = set()
    pending: set[tuple[str, int]] = set()
    addresses: set[str] = set()
    dedups: set[str] = set()
    states: set[tuple[str, str, str]] = set()
    logs: dict[str, set[int]] = {}
    """Sessions whose log is needed, and the entries of it that are erased."""
    begun: set[tuple[str, int]] = set()
    """Operations whose begin is compared with the newest erasure."""
    replays: set[str] = set()
    """Sessions whose cursors may have dead letters to replay."""
    has_erasure: bool = False
    thought_after: int | None = None
    people_changed: bool = False
    persons: set[str] = set()
    identities: set[str] = set()
    writes_people: bool = False
    peers: set[tuple[str, str, str]] = set()
    runs_operations: bool = False
    inserts_states: bool = False
    accounts: set[str] = set()
    reads_state_version: bool = False
    writes_shared: bool = False


def list_needs(changes: Iterable[Change]) -> StoreNeeds:
    needs = StoreNeeds()
    for change in changes:
        _add_needs(needs, change)
    return needs


def _add_needs(needs: StoreNeeds, change: Change) -> None:
    session = change.session
    if session:
        needs.sessions.add(session)
    if change.claim is not None:
        key = (change.claim.cursor.session, change.claim.cursor.consumer)
        needs.cursors.add(key)
        needs.sessions.add(key[0])
        needs.replays.add(key[0])
    for wakeup in change.wakeups:
        needs.cursors.add((session, wakeup.consumer))
        if wakeup.owner:
            needs.replays.add(session)
            needs.runs_operations = True
    if change.opens is not None:
        needs.addresses.add(change.opens.address)
        if change.opens.parent:
            needs.sessions.add(change.opens.parent)
    if change.bound is not None:
        needs.addresses.add(change.bound[0])
    if change.op is not None:
        needs.runs_operations = True
        if change.records:
            needs.begun.add((session, change.op))
    if change.read is not None:
        lowest = needs.thought_after
        needs.thought_after = change.read if lowest is None else min(lowest, change.read)
    needs.people_changed |= change.people_seen is not None
    needs.reads_state_version |= change.state_seen is not None
    if change.account is not None:
        needs.accounts.add(change.account.account)
    for write in change.state_writes:
        needs.states.add((write.namespace.value, write.scope, write.key))
        needs.inserts_states |= write.value is not None and not write.version
        needs.writes_shared |= write.namespace in SHARED_NAMESPACES
    for draft in change.entries:
        _add_entry_needs(needs, session, draft)
    if change.erase:
        needs.has_erasure = True
        needs.logs.setdefault(session, set()).update(change.erase)
    if change.people or change.first_seen:
        needs.writes_people = True
        needs.persons.update(event.person for event in change.people)
        needs.identities.update(event.identity for event in change.people if event.identity)
        needs.identities.update(seen.identity for seen in change.first_seen)
    needs.peers.update((peer.memory, peer.agent, peer.identity) for peer in change.peers)


def _add_entry_needs(needs: StoreNeeds, session: str, draft: EntryDraft) -> None:
    if draft.dedup is not None:
        needs.dedups.add(draft.dedup)
    match draft.body:
        case Began(takes=takes) | Took(takes=takes):
            needs.runs_operations = True
            needs.pending.update((session, seq) for seq in takes)
        case Ended(outcome=outcome):
            needs.runs_operations = True
            if outcome in RELEASING_OUTCOMES:
                needs.logs.setdefault(session, set())
        case Compressed():
            needs.runs_operations = True
        case Erased(seqs=seqs):
            needs.has_erasure = True
            needs.logs.setdefault(session, set()).update(seqs)
        case Changed(change=OperationsUndone()):
            needs.logs.setdefault(session, set())
        case Changed(change=StopRequested()):
            needs.runs_operations = True
        case Changed(change=AddressBound(address=address)):
            needs.addresses.add(address)
        case _:
            pass


# -- one change --------------------------------------------------------------------------------------------------------


def apply_change(work: WorkingSet, change: Change, chance: RandomSource) -> CommitResult:
    """Apply `change` to the working set. Raises if a condition does not hold; then the set is as before."""
    mark = work.mark()
    try:
        return _apply_change(work, change, chance)
    except BaseException:
        work.roll_back(mark)
        raise


def _apply_change(work: WorkingSet, change: Change, chance: RandomSource) -> CommitResult:
    held, had_replays = _guard_claim(work, change)
    _check_account(work, change)
    name, drafts, opens = change.session, change.entries, change.opens
    if not name:
        return _apply_sessionless(work, change)
    _check_conditions(work, change)
    if opens is not None or len(drafts) > 1:
        if (found := _find_duplicate(work, change)) is not None:
            return _apply_duplicate(work, change, held, had_replays, found)
        _check_own_keys(change)
    if opens is not None:
        _open_session(work, change)
    session = get_session(work, name)
    if opens is None and len(drafts) == 1 and (found := _find_duplicate(work, change)) is not None:
        return _apply_duplicate(work, change, held, had_replays, found)
    first = session.next_seq
    seqs: tuple[int, ...] = ()
    pos = 0
    if drafts:
        pos = _append_entries(work, change, chance, first)
        seqs = tuple(range(first, first + len(drafts)))
    last = first - 1
    claims = cursor_rules.apply_wakeups(work, name, change.wakeups, before=last) if change.wakeups else ()
    _apply_side_rows(work, change)
    rests = False
    if change.cursor is not None and held is not None:
        own = held.session == name
        # An erasure in this change may have voided the batch, so the cursor is read again.
        now_held = work.cursors[held.session, held.consumer]
        if now_held is not held:
            held = structs.replace(held, in_flight=now_held.in_flight, error=now_held.error)
        rests = cursor_rules.update_cursor(
            work, held, change.cursor, had_replays=had_replays, grown_to=last if own else None
        )
    generation = work.sessions[name].context_generation
    return CommitResult(session=name, seqs=seqs, pos=pos, generation=generation, claims=claims, rests=rests)


def get_session(work: WorkingSet, id: str) -> SessionRow:
    session = work.sessions.get(id)
    if session is None:
        raise NotFound(f"there is no session {id!r}", remedy="`everhold sessions list` lists the sessions")
    return session


def _guard_claim(work: WorkingSet, change: Change) -> tuple[CursorRow | None, bool]:
    """Return the claimed cursor's row, and whether it has dead letters to replay."""
    if change.claim is not None:
        held = cursor_rules.check_claim(work, change.claim)
        return held, bool(work.replays.get((held.session, held.consumer)))
    if change.cursor is not None:
        raise InvalidRequest("a cursor can only be updated under a claim")
    return None, False


def _check_account(work: WorkingSet, change: Change) -> None:
    """Raise LeaseLost unless the account is still held under this fence."""
    claim = change.account
    if claim is not None and work.accounts.get(claim.account) != (claim.owner, claim.fence):
        raise LeaseLost(f"account {claim.account} is no longer held under fence {claim.fence}")


def _check_state_version(work: WorkingSet, change: Change) -> None:
    if change.state_seen is not None and change.state_seen != work.state_version[0]:
        raise Conflict(f"shared state records are at version {work.state_version[0]}, not {change.state_seen}")


def _check_conditions(work: WorkingSet, change: Change) -> None:
    """Raise Conflict if the change was decided on an outdated state."""
    name = change.session
    if change.bound is not None:
        address, title = change.bound
        bound = work.sessions.get(name)
        if work.bindings.get(address) != name or bound is None or bound.title != title:
            raise Conflict(f"{address} no longer leads to session {name} with the title {title!r}")
    if change.generation is not None or change.seen is not None:
        session = get_session(work, name)
        generation, last = session.context_generation, session.next_seq - 1
        if change.generation is not None and change.generation != generation:
            raise Conflict(f"session {name} is now at generation {generation}, not {change.generation}")
        if change.seen is not None and last > change.seen:
            raise Conflict(f"session {name} has grown to {last}, beyond {change.seen}")
    if change.op is not None:
        operation_rules.check_operation(work, name, change.op, change.claim)
    if change.read is not None and work.newest_thought > change.read:
        raise Conflict(f"a `thought` was committed after pos {change.read}")
    if change.people_seen is not None and work.people_changed > change.people_seen:
        raise Conflict(f"the people changed after epoch {change.people_seen}")
    _check_state_version(work, change)


def _find_duplicate(work: WorkingSet, change: Change) -> DuplicateEntry | None:
    """The existing entry with the dedup key of one of the change's entries."""
    for draft in change.entries:
        if draft.dedup is not None and (found := work.keyed.get(draft.dedup)) is not None:
            return compare_duplicate(found, draft)
    return None


def _find_generation(work: WorkingSet, found: DuplicateEntry) -> int:
    """The generation of the session that has the entry."""
    session = work.sessions.get(found.session)
    if session is not None:
        return session.context_generation
    return next(it.generation for it in work.keyed.values() if (it.session, it.seq) == found[:2])


def _check_own_keys(change: Change) -> None:
    keys = [draft.dedup for draft in change.entries if draft.dedup is not None]
    if len(keys) != len(set(keys)):
        raise InvalidRequest(f"session {change.session}: two entries have the same dedup key, or the same place")


def _apply_sessionless(work: WorkingSet, change: Change) -> CommitResult:
    """Apply a change that belongs to no session: a state record, a blob, spending."""
    if change.entries or change.opens is not None or change.op is not None or change.wakeups or change.erase:
        raise NotFound("an entry, an operation and a wakeup need a session, but this change names none")
    _check_state_version(work, change)
    _apply_side_rows(work, change)
    return CommitResult(session="")


def _apply_duplicate(
    work: WorkingSet, change: Change, held: CursorRow | None, had_replays: bool, found: DuplicateEntry
) -> CommitResult:
    """Append nothing, because the entry exists, but write the offset and cursor, so that it is not delivered again."""
    for write in change.state_writes:
        write_state(work, write)
    if change.cursor is not None and held is not None:
        cursor_rules.update_cursor(work, held, change.cursor, had_replays=had_replays, grown_to=None)
    return CommitResult(
        session=found.session,
        seqs=(found.seq,),
        pos=found.pos,
        generation=_find_generation(work, found),
        duplicate=True,
        differs=found.differs,
    )


def _open_session(work: WorkingSet, change: Change) -> None:
    opens, name = change.opens, change.session
    assert opens is not None
    parent = work.sessions.get(opens.parent) if opens.parent else None
    if opens.parent and parent is None:
        raise NotFound(f"session {name} cannot branch off {opens.parent}: there is no such session")
    if name in work.sessions:
        raise Conflict(f"session {name} exists already")
    row = SessionRow(
        id=name,
        agent=opens.agent,
        address=opens.address,
        created=change.at,
        parent=opens.parent,
        parent_at=opens.parent_at,
        inherited=0 if parent is None else parent.inherited + parent.erasures,
        is_new=True,
    )
    work.sessions.put(name, row)
    if opens.bind:
        if opens.address in work.bindings:
            raise Conflict(f"{opens.address} leads to a session already")
        work.bindings.put(opens.address, name)


# -- entries -----------------------------------------------------------------------------------------------------------


def _append_entries(work: WorkingSet, change: Change, chance: RandomSource, first: int) -> int:
    """Append the entries and change the derived rows. Return the last pos."""
    name, drafts = change.session, change.entries
    ops = _build_rows(work, change, chance, first)
    work.sessions.put(name, structs.replace(work.sessions[name], next_seq=first + len(drafts)))
    raised = erasures = 0
    for seq, (op, draft) in enumerate(zip(ops, drafts, strict=True), first):
        derive = _DERIVE_BY_BODY.get(type(draft.body))
        if derive is not None:
            raised += derive(work, change, seq, op, draft.body)
            erasures += type(draft.body) is Erased
    if raised:
        session = work.sessions[name]
        work.sessions.put(
            name,
            structs.replace(session, generation=session.generation + raised, erasures=session.erasures + erasures),
        )
    return work.next_pos - 1


def _build_rows(work: WorkingSet, change: Change, chance: RandomSource, first: int) -> list[int | None]:
    """Add the rows of the entries. Return the operation of each.

    An entry belongs to an operation that begins here, or to the one that the change names, which was checked. An
    erasure may also end another operation, because that one had read an erased entry.
    """
    name, drafts = change.session, change.entries
    salts = chance.bytes(SALT_BYTES * len(drafts))
    ops: list[int | None] = []
    own: int | None = None
    for number, draft in enumerate(drafts):
        seq, body, op = first + number, draft.body, draft.op
        if type(body) is Began:
            op = own = seq
        elif op is not None:
            if op == OWN_OPERATION:
                op = _find_begun_op(drafts, first) if own is None else own
            elif op not in (change.op, own) and not (change.step is Step.ERASE and type(body) is Ended):
                raise InvalidRequest(
                    f"session {name}: an entry belongs to operation {op}, which its change does not name"
                )
        salt = salts[SALT_BYTES * number : SALT_BYTES * (number + 1)]
        pos = work.next_pos
        try:
            row = build_entry_row(name, seq, draft, at=change.at, salt=salt, op=op, pos=pos)
        except UnicodeEncodeError as error:
            raise Refused(
                f"session {name}: an entry contains code points that are not characters",
                remedy="clean its text before it is committed",
            ) from error
        work.next_pos = pos + 1
        work.entries.append(row)
        if draft.dedup is not None:
            work.keyed.put(draft.dedup, KeyedEntry(name, seq, pos, row[3], row[8]))
        ops.append(op)
    return ops


def _find_begun_op(drafts: Iterable[EntryDraft], first: int) -> int:
    for seq, draft in enumerate(drafts, first):
        if type(draft.body) is Began:
            return seq
    raise InvalidRequest("an entry belongs to an operation that this change does not begin")


def _derive_heard(work: WorkingSet, change: Change, seq: int, op: int | None, body: Heard) -> int:
    work.pending.put((change.session, seq), body.asks)
    return 0


def _derive_began(work: WorkingSet, change: Change, seq: int, op: int | None, body: Began) -> int:
    fence = 0 if change.claim is None else change.claim.fence
    operation_rules.begin_operation(work, change.session, seq, body, fence=fence)
    _note_takes(work, change.session, op, body.takes)
    return 0


def _derive_took(work: WorkingSet, change: Change, seq: int, op: int | None, body: Took) -> int:
    operation_rules.consume_pending(work, change.session, body.takes)
    _note_takes(work, change.session, op, body.takes)
    return 0


def _note_takes(work: WorkingSet, session: str, op: int | None, takes: Iterable[int]) -> None:
    """Add what this batch consumes to the excerpt of the log, if that was read."""
    log = work.logs.get(session)
    if log is not None and op is not None:
        log.takes.setdefault(op, []).extend(takes)


def _derive_ended(work: WorkingSet, change: Change, seq: int, op: int | None, body: Ended) -> int:
    operation_rules.end_operation(work, change.session, seq, op, body.outcome)
    return 0


def _derive_compressed(work: WorkingSet, change: Change, seq: int, op: int | None, body: Compressed) -> int:
    operation_rules.set_covered(work, change.session, op, body.covers)
    return 1


def _derive_changed(work: WorkingSet, change: Change, seq: int, op: int | None, body: Changed) -> int:
    name = change.session
    match body.change:
        case ContextReset():
            operation_rules.insert_finished_operation(work, name, seq, "context_reset")
            return 1
        case EntryPinned():
            operation_rules.insert_finished_operation(work, name, seq, "pin")
            return 1
        case OperationsUndone() as undone:
            operation_rules.undo_operations(work, name, seq, undone)
            return 1
        case StopRequested(op=op):
            operation_rules.request_stop(work, name, op)
        case SessionTitled(title=title):
            work.sessions.put(name, structs.replace(work.sessions[name], title=title))
        case MemoryNameSet(memory=memory, name=given):
            names = _set_value(work.sessions[name].names, memory, given)
            work.sessions.put(name, structs.replace(work.sessions[name], names=names))
        case SettingChosen(setting=setting, value=value):
            choices = _set_value(work.sessions[name].choices, setting, value)
            work.sessions.put(name, structs.replace(work.sessions[name], choices=choices))
        case AddressBound() as bound:
            _bind_address(work, name, bound)
    return 0


def _set_value(stored: Mapping[str, str], key: str, value: str) -> dict[str, str]:
    """Return the map with one value set; an empty value removes it."""
    changed = {**stored, key: value}
    if not value:
        del changed[key]
    return changed


def _bind_address(work: WorkingSet, session: str, bound: AddressBound) -> None:
    """Bind an address to a session. Raises Conflict unless it still leads to the session that the caller expects."""
    now = work.bindings.get(bound.address, "")
    if now != bound.previous:
        raise Conflict(f"{bound.address} now leads to {now or 'no session'}, not to {bound.previous or 'no session'}")
    work.bindings.put(bound.address, session)


def _derive_erased(work: WorkingSet, change: Change, seq: int, op: int | None, body: Erased) -> int:
    name = change.session
    erased = set(change.erase)
    if erased != set(body.seqs):
        raise InvalidRequest("the erased entries and those that the `erased` entry names must be the same")
    if any(one >= seq for one in erased):
        raise NotFound(f"session {name}: an entry that is not yet in the log cannot be erased")
    if any(one < 1 for one in erased):
        raise NotFound(f"session {name} has no entry {min(erased)} to erase")
    touched = operation_rules.find_ended_seqs(work, name, erased)
    cursor_rules.void_in_flight(work, name, erased | touched)
    _drop_dead_letters(work, name, erased, touched)
    work.erased.extend((name, one) for one in erased)
    log = work.logs[name]
    for one in erased:
        work.pending.drop((name, one))
        log.asks.pop(one, None)
        log.changed.pop(one, None)
    operation_rules.hide_operations(work, name, seq, body.compressions)
    title, names = read_names(log)
    work.sessions.put(name, structs.replace(work.sessions[name], title=title, names=names))
    return 1


def _drop_dead_letters(work: WorkingSet, session: str, erased: set[int], touched: set[int]) -> None:
    work.dropped.extend((session, seq) for seq in erased)
    work.scrubbed.extend((session, seq) for seq in erased | touched)
    cursor_rules.replace_errors(work, session, SCRUBBED)


def read_names(log: LogExcerpt) -> tuple[str, dict[str, str]]:
    """Return the newest title and the newest names for memories that are still in the log."""
    title = ""
    names: dict[str, str] = {}
    for _, text in sorted(log.changed.items()):
        body = decode_body(EntryKind.CHANGED, text)
        match body.change if isinstance(body, Changed) else None:
            case SessionTitled(title=title):
                pass
            case MemoryNameSet(memory=memory, name=name):
                names[memory] = name
    return title, {memory: name for memory, name in names.items() if name}


_DERIVE_BY_BODY: Final[Mapping[type, Callable[[WorkingSet, Change, int, int | None, Any], int]]] = {
    Heard: _derive_heard,
    Began: _derive_began,
    Took: _derive_took,
    Ended: _derive_ended,
    Compressed: _derive_compressed,
    Erased: _derive_erased,
    Changed: _derive_changed,
}
"""Changes the derived rows of an entry, and returns by how much that raises the context's generation."""


# -- side rows ---------------------------------------------------------------------------------------------------------


def _apply_side_rows(work: WorkingSet, change: Change) -> None:
    """Everything of a change besides its entries and cursors."""
    if change.erase and not any(type(draft.body) is Erased for draft in change.entries):
        raise InvalidRequest("a change that erases must contain an `erased` entry")
    for receipt in change.receipts:
        place = (receipt.session, receipt.seq, receipt.part, receipt.consumer)
        work.receipts.put(place, structs.replace(receipt, at=change.at))
    for letter in change.dead_letters:
        work.dead_letters.append(structs.replace(letter, at=change.at))
        if letter.state == "replaying":
            key = (letter.session, letter.consumer)
            work.replays.put(key, work.replays.get(key, frozenset()) | {0})
    if change.replayed:
        work.settled.extend(change.replayed)
        for key, ids in list(work.replays.items()):
            if not ids.isdisjoint(change.replayed):
                work.replays.put(key, ids.difference(change.replayed))
    for write in change.state_writes:
        write_state(work, write)
    for spend in change.spends:
        usd, tokens = work.spends.get((spend.budget, spend.day), (0.0, 0))
        work.spends.put((spend.budget, spend.day), (usd + spend.usd, tokens + spend.tokens))
    _write_blobs(work, change)
    if change.people or change.first_seen or change.peers:
        people_rules.apply_people(work, change)
    if change.pause:
        if change.op is None:
            raise InvalidRequest("a change that pauses must name an operation")
        operation_rules.pause_operation(work, change.session, change.op)


def _write_blobs(work: WorkingSet, change: Change) -> None:
    blobs = change.blobs
    if change.records:
        if change.op is None:
            raise InvalidRequest("a change with records must name an operation")
        if work.newest_erasure <= work.begun_pos.get((change.session, change.op), 0):
            blobs += change.records
    for data in blobs:
        work.blobs.put(hashlib.sha256(data).hexdigest(), data)
    for digest in change.drop_blobs:
        work.blobs.put(digest, None)


def write_state(work: WorkingSet, write: StateWrite) -> None:
    """Write or delete one state record. Raises Conflict unless it still has the version that was read."""
    place = (write.namespace.value, write.scope, write.key)
    stored = work.states.get(place)
    if stored is None and not write.version:
        if write.value is None:
            return  # it should not exist, and it does not
        floor = max((work.state_floor, *work.deleted_versions))
        work.states.put(place, (write.value, floor + 1))
    elif stored is None or stored[1] != write.version:
        raise _build_state_conflict(write)
    elif write.value is None:
        work.states.drop(place)
        work.deleted_versions.put(write.version, True)
    else:
        work.states.put(place, (write.value, write.version + 1))
    if write.namespace in SHARED_NAMESPACES:
        work.state_version.put(0, work.state_version[0] + 1)


def _build_state_conflict(write: StateWrite) -> Conflict:
    found = f"was changed or deleted after version {write.version}" if write.version else "exists already"
    where = f" of {write.scope}" if write.scope else ""
    return Conflict(f"the {write.namespace} record {write.key!r}{where} {found}", remedy="try again")
