"""GET /api/events: every entry as server-sent event when it is committed.

An event's id is the entry's `pos`, so a client that reconnects with the last id it saw misses nothing, even if the
gateway restarted. Growing replies come as `delta` and `reset` events, which have no id and may be lost.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.responses import Response, StreamingResponse

from everhold.admin.sessions import render_entry
from everhold.api.errors import ApiError
from everhold.api.log_tail import POLL_SECONDS
from everhold.api.request import MAX_INTEGER, ApiCall
from everhold.core.entries import Entry
from everhold.ports.hosts import ReplyPiece

PAGE_SIZE: Final = 200
HEARTBEAT_SECONDS: Final = 15.0
RETRY_MS: Final = 1_000
GATHER_SECONDS: Final = 0.005
"""Entries within this time are sent together because a turn makes several commits within a few milliseconds."""
STREAM_HEADERS: Final = {"x-accel-buffering": "no"}
_encode: Final = msgspec.json.Encoder().encode


async def stream_events(call: ApiCall) -> Response:
    """Stream new entries; with `Last-Event-ID` (or `after`, or `after_seq`) also the entries since then."""
    take_stream(call)
    after, after_seq = _parse_start_pos(call), call.get_number("after_seq")
    only = call.query.get("session", "")
    if only:
        only = (await call.context.find_session(call.caller, only)).id
    if after_seq is not None and not only:
        raise ApiError(400, "invalid_request", "`after_seq` is an entry of one session", remedy="add `session`")
    reader = (
        _SessionReader(call, only, after_seq)
        if after_seq is not None and after is None
        else _FeedReader(call, only, after)
    )
    return StreamingResponse(
        _stream_changes(call, reader, only), media_type="text/event-stream", headers=STREAM_HEADERS
    )


def take_stream(call: ApiCall) -> None:
    """Count a stream until its request ends. Operators have room of their own, and no token of theirs uses more
    than half of it; the operator socket limits itself."""
    if call.is_operator_connection:
        return
    context, caller = call.context, call.caller
    slots = context.operator_streams if caller.operator else context.streams
    most = slots.total // 2 if caller.operator else context.agents.settings.quotas.token.event_streams
    if slots.take(caller.account, most=most):
        call.on_end(functools.partial(slots.release, caller.account))
        return
    headers = {"retry-after": "5"}
    if slots.is_full():
        raise ApiError(503, "busy", "too many streams are open", remedy="close some", headers=headers)
    raise ApiError(429, "quota", "this token has too many open streams", remedy="close some", headers=headers)


def _parse_start_pos(call: ApiCall) -> int | None:
    last = call.headers.get("last-event-id", "").strip()
    if not last:
        return call.get_number("after")
    if len(last) > 20 or not last.isascii() or not last.isdigit() or int(last) > MAX_INTEGER:
        raise ApiError(400, "invalid_request", "Last-Event-ID must be the id of an event")
    return int(last)


class _FeedReader:
    """Reads the entries of all sessions that the caller may see, by `pos`."""

    def __init__(self, call: ApiCall, only: str, after: int | None) -> None:
        self._call = call
        self._only = only
        self._after = after
        self.pos = 0

    async def start(self, end: int) -> None:
        # a pos beyond the end was given out before the store was restored from a backup
        self.pos = end if self._after is None or self._after > end else self._after

    async def read_page(self) -> tuple[list[Entry], bool]:
        """Return the next entries, and whether more may be available at once."""
        page = await self._call.context.store.read_feed(after=self.pos, limit=PAGE_SIZE)
        if page:
            self.pos = page[-1].pos
        shown: list[Entry] = page
        if self._only:
            shown = [entry for entry in shown if entry.session == self._only]
        caller = self._call.caller
        if not caller.operator or caller.scope.agents:  # other operators see everything
            context = self._call.context
            seen = {it for it in {entry.session for entry in shown} if await context.can_see(caller, it)}
            shown = [entry for entry in shown if entry.session in seen]
        return shown, page.has_more


class _SessionReader:
    """Reads the log of one session, by `seq`. It reads no entries of other sessions."""

    def __init__(self, call: ApiCall, session: str, after_seq: int) -> None:
        self._store = call.context.store
        self._session = session
        self._seq = after_seq
        self.pos = 0

    async def start(self, end: int) -> None:
        last = min(self._seq, (await self._store.get_session(self._session)).last_seq)
        self.pos = (await self._store.get_entry(self._session, last)).pos if last else 0

    async def read_page(self) -> tuple[list[Entry], bool]:
        page = await self._store.read_log(self._session, after=self._seq, limit=PAGE_SIZE)
        if page:
            self._seq, self.pos = page[-1].seq, page[-1].pos
        return page, page.has_more


async def _stream_changes(call: ApiCall, reader: _FeedReader | _SessionReader, only: str) -> AsyncIterator[bytes]:
    tail, store = call.context.tail, call.context.store
    with tail.watch(only) as watch:
        # read before the first await because the watch receives all later text
        grown = tail.get_growing_reply(only) if only else []
        end = await tail.find_end_pos(store)
        await reader.start(end)
        hello = _encode({"pos": reader.pos, "end": end})
        yield b"retry: %d\nid: %d\nevent: hello\ndata: %b\n\n" % (RETRY_MS, reader.pos, hello)
        quiet, due = 0.0, True
        while not tail.closed and await call.is_still_allowed():
            text = await _show_pieces(call, grown + watch.take_pieces())
            grown = []
            watch.grown = False
            page, full = await reader.read_page() if due else ([], False)
            if due and only and not await call.context.can_see(call.caller, only):
                return  # an identity was unlinked, so the session belongs to somebody else now
            text += b"".join([tail.render_entry(entry, _encode_entry) for entry in page])
            page = []  # a slow reader holds the text only
            if text:
                quiet = 0.0
                yield text
                text = b""
            if full:
                continue
            notified = await watch.wait(POLL_SECONDS)
            if notified:
                await asyncio.sleep(GATHER_SECONDS)
            due = watch.grown or not notified
            if not notified:
                quiet += POLL_SECONDS
                if quiet >= HEARTBEAT_SECONDS:
                    quiet = 0.0
                    yield b": heartbeat\n\n"


async def _show_pieces(call: ApiCall, pieces: list[ReplyPiece]) -> bytes:
    """Render the new pieces of replies. Consecutive pieces of one reply are joined."""
    joined: list[tuple[ReplyPiece, list[str]]] = []
    end = 0
    for piece in pieces:
        last = joined[-1][0] if joined else None
        if last and last[:2] == piece[:2] and not piece.reset and end == piece.at:
            joined[-1][1].append(piece.text)
        elif await call.context.can_see(call.caller, piece.session):
            joined.append((piece, [piece.text]))
        else:
            continue
        end = piece.at + len(piece.text)
    return b"".join([_show_piece(first._replace(text="".join(texts))) for first, texts in joined])


def _show_piece(piece: ReplyPiece) -> bytes:
    where = {"session": piece.session, "op": piece.op}
    reset = b"event: reset\ndata: %b\n\n" % _encode(where) if piece.reset else b""
    if not piece.text:
        return reset
    return reset + b"event: delta\ndata: %b\n\n" % _encode({**where, "at": piece.at, "text": piece.text})


def _encode_entry(entry: Entry) -> bytes:
    data = _encode({"session": entry.session, **render_entry(entry)})
    return b"id: %d\nevent: entry\ndata: %b\n\n" % (entry.pos, data)
