"""Decides where a schedule delivers, if that is not the conversation in which it was made."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from everhold.core.address import parse_address
from everhold.core.entries import ChatLocation
from everhold.core.people import PeopleDirectory
from everhold.errors import InvalidRequest


class ScheduleTarget(Struct, frozen=True, kw_only=True):
    """The chat in which the message of a schedule is heard and answered, and who sends it there."""

    place: ChatLocation
    kind: str
    sender: str


def find_schedule_target(
    to: str, *, allowed: Collection[str], agent: str, person: str, people: PeopleDirectory
) -> ScheduleTarget:
    """Return the target of an address. `allowed` is `send_to` of the agent, `person` the identity of who asks. Raises
    InvalidRequest if the address is not allowed, or the person is not known there.
    """
    if to not in allowed:
        known = ", ".join(one for one in allowed if not one.startswith("agent:") or one.count(":") > 1) or "none"
        raise InvalidRequest(
            f"{to[:200]!r} is not among send_to of this agent, so nothing may be delivered there",
            remedy=f"use one of: {known}; the operator can add it to send_to",
        )
    address = parse_address(to)
    if address.agent != agent or address.platform == "agent":
        raise InvalidRequest(
            f"{to} is a conversation of another agent", remedy=f"use an address that begins with agent:{agent}:"
        )
    prefix = f"{address.platform}:"
    senders = [one.removeprefix(prefix) for one in people.list_same_person(person) if one.startswith(prefix)]
    if not senders:
        raise InvalidRequest(
            f"the person who asks is not known on {address.platform}, so nobody could be answered there",
            remedy="link the two accounts with /link first",
        )
    sender = address.person or (address.chat if address.kind == "dm" and address.chat in senders else senders[0])
    if sender not in senders:
        raise InvalidRequest(f"{to} is the conversation of another person", remedy="use an address of your own")
    place = ChatLocation(
        platform=address.platform, account=address.account or agent, chat=address.chat, thread=address.thread
    )
    return ScheduleTarget(place=place, kind=address.kind, sender=sender)
