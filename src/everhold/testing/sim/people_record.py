"""What the simulator knows about people: every change of them with its time, read from the rows of the people log.

The witness and the oracles compare the gateway with it. Links and unlinks are derived here a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import apsw

from everhold.core.people import PeopleAction, PeopleDirectory, PeopleEvent, build_directory
from everhold.testing.sim.world import SimWorld

_SELECT_EVENTS = "select n, at, by, action, person, identity, proof, since, note from people_log where n > ? order by n"


class PeopleMoment(NamedTuple):
    """The people after one event."""

    n: int
    at: float
    """When it was committed, in virtual time."""
    person_of: dict[str, str]
    """Identity -> person."""


class PersonParting(NamedTuple):
    """An unlink. From then on the identities must not see each other's words."""

    n: int
    at: float
    identities: frozenset[str]
    """The identity that was taken away, and those that stayed."""


class PeopleRecord:
    """All events of the people log so far."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.events: list[PeopleEvent] = []
        self.moments = [PeopleMoment(0, 0.0, {})]
        self.partings: list[PersonParting] = []
        self._directories: dict[int, PeopleDirectory] = {}

    def read_events(self, connection: apsw.Connection) -> None:
        """Read the events that were committed since the last call."""
        for n, at, by, action, person, identity, proof, since, note in connection.execute(
            _SELECT_EVENTS, (self.moments[-1].n,)
        ):
            event = PeopleEvent(
                n=n,
                at=at,
                by=by,
                action=PeopleAction(action),
                person=person,
                identity=identity,
                proof=proof,
                since=since,
                note=note,
            )
            self._add_event(event)

    def drop_lost(self, connection: apsw.Connection) -> None:
        """Drop the events that a power cut has lost."""
        last = connection.execute("select max(n) from people_log").get or 0
        self.events = [it for it in self.events if it.n <= last]
        self.moments = [it for it in self.moments if it.n <= last]
        self.partings = [it for it in self.partings if it.n <= last]
        self._directories.clear()

    def list_moments_since(self, when: float) -> list[PeopleMoment]:
        """Return the moment that was in force at `when`, and all later ones."""
        later = [it for it in self.moments if it.at > when]
        return [[it for it in self.moments if it.at <= when][-1], *later]

    def list_directories_since(self, when: float) -> Iterator[PeopleDirectory]:
        return (self._build_directory(it.n) for it in self.list_moments_since(when))

    def list_same_person(self, identity: str, moment: PeopleMoment) -> frozenset[str]:
        """Return all identities of the person of an identity."""
        person = moment.person_of.get(identity)
        return frozenset([identity, *(it for it, of in moment.person_of.items() if of == person and person)])

    def _add_event(self, event: PeopleEvent) -> None:
        person_of, now = dict(self.moments[-1].person_of), self.world.loop.time()
        match event.action:
            case PeopleAction.LINKED:
                person_of[event.identity] = event.person
            case PeopleAction.UNLINKED:
                together = frozenset(it for it, person in person_of.items() if person == event.person)
                self.partings.append(PersonParting(event.n, now, together | {event.identity}))
                person_of.pop(event.identity, None)
            case PeopleAction.FORGOTTEN:
                person_of = {it: person for it, person in person_of.items() if person != event.person}
            case _:
                pass
        self.events.append(event)
        self.moments.append(PeopleMoment(event.n, now, person_of))

    def _build_directory(self, n: int) -> PeopleDirectory:
        if n not in self._directories:
            self._directories[n] = build_directory(it for it in self.events if it.n <= n)
        return self._directories[n]
