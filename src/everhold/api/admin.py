"""What operators ask of the gateway as a whole: status, agents, audit, backups, dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.responses import Response

from everhold.admin.sessions import render_dead_letter
from everhold.api import schemas
from everhold.api.errors import build_json_response
from everhold.api.request import ApiCall
from everhold.errors import InvalidRequest

MAX_DEAD_LETTERS: Final = 1_000
DEFAULT_DEAD_LETTERS: Final = 200


async def show_status(call: ApiCall) -> Response:
    """Health at a glance."""
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
    """The agents in force, and what they work with."""
    found = call.context.gateway.describe()
    return build_json_response({"agents": found["agents"], "default": found["default_agent"]})


async def run_audit(call: ApiCall) -> Response:
    """Check the promises on the store."""
    report = await call.context.control.audit_store(call.query.get("session") or None)
    checked = report.checked
    return build_json_response(
        {
            "holds": not report.broken_findings,
            "sessions": report.sessions,
            "checked": {
                "entries": checked.entries,
                "heard": checked.heard,
                "turns": checked.turns,
                "compressions": checked.compressions,
            },
            "promises": report.render_lines(),
            "findings": msgspec.to_builtins(report.findings),
        }
    )


# -- backups -----------------------------------------------------------------------------------------------------------


async def list_backups(call: ApiCall) -> Response:
    """The copies in the home's `backups/`, oldest first."""
    return build_json_response({"backups": call.context.gateway.list_backups()})


async def create_backup(call: ApiCall) -> Response:
    """Copy the store, and check the copy."""
    given = call.decode_body(schemas.CreateBackup)
    if given.to:
        call.needs_operator_connection("to")
        if not Path(given.to).is_absolute():
            raise InvalidRequest(f"{given.to!r} is no absolute path", remedy="name a file by its whole path")
    return build_json_response(await call.context.gateway.back_up(given.to))


# -- dead letters ------------------------------------------------------------------------------------------------------


async def list_dead_letters(call: ApiCall) -> Response:
    """What could not be delivered, and why."""
    after = call.get_number("after") or 0
    limit = call.get_number("limit", least=1, most=MAX_DEAD_LETTERS) or DEFAULT_DEAD_LETTERS
    found = sorted((it for it in await call.context.store.list_dead_letters() if it.id > after), key=lambda it: it.id)
    page: list[dict[str, Any]] = [render_dead_letter(item) for item in found[:limit]]
    return build_json_response({"dead_letters": page, "next": page[-1]["id"] if len(found) > limit else None})


async def replay_dead_letters(call: ApiCall) -> Response:
    """Send dead letters again."""
    given = call.decode_body(schemas.ReplayDeadLetters)
    if given.ids is not None and not given.ids:
        return build_json_response({"replayed": 0})
    return build_json_response({"replayed": await call.context.control.replay_dead_letters(given.ids or ())})
