"""The HTTP server, inside the gateway's own loop: starts, serves, and stops without keeping anybody waiting."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Any, Final

import uvicorn
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from everhold.errors import EverholdError, Misuse
from everhold.web import openapi
from everhold.web.answers import Refusal, answer, refusal_of
from everhold.web.call import Call
from everhold.web.guard import Guard
from everhold.web.office import Office
from everhold.web.operations import Metrics
from everhold.web.page import Page
from everhold.web.protocol import BoundedHead
from everhold.web.routes import Way, ways

GRACE_SECONDS: Final = 2
IDLE_SECONDS: Final = 10.0
"""How long a connection may be there without a complete request head."""
SWEEP_SECONDS: Final = 2.0
MOST_CONNECTIONS: Final = 600


def application(office: Office) -> Guard:
    """Everything behind the guard."""
    metrics = Metrics()

    async def document(call: Call) -> Response:
        """What can be asked of this server."""
        return answer(openapi.document(table))

    table = ways(files=Page(), metrics=metrics, document=document)
    guard = Guard(
        Routes(table, office),
        settings=office.fresh,
        monotonic=office.control.gates.clock.monotonic,
        log=office.log,
        local=office.local,
    )
    metrics.guard = guard
    return guard


class Routes:
    """Finds the route and turns whatever it raises into an answer."""

    def __init__(self, table: tuple[Way, ...], office: Office) -> None:
        self.table = table
        self.office = office
        self._routes = [(Route(way.path, way.handler, methods=[way.method]), way) for way in table]
        self._plain = {(way.method, way.path): way for way in table if "{" not in way.path}
        self._safe = ServerErrorMiddleware(self.serve, handler=self._broken)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._safe(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Without the net: what breaks is raised."""
        try:
            response = await self._find(scope).handler(Call(self.office, scope, receive))
        except Refusal as refusal:
            response = refusal.response()
        except EverholdError as error:
            refused = refusal_of(error)
            scrub = self.office.scrub
            refused.message, refused.remedy = scrub(refused.message), scrub(refused.remedy)
            response = refused.response()
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> Way:
        if plain := self._plain.get((scope["method"], scope["path"])):
            scope["path_params"] = {}
            return plain
        allowed: set[str] = set()
        for route, way in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return way
            if match is Match.PARTIAL:
                allowed |= route.methods or set()
        path, method = scope["path"], scope["method"]
        if not allowed:
            raise Refusal(404, "not_found", f"there is nothing at {path}", remedy="/openapi.json lists what there is")
        names = ", ".join(sorted(allowed))
        raise Refusal(405, "method", f"{path} does not know {method}", remedy=f"use {names}", headers={"allow": names})

    def _broken(self, request: Request, error: Exception) -> Response:
        return Refusal(500, "internal", "something in everhold broke", remedy="`everhold logs` says what").response()


class Server:
    """One listening socket and everything behind it."""

    def __init__(self, office: Office, *, host: str, port: int) -> None:
        self.office = office
        self.socket = _listen(host, port)
        self.guard = application(office)
        config = uvicorn.Config(
            self.guard,
            http=BoundedHead,  # whatever else is installed: its strictness is what the guard was tested with
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,  # nobody tells us who calls
            server_header=False,
            date_header=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=GRACE_SECONDS,
            limit_concurrency=MOST_CONNECTIONS,
        )
        config.load()
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.lifespan = config.lifespan_class(config)
        self._sweeper: asyncio.Task[None] | None = None
        self.idle_seconds = IDLE_SECONDS
        self.sweep_seconds = SWEEP_SECONDS

    @property
    def url(self) -> str:
        """Where people at this machine find it."""
        host, port = self.socket.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        await self._uvicorn.startup(sockets=[self.socket])
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep(), name="http idle connections")

    async def stop(self) -> None:
        """Close every stream, let short requests end, and let go."""
        self.office.tail.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
            await self._uvicorn.shutdown(sockets=[self.socket])
        self.socket.close()

    async def _sweep(self) -> None:
        """Close connections that never come to the point: nobody else limits how slowly a head may arrive."""
        idle: dict[int, tuple[Any, float]] = {}
        clock = self.office.control.gates.clock
        while True:
            await asyncio.sleep(self.sweep_seconds)
            now = clock.monotonic()
            waiting = {id(connection): connection for connection in _idle(self._uvicorn)}
            before, idle = idle, {}
            for key, connection in waiting.items():
                # one that has answered another request since was not idle, only at rest whenever somebody looked
                last, since = before.get(key, (None, now))
                idle[key] = (connection.cycle, since if last is connection.cycle else now)
                if now - idle[key][1] > self.idle_seconds:
                    connection.transport.close()


def _idle(server: uvicorn.Server) -> Iterator[Any]:
    """Connections on which nothing is being answered."""
    for connection in list(server.server_state.connections):
        cycle = getattr(connection, "cycle", None)
        if cycle is None or cycle.response_complete:
            yield connection


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens, or an error that says what to do."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Misuse(
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
            raise Misuse(f"port {port} is in use", remedy="choose another with --port, or stop what uses it") from error
        if error.errno == errno.EACCES:
            raise Misuse(f"port {port} is not allowed", remedy="choose one above 1023 with --port") from error
        remedy = "set http.host to an address of this machine"
        raise Misuse(f"cannot listen on {host}:{port}: {error}", remedy=remedy) from error
    return listening
