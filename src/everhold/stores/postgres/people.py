"""The tables of people: reading. `saving` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from everhold.core.people import IdentityRecord, PeopleAction, PeopleEvent, PersonRecord
from everhold.ports.store import PeerRecord

SELECT_EPOCH: Final = "select max(n) from people_log"
SELECT_EVENTS: Final = (
    "select n, at, by, action, person, identity, proof, since, note from people_log where n > %s order by n limit %s"
)
SELECT_PARTINGS: Final = (
    "select identity, person, max(n) from people_log where action = 'unlinked' group by identity, person"
)
SELECT_PERSONS: Final = "select id, label, merged_into, forgotten_at from persons"
SELECT_IDENTITIES: Final = "select identity, person, proof, since, at, former from identities"
SELECT_PEERS: Final = (
    "select memory, agent, identity, from_pos, peer, source, shared from peers "
    "where (%(memory)s = '' or memory = %(memory)s) and (%(agent)s = '' or agent = %(agent)s) "
    "and (%(identities)s::text[] is null or identity = any(%(identities)s::text[])) "
    "order by memory, agent, identity, from_pos"
)


def parse_event_row(row: Sequence[Any]) -> PeopleEvent:
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


def parse_person_row(row: Sequence[Any]) -> PersonRecord:
    return PersonRecord(id=row[0], label=row[1], merged_into=row[2], forgotten_at=row[3])


def parse_identity_row(row: Sequence[Any]) -> IdentityRecord:
    return IdentityRecord(identity=row[0], person=row[1], proof=row[2], since=row[3], at=row[4], former=row[5])


def parse_peer_row(row: Sequence[Any]) -> PeerRecord:
    memory, agent, identity, from_pos, peer, source, shared = row
    return PeerRecord(
        memory=memory, agent=agent, identity=identity, from_pos=from_pos, peer=peer, source=source, shared=shared
    )
