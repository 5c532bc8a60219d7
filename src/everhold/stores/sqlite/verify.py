"""Reads the whole log the plain way and says where anything in the store contradicts it. It never repairs.

What follows from the entries is worked out here a second time, from nothing, in memory and without a look at the code
that keeps those rows up to date: two ways that agree are worth more than one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from typing import Any

import apsw
import msgspec

from everhold.core.entries import (
    GIVES_BACK,
    VERSION,
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
    Kind,
    Named,
    Titled,
    Took,
    Undone,
    decode,
    digest,
)
from everhold.ports.store import Flight
from everhold.stores.sqlite.read import rows

STRUCTURE = {Kind.BEGAN, Kind.TOOK, Kind.ENDED, Kind.FOLDED, Kind.CHANGED}
"""Kinds that shape the derived rows: where one of them was erased, they can no longer be worked out."""


def contradictions(cur: apsw.Cursor, session: str | None) -> list[str]:
    """One line for each thing that cannot be true together with the log."""
    ids = [session] if session is not None else [row[0] for row in rows(cur, "select id from sessions order by id")]
    found = [line for id in ids for line in _session(cur, id)]
    if session is None:
        found += _bindings(cur) + _strays(cur) + _blobs(cur)
    return found


# -- one session -------------------------------------------------------------------------------------------------------


@dataclass
class Op:
    what: str
    state: str
    first: int
    last: int = 0
    reader: str = ""
    blocking: int = 0
    covers: int = 0
    undone_at: int = 0
    fold: int = 0
    stop: int = 0


@dataclass
class Rebuilt:
    """A session as its entries alone tell it."""

    pending: dict[int, int] = field(default_factory=dict)
    ops: dict[int, Op] = field(default_factory=dict)
    taken: dict[int, list[int]] = field(default_factory=dict)
    title: str = ""
    choices: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    generation: int = 0
    erasures: int = 0
    erased: set[int] = field(default_factory=set)
    twice: list[str] = field(default_factory=list)


def _session(cur: apsw.Cursor, id: str) -> list[str]:
    head = rows(cur, "select next_seq, generation, erasures, title, choices, names from sessions where id = ?", (id,))
    if not head:
        return [f"{id}: there is no such session"]
    log = rows(
        cur,
        "select seq, kind, op, author, at, version, body, salt, digest from entries where session = ? order by seq",
        (id,),
    )
    found = _gaps(id, [row[0] for row in log], head[0][0])
    bodies: list[tuple[int, int | None, Kind, Body | None]] = []
    readable = True
    for seq, kind, op, author, at, version, text, salt, seal in log:
        if version > VERSION or kind not in set(Kind):
            found.append(f"{id}: entry {seq} ({kind}, version {version}) was written by a newer everhold")
            readable = False
            continue
        if (text is None) != (salt is None):
            found.append(f"{id}: entry {seq} ({kind}) is erased by half")
        if text is None or salt is None:
            bodies.append((seq, op, Kind(kind), None))
            continue
        expected = digest(salt=salt, session=id, seq=seq, kind=kind, op=op, author=author, at=at, body=text)
        if expected != seal:
            found.append(f"{id}: entry {seq} ({kind}) is not what was written: its digest does not match")
        try:
            bodies.append((seq, op, Kind(kind), decode(Kind(kind), text)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found.append(f"{id}: entry {seq} ({kind}) does not read: {error}")
            readable = False
    if readable:
        rebuilt = _rebuild(bodies)
        found += [f"{id}: {line}" for line in rebuilt.twice]
        gone = {seq for seq, _, _, body in bodies if body is None}
        found += [f"{id}: entry {seq} has no body, but no entry says it was erased" for seq in gone - rebuilt.erased]
        found += [f"{id}: entry {seq} was erased, but its body is still there" for seq in rebuilt.erased - gone]
        if not any(body is None and kind in STRUCTURE for _, _, kind, body in bodies):
            found += _compare(cur, id, head[0], rebuilt)
    return found + _lanes(cur, id, head[0][0] - 1)


def _gaps(id: str, seqs: list[int], next_seq: int) -> list[str]:
    found = []
    expected = 1
    for seq in seqs:
        if seq != expected:
            found.append(f"{id}: entries {expected} to {seq - 1} are missing")
        expected = seq + 1
    if next_seq != expected:
        found.append(f"{id}: the log ends at {expected - 1}, but the next entry would be {next_seq}")
    return found


def _rebuild(bodies: list[tuple[int, int | None, Kind, Body | None]]) -> Rebuilt:
    now = Rebuilt()
    heard = {seq: int(body.asks) for seq, _, _, body in bodies if isinstance(body, Heard)}

    def again(op: int) -> None:
        now.pending.update({seq: heard[seq] for seq in now.taken.get(op, []) if seq in heard})

    def take(op: int, seq: int, takes: tuple[int, ...]) -> None:
        for one in takes:
            if now.pending.pop(one, None) is None and one in heard:
                now.twice.append(f"entry {seq} takes {one}, which was not pending")
        now.taken.setdefault(op, []).extend(takes)

    for seq, op, _, body in bodies:
        match body:
            case Heard():
                now.pending[seq] = int(body.asks)
            case Began():
                take(seq, seq, body.takes)
                for other, running in now.ops.items():
                    if running.state == "running" and _excludes(running, body):
                        now.twice.append(f"operation {seq} ({body.what}) began while {other} ({running.what}) ran")
                now.ops[seq] = Op(
                    what=body.what,
                    state="running",
                    first=min((seq, *body.takes)),
                    reader=body.reader,
                    blocking=int(body.blocking),
                    fold=body.fold,
                )
            case Took() if op is not None:
                take(op, seq, body.takes)
            case Ended() if op in now.ops:
                ended = now.ops[op]
                if ended.state != "running":
                    now.twice.append(f"entry {seq} ends operation {op}, which was over")
                ended.state, ended.last = body.outcome, seq
                if body.outcome in GIVES_BACK:
                    again(op)
            case Folded() if op in now.ops:
                now.ops[op].covers = body.covers
                now.generation += 1
            case Erased():
                now.erased.update(body.seqs)
                now.generation += 1
                now.erasures += 1
                for fold in body.folds:
                    if fold in now.ops and not now.ops[fold].undone_at:
                        now.ops[fold].undone_at = seq
            case Changed():
                _rebuild_change(now, seq, body, again)
    return now


def _rebuild_change(now: Rebuilt, seq: int, body: Changed, again: Any) -> None:
    match body.change:
        case Fresh():
            now.ops[seq] = Op(what="fresh", state="done", first=seq, last=seq)
            now.generation += 1
        case Undone(ops=ops, again=wanted):
            now.generation += 1
            newly = [op for op in ops if op in now.ops and not now.ops[op].undone_at]
            turns = [op for op in newly if now.ops[op].what == "turn"]
            for op, one in now.ops.items():
                void = bool(turns) and one.what == "fold" and one.covers >= min(turns) and not one.undone_at
                if op in newly or void:
                    one.undone_at = seq
            for op in ops if wanted else ():
                again(op)
        case Halted(op=op):
            if op in now.ops and now.ops[op].state == "running":
                now.ops[op].stop = 1
        case Titled(title=title):
            now.title = title
        case Named(memory=memory, name=name):
            now.names[memory] = name
        case Chose(setting=setting, value=value):
            now.choices[setting] = value


def _excludes(running: Op, body: Began) -> bool:
    turn_like = running.what == "turn" or running.blocking
    return bool(turn_like and (body.what == "turn" or body.blocking)) or running.what == body.what == "fold"


def _compare(cur: apsw.Cursor, id: str, head: Any, rebuilt: Rebuilt) -> list[str]:
    _, generation, erasures, title, choices, names = head
    found = []
    for name, stored, told in (
        ("generation", generation, rebuilt.generation),
        ("erasures", erasures, rebuilt.erasures),
        ("title", title, rebuilt.title),
        ("choices", msgspec.json.decode(choices), {key: value for key, value in rebuilt.choices.items() if value}),
        ("names", msgspec.json.decode(names), {key: value for key, value in rebuilt.names.items() if value}),
        ("pending", dict(rows(cur, "select seq, asks from pending where session = ?", (id,))), rebuilt.pending),
    ):
        if stored != told:
            found.append(f"{id}: {name} is {stored!r}, but its log says {told!r}")
    columns = [one.name for one in fields(Op)]
    stored_ops = {
        row[0]: Op(*row[1:])
        for row in rows(cur, f"select op, {', '.join(columns)} from operations where session = ?", (id,))
    }
    return found + [
        f"{id}: operation {op} is {stored_ops.get(op)}, but its log says {rebuilt.ops.get(op)}"
        for op in sorted(stored_ops.keys() | rebuilt.ops.keys())
        if stored_ops.get(op) != rebuilt.ops.get(op)
    ]


def _lanes(cur: apsw.Cursor, id: str, last: int) -> list[str]:
    found = []
    for reader, position, flight, since, wait, due in rows(
        cur, "select reader, position, flight, since, wait, due from lanes where session = ?", (id,)
    ):
        if position > last:
            found.append(f"{id}: lane {reader} stands at {position}, beyond the log's end at {last}")
        if (since is None) != (due is None) or (since is not None and abs(since + wait - due) > 1e-3):
            found.append(f"{id}: lane {reader} waits {wait} since {since}, but is due at {due}")
        if flight is not None:
            try:
                flying = msgspec.json.decode(flight, type=Flight)
            except msgspec.DecodeError as error:
                found.append(f"{id}: lane {reader} has a flight that does not read: {error}")
                continue
            items = (*flying.items, *(flying.behind.items if flying.behind else ()))
            beyond = [item.seq for item in items if item.seq > last]
            found += [f"{id}: lane {reader} has entry {seq} in flight, beyond the log's end" for seq in beyond]
    return found


# -- the whole ---------------------------------------------------------------------------------------------------------


def _bindings(cur: apsw.Cursor) -> list[str]:
    """Follow every address through the log, in commit order."""
    moved: dict[str, str] = {}
    for session, text in rows(cur, "select session, body from entries where kind = 'changed' order by pos"):
        if text is None:
            return []  # it may have been a move: nobody can tell any more
        body = decode(Kind.CHANGED, text)
        if isinstance(body, Changed) and isinstance(body.change, Bound):
            moved[body.change.address] = session
    opened: dict[str, list[str]] = {}
    for session, address in rows(cur, "select id, address from sessions"):
        opened.setdefault(address, []).append(session)
    stored = dict(rows(cur, "select address, session from bindings"))
    return [
        f"{address} leads to {stored.get(address)}, but the log says {moved.get(address) or opened.get(address)}"
        for address in sorted(stored.keys() | moved.keys())
        if stored.get(address) not in ([moved[address]] if address in moved else opened.get(address, []))
    ]


def _strays(cur: apsw.Cursor) -> list[str]:
    """Rows that speak of sessions or entries there are not."""
    found = []
    for table in ("entries", "pending", "operations", "lanes", "bindings"):
        for (session,) in rows(
            cur, f"select distinct session from {table} where session not in (select id from sessions)"
        ):
            found.append(f"{table} speaks of session {session!r}, which does not exist")
    return found


def _blobs(cur: apsw.Cursor) -> list[str]:
    return [
        f"blob {name} is not what was written: its digest does not match"
        for name, data in rows(cur, "select digest, data from blobs")
        if hashlib.sha256(data).hexdigest() != name
    ]
