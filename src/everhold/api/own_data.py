"""Handlers with which a person gets their own data, and asks to be forgotten.

A member is the person of the token, with all identities. A service's user is the one identity that the service names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from everhold.admin.forgetting import ForgetReport
from everhold.api import schemas
from everhold.api.errors import ApiError, build_json_response, format_retry_after
from everhold.api.memory import NDJSON
from everhold.api.request import ApiCall

UNREADABLE: Final = "this memory did not give all of it"


async def export_own_data(call: ApiCall) -> Response:
    """Stream all data of the caller's person as JSON lines."""
    person = await _find_own_person(call)
    _take_personal_request(call)
    return StreamingResponse(_stream_own_data(call, person), media_type=NDJSON)


async def _stream_own_data(call: ApiCall, person: str) -> AsyncIterator[bytes]:
    async for record in call.context.memory.export_person(person):
        if "missing" in record and not call.caller.operator:  # the reason may describe the operator's services
            record = {**record, "missing": UNREADABLE}
        yield msgspec.json.encode(record) + b"\n"


async def forget_caller(call: ApiCall) -> Response:
    """Forget the caller's person, if the request repeats the caller's name. Else only plan it."""
    given = call.decode_body(schemas.OwnForgetRequest)
    name, person = call.caller.resolve_sender(""), await _find_own_person(call)
    if given.confirm and given.confirm != name:
        raise ApiError(
            400, "invalid_request", "`confirm` is not your name", remedy="repeat `confirm` of the plan, or leave it out"
        )
    _take_personal_request(call)
    memory = call.context.memory
    if not given.confirm:
        return build_json_response(_show_own_forgetting(await memory.plan_forgetting(person), confirm=name))
    call.context.log.info("forgetting.requested", by=call.caller.account, login=call.caller.login)
    found = await memory.forget_person(person, by=f"person:{call.identity}")
    return build_json_response(_show_own_forgetting(found, confirm=""))


def _show_own_forgetting(found: ForgetReport, *, confirm: str) -> dict[str, Any]:
    """Return a report without what concerns the operator's services, or identities that the person does not have."""
    return {
        "confirm": confirm,
        "names": found.names,
        "state": found.state,
        "done": found.done,
        "entries": found.entry_count,
        "schedules": found.schedules,
        "records": found.records,
        "places": [{"place": it.title, "state": it.state, "until": it.until} for it in found.places],
        "remains": [text for text in found.remains if not any(name in text for name in found.former)],
    }


async def _find_own_person(call: ApiCall) -> str:
    """Return the caller's person. Before an identity was linked to it, it may have been somebody else's, so the person
    is named and not the identity."""
    if call.caller.scope.agents:
        raise ApiError(
            403, "denied", "this token is for some agents only", remedy="use a token of yours without `agents`"
        )
    await call.context.load_fresh_settings()
    await call.context.gateway.people.apply_settings()
    people = await call.context.store.get_people()
    record = people.identities.get(call.identity)
    if record is None:
        return call.identity
    if call.caller.owned_senders and len(people.list_identities(record.person)) > 1:
        raise ApiError(
            403, "denied", "an operator has linked this user to a person of the gateway", remedy="ask the operator"
        )
    return record.person


def _take_personal_request(call: ApiCall) -> None:
    """Limit how often an account may have everything searched. Operators have no limit."""
    if call.caller.operator:
        return
    if wait := call.context.personal_requests.take(call.caller.account):
        remedy = f"try again in {format_retry_after(wait)} s"
        headers = {"retry-after": format_retry_after(wait)}
        raise ApiError(
            429, "too_often", "personal data was asked for too often with this token", remedy=remedy, headers=headers
        )
