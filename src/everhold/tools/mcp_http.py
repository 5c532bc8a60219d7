"""A tool server at a URL: bounds what it may send. The SDK interprets the answers, and would read them without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2

from everhold.errors import Transient

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes that a server sends after a call or a list of ours, in all its answers together."""
MAX_EVENT_LINES: Final = 40_000
"""The same for the lines of its events. An event has at least two."""
STREAM_PAUSE_SECONDS: Final = 1.0
"""The shortest time between two requests for the stream of notifications. The SDK waits as long as the server says,
which may be no time."""


class McpAnswers:
    """What one connection receives. `ended` is set once the server exceeds a limit; `reason` then says which."""

    def __init__(self, *, most_seconds: float) -> None:
        """`most_seconds` is how long the answer to one request may take."""
        self.ended = asyncio.Event()
        self.reason = ""
        self._most_seconds = most_seconds
        self._received_bytes = 0
        self._received_lines = 0
        self._next_stream_at = 0.0

    def allow_more(self) -> None:
        """Begin to count anew, because we ask the server for something. Replies of the SDK to what the server asks are
        no reason, or the server could send without end."""
        self._received_bytes = self._received_lines = 0

    @property
    def hooks(self) -> dict[str, list[Any]]:
        """The event hooks of an HTTP client that keeps the limits."""
        return {"request": [self._on_request], "response": [self._on_response]}

    async def _on_request(self, request: httpx2.Request) -> None:
        request.headers["accept-encoding"] = "identity"
        if request.method == "GET":
            now = asyncio.get_running_loop().time()
            begin = max(now, self._next_stream_at)
            self._next_stream_at = begin + STREAM_PAUSE_SECONDS
            await asyncio.sleep(begin - now)

    async def _on_response(self, response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise self._end("it compresses its answers, although it was asked not to")
        is_open_end = response.request.method == "GET"  # the server sends notifications there at any time
        has_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        most_seconds = None if is_open_end else self._most_seconds
        response.stream = _BoundedStream(response.stream, self, most_seconds, has_events=has_events)

    def count(self, piece: bytes, *, has_events: bool) -> None:
        """Count a piece of an answer. Raises Transient if there is too much."""
        self._received_bytes += len(piece)
        if self._received_bytes > MAX_ANSWER_BYTES:
            raise self._end(f"it sent more than {MAX_ANSWER_BYTES:,} bytes at once")
        if has_events:
            self._received_lines += piece.count(b"\n") + piece.count(b"\r")
            if self._received_lines > MAX_EVENT_LINES:
                raise self._end(f"it sent more than {MAX_EVENT_LINES:,} lines of events at once")

    def end_late(self) -> Transient:
        return self._end(f"one answer took more than {self._most_seconds:g} s")

    def _end(self, reason: str) -> Transient:
        self.reason = self.reason or reason
        self.ended.set()
        return Transient(self.reason)


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of an answer, up to the limits."""

    def __init__(self, body: Any, answers: McpAnswers, most_seconds: float | None, *, has_events: bool) -> None:
        self._body = body
        self._has_events = has_events
        self._answers = answers
        self._most_seconds = most_seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        began = asyncio.get_running_loop().time()
        pieces = aiter(self._body)
        while True:
            try:
                async with asyncio.timeout_at(None if self._most_seconds is None else began + self._most_seconds):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise self._answers.end_late() from None
            self._answers.count(piece, has_events=self._has_events)
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()
