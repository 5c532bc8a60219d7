"""What operators do about people: who is who, who may come in by a code, and the schedules they made."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from everhold.config.settings import Settings
from everhold.core.entries import Place
from everhold.errors import Misuse
from everhold.web import shapes
from everhold.web.answers import answer
from everhold.web.call import Call

WELCOME: Final = "You are let in. What can I do for you?"


async def list_people(call: Call) -> Response:
    """Everybody known by name, and how they are recognised."""
    settings = _settings(call)
    people: dict[str, dict[str, Any]] = {
        person.name: {
            "name": person.name,
            "owner": person.name in settings.access.owners,
            "configured": list(person.identities),
            "linked": [],
        }
        for person in settings.people
    }
    for identity, name in await call.office.store.list_identity_links():
        unknown = {"name": name, "owner": False, "configured": [], "linked": []}
        if settings.identities.get(identity) is None:
            people.setdefault(name, unknown)["linked"].append(identity)
    return answer({"people": list(people.values())})


async def link_identity(call: Call) -> Response:
    """An identity is this person from now on."""
    given = call.body(shapes.LinkIdentity)
    settings = _settings(call)
    _require_person(settings, given.person)
    _require_identity(given.identity)
    configured = settings.identities.get(given.identity)
    if configured is not None:
        raise Misuse(f"{given.identity} is {configured} by config.yaml", remedy="change it there, under people")
    await call.office.store.link_identity(given.identity, given.person, at=call.office.now())
    return answer({"identity": given.identity, "person": given.person})


async def unlink_identity(call: Call) -> Response:
    """An identity is that person no longer."""
    given = call.body(shapes.UnlinkIdentity)
    _require_identity(given.identity)
    person = await call.office.store.get_person(given.identity)
    if person is None:
        raise Misuse(f"{given.identity} is linked to no person", remedy="everhold people list")
    await call.office.store.link_identity(given.identity, "", at=call.office.now())
    return answer({"identity": given.identity, "person": person})


# -- pairing -----------------------------------------------------------------------------------------------------------


async def list_pairing(call: Call) -> Response:
    """Who waits with a code, and who was let in by one."""
    pairing = call.office.gateway.pairing
    return answer({"waiting": await pairing.waiting(), "granted": await pairing.granted()})


async def approve_pairing(call: Call) -> Response:
    """Let in the sender who was told this code."""
    given = call.body(shapes.ApprovePairing)
    if given.person:
        _require_person(_settings(call), given.person)
    done = await call.office.gateway.pairing.approve(given.code, person=given.person)
    place = Place(platform=done["platform"], account=done["account"], chat=done["chat"])
    call.office.gateway.whisper(place, WELCOME)
    return answer(done)


async def revoke_pairing(call: Call) -> Response:
    """Revoke what a code granted an identity."""
    given = call.body(shapes.UnlinkIdentity)
    revoked = await call.office.gateway.pairing.revoke(given.identity)
    configured = _settings(call).identities.get(given.identity)
    known = configured or await call.office.store.get_person(given.identity) or ""
    return answer({"revoked": revoked, "still": known, "configured": configured is not None})


# -- schedules ---------------------------------------------------------------------------------------------------------


async def list_schedules(call: Call) -> Response:
    """Every schedule, and when it fires next."""
    return answer({"schedules": await call.office.gateway.schedules.listed()})


async def delete_schedule(call: Call) -> Response:
    """Delete a schedule."""
    await call.office.gateway.schedules.remove(call.path["id"])
    return answer({"deleted": call.path["id"]})


def _settings(call: Call) -> Settings:
    return call.office.agents.settings


def _require_person(settings: Settings, person: str) -> None:
    names = [it.name for it in settings.people]
    if person not in names:
        known = ", ".join(names) or "nobody"
        raise Misuse(f"there is no person {person!r}", remedy=f"add them under people in config.yaml; there is {known}")


def _require_identity(identity: str) -> None:
    platform, _, id = identity.partition(":")
    if not platform or not id:
        raise Misuse(f"{identity!r} is no identity", remedy="platform:id, for example telegram:1001")
