"""The roles of people when a worker handles their messages: the lower of the stamped and the current role counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from everhold.core.access import find_address_place
from everhold.core.address import parse_address
from everhold.core.entries import Entry, Heard
from everhold.core.people import PERSON_MEMBER
from everhold.core.roles import ChatPlace, PersonRole, find_lowest_role, lower_role


class RoleStanding(Struct, frozen=True, kw_only=True):
    """The role of a person in a chat, and the owners there."""

    role: PersonRole | None
    """None: the person may not speak there."""
    owners: tuple[str, ...] = ()


class RoleSource(Protocol):
    """Knows the roles that people have now."""

    async def find_role(self, entry: Entry) -> RoleStanding:
        """Return the role that the sender of a message has now in the chat it was sent from."""

    async def find_person_role(self, identity: str, *, address: str) -> RoleStanding:
        """Return the role that an identity has now at an address."""


class StampedRoles:
    """A role source without a configuration: everybody still has the role that was stamped."""

    async def find_role(self, entry: Entry) -> RoleStanding:
        return RoleStanding(role=entry.body.role if isinstance(entry.body, Heard) else PersonRole.MEMBER)

    async def find_person_role(self, identity: str, *, address: str) -> RoleStanding:
        return RoleStanding(role=PersonRole.OWNER)


class TurnRights(Struct, frozen=True, kw_only=True):
    """What a turn may do: it has the rights of the least trusted person whose words it takes."""

    role: PersonRole = PersonRole.MEMBER
    place: ChatPlace = ChatPlace.DIRECT
    speakers: tuple[str, ...] = ()
    """The identities of the people whose words it takes."""
    is_refused: bool = False
    """Nobody who asks may still speak there."""
    owners: tuple[str, ...] = ()


async def find_entry_role(source: RoleSource, entry: Entry) -> RoleStanding:
    """Return the role that counts for a message: the lower of the stamped and the current one."""
    current = await source.find_role(entry)
    stamped = entry.body.role if isinstance(entry.body, Heard) else PersonRole.MEMBER
    return RoleStanding(role=lower_role(stamped, current.role), owners=current.owners)


def find_heard_place(heard: Heard) -> ChatPlace:
    """Return the kind of chat that a message was sent from."""
    address = heard.stamp.address
    return find_address_place(parse_address(address)) if address else ChatPlace.DIRECT


async def compute_turn_rights(source: RoleSource, heard: Iterable[Entry]) -> TurnRights:
    """Return the rights of a turn that takes these messages."""
    roles: list[PersonRole | None] = []
    asking: list[PersonRole | None] = []
    speakers: dict[str, None] = {}
    owners: tuple[str, ...] = ()
    place = ChatPlace.DIRECT
    for entry in heard:
        if not isinstance(entry.body, Heard):
            continue  # it was erased, so the turn shows no words of it
        standing = await find_entry_role(source, entry)
        roles.append(standing.role)
        if entry.author.startswith(PERSON_MEMBER):
            speakers[entry.author.removeprefix(PERSON_MEMBER)] = None
        if entry.body.asks:
            asking.append(standing.role)
            place, owners = find_heard_place(entry.body), standing.owners
    return TurnRights(
        role=find_lowest_role(roles) if roles else PersonRole.STRANGER,
        place=place,
        speakers=tuple(speakers),
        is_refused=bool(asking) and all(role is None for role in asking),
        owners=owners,
    )
