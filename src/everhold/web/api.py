"""/api: messages in, the log and its views out, and what a person in charge may do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from everhold.control import SNAPSHOT, entry_json, session_json
from everhold.core.entries import Place
from everhold.errors import Misuse
from everhold.ports.platform import Incoming
from everhold.ports.store import Session
from everhold.web import shapes
from everhold.web.answers import JSON, Refusal, answer
from everhold.web.call import Call

PAGE = 500
MOST_SESSIONS = 1_000
MOST_HITS = 10_000


async def send(call: Call) -> Response:
    """Keep a message. Answered only after it is committed."""
    given = call.body(shapes.Message)
    verdict = await call.office.control.send(_incoming(call, given))
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
            raise Refusal(403, "denied", verdict.reason or "the message was not accepted")


def _incoming(call: Call, given: shapes.Message) -> Incoming:
    agent, id = call.agent(given.agent or ""), given.id or ""
    sender = call.caller.speaks_for(given.person or "")
    if given.location is None:
        if given.chat is None:
            raise Refusal(400, "misuse", "the message names no chat", remedy="add `chat`, a name you choose")
        if given.directory or given.repo:
            raise Refusal(400, "misuse", "`directory` and `repo` belong to a `location`", remedy="leave them out")
        return call.office.incoming(agent=agent, chat=given.chat, text=given.text, sender=sender, id=id)
    if given.chat is not None:
        raise Refusal(400, "misuse", "a message has a `chat` or a `location`, not both", remedy="leave one out")
    call.needs_operator()
    at = given.location
    return Incoming(
        origin=Place(
            platform=at.origin.platform,
            account=at.origin.account,
            chat=at.origin.chat,
            thread=at.origin.thread,
            message=id,
        ),
        text=given.text,
        sender=sender,
        name=sender,
        kind=at.kind,
        agent=agent,
        directory=given.directory,
        repo=given.repo,
    )


async def me(call: Call) -> Response:
    """Who you are here."""
    caller = call.caller
    name = caller.sender
    return answer({"name": name, "operator": caller.operator, "local": name == call.office.local})


# -- the log -----------------------------------------------------------------------------------------------------------


async def sessions(call: Call) -> Response:
    """The newest sessions, newest first; or the one that a name means."""
    limit = call.number("limit", least=1, most=MOST_SESSIONS) or 100
    name, after = call.query.get("name"), call.query.get("after", "")
    if name is not None:
        found = [await call.office.find(call.caller, name)]
    else:
        found = await call.office.sessions(call.caller, limit=limit, after=after)
    shown = [await _show_session(call, session) for session in found]
    return answer({"sessions": shown, "next": found[-1].id if name is None and len(found) == limit else None})


async def _show_session(call: Call, session: Session) -> dict[str, Any]:
    """A session, and when something was last written there."""
    at = session.created
    if session.last_seq:
        at = (await call.office.store.get_entry(session.id, session.last_seq)).at
    return {**session_json(session), "at": at}


async def session(call: Call) -> Response:
    """One session."""
    return answer(await _show_session(call, await call.office.find(call.caller, call.path["id"])))


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
    name, mark, compression = call.path["id"].partition(SNAPSHOT)
    session = await call.office.find(call.caller, name)
    shown = await call.office.control.context(session.id + mark + compression, at=at)
    return answer(msgspec.to_builtins(shown))


async def compressions(call: Call) -> Response:
    """A session's compressions, oldest first."""
    session = await call.office.find(call.caller, call.path["id"])
    found = await call.office.control.folds(session.id)
    shown = [{"state": op.state, "undone_at": op.undone_at, **entry_json(entry)} for op, entry in found]
    return answer({"session": session.id, "compressions": shown})


async def compression_diff(call: Call) -> Response:
    """What a compression replaced, and with what."""
    op = call.path["op"]
    if len(op) > 16 or not op.isascii() or not op.isdigit():
        raise Refusal(400, "misuse", f"{op!r} is no number of a compression", remedy="see its `op`")
    session = await call.office.find(call.caller, call.path["id"])
    return answer(await call.office.control.diff(session.id, fold=int(op)))


async def addresses(call: Call) -> Response:
    """The addresses that lead to a session now."""
    session = await call.office.find(call.caller, call.path["id"])
    return answer({"session": session.id, "addresses": await call.office.control.addresses(session)})


async def search(call: Call) -> Response:
    """Find what was said, in every session."""
    text = call.query.get("q", "")
    if not text.split():
        raise Misuse("the search has no words", remedy="everhold sessions search 'some words'")
    limit = call.number("limit", least=1, most=MOST_HITS) or 50
    hits = await call.office.control.search(text, limit=limit)
    return answer({"hits": [{"session": entry.session, **entry_json(entry)} for entry in hits]})


# -- what may be done --------------------------------------------------------------------------------------------------


async def undo(call: Call) -> Response:
    """Take back the newest turns, or the newest compression."""
    given = call.body(shapes.Undo)
    session = await call.office.find(call.caller, call.path["id"])
    by = await _author(call)
    said = await call.office.control.undo(session.id, what=given.what, count=given.count, by=by)
    return await _amended(call, session, said)


async def compress(call: Call) -> Response:
    """Compress a conversation, or only see what that would do. Answered when it is done, or was refused."""
    given = call.body(shapes.Compress)
    session = await call.office.find(call.caller, call.path["id"])
    control = call.office.control
    before = len(await control.folds(session.id))
    said = await control.compress(
        session.id, keep=given.keep, focus=given.focus, preview=given.preview, by=await _author(call)
    )
    done = len(await control.folds(session.id)) > before
    return answer({"session": session.id, "message": said, "done": done})


async def stop(call: Call) -> Response:
    """End what is running."""
    session = await call.office.find(call.caller, call.path["id"])
    said = await call.office.control.stop(session.id, by=await _author(call))
    return await _amended(call, session, said)


async def note(call: Call) -> Response:
    """Remember a fact. Answered only after it is committed, whatever the memory services do."""
    given = call.body(shapes.Note)
    session = await call.office.find(call.caller, given.session)
    seq = await call.office.control.note(session.id, given.text, by=await _author(call))
    return answer({"session": session.id, "seq": seq}, status=202)


async def erase(call: Call) -> Response:
    """Remove the bodies of entries for good."""
    given = call.body(shapes.Erase)
    session = await call.office.find(call.caller, call.path["id"])
    erased = await call.office.control.erase(session.id, given.seqs, by=await _author(call), why=given.why)
    return answer({"session": session.id, "erased": list(erased)})


async def _amended(call: Call, before: Session, message: str) -> Response:
    """What was done, in words, and whether that wrote anything."""
    after = await call.office.store.get_session(before.id)
    return answer({"session": before.id, "message": message, "done": after.last_seq > before.last_seq})


async def _author(call: Call) -> str:
    """Who changes something. A command on this machine does it as the operator."""
    return "operator" if call.is_operator_connection else f"person:{await call.person()}"
