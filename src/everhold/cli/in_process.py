"""The API in this process: a command calls the application that a gateway would serve, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message

from everhold.api.scope_keys import OPERATOR_CONNECTION
from everhold.cli.transport import ApiResponse, ApiTransport


class InProcessTransport(ApiTransport):
    """Calls `app`. The caller is an operator because the process could open the home."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    @asynccontextmanager
    async def open(self, method: str, target: str, body: bytes | None) -> AsyncGenerator[ApiResponse, None]:
        exchange = _InProcessExchange(body)
        serving = asyncio.ensure_future(self.app(_make_scope(method, target, body), exchange.receive, exchange.send))
        serving.add_done_callback(exchange.on_finished)
        try:
            start = await exchange.take_message()
            if start is None:
                serving.result()  # raises the application's exception
                raise AssertionError("the application sent no response")
            headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
            is_json = headers.get("content-type", "").startswith("application/json")
            yield ApiResponse(start["status"], is_json, _read_body(exchange, serving))
        finally:
            if not serving.done():
                serving.cancel()
            await asyncio.wait({serving})


class _InProcessExchange:
    """One request and its response, between the command and the application."""

    def __init__(self, body: bytes | None) -> None:
        self._body: bytes | None = body or b""
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()  # the command never disconnects; it cancels the request instead
        raise AssertionError

    async def send(self, message: Message) -> None:
        self._messages.put_nowait(message)

    async def take_message(self) -> Message | None:
        """Return the next message of the response, or None once the application has returned."""
        return await self._messages.get()

    def on_finished(self, _: object) -> None:
        self._messages.put_nowait(None)


async def _read_body(exchange: _InProcessExchange, serving: asyncio.Future[None]) -> AsyncIterator[bytes]:
    while (message := await exchange.take_message()) is not None:
        if body := message.get("body"):
            yield body
    serving.result()  # raises the application's exception, with its traceback


def _make_scope(method: str, target: str, body: bytes | None) -> dict[str, Any]:
    path, _, query = target.partition("?")
    headers = [(b"host", b"localhost")]
    if body is not None:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote_to_bytes(path).decode(),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "client": None,
        "server": None,
        OPERATOR_CONNECTION: True,
    }
