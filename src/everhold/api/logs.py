"""GET /api/logs: the log lines of this process, the last ones and, as a stream, those that come."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from everhold.api.errors import ApiError, build_json_response
from everhold.api.events import HEARTBEAT_SECONDS, STREAM_HEADERS, take_stream
from everhold.api.log_tail import POLL_SECONDS
from everhold.api.request import ApiCall
from everhold.telemetry.log_file import LOG_LEVELS, LogFilter
from everhold.telemetry.logs import LogLine, build_line_object

MAX_LINES: Final = 1_000
DEFAULT_LINES: Final = 200
MAX_WAITING_LINES: Final = 1_000
"""Lines that a slow reader may be behind. The oldest of more are left out, and their number is told."""


async def show_logs(call: ApiCall) -> Response:
    """Return the last lines that match; with `stream`, also those that come."""
    level = call.query.get("level", "debug")
    if level not in LOG_LEVELS:
        raise ApiError(
            400, "invalid_request", f"there is no level {level[:40]!r}", remedy=f"use one of {', '.join(LOG_LEVELS)}"
        )
    limit = call.get_number("limit", most=MAX_LINES)
    limit = DEFAULT_LINES if limit is None else limit
    wanted = LogFilter(
        level=level,
        event=call.query.get("event", ""),
        session=call.query.get("session", ""),
        words=call.query.get("q", ""),
    )
    if not call.query.get("stream"):
        lines = await asyncio.to_thread(call.context.gateway.logs.read_last, wanted, limit=limit)
        return build_json_response({"lines": lines})
    take_stream(call)
    return StreamingResponse(_stream_lines(call, wanted, limit), media_type="text/event-stream", headers=STREAM_HEADERS)


class _LineQueue:
    """The lines that a reader has yet to get. Any thread may add one."""

    def __init__(self, wanted: LogFilter) -> None:
        self._wanted = wanted
        self._loop = asyncio.get_running_loop()
        self._lines: deque[dict[str, Any]] = deque(maxlen=MAX_WAITING_LINES)
        self._added = asyncio.Event()
        self._lost = 0

    def add(self, line: LogLine) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._add, build_line_object(line))

    def _add(self, line: dict[str, Any]) -> None:
        if self._wanted.matches(line):
            self._lost += len(self._lines) == MAX_WAITING_LINES
            self._lines.append(line)
            self._added.set()

    async def take(self) -> tuple[list[dict[str, Any]], int]:
        """Wait a moment for lines. Return them, and how many were left out before them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._added.wait()
        self._added.clear()
        lines, lost = list(self._lines), self._lost
        self._lines.clear()
        self._lost = 0
        return lines, lost


async def _stream_lines(call: ApiCall, wanted: LogFilter, limit: int) -> AsyncIterator[bytes]:
    queue = _LineQueue(wanted)
    upto, end_watch = call.context.gateway.logs.watch(queue.add)
    try:
        read = call.context.gateway.logs.read_last
        last = await asyncio.to_thread(read, wanted, limit=limit, upto=upto)
        yield b"".join(map(_encode_line, last)) + b"event: live\ndata: {}\n\n"
        quiet = 0.0
        while not call.context.tail.closed and await call.is_still_allowed():
            lines, lost = await queue.take()
            text = b"event: lost\ndata: %b\n\n" % msgspec.json.encode({"lines": lost}) if lost else b""
            text += b"".join(map(_encode_line, lines))
            quiet = 0.0 if text else quiet + POLL_SECONDS
            if quiet >= HEARTBEAT_SECONDS:
                text, quiet = b": heartbeat\n\n", 0.0
            if text:
                yield text
    finally:
        end_watch()


def _encode_line(line: dict[str, Any]) -> bytes:
    return b"event: line\ndata: %b\n\n" % msgspec.json.encode(line)
