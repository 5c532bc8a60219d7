"""What operators do about people: who is who, who may come in by a code, and the schedules they made."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from everhold.api import schemas
from everhold.api.errors import build_json_response
from everhold.api.request import ApiCall
from everhold.config.settings import Settings
from everhold.core.entries import ChatLocation
from everhold.errors import InvalidRequest

WELCOME: Final = "You are let in. What can I do for you?"


async def list_people(call: ApiCall) -> Response:
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
    for identity, name in await call.context.store.list_identity_links():
        unknown = {"name": name, "owner": False, "configured": [], "linked": []}
        if settings.identities.get(identity) is None:
            people.setdefault(name, unknown)["linked"].append(identity)
    return build_json_response({"people": list(people.values())})


async def link_identity(call: ApiCall) -> Response:
    """An identity is this person from now on."""
    given = call.decode_body(schemas.LinkIdentity)
    settings = _settings(call)
    _require_person(settings, given.person)
    _require_identity(given.identity)
    configured = settings.identities.get(given.identity)
    if configured is not None:
        raise InvalidRequest(f"{given.identity} is {configured} by config.yaml", remedy="change it there, under people")
    await call.context.store.link_identity(given.identity, given.person, at=call.context.now())
    return build_json_response({"identity": given.identity, "person": given.person})


async def unlink_identity(call: ApiCall) -> Response:
    """An identity is that person no longer."""
    given = call.decode_body(schemas.UnlinkIdentity)
    _require_identity(given.identity)
    person = await call.context.store.get_person(given.identity)
    if person is None:
        raise InvalidRequest(f"{given.identity} is linked to no person", remedy="everhold people list")
    await call.context.store.link_identity(given.identity, "", at=call.context.now())
    return build_json_response({"identity": given.identity, "person": person})


# -- pairing -----------------------------------------------------------------------------------------------------------


async def list_pairing(call: ApiCall) -> Response:
    """Who waits with a code, and who was let in by one."""
    pairing = call.context.gateway.pairing
    return build_json_response({"waiting": await pairing.list_requests(), "granted": await pairing.list_grants()})


async def approve_pairing(call: ApiCall) -> Response:
    """Let in the sender who was told this code."""
    given = call.decode_body(schemas.ApprovePairing)
    if given.person:
        _require_person(_settings(call), given.person)
    done = await call.context.gateway.pairing.approve_code(given.code, person=given.person)
    place = ChatLocation(platform=done["platform"], account=done["account"], chat=done["chat"])
    call.context.gateway.whisper(place, WELCOME)
    return build_json_response(done)


async def revoke_pairing(call: ApiCall) -> Response:
    """Revoke what a code granted an identity."""
    given = call.decode_body(schemas.UnlinkIdentity)
    revoked = await call.context.gateway.pairing.revoke_identity(given.identity)
    configured = _settings(call).identities.get(given.identity)
    known = configured or await call.context.store.get_person(given.identity) or ""
    return build_json_response({"revoked": revoked, "still": known, "configured": configured is not None})


# -- schedules ---------------------------------------------------------------------------------------------------------


async def list_schedules(call: ApiCall) -> Response:
    """Every schedule, and when it fires next."""
    return build_json_response({"schedules": await call.context.gateway.schedules.describe_schedules()})


async def delete_schedule(call: ApiCall) -> Response:
    """Delete a schedule."""
    await call.context.gateway.schedules.remove(call.path["id"])
    return build_json_response({"deleted": call.path["id"]})


def _settings(call: ApiCall) -> Settings:
    return call.context.agents.settings


def _require_person(settings: Settings, person: str) -> None:
    names = [it.name for it in settings.people]
    if person not in names:
        known = ", ".join(names) or "nobody"
        raise InvalidRequest(
            f"there is no person {person!r}", remedy=f"add them under people in config.yaml; there is {known}"
        )


def _require_identity(identity: str) -> None:
    platform, _, id = identity.partition(":")
    if not platform or not id:
        raise InvalidRequest(f"{identity!r} is no identity", remedy="platform:id, for example telegram:1001")
