"""Handlers of /api for messages and sessions: accepting messages, reading logs, and changing sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from everhold.admin.sessions import SNAPSHOT_MARK, render_entry, render_session
from everhold.api import overview, schemas
from everhold.api.errors import JSON_MEDIA_TYPE, ApiError, build_json_response, build_limited_error
from everhold.api.inspection import OWN_SETUP_KINDS
from everhold.api.openai_shared import find_payer_role
from everhold.api.request import ApiCall
from everhold.api.request_files import RequestFiles
from everhold.core.consumers import TURN
from everhold.core.entries import ChatLocation, Heard
from everhold.core.people import PERSON_MEMBER
from everhold.errors import InvalidRequest, NotFound
from everhold.platforms import http
from everhold.ports.platform import AcceptResult, IncomingMessage
from everhold.ports.store import Session

PAGE_SIZE = 500
MAX_SESSIONS = 1_000
MAX_HITS = 10_000
OUTAGE_TEXT = "The model cannot be asked now. The operator has to act."
"""What a person hears of a failure, because the error may describe the operator's services."""


async def accept_message(call: ApiCall) -> Response:
    """Commit a message. The response is sent after the commit."""
    given = call.decode_body(schemas.MessageRequest)
    files = RequestFiles(call)
    attached = tuple([await files.add_upload(id) for id in given.files])
    incoming = msgspec.structs.replace(
        _make_incoming_message(call, given),
        by_operator=call.caller.operator,
        attachments=attached,
        files=tuple(files.contents[file.blob] for file in attached),
    )
    verdict = await call.context.control.send_message(incoming)
    match verdict.outcome:
        case "accepted":
            return build_json_response({"session": verdict.session, "seq": verdict.seq}, status=202)
        case "duplicate":
            return build_json_response({"session": verdict.session, "seq": verdict.seq})
        case "differs":
            raise ApiError(
                409,
                "conflict",
                f"message {given.id!r} was accepted before with another text, as entry {verdict.seq}",
                remedy="give a new message a new id",
            )
        case "limited":
            raise build_limited_error(verdict)
        case _:
            raise ApiError(403, "denied", verdict.reason or "the message was not accepted")


def _make_incoming_message(call: ApiCall, given: schemas.MessageRequest) -> IncomingMessage:
    agent, id = call.resolve_agent(given.agent or ""), given.id or ""
    sender = call.caller.resolve_sender(given.person or "")
    if given.location is None:
        if given.chat is None:
            raise ApiError(400, "invalid_request", "the message names no chat", remedy="add `chat`, a name you choose")
        if given.directory or given.repo:
            raise ApiError(
                400, "invalid_request", "`directory` and `repo` belong to a `location`", remedy="leave them out"
            )
        return call.context.build_incoming_message(
            call.caller, agent=agent, chat=given.chat, text=given.text, sender=sender, id=id, trace=call.traceparent
        )
    if given.chat is not None:
        raise ApiError(
            400, "invalid_request", "a message has a `chat` or a `location`, not both", remedy="leave one out"
        )
    call.require_operator()
    at = given.location
    return IncomingMessage(
        origin=ChatLocation(
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
        via=call.caller.account if sender != call.caller.sender else "",
    )


async def get_caller(call: ApiCall) -> Response:
    """Return who the caller is."""
    caller, scope = call.caller, call.caller.scope
    return build_json_response(
        {
            "name": caller.sender,
            "role": scope.role,
            "operator": caller.operator,
            "local": caller.sender == call.context.local_person,
            "agents": scope.agents,
            "read_only": scope.read_only,
            "login": caller.login,
        }
    )


# -- the log -----------------------------------------------------------------------------------------------------------


async def list_sessions(call: ApiCall) -> Response:
    """Return the newest sessions, newest first, or the one that `name` refers to."""
    if call.query.get("order") == "active":
        return await overview.list_active_sessions(call)
    limit = call.get_number("limit", least=1, most=MAX_SESSIONS) or 100
    name, after = call.query.get("name"), call.query.get("after", "")
    if name is not None:
        found = [await call.context.find_session(call.caller, name)]
    else:
        found = await call.context.list_sessions(call.caller, limit=limit, after=after)
    shown = [await _show_session(call, session) for session in found]
    return build_json_response(
        {"sessions": shown, "next": found[-1].id if name is None and len(found) == limit else None}
    )


async def _show_session(call: ApiCall, session: Session) -> dict[str, Any]:
    """Return a session with the time of its last entry."""
    at = session.created
    if session.last_seq:
        at = (await call.context.store.get_entry(session.id, session.last_seq)).at
    return {**render_session(session), "at": at}


async def get_session(call: ApiCall) -> Response:
    """Return one session."""
    session = await call.context.find_session(call.caller, call.path["id"])
    return build_json_response({**await _show_session(call, session), "waiting": await _describe_wait(call, session)})


async def _describe_wait(call: ApiCall, session: Session) -> dict[str, Any] | None:
    """Return why the turn of a session waits after a failure; None if it does not."""
    cursor = await call.context.store.get_cursor(TURN, session.id)
    if cursor is None or not cursor.error or cursor.since is None:
        return None
    return {
        "reason": cursor.error if call.caller.operator else OUTAGE_TEXT,
        "attempts": cursor.attempts,
        "retry_at": cursor.since + cursor.wait if cursor.wait else None,
    }


async def retry_waiting(call: ApiCall) -> Response:
    """Try everything now that waits after a failure, because its cause was repaired."""
    return build_json_response({"retried": await call.context.control.retry_waiting()})


async def list_entries(call: ApiCall) -> Response:
    """Return a session's log, from the entry after `after` on."""
    after, limit = call.get_number("after") or 0, call.get_number("limit", least=1)
    found = await call.context.find_session(call.caller, call.path["id"])
    return StreamingResponse(_stream_entries(call, found.id, after, limit), media_type=JSON_MEDIA_TYPE)


async def _stream_entries(call: ApiCall, session: str, after: int, limit: int | None) -> AsyncIterator[bytes]:
    """Stream the entries as one JSON document, with at most one page of them in memory."""
    yield b'{"entries":['
    first = True
    while page := await call.context.store.read_log(session, after=after, limit=min(PAGE_SIZE, limit or PAGE_SIZE)):
        after = page[-1].seq
        if limit is not None:
            limit -= len(page)
        lines = b",".join(msgspec.json.encode(render_entry(entry)) for entry in page)
        page.clear()  # a slow reader holds the text only
        yield lines if first else b"," + lines
        first = False
        if limit is not None and limit <= 0:
            break
    yield b"]}"


async def get_context(call: ApiCall) -> Response:
    """Return the context that the model received at `at`, or would receive now."""
    at = call.get_number("at", least=1)
    name, mark, compression = call.path["id"].partition(SNAPSHOT_MARK)
    session = await call.context.find_session(call.caller, name)
    shown = msgspec.to_builtins(await call.context.control.load_context(session.id + mark + compression, at=at))
    if not call.caller.operator:  # how the agent is set up is no part of a person's conversation
        shown["request"] |= {"system": "", "tools": []}
        shown["parts"] = [it for it in shown["parts"] if it["kind"] not in OWN_SETUP_KINDS]
    return build_json_response(shown)


async def list_compressions(call: ApiCall) -> Response:
    """Return a session's compressions, oldest first."""
    session = await call.context.find_session(call.caller, call.path["id"])
    found = await call.context.control.list_compressions(session.id)
    shown = [{"state": op.state, "undone_at": op.undone_at, **render_entry(entry)} for op, entry in found]
    return build_json_response({"session": session.id, "compressions": shown})


async def show_compression_diff(call: ApiCall) -> Response:
    """Return what a compression replaced, and its replacement."""
    op = call.path["op"]
    if len(op) > 16 or not op.isascii() or not op.isdigit():
        raise ApiError(
            400, "invalid_request", f"{op!r} is not the number of a compression", remedy="use the compression's `op`"
        )
    session = await call.context.find_session(call.caller, call.path["id"])
    return build_json_response(await call.context.control.diff_compression(session.id, compression=int(op)))


async def list_addresses(call: ApiCall) -> Response:
    """Return the addresses that are bound to a session."""
    session = await call.context.find_session(call.caller, call.path["id"])
    return build_json_response({"session": session.id, "addresses": await call.context.control.list_addresses(session)})


async def search_entries(call: ApiCall) -> Response:
    """Search the entries of all sessions."""
    text = call.query.get("q", "")
    if not text.split():
        raise InvalidRequest("the search has no words", remedy="everhold sessions search 'some words'")
    limit = call.get_number("limit", least=1, most=MAX_HITS) or 50
    hits = await call.context.control.search_entries(text, limit=limit)
    return build_json_response({"hits": [{"session": entry.session, **render_entry(entry)} for entry in hits]})


# -- changes -----------------------------------------------------------------------------------------------------------


async def undo_operations(call: ApiCall) -> Response:
    """Undo the newest turns, or the newest compression."""
    given = call.decode_body(schemas.UndoRequest)
    session = await call.context.find_session(call.caller, call.path["id"])
    by = call.author
    said = await call.context.control.undo_turns(session.id, what=given.what, count=given.count, by=by)
    return await _report_change(call, session, said)


async def list_pins(call: ApiCall) -> Response:
    """Return what is pinned in a session, oldest first."""
    session = await call.context.find_session(call.caller, call.path["id"])
    found = await call.context.control.list_pins(session.id)
    shown = [{"session": one.entry.session, "by": one.pin.by, **render_entry(one.entry)} for one in found]
    return build_json_response({"session": session.id, "pins": shown})


async def pin_entry(call: ApiCall) -> Response:
    """Keep an entry verbatim in the context."""
    given = call.decode_body(schemas.PinRequest)
    session = await call.context.find_session(call.caller, call.path["id"])
    if not call.caller.operator:
        await _require_pinnable(call, session, given.seq)
    said = await call.context.control.pin_entry(session.id, given.seq, by=call.author)
    return await _report_change(call, session, said)


async def _require_pinnable(call: ApiCall, session: Session, seq: int) -> None:
    """Refuse to pin what another person said, for example an operator in a session of the caller's. Raises ApiError."""
    try:
        entry = await call.context.store.get_entry(session.id, seq)
    except NotFound:
        return  # the answer says so
    if not isinstance(entry.body, Heard):
        return
    people = await call.context.store.get_people()
    if entry.author not in people.list_same_authors(f"{PERSON_MEMBER}{call.identity}"):
        raise ApiError(
            403, "denied", "only an operator may pin another person's words", remedy="pin what you said, or an answer"
        )


async def unpin_entry(call: ApiCall) -> Response:
    """Remove a pin, or all pins."""
    given = call.decode_body(schemas.UnpinRequest)
    session = await call.context.find_session(call.caller, call.path["id"])
    said = await call.context.control.unpin_entry(session.id, given.seq, by=call.author)
    return await _report_change(call, session, said)


async def compress_session(call: ApiCall) -> Response:
    """Compress a session, or preview that. The response is sent when the compression is done or refused."""
    given = call.decode_body(schemas.CompressRequest)
    session = await call.context.find_session(call.caller, call.path["id"])
    control = call.context.control
    before = len(await control.list_compressions(session.id))
    said = await control.compress_session(
        session.id, keep=given.keep, focus=given.focus, preview=given.preview, by=call.author
    )
    done = len(await control.list_compressions(session.id)) > before
    return build_json_response({"session": session.id, "message": said, "done": done})


async def stop_operation(call: ApiCall) -> Response:
    """Stop the running turn."""
    session = await call.context.find_session(call.caller, call.path["id"])
    said = await call.context.control.stop_turn(session.id, by=call.author)
    return await _report_change(call, session, said)


async def add_note(call: ApiCall) -> Response:
    """Commit a note. The response does not wait for the memories."""
    given = call.decode_body(schemas.NoteRequest)
    session, by = await call.context.find_session(call.caller, given.session), call.author
    if not call.caller.operator:
        await _take_note(call, session.agent, len(given.text))
    seq = await call.context.control.add_note(session.id, given.text, by=by)
    return build_json_response({"session": session.id, "seq": seq}, status=202)


async def _take_note(call: ApiCall, agent: str, size: int) -> None:
    """Charge a note to its author. Raises ApiError if a quota refuses it."""
    sender = call.caller.resolve_sender("")
    role = await find_payer_role(call, agent, call.identity)
    origin = http.locate_chat(chat="", sender=sender, local=False, id="")
    refusal = await call.context.gateway.take_note(call.identity, role, origin, size)
    if refusal is not None:
        raise build_limited_error(
            AcceptResult(outcome="limited", reason=refusal.explain(), retry_after=refusal.retry_after)
        )


async def erase_entries(call: ApiCall) -> Response:
    """Erase the bodies of entries."""
    given = call.decode_body(schemas.EraseRequest)
    session = await call.context.find_session(call.caller, call.path["id"])
    erased = await call.context.control.erase_entries(session.id, given.seqs, by=call.author, why=given.why)
    return build_json_response({"session": session.id, "erased": list(erased)})


async def _report_change(call: ApiCall, before: Session, message: str) -> Response:
    """Return the message about a change, and whether the change wrote an entry."""
    after = await call.context.store.get_session(before.id)
    return build_json_response({"session": before.id, "message": message, "done": after.last_seq > before.last_seq})
