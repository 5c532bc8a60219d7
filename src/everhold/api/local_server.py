"""Serves the API to commands on this machine: on `api.sock` in the home, or on loopback where there are no sockets.

Every process that holds the home and runs workers opens this server, for example a `send` without a gateway. It does
not depend on `http.*` in the configuration, so commands work before HTTP is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from uvicorn.server import ServerState

from everhold.api import loopback, unix_socket
from everhold.api.http_protocol import OperatorProtocol
from everhold.api.loopback import LoopbackEndpoint
from everhold.api.middleware import GuardMiddleware
from everhold.api.server import IDLE_SECONDS, SWEEP_SECONDS, close_idle_connections, make_config
from everhold.ports.log import EventLogger

MAX_CONNECTIONS: Final = 128
CLOSE_SECONDS: Final = 1.0
"""How long requests may take to end when the server closes. Streams end at once."""
_CLOSE_POLL_SECONDS: Final = 0.01


class LocalServer:
    """Serves `guard` at `path` from `open` to `close`. Only the holder of the home's lock may open it."""

    def __init__(self, guard: GuardMiddleware, path: Path, *, monotonic: Callable[[], float], log: EventLogger) -> None:
        self.guard = guard
        self.path = path
        self.log = log
        self.monotonic = monotonic
        self.idle_seconds = IDLE_SECONDS
        self.sweep_seconds = SWEEP_SECONDS
        self.state = ServerState()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._inode: int | None = None

    async def open(self) -> None:
        """Start listening. If neither a socket nor loopback works, this process runs on without a local server."""
        try:
            sock, endpoint = self._listen()
        except OSError as error:
            self.log.warning(
                "api_socket.failed",
                error=error,
                remedy="commands cannot reach this process; move the home to a local disk",
            )
            return
        self._inode = os.stat(self.path).st_ino
        protocol = functools.partial(OperatorProtocol, endpoint=endpoint, on_refusal=self._log_refusal)
        config = make_config(self.guard, protocol, max_connections=MAX_CONNECTIONS)
        loop = asyncio.get_running_loop()

        def connect() -> OperatorProtocol:
            return protocol(config=config, server_state=self.state, app_state={}, _loop=loop)

        if endpoint is None:
            self._server = await loop.create_unix_server(connect, sock=sock)
        else:
            self._server = await loop.create_server(connect, sock=sock)
        sweep = close_idle_connections(self.state, self, self.monotonic)
        self._sweeper = loop.create_task(sweep, name="api.sock idle connections")

    async def close(self) -> None:
        """Stop listening, let short requests end, and close all connections. The caller must have ended the streams."""
        if self._server is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        self._server.close()
        self._server = None
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for connection in list(self.state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self.state.connections:  # noqa: ASYNC110  # uvicorn has no event for a closed connection
                    await asyncio.sleep(_CLOSE_POLL_SECONDS)
        # a client that gets no answer sees the connection end, so it knows that this process has ended
        for connection in list(self.state.connections):
            connection.transport.abort()
        tasks = list(self.state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _listen(self) -> tuple[socket.socket, LoopbackEndpoint | None]:
        try:
            return unix_socket.listen_at(self.path), None
        except OSError as error:
            sock, endpoint = loopback.listen_at(self.path)
            reason = error.strerror or str(error)
            self.log.info("api_socket.opened", transport="loopback", port=endpoint.port, reason=reason)
            return sock, endpoint

    def _log_refusal(self) -> None:
        self.log.warning("api_socket.refused", reason="the peer is another user, or does not know the token")
