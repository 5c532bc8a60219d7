"""Handlers for operators that concern the whole gateway: status, agents, audit, backups, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from everhold.admin.audit import AuditReport
from everhold.admin.sessions import SessionAdmin, render_dead_letter
from everhold.api import console_schemas, events, schemas
from everhold.api.errors import build_json_response
from everhold.api.request import ApiCall
from everhold.errors import EverholdError, InvalidRequest
from everhold.ports.store import DeadLetter

AUDIT_PROGRESS_SECONDS: Final = 0.5

MAX_DEAD_LETTERS: Final = 1_000
DEFAULT_DEAD_LETTERS: Final = 200
MAX_CAUSES: Final = 200


async def show_status(call: ApiCall) -> Response:
    """Return the state of the process and of its home."""
    store = call.context.store
    found = call.context.gateway.describe()
    day = str(found.pop("day"))
    for agent in found["agents"]:
        spent = await store.get_spend(f"agent:{agent['name']}", day)
        agent["spent"] = {"usd": spent.usd, "tokens": spent.tokens}
    people = [
        {"name": spend.budget.removeprefix("person:"), "spent": {"usd": spend.usd, "tokens": spend.tokens}}
        for spend in await store.list_spends("person:", day)
    ]
    return build_json_response({**found, "people": people, **await call.context.control.collect_status()})


async def list_agents(call: ApiCall) -> Response:
    """Return the configured agents with their models, memories and tools."""
    found = call.context.gateway.describe()
    return build_json_response({"agents": found["agents"], "default": found["default_agent"]})


async def run_audit(call: ApiCall) -> Response:
    """Check the promises on the store and return the report; with `stream`, also report the progress."""
    control, session = call.context.control, call.query.get("session") or None
    if call.query.get("stream"):
        if session:
            await control.find_session(session)  # an unknown session is refused before the stream begins
        return StreamingResponse(
            _stream_audit(control, session), media_type="text/event-stream", headers=events.STREAM_HEADERS
        )
    return build_json_response(_render_audit(await control.audit_store(session)))


class _AuditAbandoned(Exception):
    """The client has gone, so the audit need not go on."""


class _AuditProgress:
    """How far an audit is. The audit's thread calls it."""

    def __init__(self) -> None:
        self.done, self.total = 0, 0
        self.is_abandoned = False

    def __call__(self, done: int, total: int) -> None:
        if self.is_abandoned:
            raise _AuditAbandoned
        self.done, self.total = done, total


async def _stream_audit(control: SessionAdmin, session: str | None) -> AsyncIterator[bytes]:
    progress = _AuditProgress()
    task = asyncio.ensure_future(control.audit_store(session, progress))
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=AUDIT_PROGRESS_SECONDS)
            yield _encode_event("progress", {"done": progress.done, "total": progress.total})
        try:
            yield _encode_event("report", _render_audit(task.result()))
        except EverholdError as error:
            yield _encode_event("error", {"message": error.message, "remedy": error.remedy})
    finally:
        progress.is_abandoned = True
        task.cancel()


def _encode_event(event: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(data))


def _render_audit(report: AuditReport) -> dict[str, Any]:
    counts = msgspec.to_builtins(report.checked)
    return {
        "holds": not report.broken_findings,
        "sessions": counts.pop("sessions"),
        "checked": counts,
        "promises": report.render_lines(),
        "findings": msgspec.to_builtins(report.findings),
    }


# -- tool servers --------------------------------------------------------------------------------------------------


async def list_tools(call: ApiCall) -> Response:
    """Return the tools of each tool server that the owner has seen, those that wait for a confirmation, and the tools
    of plug-ins."""
    gateway = call.context.gateway
    return build_json_response({"servers": await gateway.list_tools(), "plugins": gateway.list_trusted_tools()})


async def confirm_tools(call: ApiCall) -> Response:
    """Offer the new and changed tools of a server, as the digest names them."""
    given = call.decode_body(schemas.ToolConfirmationRequest)
    return build_json_response(await call.context.gateway.confirm_tools(call.path["server"], given.digest))


# -- hosts -------------------------------------------------------------------------------------------------------------


async def list_hosts(call: ApiCall) -> Response:
    """Return the hosts of a shared store, and what each holds."""
    return build_json_response(await call.context.gateway.describe_hosts())


async def start_draining(call: ApiCall) -> Response:
    """Take nothing new, and end when the work is done or handed over."""
    await call.context.gateway.drain()
    return build_json_response({"draining": True}, status=202)


# -- backups -----------------------------------------------------------------------------------------------------------


async def list_backups(call: ApiCall) -> Response:
    """Return the backups in the home's `backups/`, oldest first."""
    return build_json_response({"backups": call.context.gateway.list_backups()})


async def create_backup(call: ApiCall) -> Response:
    """Copy the store and check the copy."""
    given = call.decode_body(schemas.BackupRequest)
    if given.to:
        call.require_operator_connection("to")
        if not Path(given.to).is_absolute():
            raise InvalidRequest(f"{given.to!r} is not an absolute path", remedy="give the absolute path of a file")
    return build_json_response(await call.context.gateway.back_up(given.to))


# -- dead letters ------------------------------------------------------------------------------------------------------


async def list_dead_letters(call: ApiCall) -> Response:
    """Return a page of the dead letters, oldest first."""
    after, query = call.get_number("after") or 0, call.query
    limit = call.get_number("limit", least=1, most=MAX_DEAD_LETTERS) or DEFAULT_DEAD_LETTERS
    chosen = await _select_dead_letters(
        call, consumer=query.get("consumer", ""), cause=query.get("cause", ""), session=query.get("session", "")
    )
    found = [it for it in chosen if it.id > after]
    page: list[dict[str, Any]] = [render_dead_letter(item) for item in found[:limit]]
    return build_json_response({"dead_letters": page, "next": page[-1]["id"] if len(found) > limit else None})


async def _select_dead_letters(call: ApiCall, *, consumer: str, cause: str, session: str) -> list[DeadLetter]:
    """Return the dead letters that match, oldest first."""
    found = await call.context.store.list_dead_letters(session=session, consumer=consumer)
    return sorted((it for it in found if not cause or it.reason == cause), key=lambda it: it.id)


async def count_dead_letters(call: ApiCall) -> Response:
    """Return the dead letters by consumer and reason, the most frequent first."""
    groups: dict[tuple[str, str], list[DeadLetter]] = {}
    for letter in await call.context.store.list_dead_letters():
        groups.setdefault((letter.consumer, letter.reason), []).append(letter)
    causes: list[dict[str, Any]] = [
        {
            "consumer": consumer,
            "reason": reason,
            "count": len(letters),
            "in_doubt": sum(letter.in_doubt for letter in letters),
            "first_at": min(letter.at for letter in letters),
            "last_at": max(letter.at for letter in letters),
        }
        for (consumer, reason), letters in groups.items()
    ]
    return build_json_response({"causes": sorted(causes, key=lambda it: -it["count"])[:MAX_CAUSES]})


async def replay_dead_letters(call: ApiCall) -> Response:
    """Send the given dead letters again, or all that match."""
    given = call.decode_body(schemas.DeadLetterReplayRequest)
    ids = await _choose_dead_letters(call, given)
    if given.dry_run:
        return build_json_response({"replayed": len(ids)})
    return build_json_response({"replayed": await call.context.control.replay_dead_letters(ids) if ids else 0})


async def drop_dead_letters(call: ApiCall) -> Response:
    """Give up the given dead letters, or all that match, for good."""
    given = call.decode_body(console_schemas.DeadLetterDropRequest)
    if given.ids is None and not (given.consumer or given.cause or given.session):
        raise InvalidRequest(
            "the request would drop every dead letter", remedy="name `ids`, a `consumer`, a `cause` or a `session`"
        )
    ids = await _choose_dead_letters(call, given)
    if given.dry_run:
        return build_json_response({"dropped": len(ids)})
    return build_json_response({"dropped": await call.context.control.drop_dead_letters(ids)})


async def _choose_dead_letters(
    call: ApiCall, given: schemas.DeadLetterReplayRequest | console_schemas.DeadLetterDropRequest
) -> list[int]:
    """Return the ids that a request names, or those of all dead letters that match it."""
    matching = await _select_dead_letters(call, consumer=given.consumer, cause=given.cause, session=given.session)
    wanted = None if given.ids is None else set(given.ids)
    return [it.id for it in matching if wanted is None or it.id in wanted]
