"""A small HTTP server for platforms that call us. It checks the size first, then the signature, then the content.

It listens on this machine, behind a reverse proxy that has the certificate. The caller gets 200 only after its update
is committed; otherwise it sends the update again. The server does not start without a secret.

Anybody can call it, and a signature can be checked only when the whole body is here. So bodies and connections of
strangers never keep the platform waiting: if there are too many, the oldest makes room for the newest.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import uvicorn
from starlette.types import Receive, Scope, Send

from everhold.errors import EverholdError, Refused
from everhold.infra.arriving_bodies import ArrivingBodies
from everhold.infra.connection_pool import ConnectionPool
from everhold.infra.http_protocol import BoundedHttpProtocol

MAX_BODY_BYTES: Final = 1 << 20
BODY_SECONDS: Final = 5.0
MAX_CONCURRENT_REQUESTS: Final = 64
"""The limit of bodies that have not arrived yet."""
MAX_CONNECTIONS: Final = 256
CLOSING_CONNECTIONS: Final = 100
"""uvicorn still counts connections that are being closed to make room."""
HEAD_SECONDS: Final = 10.0
"""How long a connection may stay open without a complete request head."""

VerifyRequest = Callable[[Mapping[str, str], bytes], bool]
"""Return whether headers and raw body prove the sender. Called before the body is parsed."""
VerifyHead = Callable[[Mapping[str, str]], bool]
"""Return whether the headers can prove the sender. Called before the body is read."""
AcceptBody = Callable[[bytes], Awaitable[bytes | None]]
"""Accept the update and return the response body, if any. Raises if the platform shall send the update again."""


class WebhookServer:
    """Accepts POST requests at one path."""

    def __init__(
        self,
        *,
        path: str,
        proof: VerifyRequest,
        accept_body: AcceptBody,
        head_proof: VerifyHead = lambda _: True,
        most_bytes: int = MAX_BODY_BYTES,
        seconds: float = BODY_SECONDS,
    ) -> None:
        self._path = path
        self._verify = proof
        self._verify_head = head_proof
        self._accept_body = accept_body
        self._max_body_bytes = most_bytes
        self._body_seconds = seconds
        self._arriving = ArrivingBodies(MAX_CONCURRENT_REQUESTS)

    @property
    def arriving(self) -> int:
        """How many requests have a body that has not arrived yet."""
        return len(self._arriving)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = await self._handle_request(scope, receive)
        status, body = answer if isinstance(answer, tuple) else (answer, b"")
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _handle_request(self, scope: Scope, receive: Receive) -> int | tuple[int, bytes]:
        if scope["path"] != self._path:
            return 404
        if scope["method"] != "POST":
            return 405
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        declared = headers.get("content-length", "0")
        is_number = declared.isascii() and declared.isdigit() and len(declared) <= 20  # int() refuses a very long one
        if not is_number or int(declared) > self._max_body_bytes:
            return 413
        if not self._verify_head(headers):
            return 401
        try:
            async with self._arriving.read(self._body_seconds):
                body = await self._read_body(receive)
        except TimeoutError:
            return 408
        if body is None:
            return 413
        if not self._verify(headers, body):
            return 401
        try:
            return 200, await self._accept_body(body) or b""
        except EverholdError:
            return 503  # not committed, so the platform has to send it again

    async def _read_body(self, receive: Receive) -> bytes | None:
        """Return the whole body, or None if it is too large or does not end in time."""
        data = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise TimeoutError  # the caller has disconnected
            data += message.get("body", b"")
            if len(data) > self._max_body_bytes:
                return None
            if not message.get("more_body", False):
                return bytes(data)

    async def serve(self, *, host: str, port: int, ready: Callable[[int], None] = lambda _: None) -> None:
        """Serve until cancelled. Raises Refused if the port is in use."""
        protocol: Any = functools.partial(WebhookProtocol, pool=ConnectionPool(MAX_CONNECTIONS))
        config = uvicorn.Config(
            self,
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            http=protocol,
            limit_concurrency=MAX_CONNECTIONS + CLOSING_CONNECTIONS,
        )
        server = _WebhookUvicornServer(config)
        task = asyncio.get_running_loop().create_task(server.serve())
        try:
            while not server.started:
                if task.done():
                    raise Refused(f"cannot listen on {host}:{port}", remedy="choose another port")
                await asyncio.sleep(0.01)
            ready(server.servers[0].sockets[0].getsockname()[1])
            await asyncio.wait([task])
        finally:
            server.should_exit = True
            await asyncio.gather(task, return_exceptions=True)


class WebhookProtocol(BoundedHttpProtocol):
    """Closes a connection on which no request head arrives, and the oldest if there are too many, because anybody can
    open very many of them."""

    is_proven = False
    """A signature proves a request, and no other one on its connection."""
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, pool: ConnectionPool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pool = pool
        self.peer = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        if self._pool.add(self):
            self._wait_for_head()
        else:
            transport.close()  # all others are being committed; the platform sends the update again

    def is_idle(self) -> bool:
        """Whether the connection may be closed to make room: it has no request whose body has arrived."""
        cycle: Any = self.cycle  # None before the first request, whatever its annotation says
        return cycle is None or cycle.response_complete or cycle.more_body

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.remove(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._pool.touch(self)
        super().on_response_complete()
        self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.close_idle)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _WebhookUvicornServer(uvicorn.Server):
    """Leaves signals to the gateway, and does not end the process if the port is in use."""

    async def serve(self, sockets: object = None) -> None:
        try:
            await self._serve(None)
        except SystemExit as error:
            raise Refused("the port is in use") from error
