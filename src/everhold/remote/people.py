"""What may be asked over the socket about people: who is who, who was let in, who waits, what is said at its time."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

from msgspec import Struct

from everhold.config import Settings
from everhold.core.entries import Place
from everhold.errors import Misuse
from everhold.pairing import Pairing
from everhold.ports.clock import Clock
from everhold.ports.store import Store
from everhold.schedules import Schedules

Answer: TypeAlias = Callable[[Any], Awaitable[Any]]


class Nothing(Struct, forbid_unknown_fields=True): ...


class Code(Struct, forbid_unknown_fields=True):
    code: str
    person: str = ""


class Identity(Struct, forbid_unknown_fields=True):
    identity: str
    person: str = ""


class Id(Struct, forbid_unknown_fields=True):
    id: str


@dataclasses.dataclass(frozen=True)
class Welcoming:
    """The book of people, asked by name."""

    settings: Callable[[], Settings]
    store: Store
    clock: Clock
    pairing: Pairing
    schedules: Schedules
    whisper: Callable[[Place, str], None]
    """Says something that belongs to no conversation."""

    def methods(self) -> Iterator[tuple[str, type[Struct], Answer]]:
        yield "pairing.list", Nothing, self._pairings
        yield "pairing.approve", Code, self._approve
        yield "pairing.revoke", Identity, self._revoke
        yield "people.list", Nothing, self._people
        yield "people.link", Identity, self._link
        yield "people.unlink", Identity, self._unlink
        yield "schedules.list", Nothing, self._schedules
        yield "schedules.remove", Id, self._remove

    async def _pairings(self, _: Nothing) -> dict[str, Any]:
        return {"waiting": await self.pairing.waiting(), "granted": await self.pairing.granted()}

    async def _approve(self, given: Code) -> dict[str, Any]:
        if given.person:
            self._known(given.person)
        done = await self.pairing.approve(given.code, person=given.person)
        place = Place(platform=done["platform"], account=done["account"], chat=done["chat"])
        self.whisper(place, "You are let in. What can I do for you?")
        return done

    async def _revoke(self, given: Identity) -> dict[str, Any]:
        revoked = await self.pairing.revoke(given.identity)
        configured = self.settings().identities.get(given.identity)
        known = configured or await self.store.get_person(given.identity) or ""
        return {"revoked": revoked, "still": known, "configured": configured is not None}

    async def _people(self, _: Nothing) -> dict[str, Any]:
        settings = self.settings()
        people: dict[str, dict[str, Any]] = {
            person.name: {
                "name": person.name,
                "owner": person.name in settings.access.owners,
                "configured": list(person.identities),
                "linked": [],
            }
            for person in settings.people
        }
        for identity, name in await self.store.list_identity_links():
            nobody = {"name": name, "owner": False, "configured": [], "linked": []}
            if settings.identities.get(identity) is None:
                people.setdefault(name, nobody)["linked"].append(identity)
        return {"people": list(people.values())}

    async def _link(self, given: Identity) -> dict[str, Any]:
        self._known(given.person)
        self._shape(given.identity)
        configured = self.settings().identities.get(given.identity)
        if configured is not None:
            raise Misuse(f"{given.identity} is {configured} by config.yaml", remedy="change it there, under people")
        await self.store.link_identity(given.identity, given.person, at=self.clock.now())
        return {"identity": given.identity, "person": given.person}

    async def _unlink(self, given: Identity) -> dict[str, Any]:
        self._shape(given.identity)
        known = await self.store.get_person(given.identity)
        if known is None:
            raise Misuse(f"{given.identity} was linked to nobody", remedy="everhold people list")
        await self.store.link_identity(given.identity, "", at=self.clock.now())
        return {"identity": given.identity, "person": known}

    async def _schedules(self, _: Nothing) -> dict[str, Any]:
        return {"schedules": await self.schedules.listed()}

    async def _remove(self, given: Id) -> dict[str, Any]:
        await self.schedules.remove(given.id)
        return {"removed": given.id}

    def _known(self, person: str) -> None:
        names = [it.name for it in self.settings().people]
        if person not in names:
            known = ", ".join(names) or "nobody"
            raise Misuse(
                f"there is no person {person!r}", remedy=f"add them under people in config.yaml; there is {known}"
            )

    def _shape(self, identity: str) -> None:
        platform, _, id = identity.partition(":")
        if not platform or not id:
            raise Misuse(f"{identity!r} is no identity", remedy="platform:id, for example telegram:1001")
