"""The HTTP server over TCP, which runs in the gateway's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import uvicorn
from uvicorn.server import ServerState

from everhold.api.context import ApiContext
from everhold.api.http_protocol import BoundedHeadProtocol
from everhold.api.middleware import GuardMiddleware
from everhold.errors import InvalidRequest
from everhold.infra.connection_pool import ConnectionPool

GRACE_SECONDS: Final = 2
IDLE_SECONDS: Final = 10.0
"""How long a connection may stay open without a complete request head, and how long a request without a credential may
take. A client that does not read its response would keep the connection for ever."""
SWEEP_SECONDS: Final = 2.0
MAX_CONNECTIONS: Final = 600
CLOSING_CONNECTIONS: Final = 200
"""uvicorn still counts connections that are being closed to make room."""


class HttpServer:
    """Serves the API on one listening socket."""

    def __init__(self, context: ApiContext, guard: GuardMiddleware, *, host: str, port: int) -> None:
        self.context = context
        self.socket = _open_socket(host, port)
        self.guard = guard
        self.pool = ConnectionPool(MAX_CONNECTIONS)
        protocol = functools.partial(BoundedHeadProtocol, pool=self.pool)
        config = make_config(guard, protocol, max_connections=MAX_CONNECTIONS + CLOSING_CONNECTIONS)
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.lifespan = config.lifespan_class(config)
        self._sweeper: asyncio.Task[None] | None = None
        self.idle_seconds = IDLE_SECONDS
        self.sweep_seconds = SWEEP_SECONDS

    @property
    def url(self) -> str:
        """The URL of the server on this machine."""
        host, port = self.socket.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # nosec B104  # maps it to loopback
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        await self._uvicorn.startup(sockets=[self.socket])
        sweep = close_idle_connections(self._uvicorn.server_state, self, self.context.control.gates.clock.monotonic)
        self._sweeper = asyncio.get_running_loop().create_task(sweep, name="http idle connections")

    async def stop(self) -> None:
        """Close all streams, let short requests end, and close the socket."""
        self.context.tail.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
            await self._uvicorn.shutdown(sockets=[self.socket])
        self.socket.close()


class IdleLimits(Protocol):
    """How long a connection may be idle, and how often that is checked."""

    idle_seconds: float
    sweep_seconds: float


async def close_idle_connections(state: ServerState, limits: IdleLimits, monotonic: Callable[[], float]) -> None:
    """Close idle connections, until cancelled. uvicorn has no limit for a request head, and none for a response that
    the client does not read."""
    idle: dict[int, tuple[Any, float]] = {}
    while True:
        await asyncio.sleep(limits.sweep_seconds)
        now = monotonic()
        waiting = {id(connection): connection for connection in _list_idle(state)}
        before, idle = idle, {}
        for key, connection in waiting.items():
            # a connection that has answered another request since the last check was not idle in between
            last, since = before.get(key, (None, now))
            idle[key] = (connection.cycle, since if last is connection.cycle else now)
            if now - idle[key][1] > limits.idle_seconds:
                connection.close_idle()


def _list_idle(state: ServerState) -> Iterator[BoundedHeadProtocol]:
    """Yield the connections on which no request with a credential is being answered."""
    for connection in list(state.connections):
        if isinstance(connection, BoundedHeadProtocol) and connection.is_idle():
            yield connection


def make_config(guard: GuardMiddleware, protocol: Any, *, max_connections: int) -> uvicorn.Config:
    """Return uvicorn's configuration for the API, the same for all sockets."""
    config = uvicorn.Config(
        guard,
        http=protocol,  # fixed, because the guard was tested with the strictness of this parser
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,  # headers must not decide who the caller is
        server_header=False,
        date_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=max_connections,
    )
    config.load()
    return config


def _open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises InvalidRequest with a remedy."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidRequest(
            f"cannot listen on {host}: {error}", remedy="set http.host to an address of this machine"
        ) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(256)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise InvalidRequest(
                f"port {port} is in use", remedy="choose another with --port, or stop what uses it"
            ) from error
        if error.errno == errno.EACCES:
            raise InvalidRequest(f"port {port} is not allowed", remedy="choose one above 1023 with --port") from error
        remedy = "set http.host to an address of this machine"
        raise InvalidRequest(f"cannot listen on {host}:{port}: {error}", remedy=remedy) from error
    return listening
