"""Handlers for operators that concern people: identities, pairing and schedules."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from everhold.api import schemas
from everhold.api.errors import build_json_response
from everhold.api.request import ApiCall
from everhold.config.settings import Settings
from everhold.core.entries import ChatLocation
from everhold.errors import InvalidRequest

WELCOME: Final = "You have access now. What can I do for you?"


async def list_people(call: ApiCall) -> Response:
    """Return the people with their configured and linked identities."""
    settings = _get_settings(call)
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
    """Link an identity to a person."""
    given = call.decode_body(schemas.IdentityLinkRequest)
    settings = _get_settings(call)
    _require_person(settings, given.person)
    _require_identity(given.identity)
    configured = settings.identities.get(given.identity)
    if configured is not None:
        raise InvalidRequest(f"{given.identity} is {configured} by config.yaml", remedy="change it there, under people")
    await call.context.store.link_identity(given.identity, given.person, at=call.context.now())
    return build_json_response({"identity": given.identity, "person": given.person})


async def unlink_identity(call: ApiCall) -> Response:
    """Remove the link between an identity and its person."""
    given = call.decode_body(schemas.IdentityRequest)
    _require_identity(given.identity)
    person = await call.context.store.get_person(given.identity)
    if person is None:
        raise InvalidRequest(f"{given.identity} is linked to no person", remedy="everhold people list")
    await call.context.store.link_identity(given.identity, "", at=call.context.now())
    return build_json_response({"identity": given.identity, "person": person})


# -- pairing -----------------------------------------------------------------------------------------------------------


async def list_pairing(call: ApiCall) -> Response:
    """Return the open pairing requests and the granted identities."""
    pairing = call.context.gateway.pairing
    return build_json_response({"waiting": await pairing.list_requests(), "granted": await pairing.list_grants()})


async def approve_pairing(call: ApiCall) -> Response:
    """Grant access to the sender who received this code."""
    given = call.decode_body(schemas.PairingApprovalRequest)
    if given.person:
        _require_person(_get_settings(call), given.person)
    done = await call.context.gateway.pairing.approve_code(given.code, person=given.person)
    location = ChatLocation(platform=done["platform"], account=done["account"], chat=done["chat"])
    call.context.gateway.whisper(location, WELCOME)
    return build_json_response(done)


async def revoke_pairing(call: ApiCall) -> Response:
    """Revoke the access that a code granted to an identity."""
    given = call.decode_body(schemas.IdentityRequest)
    revoked = await call.context.gateway.pairing.revoke_identity(given.identity)
    configured = _get_settings(call).identities.get(given.identity)
    known = configured or await call.context.store.get_person(given.identity) or ""
    return build_json_response({"revoked": revoked, "still": known, "configured": configured is not None})


# -- schedules ---------------------------------------------------------------------------------------------------------


async def list_schedules(call: ApiCall) -> Response:
    """Return all schedules with the time they fire next."""
    return build_json_response({"schedules": await call.context.gateway.schedules.describe_schedules()})


async def delete_schedule(call: ApiCall) -> Response:
    """Delete a schedule."""
    await call.context.gateway.schedules.remove(call.path["id"])
    return build_json_response({"deleted": call.path["id"]})


def _get_settings(call: ApiCall) -> Settings:
    return call.context.agents.settings


def _require_person(settings: Settings, person: str) -> None:
    names = [it.name for it in settings.people]
    if person not in names:
        known = f"known people: {', '.join(names)}" if names else "no people are configured"
        raise InvalidRequest(f"there is no person {person!r}", remedy=f"add it under people in config.yaml; {known}")


def _require_identity(identity: str) -> None:
    platform, _, id = identity.partition(":")
    if not platform or not id:
        raise InvalidRequest(f"{identity!r} is not an identity", remedy="use platform:id, for example telegram:1001")
