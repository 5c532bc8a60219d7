"""Apply the people of the configuration to the people directory, and change the directory for chats and operators."""

from __future__ import annotations

import asyncio

from everhold.config.settings import Settings
from everhold.core.people import (
    LOCAL_IDENTITIES,
    ConfiguredPerson,
    IdentityProof,
    PeopleAction,
    PeopleDirectory,
    PersonRecord,
    is_identity,
    plan_configured_people,
)
from everhold.engine.state_updates import plan_people_update, update_people
from everhold.errors import InvalidRequest, NotFound
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.log import EventLogger
from everhold.ports.store import Store


class PeopleRegistry:
    """Changes the people directory. Configuration, pairing, `/link`, operators and imports all use it."""

    def __init__(
        self, store: Store, *, clock: Clock, chance: RandomSource, log: EventLogger, local_user: str = ""
    ) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._log = log
        self._local_user = local_user
        self._applied: Settings | None = None
        self._lock = asyncio.Lock()

    async def apply_settings(self, settings: Settings) -> None:
        """Make the directory agree with the configuration. It costs nothing if that was applied already."""
        if settings is self._applied:
            return
        async with self._lock:
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

    async def confirm_identity(self, identity: str, *, proof: IdentityProof, by: str) -> None:
        """Record a proof for an identity that stays with its person."""

        await update_people(
            self._store,
            chance=self._chance,
            at=self._clock.now(),
            by=by,
            plan=lambda planner: planner.link_identity(identity, planner.get_person(identity), proof),
        )

    async def join_identities(self, identity: str, other: str, *, by: str) -> PersonRecord:
        """Make one person of the people behind two identities. The person with a label stays."""
        people = await self._store.get_people()
        if people.find_label(identity) and people.find_label(other) and not people.is_same_person(identity, other):
            raise InvalidRequest(
                f"{identity} is {people.find_label(identity)} and {other} is {people.find_label(other)}",
                remedy="an operator can change that with `everhold people link`",
            )
        for one in (identity, other):
            if people.find_label(one) and not people.find_proven_label(one):
                raise InvalidRequest(
                    f"there is no proof that {one} is {people.find_label(one)}",
                    remedy="an operator can prove it with `everhold people link`",
                )
        if people.find_label(other):
            identity, other = other, identity
        await update_people(
            self._store,
            chance=self._chance,
            at=self._clock.now(),
            by=by,
            plan=lambda planner: planner.join_people(
                planner.get_person(identity), planner.get_person(other), IdentityProof.LINKED, proven=(other,)
            ),
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
