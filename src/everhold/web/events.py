"""GET /api/events: every entry the moment it is committed, as server-sent events.

An event's id is the entry's place in the log of all sessions, so whoever comes back with the last one they saw misses
nothing, whatever restarted meanwhile. Growing replies come as `piece` events without an id: they may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from everhold.control import entry_json
from everhold.core.entries import Entry
from everhold.web.answers import Refusal
from everhold.web.call import MOST, Call
from everhold.web.tail import POLL_SECONDS, Piece, Watch

PAGE: Final = 200
HEARTBEAT_SECONDS: Final = 15.0
RETRY_MS: Final = 1_000
MOST_STREAMS: Final = 256
GATHER_SECONDS: Final = 0.005
"""What happens within so short a time goes out together: a turn is several commits in a few milliseconds."""
HEADERS: Final = {"x-accel-buffering": "no"}
_encode: Final = msgspec.json.Encoder().encode


async def events(call: Call) -> Response:
    """Everything as it happens; with `Last-Event-ID` (or `after`) everything since."""
    if call.office.tail.watchers >= MOST_STREAMS:
        raise Refusal(503, "busy", "too many streams are open", remedy="close some", headers={"retry-after": "5"})
    after = _after(call)
    only = call.query.get("session", "")
    if only:
        only = (await call.office.find(call.caller, only)).id
    return StreamingResponse(_stream(call, after, only), media_type="text/event-stream", headers=HEADERS)


def _after(call: Call) -> int | None:
    last = call.headers.get("last-event-id", "").strip()
    if not last:
        return call.number("after")
    if len(last) > 20 or not last.isascii() or not last.isdigit() or int(last) > MOST:
        raise Refusal(400, "misuse", "Last-Event-ID must be the id of an event")
    return int(last)


async def _stream(call: Call, after: int | None, only: str) -> AsyncIterator[bytes]:
    tail, store = call.office.tail, call.office.store
    with tail.watching(only) as watch:
        end = await tail.end(store)
        # a place beyond the end is one of another life: the store was put back from a copy
        place = end if after is None or after > end else after
        hello = _encode({"pos": place, "end": end})
        yield b"retry: %d\nid: %d\nevent: hello\ndata: %b\n\n" % (RETRY_MS, place, hello)
        quiet, due = 0.0, True
        while not tail.closed:
            text = await _pieces(call, watch)
            watch.grown = False
            page = await store.read_feed(after=place, limit=PAGE) if due else []
            if page:
                place = page[-1].pos
                text += await _entries(call, page, only)
            if text:
                quiet = 0.0
                yield text
            if len(page) == PAGE:
                continue
            rung = await watch.wait(POLL_SECONDS)
            if rung:
                await asyncio.sleep(GATHER_SECONDS)
            due = watch.grown or not rung
            if not rung:
                quiet += POLL_SECONDS
                if quiet >= HEARTBEAT_SECONDS:
                    quiet = 0.0
                    yield b": still here\n\n"


async def _pieces(call: Call, watch: Watch) -> bytes:
    """What was said since the last look; neighbouring pieces of one reply go as one."""
    joined: list[Piece] = []
    for piece in watch.pieces():
        if joined and joined[-1][:2] == piece[:2] and not piece.anew:
            joined[-1] = joined[-1]._replace(text=joined[-1].text + piece.text)
        elif await call.office.may_see(call.caller, piece.session):
            joined.append(piece)
    return b"".join([b"event: piece\ndata: %b\n\n" % _encode(_shown(piece)) for piece in joined])


def _shown(piece: Piece) -> dict[str, Any]:
    shown = {"session": piece.session, "op": piece.op, "text": piece.text}
    return {**shown, "anew": True} if piece.anew else shown


async def _entries(call: Call, page: list[Entry], only: str) -> bytes:
    if only:
        page = [entry for entry in page if entry.session == only]
    if not call.caller.operator:  # who sees everything
        page = [entry for entry in page if await call.office.may_see(call.caller, entry.session)]
    shown = call.office.tail.shown
    return b"".join([shown(entry, _event) for entry in page])


def _event(entry: Entry) -> bytes:
    data = _encode({"session": entry.session, **entry_json(entry)})
    return b"id: %d\nevent: entry\ndata: %b\n\n" % (entry.pos, data)
