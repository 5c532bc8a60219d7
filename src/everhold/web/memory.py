"""What may be asked of memory: search, why, and for operators status, resend, backfill, forget, export, import."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from everhold import papers
from everhold.errors import Misuse
from everhold.forgetting import Forgetting
from everhold.memory import fact_json
from everhold.web import shapes
from everhold.web.answers import Refusal, answer
from everhold.web.call import Call

MAX_HITS: Final = 100
DEFAULT_HITS: Final = 20
NDJSON: Final = "application/x-ndjson"


async def show_memory_status(call: Call) -> Response:
    """Every memory of every agent."""
    return answer(await call.office.memory.status())


async def search_memory(call: Call) -> Response:
    """What an agent remembers of a person: the facts in every prompt, and what its memories find."""
    query = call.query
    agent = call.agent(query.get("agent", ""))
    person = query.get("person", "")
    own = await call.person()
    if person not in ("", own) and not call.caller.operator:
        raise Refusal(403, "denied", "only an operator may look into somebody else's memory", remedy="leave person out")
    person = person or own
    limit = call.number("limit", least=1, most=MAX_HITS) or DEFAULT_HITS
    text = query.get("q", "")
    if text.strip():
        found = await call.office.memory.search(text, agent=agent, person=person, limit=limit)
    else:
        found = {"agent": agent, "person": person, "memories": [], "unavailable": []}
    facts = await call.office.memory.facts(agent, person)
    return answer({**found, "facts": [fact_json(fact) for fact in facts]})


async def explain_answer(call: Call) -> Response:
    """What an answer rested on."""
    at = call.number("at", least=1)
    session = await call.office.find(call.caller, call.path["id"])
    return answer(await call.office.memory.why(session.id, at=at))


async def resend_to_memory(call: Call) -> Response:
    """Send a memory again what it received since a time."""
    given = call.body(shapes.ResendToMemory)
    found = await call.office.memory.replay(
        call.path["name"], since=given.since, agent=given.agent, really=not given.dry_run
    )
    return answer(found)


async def backfill_memory(call: Call) -> Response:
    """Send a memory the history from before it was attached."""
    given = call.body(shapes.BackfillMemory)
    found = await call.office.memory.backfill(
        call.path["name"],
        agent=given.agent,
        since=given.since,
        until=float("inf") if given.until is None else given.until,
        per_minute=given.per_minute,
        really=not given.dry_run,
    )
    return answer(found)


async def forget_person(call: Call) -> Response:
    """Forget a person everywhere, or only plan it."""
    given = call.body(shapes.ForgetPerson)
    memory = call.office.memory
    found = await (memory.plan(given.person) if given.dry_run else memory.forget(given.person))
    return answer(_show_forgetting(found))


def _show_forgetting(found: Forgetting) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {**plain, "dead_letters": plain.pop("parked"), "entries": found.entries}


# -- in and out --------------------------------------------------------------------------------------------------------


async def export_person(call: Call) -> Response:
    """Everything that is a person's, as JSON lines."""
    return StreamingResponse(_stream_export(call, _person(call)), media_type=NDJSON)


async def _stream_export(call: Call, person: str) -> AsyncIterator[bytes]:
    async for record in call.office.memory.export(person):
        yield msgspec.json.encode(record) + b"\n"


async def show_memory_files(call: Call) -> Response:
    """The facts about a person, as the Markdown files that an import takes."""
    return answer({"files": await papers.render_memory_files(call.office.memory, _person(call))})


async def import_memory_files(call: Call) -> Response:
    """Note what Markdown files hold, once."""
    given = call.body(shapes.ImportMemoryFiles)
    session = await call.office.find(call.caller, given.session)
    return answer(await papers.bring_in(call.office.memory, session.id, given.files, really=not given.dry_run))


def _person(call: Call) -> str:
    person = call.query.get("person", "")
    if not person:
        raise Misuse("the query names no person", remedy="add ?person=NAME")
    return person
