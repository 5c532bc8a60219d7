"""What a change does to people, their identities, and the peers of identities in memories."""

from __future__ import annotations

from collections.abc import Sequence

from everhold.core.people import IdentityProof, PeopleAction, PeopleEvent, apply_event
from everhold.core.store_rows import WorkingSet
from everhold.errors import Conflict, InvalidRequest
from everhold.ports.store import FROM_COMMIT, Change, FirstSeen, PeerRecord


def apply_people(work: WorkingSet, change: Change) -> None:
    if change.people:
        if change.people_epoch is None:
            raise InvalidRequest("a change of people must name the epoch that it was planned on")
        present = work.people_epoch + len(work.people_events)
        if change.people_epoch != present:
            raise Conflict(f"the people changed: the epoch is {present}, not {change.people_epoch}")
        _append_events(work, change.people, at=change.at)
    for seen in change.first_seen:
        _add_first_seen(work, seen, at=change.at)
    for peer in change.peers:
        _add_peer(work, peer, new_entries=len(change.entries))


def _add_first_seen(work: WorkingSet, seen: FirstSeen, *, at: float) -> None:
    """Make a person for an identity that has none."""
    if seen.identity in work.identities:
        return
    made = PeopleEvent(action=PeopleAction.MADE, person=seen.person, by=seen.identity, at=at)
    linked = PeopleEvent(
        action=PeopleAction.LINKED,
        person=seen.person,
        identity=seen.identity,
        proof=IdentityProof.SEEN,
        by=seen.identity,
        at=at,
    )
    _append_events(work, (made, linked), at=at)


def _append_events(work: WorkingSet, events: Sequence[PeopleEvent], *, at: float) -> None:
    """Append events, and change the rows that follow from them."""
    persons, identities = dict(work.persons), dict(work.identities)
    for event in events:
        n = work.people_epoch + len(work.people_events) + 1
        work.people_events.append(
            PeopleEvent(
                action=event.action,
                person=event.person,
                identity=event.identity,
                proof=event.proof,
                since=event.since,
                note=event.note,
                by=event.by,
                n=n,
                at=event.at or at,
            )
        )
        apply_event(persons, identities, event)
    for id, person in persons.items():
        if work.persons.get(id) != person:
            work.persons.put(id, person)
    for identity in [name for name in work.identities if name not in identities]:
        work.identities.drop(identity)
    for identity, record in identities.items():
        if work.identities.get(identity) != record:
            work.identities.put(identity, record)


def _add_peer(work: WorkingSet, peer: PeerRecord, *, new_entries: int) -> None:
    """Record a peer. Raises Conflict if the identity got another peer from the same entry on."""
    key = (peer.memory, peer.agent, peer.identity)
    known = work.peers.get(key, {})
    from_pos = peer.from_pos
    if from_pos == FROM_COMMIT:
        last = known[max(known)] if known else None
        if last is not None and (last.peer, last.shared) == (peer.peer, peer.shared):
            return
        # A row at the next pos was in force for no entry yet, so it is replaced.
        from_pos = work.next_pos - new_entries
    elif from_pos in known:
        if known[from_pos].peer != peer.peer:
            raise Conflict(f"{peer.identity} has the peer {known[from_pos].peer!r} in {peer.memory} from {from_pos} on")
        return
    recorded = PeerRecord(
        memory=peer.memory,
        agent=peer.agent,
        identity=peer.identity,
        peer=peer.peer,
        from_pos=from_pos,
        source=peer.source,
        shared=peer.shared,
    )
    work.peers.put(key, {**known, from_pos: recorded})
