"""/api: messages in, the log and its views out, and what a person in charge may do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response, StreamingResponse

from everhold.control import entry_json, parked_json, session_json
from everhold.memory import fact_json
from everhold.web import shapes
from everhold.web.answers import JSON, Refusal, answer
from everhold.web.call import Call

PAGE = 500
MOST_SESSIONS = 1_000
MOST_MEMORIES = 100


async def send(call: Call) -> Response:
    """Keep a message. Answered only after it is committed."""
    given = call.body(shapes.Message)
    message = call.office.incoming(
        agent=call.agent(given.agent or ""),
        chat=given.chat,
        text=given.text,
        sender=call.caller.speaks_for(given.person or ""),
        id=given.id or "",
    )
    verdict = await call.office.control.send(message)
    match verdict.outcome:
        case "accepted":
            return answer({"session": verdict.session, "seq": verdict.seq}, status=202)
        case "duplicate":
            return answer({"session": verdict.session, "seq": verdict.seq})
        case "differs":
            raise Refusal(
                409,
                "conflict",
                f"message {given.id!r} was accepted before with another text, as entry {verdict.seq}",
                remedy="give a new message a new id",
            )
        case _:
            raise Refusal(403, "denied", verdict.reason)


async def me(call: Call) -> Response:
    """Who you are here."""
    caller = call.caller
    name = caller.sender
    return answer({"name": name, "operator": caller.operator, "local": name == call.office.local})


# -- the log -----------------------------------------------------------------------------------------------------------


async def sessions(call: Call) -> Response:
    """The newest sessions, newest first."""
    limit = call.number("limit", least=1, most=MOST_SESSIONS) or 100
    found = await call.office.sessions(call.caller, limit=limit)
    return answer({"sessions": [session_json(session) for session in found]})


async def session(call: Call) -> Response:
    """One session."""
    return answer(session_json(await call.office.find(call.caller, call.path["id"])))


async def entries(call: Call) -> Response:
    """A session's log, from the entry after `after` on."""
    after, limit = call.number("after") or 0, call.number("limit", least=1)
    found = await call.office.find(call.caller, call.path["id"])
    return StreamingResponse(_entries(call, found.id, after, limit), media_type=JSON)


async def _entries(call: Call, session: str, after: int, limit: int | None) -> AsyncIterator[bytes]:
    """The whole of it as one JSON document, but never more than a page of it in memory."""
    yield b'{"entries":['
    first = True
    while page := await call.office.store.list_entries(session, after=after, limit=min(PAGE, limit or PAGE)):
        lines = b",".join(msgspec.json.encode(entry_json(entry)) for entry in page)
        yield lines if first else b"," + lines
        first = False
        after = page[-1].seq
        if limit is not None:
            limit -= len(page)
            if limit <= 0:
                break
    yield b"]}"


async def context(call: Call) -> Response:
    """What the model was shown at `at`, or would be shown now."""
    at = call.number("at", least=1)
    session = await call.office.find(call.caller, call.path["id"])
    shown = await call.office.control.context(session.id, at=at)
    return answer(msgspec.to_builtins(shown))


# -- what may be done --------------------------------------------------------------------------------------------------


async def undo(call: Call) -> Response:
    """Take back the newest turns, or the newest compression."""
    given = call.body(shapes.Undo)
    session = await call.office.find(call.caller, call.path["id"])
    by = await _author(call)
    said = await call.office.control.undo(session.id, what=given.what, count=given.count, by=by)
    return answer({"session": session.id, "message": said})


async def compress(call: Call) -> Response:
    """Compress a conversation, or only see what that would do. Answered when it is done, or was refused."""
    given = call.body(shapes.Compress)
    session = await call.office.find(call.caller, call.path["id"])
    said = await call.office.control.compress(
        session.id, keep=given.keep, focus=given.focus, preview=given.preview, by=await _author(call)
    )
    return answer({"session": session.id, "message": said})


async def stop(call: Call) -> Response:
    """End what is running."""
    session = await call.office.find(call.caller, call.path["id"])
    said = await call.office.control.stop(session.id, by=await _author(call))
    return answer({"session": session.id, "message": said})


async def note(call: Call) -> Response:
    """Remember a fact. Answered only after it is committed, whatever the memory services do."""
    given = call.body(shapes.Note)
    session = await call.office.find(call.caller, given.session)
    seq = await call.office.control.note(session.id, given.text, by=await _author(call))
    return answer({"session": session.id, "seq": seq}, status=202)


async def memories(call: Call) -> Response:
    """What an agent remembers of a person: what it keeps in mind, and what it finds."""
    query = call.query
    agent = call.agent(query.get("agent", ""))
    person = query.get("person", "")
    own = await call.office.person(call.caller.sender)
    if person not in ("", own) and not call.caller.operator:
        raise Refusal(403, "denied", "only an operator may look into somebody else's memory", remedy="leave person out")
    person = person or own
    limit = call.number("limit", least=1, most=MOST_MEMORIES) or 20
    text = query.get("q", "")
    if text.strip():
        found = await call.office.memory.search(text, agent=agent, person=person, limit=limit)
    else:
        found = {"agent": agent, "person": person, "memories": [], "silent": []}
    facts = await call.office.memory.facts(agent, person)
    return answer({**found, "facts": [fact_json(fact) for fact in facts]})


async def why(call: Call) -> Response:
    """What an answer rested on."""
    at = call.number("at", least=1)
    session = await call.office.find(call.caller, call.path["id"])
    return answer(await call.office.memory.why(session.id, at=at))


async def parked(call: Call) -> Response:
    """What could not be delivered, and why."""
    call.needs_operator()
    return answer({"parked": [parked_json(item) for item in await call.office.store.list_dead_letters()]})


async def replay(call: Call) -> Response:
    """Send parked items again."""
    call.needs_operator()
    given = call.body(shapes.Replay)
    if given.ids is not None and not given.ids:
        return answer({"replayed": 0})
    return answer({"replayed": await call.office.control.replay(given.ids or ())})


async def hand_over(call: Call) -> Response:
    """Hand a memory again what it was handed since a time."""
    call.needs_operator()
    given = call.body(shapes.HandOver)
    memory = call.office.memory
    found = await memory.replay(call.path["name"], since=given.since, agent=given.agent, really=not given.dry_run)
    return answer(found)


async def _author(call: Call) -> str:
    return f"person:{await call.office.person(call.caller.sender)}"
