"""Handlers for memory: search, why, and for operators status, resend, backfill, rekey, forget, export and import."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from everhold.admin import memory_files
from everhold.admin.forgetting import ForgetReport
from everhold.admin.memory import render_fact
from everhold.api import schemas
from everhold.api.errors import ApiError, build_json_response
from everhold.api.request import ApiCall
from everhold.errors import InvalidRequest

MAX_HITS: Final = 100
DEFAULT_HITS: Final = 20
NDJSON: Final = "application/x-ndjson"


async def show_memory_status(call: ApiCall) -> Response:
    """Return the state of every memory of every agent."""
    return build_json_response(await call.context.memory.collect_status())


async def search_memory(call: ApiCall) -> Response:
    """Return an agent's facts about a person, and the hits of its memories."""
    query = call.query
    agent = call.resolve_agent(query.get("agent", ""))
    person = query.get("person", "")
    people = await call.context.store.get_people()
    if person and call.identity not in people.list_names(person) and not call.caller.operator:
        raise ApiError(
            403, "denied", "only an operator may search another person's memory", remedy="leave `person` out"
        )
    person = person or call.identity
    limit = call.get_number("limit", least=1, most=MAX_HITS) or DEFAULT_HITS
    text = query.get("q", "")
    return build_json_response(await find_in_memory(call, text, agent=agent, person=person, limit=limit))


async def find_in_memory(call: ApiCall, text: str, *, agent: str, person: str, limit: int) -> dict[str, Any]:
    """Return the facts about a person and the hits for a text. The caller has checked that it may see them."""
    if text.strip():
        found = await call.context.memory.search_memories(text, agent=agent, person=person, limit=limit)
    else:
        people = await call.context.store.get_people()
        name = people.describe_identity(people.list_names(person)[0])
        found = {"agent": agent, "person": name, "memories": [], "unavailable": []}
    facts = await call.context.memory.list_facts(agent, person)
    return {**found, "facts": [render_fact(fact) for fact in facts]}


async def explain_answer(call: ApiCall) -> Response:
    """Return what was recalled for an answer."""
    at = call.get_number("at", least=1)
    session = await call.context.find_session(call.caller, call.path["id"])
    return build_json_response(await call.context.memory.explain_answer(session.id, at=at))


async def compare_memories(call: ApiCall) -> Response:
    """Return what each memory found for the newest questions, and what of it the answers used."""
    given = call.decode_body(schemas.MemoryCompareRequest)
    agent = call.resolve_agent(given.agent)
    found = await call.context.memory.compare_memories(agent, person=given.person, limit=given.limit)
    return build_json_response(found)


async def resend_to_memory(call: ApiCall) -> Response:
    """Send a memory again what it has received since a given time."""
    given = call.decode_body(schemas.MemoryResendRequest)
    found = await call.context.memory.resend_memory(
        call.path["name"], since=given.since, agent=given.agent, really=not given.dry_run
    )
    return build_json_response(found)


async def backfill_memory(call: ApiCall) -> Response:
    """Send a memory the history from before it was attached."""
    given = call.decode_body(schemas.MemoryBackfillRequest)
    found = await call.context.memory.backfill_memory(
        call.path["name"],
        agent=given.agent,
        since=given.since,
        until=float("inf") if given.until is None else given.until,
        per_minute=given.per_minute,
        really=not given.dry_run,
    )
    return build_json_response(found)


async def rekey_memory(call: ApiCall) -> Response:
    """Move what a memory stores of a person to the peer that they have now, or only plan it."""
    given = call.decode_body(schemas.MemoryRekeyRequest)
    found = await call.context.memory.rekey_memory(
        call.path["name"], person=given.person, agent=given.agent, really=not given.dry_run
    )
    return build_json_response(found)


async def forget_person(call: ApiCall) -> Response:
    """Erase a person's data in all logs and memories, or only plan it."""
    given = call.decode_body(schemas.ForgetRequest)
    memory = call.context.memory
    if given.dry_run:
        found = await memory.plan_forgetting(given.person)
    else:
        found = await memory.forget_person(given.person, rebuild=given.rebuild)
    return build_json_response(_show_forgetting(found))


def _show_forgetting(found: ForgetReport) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {**plain, "done": found.done, "entries": found.entry_count}


async def list_erasures(call: ApiCall) -> Response:
    """Return every forgetting that has begun, with the state of each place."""
    return build_json_response({"erasures": msgspec.to_builtins(await call.context.memory.list_erasures())})


async def accept_remainders(call: ApiCall) -> Response:
    """Record that an operator accepts what the places of a forgetting cannot delete."""
    found = await call.context.memory.accept_remainders(call.path["id"])
    return build_json_response(msgspec.to_builtins(found))


# -- export and import -------------------------------------------------------------------------------------------------


async def export_person(call: ApiCall) -> Response:
    """Stream all data of a person as JSON lines."""
    return StreamingResponse(_stream_export(call, _require_person_parameter(call)), media_type=NDJSON)


async def _stream_export(call: ApiCall, person: str) -> AsyncIterator[bytes]:
    async for record in call.context.memory.export_person(person):
        yield msgspec.json.encode(record) + b"\n"


async def show_memory_files(call: ApiCall) -> Response:
    """Return the facts about a person as the Markdown files that an import accepts."""
    return build_json_response(
        {"files": await memory_files.render_memory_files(call.context.memory, _require_person_parameter(call))}
    )


async def import_memory_files(call: ApiCall) -> Response:
    """Add the facts of Markdown files. A part that was imported before is skipped."""
    given = call.decode_body(schemas.MemoryImportRequest)
    session = await call.context.find_session(call.caller, given.session)
    return build_json_response(
        await memory_files.import_memory_files(call.context.memory, session.id, given.files, really=not given.dry_run)
    )


def _require_person_parameter(call: ApiCall) -> str:
    person = call.query.get("person", "")
    if not person:
        raise InvalidRequest("the query names no person", remedy="add ?person=NAME")
    return person
