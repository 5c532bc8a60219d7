"""Apply the people of the configuration to the people directory, and change the directory for chats and operators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from everhold.config.settings import Settings
from everhold.core.people import (
    LOCAL_IDENTITIES,
    ConfiguredPerson,
    IdentityProof,
    PeopleAction,
    PeopleDirectory,
    PeopleEvent,
    PeoplePlanner,
    PersonRecord,
    is_identity,
    plan_configured_people,
)
from everhold.engine.state_updates import ListWrites, plan_people_update, update_people
from everhold.errors import InvalidRequest, NotFound
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.log import EventLogger
from everhold.ports.store import Store


class PeopleRegistry:
    """Changes the people directory. Configuration, pairing, `/link`, operators and imports all use it."""

    def __init__(
        self,
        store: Store,
        *,
        settings: Callable[[], Settings],
        clock: Clock,
        chance: RandomSource,
        log: EventLogger,
        local_user: str = "",
    ) -> None:
        """`settings` returns the settings in force."""
        self._store = store
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._log = log
        self._local_user = local_user
        self._applied: Settings | None = None
        self._lock = asyncio.Lock()

    async def apply_settings(self) -> Settings:
        """Make the directory agree with the settings in force, and return these settings. It costs nothing if they were
        applied already.

        The caller does not choose the settings, so an older revision is never applied after a newer one.
        """
        if (settings := self._settings()) is self._applied:
            return settings
        async with self._lock:
            settings = self._settings()  # they may have changed while another revision was applied
            people = list_configured_people(settings, local_user=self._local_user)
            events = await plan_people_update(
                self._store,
                chance=self._chance,
                at=self._clock.now(),
                plan=lambda directory, new_id, at: plan_configured_people(directory, people, new_id=new_id, at=at),
            )
            self._applied = settings
        for event in events:
            if event.identity.startswith((f"{LOCAL_IDENTITIES}:", "http:")):
                continue  # they follow from the names, so they are no news
            if event.action is PeopleAction.LINKED:
                self._log.info("identity.linked", person=event.person, identity=event.identity, by="config")
            elif event.action is PeopleAction.UNLINKED:
                self._log.info("identity.unlinked", person=event.person, identity=event.identity, by="config")
        return settings

    async def link_identity(
        self, identity: str, name: str, *, proof: IdentityProof, by: str, since: float | None = None
    ) -> PersonRecord:
        """Link one identity to the person that `name` means: a label, an identity or a person's id."""
        require_identity(identity)
        person = await self.require_person(name)
        await update_people(
            self._store,
            chance=self._chance,
            at=self._clock.now(),
            by=by,
            plan=lambda planner: planner.link_identity(identity, person.id, proof, since=since),
        )
        self._log.info("identity.linked", person=person.id, identity=identity, by=by)
        return (await self._store.get_people()).persons[person.id]

    async def admit_identity(self, identity: str, name: str, *, by: str, list_writes: ListWrites) -> None:
        """Record that an operator admitted an identity; as the person that `name` means, if one is given. An earlier
        proof of the same person stays. `list_writes` returns the grant, which belongs into the same commit.
        """

        def plan(directory: PeopleDirectory, new_id: Callable[[], str], at: float) -> Sequence[PeopleEvent]:
            planner = PeoplePlanner(directory, new_id=new_id, at=at, by=by)
            known, person = directory.identities.get(identity), directory.resolve_name(name) if name else None
            if name and person is None:
                raise _build_unknown_person(name, directory)
            if person is None or (known is not None and known.person == person.id):
                planner.prove_identity(identity, IdentityProof.PAIRED)
            elif known is not None and known.proof in (IdentityProof.CONFIG, IdentityProof.TOKEN):
                raise InvalidRequest(
                    f"{identity} is {directory.find_label(identity)} by config.yaml",
                    remedy="change it there, under people",
                )
            else:
                planner.link_identity(identity, person.id, IdentityProof.PAIRED)
            return planner.events

        await plan_people_update(
            self._store, chance=self._chance, at=self._clock.now(), plan=plan, list_writes=list_writes
        )

    async def revoke_identity(self, identity: str, *, by: str, list_writes: ListWrites) -> None:
        """Take back what `admit_identity` recorded. `list_writes` returns the end of the grant."""

        def plan(directory: PeopleDirectory, new_id: Callable[[], str], at: float) -> Sequence[PeopleEvent]:
            planner = PeoplePlanner(directory, new_id=new_id, at=at, by=by)
            known = directory.identities.get(identity)
            if known is not None and known.proof == IdentityProof.PAIRED:
                planner.unlink_identity(identity)
            return planner.events

        await plan_people_update(
            self._store, chance=self._chance, at=self._clock.now(), plan=plan, list_writes=list_writes
        )

    async def join_identities(
        self, identity: str, other: str, *, by: str, list_writes: ListWrites | None = None
    ) -> PersonRecord:
        """Make one person of the people behind two identities. The person with a label stays. `list_writes` returns
        what belongs into the same commit.
        """

        def plan(directory: PeopleDirectory, new_id: Callable[[], str], at: float) -> Sequence[PeopleEvent]:
            _require_joinable(directory, identity, other)
            planner = PeoplePlanner(directory, new_id=new_id, at=at, by=by)
            stays, joins = (other, identity) if directory.find_label(other) else (identity, other)
            person = planner.get_person(stays)
            planner.prove_identity(stays, IdentityProof.LINKED)
            planner.join_people(person, planner.get_person(joins), IdentityProof.LINKED, proven=(joins,))
            return planner.events

        await plan_people_update(
            self._store, chance=self._chance, at=self._clock.now(), plan=plan, list_writes=list_writes
        )
        found = (await self._store.get_people()).find_person(identity)
        assert found is not None, "the link was committed"
        self._log.info("identity.linked", person=found.id, identity=other, by=by)
        return found

    async def unlink_identity(self, identity: str, *, by: str) -> PersonRecord:
        """Take an identity away from its person; return the person it belonged to."""
        people = await self._store.get_people()
        before = people.find_person(identity)
        if before is None:
            raise NotFound(f"{identity} belongs to no person", remedy="`everhold people list` shows the identities")
        await update_people(
            self._store,
            chance=self._chance,
            at=self._clock.now(),
            by=by,
            plan=lambda planner: planner.unlink_identity(identity),
        )
        self._log.info("identity.unlinked", person=before.id, identity=identity, by=by)
        return before

    async def name_person(self, name: str, label: str, *, by: str) -> PersonRecord:
        """Give a person a label."""
        person = await self.require_person(name)
        await update_people(
            self._store,
            chance=self._chance,
            at=self._clock.now(),
            by=by,
            plan=lambda planner: planner.name_person(person.id, label),
        )
        return (await self._store.get_people()).persons[person.id]

    async def require_person(self, name: str) -> PersonRecord:
        """Return the person that a label, an identity or a person's id means. An identity that was never seen becomes a
        person.
        """
        people = await self._store.get_people()
        found = people.resolve_name(name)
        if found is not None:
            return found
        if not is_identity(name):
            raise _build_unknown_person(name, people)
        await update_people(
            self._store,
            chance=self._chance,
            at=self._clock.now(),
            by="operator",
            plan=lambda planner: _discard(planner.get_person(name)),
        )
        made = (await self._store.get_people()).find_person(name)
        assert made is not None, "the identity was committed"
        return made


def _require_joinable(people: PeopleDirectory, identity: str, other: str) -> None:
    """Refuse to join two people with names, and to join by a name that an identity has no proof of."""
    labels = {one: people.find_label(one) for one in (identity, other)}
    if all(labels.values()) and not people.is_same_person(identity, other):
        raise InvalidRequest(
            f"{identity} is {labels[identity]} and {other} is {labels[other]}",
            remedy="an operator can change that with `everhold people link`",
        )
    for one, label in labels.items():
        if label and not people.find_proven_label(one):
            raise InvalidRequest(
                f"there is no proof that {one} is {label}",
                remedy="an operator can prove it with `everhold people link`",
            )


def _discard(_: object) -> None: ...


def _build_unknown_person(name: str, people: PeopleDirectory) -> NotFound:
    labels = sorted(it.label for it in people.persons.values() if it.label)
    known = f"known people: {', '.join(labels)}" if labels else "no person has a name yet"
    return NotFound(
        f"there is no person {name!r}",
        remedy=f"add it under people in config.yaml, or name one with `everhold people name`; {known}",
    )


def require_identity(identity: str) -> None:
    if not is_identity(identity):
        raise InvalidRequest(f"{identity!r} is not an identity", remedy="use platform:id, for example telegram:1001")


def list_configured_people(settings: Settings, *, local_user: str = "") -> list[ConfiguredPerson]:
    """Return the people of the configuration with all their identities.

    The terminal user and the HTTP sender with a person's name are that person, because only this machine's user and
    the configured tokens can use these names. The user who runs the gateway is one person in the terminal and over
    HTTP.
    """
    given = {identity for person in settings.people for identity in person.identities}
    people: list[ConfiguredPerson] = []
    names = [person.name for person in settings.people]
    # a service speaks for its own users, and for none of these people
    speakers = [it.person or it.name for it in settings.http.tokens if it.role in ("operator", "member")]
    for person in settings.people:
        implied = tuple(it for it in _imply_identities(person.name) if it not in given)
        people.append(ConfiguredPerson(person.name, (*person.identities, *implied)))
    others = dict.fromkeys(it for it in (*speakers, local_user) if it and it not in names)
    for name in others:
        implied = _imply_identities(name) if name == local_user else (f"http:{name}",)
        free = tuple(it for it in implied if it not in given)
        if free:
            people.append(ConfiguredPerson(name, (), free))
    return people


def _imply_identities(name: str) -> tuple[str, ...]:
    return (f"{LOCAL_IDENTITIES}:{name}", f"http:{name}")
