"""What operators ask of the gateway as a whole: status, agents, audit, backups, dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.responses import Response

from everhold.control import parked_json
from everhold.errors import Misuse
from everhold.web import shapes
from everhold.web.answers import answer
from everhold.web.call import Call

MAX_DEAD_LETTERS: Final = 1_000
DEFAULT_DEAD_LETTERS: Final = 200


async def show_status(call: Call) -> Response:
    """Health at a glance."""
    store = call.office.store
    found = call.office.gateway.describe()
    day = str(found.pop("day"))
    for agent in found["agents"]:
        spent = await store.get_spend(f"agent:{agent['name']}", day)
        agent["spent"] = {"usd": spent.usd, "tokens": spent.tokens}
    people = [
        {"name": spend.budget.removeprefix("person:"), "spent": {"usd": spend.usd, "tokens": spend.tokens}}
        for spend in await store.list_spends("person:", day)
    ]
    return answer({**found, "people": people, **await call.office.control.status()})


async def list_agents(call: Call) -> Response:
    """The agents in force, and what they work with."""
    found = call.office.gateway.describe()
    return answer({"agents": found["agents"], "default": found["default_agent"]})


async def run_audit(call: Call) -> Response:
    """Check the promises on the store."""
    report = await call.office.control.audit(call.query.get("session") or None)
    checked = report.checked
    return answer(
        {
            "holds": not report.broken,
            "sessions": report.sessions,
            "checked": {
                "entries": checked.entries,
                "heard": checked.heard,
                "turns": checked.turns,
                "compressions": checked.folds,
            },
            "promises": report.lines(),
            "findings": msgspec.to_builtins(report.findings),
        }
    )


# -- backups -----------------------------------------------------------------------------------------------------------


async def list_backups(call: Call) -> Response:
    """The copies in the home's `backups/`, oldest first."""
    return answer({"backups": call.office.gateway.list_backups()})


async def create_backup(call: Call) -> Response:
    """Copy the store, and check the copy."""
    given = call.body(shapes.CreateBackup)
    if given.to:
        call.needs_operator_connection("to")
        if not Path(given.to).is_absolute():
            raise Misuse(f"{given.to!r} is no absolute path", remedy="name a file by its whole path")
    return answer(await call.office.gateway.back_up(given.to))


# -- dead letters ------------------------------------------------------------------------------------------------------


async def list_dead_letters(call: Call) -> Response:
    """What could not be delivered, and why."""
    after = call.number("after") or 0
    limit = call.number("limit", least=1, most=MAX_DEAD_LETTERS) or DEFAULT_DEAD_LETTERS
    found = sorted((it for it in await call.office.store.list_dead_letters() if it.id > after), key=lambda it: it.id)
    page: list[dict[str, Any]] = [parked_json(item) for item in found[:limit]]
    return answer({"dead_letters": page, "next": page[-1]["id"] if len(found) > limit else None})


async def replay_dead_letters(call: Call) -> Response:
    """Send dead letters again."""
    given = call.body(shapes.ReplayDeadLetters)
    if given.ids is not None and not given.ids:
        return answer({"replayed": 0})
    return answer({"replayed": await call.office.control.replay(given.ids or ())})
