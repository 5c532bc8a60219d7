"""Handlers for operators that concern people: identities, pairing and schedules."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from everhold.api import schemas
from everhold.api.errors import build_json_response
from everhold.api.request import ApiCall
from everhold.config.settings import Settings
from everhold.core.entries import ChatLocation
from everhold.core.pairing import WELCOME
from everhold.core.people import IdentityProof, PeopleDirectory, PersonRecord, build_identity
from everhold.errors import InvalidRequest, NotFound
from everhold.ingress.people import require_identity
from everhold.ingress.roles import EVERYWHERE, describe_ownership

MAX_EVENTS: Final = 1_000


async def list_people(call: ApiCall) -> Response:
    """Return the people with their identities."""
    people = await _load_people(call)
    settings = _get_settings(call)
    shown = [
        _show_person(people, person, settings)
        for person in people.persons.values()
        if not person.merged_into and not person.forgotten_at and (person.label or people.list_identities(person.id))
    ]
    return build_json_response({"people": sorted(shown, key=lambda it: (not it["name"], it["name"], it["id"]))})


async def link_identity(call: ApiCall) -> Response:
    """Link an identity to a person."""
    given = call.decode_body(schemas.IdentityLinkRequest)
    await _require_unconfigured(call, given.identity)
    person = await call.context.gateway.people.link_identity(
        given.identity, given.person, proof=IdentityProof.OPERATOR, by=call.identity, since=given.since
    )
    record = (await _load_people(call)).identities.get(given.identity)
    since = record.since if record is not None else 0.0
    return build_json_response({"identity": given.identity, "person": person.label or person.id, "since": since})


async def unlink_identity(call: ApiCall) -> Response:
    """Take an identity away from its person."""
    given = call.decode_body(schemas.IdentityRequest)
    require_identity(given.identity)
    await _require_unconfigured(call, given.identity)
    person = await call.context.gateway.people.unlink_identity(given.identity, by=call.identity)
    return build_json_response({"identity": given.identity, "person": person.label or person.id})


async def name_person(call: ApiCall) -> Response:
    """Give a person a name."""
    given = call.decode_body(schemas.PersonNameRequest)
    await _load_people(call)
    person = await call.context.gateway.people.name_person(given.person, given.name, by=call.identity)
    return build_json_response({"id": person.id, "name": person.label})


async def list_peers(call: ApiCall) -> Response:
    """Return how the memories call each identity."""
    return build_json_response({"peers": await call.context.memory.list_peers()})


async def assign_peer(call: ApiCall) -> Response:
    """Make a peer that several people used belong to one identity."""
    given = call.decode_body(schemas.PeerAssignmentRequest)
    require_identity(given.identity)
    await _load_people(call)
    return build_json_response(await call.context.memory.assign_peer(given.memory, given.peer, given.identity))


async def list_people_events(call: ApiCall) -> Response:
    """Return the log of people: who was linked to whom, when, by whom and with which proof."""
    after, limit = call.get_number("after") or 0, call.get_number("limit", least=1, most=MAX_EVENTS) or 100
    found = await call.context.store.list_people_events(after=after, limit=limit)
    return build_json_response(
        {
            "events": [msgspec.structs.asdict(event) for event in found],
            "next": found[-1].n if len(found) == limit else None,
        }
    )


async def _load_people(call: ApiCall) -> PeopleDirectory:
    """Return the people, after an edit of the configuration was applied."""
    await call.context.load_fresh_settings()
    await call.context.gateway.people.apply_settings()
    return await call.context.store.get_people()


def _show_person(people: PeopleDirectory, person: PersonRecord, settings: Settings) -> dict[str, Any]:
    owner_of = describe_ownership(person.label, settings)
    return {
        "id": person.id,
        "name": person.label,
        "owner": EVERYWHERE in owner_of,
        "owner_of": owner_of,
        "identities": [
            {"identity": it.identity, "proof": it.proof, "since": it.since, "at": it.at}
            for it in people.list_identities(person.id)
        ],
    }


async def _require_unconfigured(call: ApiCall, identity: str) -> None:
    """Refuse to change a link that the configuration makes, because the configuration would make it again."""
    record = (await _load_people(call)).identities.get(identity)
    if record is not None and record.proof in (IdentityProof.CONFIG, IdentityProof.TOKEN):
        label = (await _load_people(call)).find_label(identity)
        raise InvalidRequest(f"{identity} is {label} by config.yaml", remedy="change it there, under people")


# -- pairing -----------------------------------------------------------------------------------------------------------


async def list_pairing(call: ApiCall) -> Response:
    """Return the open pairing requests and the granted identities."""
    pairing = call.context.gateway.pairing
    return build_json_response({"waiting": await pairing.list_requests(), "granted": await pairing.list_grants()})


async def approve_pairing(call: ApiCall) -> Response:
    """Grant access to the sender who received this code."""
    given = call.decode_body(schemas.PairingApprovalRequest)
    await _load_people(call)
    done = await call.context.gateway.pairing.approve_code(given.code, person=given.person)
    location = ChatLocation(platform=done["platform"], account=done["account"], chat=done["chat"])
    call.context.gateway.whisper(location, WELCOME)
    return build_json_response(done)


async def revoke_pairing(call: ApiCall) -> Response:
    """Revoke the access that a code granted to an identity."""
    given = call.decode_body(schemas.IdentityRequest)
    revoked = await call.context.gateway.pairing.revoke_identity(given.identity)
    people = await _load_people(call)
    record = people.identities.get(given.identity)
    configured = record is not None and record.proof in (IdentityProof.CONFIG, IdentityProof.TOKEN)
    return build_json_response(
        {"revoked": revoked, "still": people.find_proven_label(given.identity), "configured": configured}
    )


# -- schedules ---------------------------------------------------------------------------------------------------------


async def list_schedules(call: ApiCall) -> Response:
    """Return the schedules that the caller may see, with the time they fire next."""
    shown = await call.context.gateway.schedules.describe_schedules()
    allowed = await _list_own_schedules(call)
    return build_json_response({"schedules": [it for it in shown if it["id"] in allowed]})


async def delete_schedule(call: ApiCall) -> Response:
    """Delete a schedule."""
    id = call.path["id"]
    if id not in await _list_own_schedules(call):
        raise NotFound(f"there is no schedule {id!r}", remedy="GET /api/schedules lists the schedules")
    await call.context.gateway.schedules.remove(id)
    return build_json_response({"deleted": id})


async def _list_own_schedules(call: ApiCall) -> set[str]:
    """Return the ids of all schedules for an operator, else of those that the caller's person has made."""
    people, caller = await call.context.store.get_people(), call.caller
    own = set(people.list_same_person(call.identity))
    return {
        it.id
        for it in await call.context.gateway.schedules.list_schedules()
        if caller.scope.can_use(it.agent) and (caller.operator or build_identity(it.place.platform, it.sender) in own)
    }


def _get_settings(call: ApiCall) -> Settings:
    return call.context.agents.settings
