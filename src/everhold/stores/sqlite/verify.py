"""Reads the whole log and reports where anything in the store contradicts it. It never repairs.

The derived rows are computed here a second time, in memory and independently of the code that maintains them, so that
a bug in one of the two is noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import apsw
import msgspec

from everhold.core.entries import (
    BODY_VERSION,
    RELEASING_OUTCOMES,
    AddressBound,
    Began,
    Changed,
    Compressed,
    ContextReset,
    Ended,
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
from everhold.ports.store import InFlightBatch
from everhold.stores.sqlite import people
from everhold.stores.sqlite.connect import fetch_rows

STRUCTURAL_KINDS = {EntryKind.BEGAN, EntryKind.TOOK, EntryKind.ENDED, EntryKind.COMPRESSED, EntryKind.CHANGED}
"""Kinds that determine the derived rows. If such an entry was erased, the rows can no longer be computed."""


def find_contradictions(cur: apsw.Cursor, session: str | None) -> list[str]:
    """One line for each contradiction with the log."""
    ids = (
        [session] if session is not None else [row[0] for row in fetch_rows(cur, "select id from sessions order by id")]
    )
    found = [line for id in ids for line in _check_session(cur, id)]
    if session is None:
        found += _check_bindings(cur) + people.find_contradictions(cur) + _find_stray_rows(cur) + _check_blobs(cur)
    return found


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
    taken: dict[int, list[int]] = field(default_factory=dict)
    title: str = ""
    choices: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    generation: int = 0
    erasures: int = 0
    erased: set[int] = field(default_factory=set)
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


def _check_session(cur: apsw.Cursor, id: str) -> list[str]:
    head = fetch_rows(
        cur, "select next_seq, generation, erasures, title, choices, names from sessions where id = ?", (id,)
    )
    if not head:
        return [f"{id}: there is no such session"]
    log = fetch_rows(
        cur,
        "select seq, kind, op, author, at, version, body, salt, digest from entries where session = ? order by seq",
        (id,),
    )
    found = _find_gaps(id, [row[0] for row in log], head[0][0])
    bodies: list[tuple[int, int | None, EntryKind, EntryBody | None]] = []
    readable = True
    for seq, kind, op, author, at, version, text, salt, seal in log:
        if version > BODY_VERSION or kind not in set(EntryKind):
            found.append(f"{id}: entry {seq} ({kind}, version {version}) was written by a newer everhold")
            readable = False
            continue
        if (text is None) != (salt is None):
            found.append(f"{id}: entry {seq} ({kind}) is only partly erased")
        if text is None or salt is None:
            bodies.append((seq, op, EntryKind(kind), None))
            continue
        expected = compute_entry_digest(
            salt=salt, session=id, seq=seq, kind=kind, op=op, author=author, at=at, body=text
        )
        if expected != seal:
            found.append(f"{id}: entry {seq} ({kind}) is not what was written: its digest does not match")
        try:
            bodies.append((seq, op, EntryKind(kind), decode_body(EntryKind(kind), text)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found.append(f"{id}: entry {seq} ({kind}) cannot be decoded: {error}")
            readable = False
    if readable:
        rebuilt = _rebuild_session(bodies)
        found += [f"{id}: {line}" for line in rebuilt.conflicts]
        empty_seqs = {seq for seq, _, _, body in bodies if body is None}
        found += [
            f"{id}: entry {seq} has no body, but no entry says it was erased" for seq in empty_seqs - rebuilt.erased
        ]
        found += [f"{id}: entry {seq} was erased, but its body is still there" for seq in rebuilt.erased - empty_seqs]
        if not any(body is None and kind in STRUCTURAL_KINDS for _, _, kind, body in bodies):
            found += _compare_session(cur, id, head[0], rebuilt)
    return found + _check_cursors(cur, id, head[0][0] - 1)


def _find_gaps(id: str, seqs: list[int], next_seq: int) -> list[str]:
    found = []
    expected = 1
    for seq in seqs:
        if seq != expected:
            found.append(f"{id}: entries {expected} to {seq - 1} are missing")
        expected = seq + 1
    if next_seq != expected:
        found.append(f"{id}: the log ends at {expected - 1}, but the next entry would be {next_seq}")
    return found


def _rebuild_session(bodies: list[tuple[int, int | None, EntryKind, EntryBody | None]]) -> RebuiltSession:
    now = RebuiltSession(heard={seq: int(body.asks) for seq, _, _, body in bodies if isinstance(body, Heard)})
    for seq, op, _, body in bodies:
        rebuild = _REBUILDS.get(type(body))
        if rebuild is not None:
            rebuild(now, seq, op, body)
    return now


def _rebuild_heard(now: RebuiltSession, seq: int, op: int | None, body: Heard) -> None:
    now.pending[seq] = int(body.asks)


def _rebuild_began(now: RebuiltSession, seq: int, op: int | None, body: Began) -> None:
    now.take(seq, seq, body.takes)
    for other, running in now.ops.items():
        if running.state == "running" and _is_exclusive(running, body):
            now.conflicts.append(f"operation {seq} ({body.type}) began while {other} ({running.type}) ran")
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
        case MemoryNameSet(memory=memory, name=name):
            now.names[memory] = name
        case SettingChosen(setting=setting, value=value):
            now.choices[setting] = value


def _rebuild_undone(now: RebuiltSession, seq: int, undone: OperationsUndone) -> None:
    """Remove operations from the context, and with a turn every compression that covers it."""
    now.generation += 1
    newly = [op for op in undone.ops if op in now.ops and not now.ops[op].undone_at]
    turns = [op for op in newly if now.ops[op].type == "turn"]
    voided = [op for op, one in now.ops.items() if turns and one.type == "compression" and one.covers >= min(turns)]
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


def _compare_session(cur: apsw.Cursor, id: str, head: Any, rebuilt: RebuiltSession) -> list[str]:
    _, generation, erasures, title, choices, names = head
    found = []
    for name, stored, expected in (
        ("generation", generation, rebuilt.generation),
        ("erasures", erasures, rebuilt.erasures),
        ("title", title, rebuilt.title),
        ("choices", msgspec.json.decode(choices), {key: value for key, value in rebuilt.choices.items() if value}),
        ("names", msgspec.json.decode(names), {key: value for key, value in rebuilt.names.items() if value}),
        ("pending", dict(fetch_rows(cur, "select seq, asks from pending where session = ?", (id,))), rebuilt.pending),
    ):
        if stored != expected:
            found.append(f"{id}: {name} is {stored!r}, but its log says {expected!r}")
    columns = [one.name for one in fields(RebuiltOperation)]
    stored_ops = {
        row[0]: RebuiltOperation(*row[1:])
        for row in fetch_rows(cur, f"select op, {', '.join(columns)} from operations where session = ?", (id,))
    }
    return found + [
        f"{id}: operation {op} is {stored_ops.get(op)}, but its log says {rebuilt.ops.get(op)}"
        for op in sorted(stored_ops.keys() | rebuilt.ops.keys())
        if stored_ops.get(op) != rebuilt.ops.get(op)
    ]


def _check_cursors(cur: apsw.Cursor, id: str, last: int) -> list[str]:
    found = []
    for consumer, processed_seq, text, since, wait, due in fetch_rows(
        cur, "select consumer, processed_seq, in_flight, since, wait, due from cursors where session = ?", (id,)
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


def _check_bindings(cur: apsw.Cursor) -> list[str]:
    """Follow every address through the log, in commit order."""
    moved: dict[str, str] = {}
    for session, text in fetch_rows(cur, "select session, body from entries where kind = 'changed' order by pos"):
        if text is None:
            return []  # the erased entry may have bound an address, so the bindings cannot be computed
        body = decode_body(EntryKind.CHANGED, text)
        if isinstance(body, Changed) and isinstance(body.change, AddressBound):
            moved[body.change.address] = session
    opened: dict[str, list[str]] = {}
    for session, address in fetch_rows(cur, "select id, address from sessions"):
        opened.setdefault(address, []).append(session)
    stored = dict(fetch_rows(cur, "select address, session from bindings"))
    return [
        f"{address} leads to {stored.get(address)}, but the log says {moved.get(address) or opened.get(address)}"
        for address in sorted(stored.keys() | moved.keys())
        if stored.get(address) not in ([moved[address]] if address in moved else opened.get(address, []))
    ]


def _find_stray_rows(cur: apsw.Cursor) -> list[str]:
    """Rows that refer to sessions that do not exist."""
    found = []
    for table in ("entries", "pending", "operations", "cursors", "bindings"):
        for (session,) in fetch_rows(
            cur, f"select distinct session from {table} where session not in (select id from sessions)"
        ):
            found.append(f"{table} refers to session {session!r}, which does not exist")
    return found


def _check_blobs(cur: apsw.Cursor) -> list[str]:
    return [
        f"blob {name} is not what was written: its digest does not match"
        for name, data in fetch_rows(cur, "select digest, data from blobs")
        if hashlib.sha256(data).hexdigest() != name
    ]
