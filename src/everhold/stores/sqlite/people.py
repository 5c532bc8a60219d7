"""The tables of people: their log, the persons and identities that follow from it, and their peers in memories."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import apsw

from everhold.core.people import (
    IdentityProof,
    IdentityRecord,
    PeopleAction,
    PeopleDirectory,
    PeopleEvent,
    PersonRecord,
    apply_event,
)
from everhold.errors import Conflict
from everhold.ports.store import FROM_COMMIT, FirstSeen, PeerRecord
from everhold.stores.sqlite.connect import fetch_rows

_SELECT_PARTINGS = "select identity, person, max(n) from people_log where action = 'unlinked' group by identity, person"
_SELECT_CHANGE = (
    "select 1 from people_log where n > ? and action <> 'made' and (action <> 'linked' or proof <> 'seen') limit 1"
)
_ERASE_LABELS = """
with recursive forgotten(id) as (
  select ? union select p.id from persons p join forgotten f on p.merged_into = f.id
)
update people_log set note = '' where action in ('made', 'named') and person in (select id from forgotten)
"""
"""The names of a forgotten person, and of people who were merged into this one. The rest of an event stays, because it
says who was who when something was recalled.
"""
_EVENT_COLUMNS = "n, at, by, action, person, identity, proof, since, note"


def read_epoch(cur: apsw.Cursor) -> int:
    """Return the number of the last event."""
    epoch: int = cur.execute("select max(n) from people_log").get or 0
    return epoch


def has_changed_since(cur: apsw.Cursor, epoch: int) -> bool:
    """Return whether anything happened after an epoch besides the first message of an identity."""
    return cur.execute(_SELECT_CHANGE, (epoch,)).get is not None


def load_directory(cur: apsw.Cursor) -> PeopleDirectory:
    """Return all people as they are now."""
    return PeopleDirectory(
        epoch=read_epoch(cur),
        persons=_load_persons(cur),
        identities=_load_identities(cur),
        partings=fetch_rows(cur, _SELECT_PARTINGS, ()),
    )


def list_events(cur: apsw.Cursor, *, after: int, limit: int) -> list[PeopleEvent]:
    rows = fetch_rows(cur, f"select {_EVENT_COLUMNS} from people_log where n > ? order by n limit ?", (after, limit))
    return [_parse_event(row) for row in rows]


def append_events(cur: apsw.Cursor, events: Sequence[PeopleEvent], *, at: float, epoch: int | None) -> None:
    """Append events and update the tables that follow from them. Raises Conflict if `epoch` is not the present one."""
    present = read_epoch(cur)
    if epoch is not None and epoch != present:
        raise Conflict(f"the people changed: the epoch is {present}, not {epoch}")
    persons = {it.id: it for it in _load_persons(cur, [event.person for event in events])}
    identities = {it.identity: it for it in _load_identities(cur, [event.person for event in events])}
    identities |= {it.identity: it for it in _load_named_identities(cur, [event.identity for event in events])}
    before_persons, before_identities = dict(persons), dict(identities)
    for event in events:
        _insert_event(cur, event, at=at)
        apply_event(persons, identities, event)
        if event.action is PeopleAction.FORGOTTEN:
            cur.execute(_ERASE_LABELS, (event.person,))
    for gone in before_identities.keys() - identities.keys():
        cur.execute("delete from identities where identity = ?", (gone,))
    # A label may move from one person to another in one change, so first take all labels away that change.
    for id, person in persons.items():
        if id in before_persons and before_persons[id].label != person.label:
            cur.execute("update persons set label = '' where id = ?", (id,))
    for id, person in persons.items():
        if before_persons.get(id) != person:
            _write_person(cur, person)
    for identity, record in identities.items():
        if before_identities.get(identity) != record:
            _write_identity(cur, record)


def add_first_seen(cur: apsw.Cursor, seen: Iterable[FirstSeen], *, at: float) -> None:
    """Make a person for each identity that has none."""
    for one in seen:
        if cur.execute("select 1 from identities where identity = ?", (one.identity,)).get is None:
            made = PeopleEvent(action=PeopleAction.MADE, person=one.person, by=one.identity, at=at)
            linked = PeopleEvent(
                action=PeopleAction.LINKED,
                person=one.person,
                identity=one.identity,
                proof=IdentityProof.SEEN,
                by=one.identity,
                at=at,
            )
            append_events(cur, (made, linked), at=at, epoch=None)


# -- peers -------------------------------------------------------------------------------------------------------------


def add_peers(cur: apsw.Cursor, peers: Iterable[PeerRecord], *, new_entries: int = 0) -> None:
    """Record peers. Raises Conflict if an identity got another peer from the same entry on.

    `new_entries` is how many entries the same change has appended.
    """
    for peer in peers:
        if peer.from_pos == FROM_COMMIT:
            _add_peer_from_commit(cur, peer, new_entries)
            continue
        place = (peer.memory, peer.agent, peer.identity, peer.from_pos)
        found = fetch_rows(
            cur, "select peer from peers where memory = ? and agent = ? and identity = ? and from_pos = ?", place
        )
        if found and found[0][0] != peer.peer:
            raise Conflict(f"{peer.identity} has the peer {found[0][0]!r} in {peer.memory} from {peer.from_pos} on")
        if not found:
            _write_peer(cur, peer, peer.from_pos)


def _add_peer_from_commit(cur: apsw.Cursor, peer: PeerRecord, new_entries: int) -> None:
    """Record a peer for the entries from this commit on, unless it is in force already."""
    last = fetch_rows(
        cur,
        "select peer, shared from peers where memory = ? and agent = ? and identity = ? order by from_pos desc limit 1",
        (peer.memory, peer.agent, peer.identity),
    )
    if last and (last[0][0], bool(last[0][1])) == (peer.peer, peer.shared):
        return
    next_pos = (cur.execute("select max(pos) from entries").get or 0) + 1
    # A row at `next_pos` was in force for no entry yet, so it is replaced.
    _write_peer(cur, peer, next_pos - new_entries)


def _write_peer(cur: apsw.Cursor, peer: PeerRecord, from_pos: int) -> None:
    cur.execute(
        "insert or replace into peers(memory, agent, identity, from_pos, peer, source, shared)"
        " values (?, ?, ?, ?, ?, ?, ?)",
        (peer.memory, peer.agent, peer.identity, from_pos, peer.peer, peer.source, peer.shared),
    )


def list_peers(
    cur: apsw.Cursor, memory: str, agent: str, identities: Collection[str] | None = None
) -> list[PeerRecord]:
    """Return the peers of one memory and agent; an empty name stands for all."""
    only, values = ("", ()) if identities is None else _build_filter("identity", tuple(identities))
    rows = fetch_rows(
        cur,
        "select memory, agent, identity, from_pos, peer, source, shared from peers"
        f" where (? = '' or memory = ?) and (? = '' or agent = ?){only.replace(' where ', ' and ')}"
        " order by memory, agent, identity, from_pos",
        (memory, memory, agent, agent, *values),
    )
    return [
        PeerRecord(
            memory=row[0],
            agent=row[1],
            identity=row[2],
            from_pos=row[3],
            peer=row[4],
            source=row[5],
            shared=bool(row[6]),
        )
        for row in rows
    ]


# -- rows --------------------------------------------------------------------------------------------------------------


def _insert_event(cur: apsw.Cursor, event: PeopleEvent, *, at: float) -> None:
    cur.execute(
        "insert into people_log(at, by, action, person, identity, proof, since, note) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (event.at or at, event.by, event.action, event.person, event.identity, event.proof, event.since, event.note),
    )


def _parse_event(row: Sequence[Any]) -> PeopleEvent:
    n, at, by, action, person, identity, proof, since, note = row
    return PeopleEvent(
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


def _load_persons(cur: apsw.Cursor, ids: Sequence[str] | None = None) -> list[PersonRecord]:
    where, values = _build_filter("id", ids)
    rows = fetch_rows(cur, f"select id, label, merged_into, forgotten_at from persons{where}", values)
    return [PersonRecord(id=row[0], label=row[1], merged_into=row[2], forgotten_at=row[3]) for row in rows]


def _load_identities(cur: apsw.Cursor, persons: Sequence[str] | None = None) -> list[IdentityRecord]:
    where, values = _build_filter("person", persons)
    return _read_identities(cur, where, values)


def _load_named_identities(cur: apsw.Cursor, names: Sequence[str]) -> list[IdentityRecord]:
    where, values = _build_filter("identity", names)
    return _read_identities(cur, where, values)


def _read_identities(cur: apsw.Cursor, where: str, values: Sequence[str]) -> list[IdentityRecord]:
    rows = fetch_rows(cur, f"select identity, person, proof, since, at, former from identities{where}", values)
    return [
        IdentityRecord(identity=row[0], person=row[1], proof=row[2], since=row[3], at=row[4], former=row[5])
        for row in rows
    ]


def _build_filter(column: str, names: Sequence[str] | None) -> tuple[str, Sequence[str]]:
    if names is None:
        return "", ()
    wanted = list(dict.fromkeys(names))
    return f" where {column} in ({', '.join('?' * len(wanted))})", wanted


def _write_person(cur: apsw.Cursor, person: PersonRecord) -> None:
    cur.execute(
        "insert into persons(id, label, merged_into, forgotten_at) values (?, ?, ?, ?) on conflict(id) do update"
        " set label = excluded.label, merged_into = excluded.merged_into, forgotten_at = excluded.forgotten_at",
        (person.id, person.label, person.merged_into, person.forgotten_at),
    )


def _write_identity(cur: apsw.Cursor, record: IdentityRecord) -> None:
    cur.execute(
        "insert into identities(identity, person, proof, since, at, former) values (?, ?, ?, ?, ?, ?)"
        " on conflict(identity) do update set person = excluded.person, proof = excluded.proof,"
        " since = excluded.since, at = excluded.at, former = excluded.former",
        (record.identity, record.person, record.proof, record.since, record.at, record.former),
    )
