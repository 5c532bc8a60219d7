"""Reads the whole log and reports where anything in the store contradicts it. It never repairs.

The derived rows are computed here a second time, in memory and independently of the code that maintains them, so that
a bug in one of the two is noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import msgspec

from everhold.core.entries import (
    BODY_VERSION,
    RELEASING_OUTCOMES,
    AddressBound,
    Began,
    BranchedFrom,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    EntryBody,
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
    compute_entry_digest,
    decode_body,
)
from everhold.core.people import (
    IdentityRecord,
    PeopleAction,
    PeopleEvent,
    PersonRecord,
    build_directory,
)
from everhold.ports.store import InFlightBatch
from everhold.stores.snapshot import SnapshotReader

STRUCTURAL_KINDS = {EntryKind.BEGAN, EntryKind.TOOK, EntryKind.ENDED, EntryKind.COMPRESSED, EntryKind.CHANGED}
"""Kinds that determine the derived rows. If such an entry was erased, the rows can no longer be computed."""
_KIND_BY_NAME: Final = {kind.value: kind for kind in EntryKind}


SELECT_LOG: Final = (
    "select seq, pos, kind, op, author, at, version, body, salt, digest, dedup from entries where session = ? "
    "order by seq"
)
SELECT_HEAD: Final = "select next_seq, generation, erasures, title, choices, names from sessions where id = ?"


def find_contradictions(reader: SnapshotReader, session: str | None) -> list[str]:
    """One line for each contradiction with the log."""
    if session is not None:
        return _check_session(reader, session)
    found = [
        line
        for (id,) in reader.fetch_rows("select id from sessions order by id")
        for line in _check_session(reader, id)
    ]
    return found + find_global_contradictions(reader)


def find_global_contradictions(reader: SnapshotReader) -> list[str]:
    """One line for each contradiction outside the sessions."""
    return (
        _check_bindings(reader) + find_people_contradictions(reader) + _find_stray_rows(reader) + _check_blobs(reader)
    )


# -- one session -------------------------------------------------------------------------------------------------------


@dataclass
class RebuiltOperation:
    type: str
    state: str
    first: int
    last: int = 0
    consumer: str = ""
    blocking: int = 0
    covers: int = 0
    undone_at: int = 0
    compression: int = 0
    stop: int = 0


@dataclass
class RebuiltSession:
    """A session as computed from its entries alone."""

    heard: dict[int, int] = field(default_factory=dict)
    """Every message with a body, and whether it asks for an answer."""
    pending: dict[int, int] = field(default_factory=dict)
    ops: dict[int, RebuiltOperation] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    compressions: list[int] = field(default_factory=list)
    taken: dict[int, list[int]] = field(default_factory=dict)
    title: str = ""
    choices: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    generation: int = 0
    erasures: int = 0
    erased: set[int] = field(default_factory=set)
    branched_from: tuple[str, int] = ("", 0)
    """The session whose context this one continues, and the entry up to which."""
    conflicts: list[str] = field(default_factory=list)

    def take(self, op: int, seq: int, takes: tuple[int, ...]) -> None:
        for one in takes:
            if self.pending.pop(one, None) is None and one in self.heard:
                self.conflicts.append(f"entry {seq} takes {one}, which was not pending")
        self.taken.setdefault(op, []).extend(takes)

    def give_back(self, op: int) -> None:
        """Make the messages that `op` took pending again."""
        self.pending.update({seq: self.heard[seq] for seq in self.taken.get(op, []) if seq in self.heard})

    def hide(self, op: int, seq: int) -> None:
        """Remove `op` from the context, if it is still in it."""
        if op in self.ops and not self.ops[op].undone_at:
            self.ops[op].undone_at = seq


def _check_session(reader: SnapshotReader, id: str) -> list[str]:
    verifier = SessionVerifier(id)
    for row in reader.iterate_rows(SELECT_LOG, (id,)):
        verifier.add_row(row)
    return verifier.finish(reader)


class SessionVerifier:
    """Reads the rows of one session's log in order, and then compares the derived rows with it."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.is_readable = True
        """Every row so far could be decoded."""
        self._found: list[str] = []
        self._rebuilt = RebuiltSession()
        self._next_seq = 1
        self._empty_seqs: set[int] = set()
        self._is_complete = True
        """No entry was erased that determines the derived rows."""

    def add_row(self, row: Sequence[Any]) -> Entry | None:
        """Check a row; return its entry, or None if it cannot be read."""
        id = self.id
        seq, pos, kind, op, author, at, version, text, salt, seal, dedup = row
        if seq != self._next_seq:
            self._found.append(f"{id}: entries {self._next_seq} to {seq - 1} are missing")
        self._next_seq = seq + 1
        known = _KIND_BY_NAME.get(kind)
        if version > BODY_VERSION or known is None:
            self._found.append(f"{id}: entry {seq} ({kind}, version {version}) was written by a newer everhold")
            self.is_readable = False
            return None
        if (text is None) != (salt is None):
            self._found.append(f"{id}: entry {seq} ({kind}) is only partly erased")
        body: EntryBody | None = None
        if text is None or salt is None:
            self._empty_seqs.add(seq)
            self._is_complete = self._is_complete and known not in STRUCTURAL_KINDS
        else:
            expected = compute_entry_digest(
                salt=salt, session=id, seq=seq, kind=kind, op=op, author=author, at=at, body=text
            )
            if expected != seal:
                self._found.append(f"{id}: entry {seq} ({kind}) is not what was written: its digest does not match")
            try:
                body = decode_body(known, text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self._found.append(f"{id}: entry {seq} ({kind}) cannot be decoded: {error}")
                self.is_readable = False
                return None
            rebuild = _REBUILDS.get(type(body))
            if rebuild is not None:
                rebuild(self._rebuilt, seq, op, body)
        return Entry(
            session=id,
            seq=seq,
            pos=pos,
            kind=known,
            op=op,
            author=author,
            at=at,
            version=version,
            body=body,
            digest=seal,
            dedup=dedup,
        )

    def list_outdated_choices(self, reader: SnapshotReader) -> tuple[list[str], int]:
        """Return the settings of the session that are in force although the log chose another value, and how many it
        chose.
        """
        stored: dict[str, str] = msgspec.json.decode(
            reader.fetch_value("select choices from sessions where id = ?", (self.id,)) or "{}"
        )
        chosen = self._rebuilt.choices
        return [name for name in chosen if self._is_complete and stored.get(name, "") != chosen[name]], len(chosen)

    def describe_wrong_parent(self, reader: SnapshotReader) -> str:
        """Return what is wrong with the session whose context this one continues, or an empty text."""
        rows = reader.fetch_rows("select parent, parent_at from sessions where id = ?", (self.id,))
        stored = tuple(rows[0]) if rows else None
        if not self._is_complete or stored is None or stored == self._rebuilt.branched_from:
            return ""
        (parent, at), (own, own_at) = stored, self._rebuilt.branched_from
        return (
            f"it continues {parent or 'no session'} up to {at}, but its log says {own or 'no session'} up to {own_at}"
        )

    def finish(self, reader: SnapshotReader) -> list[str]:
        """Return one line for each contradiction."""
        id, found, rebuilt = self.id, self._found, self._rebuilt
        head = reader.fetch_rows(SELECT_HEAD, (id,))
        if not head:
            return [f"{id}: there is no such session"]
        if head[0][0] != self._next_seq:
            found.append(f"{id}: the log ends at {self._next_seq - 1}, but the next entry would be {head[0][0]}")
        if self.is_readable:
            found += [f"{id}: {line}" for line in rebuilt.conflicts]
            for seq in sorted(self._empty_seqs - rebuilt.erased):
                found.append(f"{id}: entry {seq} has no body, but no entry says it was erased")
            for seq in sorted(rebuilt.erased - self._empty_seqs):
                found.append(f"{id}: entry {seq} was erased, but its body is still there")
            if self._is_complete:
                found += _compare_session(reader, id, head[0], rebuilt)
        return found + _check_cursors(reader, id, head[0][0] - 1)


def _rebuild_heard(now: RebuiltSession, seq: int, op: int | None, body: Heard) -> None:
    now.heard[seq] = now.pending[seq] = int(body.asks)


def _rebuild_began(now: RebuiltSession, seq: int, op: int | None, body: Began) -> None:
    now.take(seq, seq, body.takes)
    for other in sorted(now.running):
        if _is_exclusive(now.ops[other], body):
            now.conflicts.append(f"operation {seq} ({body.type}) began while {other} ({now.ops[other].type}) ran")
    now.running.add(seq)
    if body.type == "compression":
        now.compressions.append(seq)
    now.ops[seq] = RebuiltOperation(
        type=body.type,
        state="running",
        first=min((seq, *body.takes)),
        consumer=body.consumer,
        blocking=int(body.blocking),
        compression=body.compression,
    )


def _rebuild_took(now: RebuiltSession, seq: int, op: int | None, body: Took) -> None:
    if op is not None:
        now.take(op, seq, body.takes)


def _rebuild_ended(now: RebuiltSession, seq: int, op: int | None, body: Ended) -> None:
    if op is None or op not in now.ops:
        return
    ended = now.ops[op]
    if ended.state != "running":
        now.conflicts.append(f"entry {seq} ends operation {op}, which had ended already")
    ended.state, ended.last = body.outcome, seq
    now.running.discard(op)
    if body.outcome in RELEASING_OUTCOMES:
        now.give_back(op)


def _rebuild_compressed(now: RebuiltSession, seq: int, op: int | None, body: Compressed) -> None:
    if op is not None and op in now.ops:
        now.ops[op].covers = body.covers
        now.generation += 1


def _rebuild_erased(now: RebuiltSession, seq: int, op: int | None, body: Erased) -> None:
    now.erased.update(body.seqs)
    now.generation += 1
    now.erasures += 1
    for compression in body.compressions:
        now.hide(compression, seq)


def _rebuild_changed(now: RebuiltSession, seq: int, op: int | None, body: Changed) -> None:
    match body.change:
        case ContextReset():
            now.ops[seq] = RebuiltOperation(type="context_reset", state="done", first=seq, last=seq)
            now.generation += 1
        case EntryPinned():
            now.ops[seq] = RebuiltOperation(type="pin", state="done", first=seq, last=seq)
            now.generation += 1
        case OperationsUndone() as undone:
            _rebuild_undone(now, seq, undone)
        case StopRequested(op=asked):
            if asked in now.ops and now.ops[asked].state == "running":
                now.ops[asked].stop = 1
        case SessionTitled(title=title):
            now.title = title
        case BranchedFrom(parent=parent, at=at):
            now.branched_from = (parent, at)
        case MemoryNameSet(memory=memory, name=name):
            now.names[memory] = name
        case SettingChosen(setting=setting, value=value):
            now.choices[setting] = value


def _rebuild_undone(now: RebuiltSession, seq: int, undone: OperationsUndone) -> None:
    """Remove operations from the context, and with a turn every compression that covers it."""
    now.generation += 1
    newly = [op for op in undone.ops if op in now.ops and not now.ops[op].undone_at]
    turns = [op for op in newly if now.ops[op].type == "turn"]
    voided = [op for op in now.compressions if turns and now.ops[op].covers >= min(turns)]
    for op in (*newly, *voided):
        now.hide(op, seq)
    for op in undone.ops if undone.again else ():
        now.give_back(op)


_REBUILDS: Final[Mapping[type, Callable[[RebuiltSession, int, int | None, Any], None]]] = {
    Heard: _rebuild_heard,
    Began: _rebuild_began,
    Took: _rebuild_took,
    Ended: _rebuild_ended,
    Compressed: _rebuild_compressed,
    Erased: _rebuild_erased,
    Changed: _rebuild_changed,
}
"""Computes the derived state of an entry. Entries of other kinds have none."""


def _is_exclusive(running: RebuiltOperation, body: Began) -> bool:
    turn_like = running.type == "turn" or running.blocking
    return bool(turn_like and (body.type == "turn" or body.blocking)) or running.type == body.type == "compression"


def _compare_session(reader: SnapshotReader, id: str, head: Any, rebuilt: RebuiltSession) -> list[str]:
    _, generation, erasures, title, choices, names = head
    found = []
    for name, stored, expected in (
        ("generation", generation, rebuilt.generation),
        ("erasures", erasures, rebuilt.erasures),
        ("title", title, rebuilt.title),
        ("choices", msgspec.json.decode(choices), {key: value for key, value in rebuilt.choices.items() if value}),
        ("names", msgspec.json.decode(names), {key: value for key, value in rebuilt.names.items() if value}),
        ("pending", dict(reader.fetch_rows("select seq, asks from pending where session = ?", (id,))), rebuilt.pending),
    ):
        if stored != expected:
            found.append(f"{id}: {name} {_describe_difference(stored, expected)}")
    columns = [one.name for one in fields(RebuiltOperation)]
    stored_ops = {
        row[0]: RebuiltOperation(*row[1:])
        for row in reader.fetch_rows(f"select op, {', '.join(columns)} from operations where session = ?", (id,))
    }
    return found + [
        f"{id}: operation {op} is {stored_ops.get(op)}, but its log says {rebuilt.ops.get(op)}"
        for op in sorted(stored_ops.keys() | rebuilt.ops.keys())
        if stored_ops.get(op) != rebuilt.ops.get(op)
    ]


def _describe_difference(stored: object, expected: object) -> str:
    """Return what the store and the log say. Of long tables it contains only the rows that differ."""
    if isinstance(stored, dict) and isinstance(expected, dict):
        differing = [
            key for key in (*expected, *(stored.keys() - expected.keys())) if stored.get(key) != expected.get(key)
        ]
        stored = {key: stored[key] for key in differing if key in stored}
        expected = {key: expected[key] for key in differing if key in expected}
    return f"is {stored!r}, but its log says {expected!r}"


def _check_cursors(reader: SnapshotReader, id: str, last: int) -> list[str]:
    found = []
    for consumer, processed_seq, text, since, wait, due in reader.fetch_rows(
        "select consumer, processed_seq, in_flight, since, wait, due from cursors where session = ?", (id,)
    ):
        if processed_seq > last:
            found.append(f"{id}: cursor {consumer} is at {processed_seq}, beyond the log's end at {last}")
        if (since is None) != (due is None) or (since is not None and abs(since + wait - due) > 1e-3):
            found.append(f"{id}: cursor {consumer} waits {wait} since {since}, but is due at {due}")
        if text is not None:
            try:
                batch = msgspec.json.decode(text, type=InFlightBatch)
            except msgspec.DecodeError as error:
                found.append(f"{id}: cursor {consumer} has a batch in flight that cannot be decoded: {error}")
                continue
            items = (*batch.items, *(batch.remaining.items if batch.remaining else ()))
            beyond = [item.seq for item in items if item.seq > last]
            found += [f"{id}: cursor {consumer} has entry {seq} in flight, beyond the log's end" for seq in beyond]
    return found


# -- the whole store ---------------------------------------------------------------------------------------------------


def _check_bindings(reader: SnapshotReader) -> list[str]:
    """Follow every address through the log, in commit order."""
    moved: dict[str, str] = {}
    for session, text in reader.iterate_rows("select session, body from entries where kind = 'changed' order by pos"):
        if text is None:
            return []  # the erased entry may have bound an address, so the bindings cannot be computed
        body = decode_body(EntryKind.CHANGED, text)
        if isinstance(body, Changed) and isinstance(body.change, AddressBound):
            moved[body.change.address] = session
    opened: dict[str, list[str]] = {}
    for session, address in reader.fetch_rows("select id, address from sessions"):
        opened.setdefault(address, []).append(session)
    stored = dict(reader.fetch_rows("select address, session from bindings"))
    return [
        f"{address} leads to {stored.get(address)}, but the log says {moved.get(address) or opened.get(address)}"
        for address in sorted(stored.keys() | moved.keys())
        if stored.get(address) not in ([moved[address]] if address in moved else opened.get(address, []))
    ]


def find_people_contradictions(reader: SnapshotReader) -> list[str]:
    """Return where persons and identities differ from what the log of people says."""
    derived = build_directory(list_people_events(reader))
    persons = {
        row[0]: PersonRecord(id=row[0], label=row[1], merged_into=row[2], forgotten_at=row[3])
        for row in reader.fetch_rows("select id, label, merged_into, forgotten_at from persons")
    }
    identities = {
        row[0]: IdentityRecord(identity=row[0], person=row[1], proof=row[2], since=row[3], at=row[4], former=row[5])
        for row in reader.fetch_rows("select identity, person, proof, since, at, former from identities")
    }
    lines = []
    for id in sorted(derived.persons.keys() | persons.keys()):
        if derived.persons.get(id) != persons.get(id):
            lines.append(f"person {id} is {persons.get(id)}, but the people log says {derived.persons.get(id)}")
    for name in sorted(derived.identities.keys() | identities.keys()):
        if derived.identities.get(name) != identities.get(name):
            lines.append(
                f"identity {name} is {identities.get(name)}, but the people log says {derived.identities.get(name)}"
            )
    return lines


def list_people_events(reader: SnapshotReader) -> list[PeopleEvent]:
    """The whole log of people, in order."""
    return [
        PeopleEvent(
            action=PeopleAction(action),
            person=person,
            identity=identity,
            proof=proof,
            since=since,
            note=note,
            by=by,
            n=n,
            at=at,
        )
        for n, at, by, action, person, identity, proof, since, note in reader.fetch_rows(
            "select n, at, by, action, person, identity, proof, since, note from people_log order by n"
        )
    ]


def _find_stray_rows(reader: SnapshotReader) -> list[str]:
    """Rows that refer to sessions that do not exist."""
    found = []
    for table in ("entries", "pending", "operations", "cursors", "bindings", "receipts", "dead_letters"):
        for (session,) in reader.fetch_rows(
            f"select distinct session from {table} where session not in (select id from sessions)"
        ):
            found.append(f"{table} refers to session {session!r}, which does not exist")
    return found


def _check_blobs(reader: SnapshotReader) -> list[str]:
    return [
        f"blob {name} is not what was written: its digest does not match"
        for name, data in reader.iterate_rows("select digest, data from blobs")
        if hashlib.sha256(data).hexdigest() != name
    ]
