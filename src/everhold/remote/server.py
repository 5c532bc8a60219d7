"""The socket's listening side. A client that lies, hangs or dies is left alone; nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Any, Final

from everhold.errors import EverholdError, Misuse, Transient
from everhold.ports.log import Log
from everhold.remote import loopback, place, wire
from everhold.remote.methods import Methods

MOST_CLIENTS: Final = 128
PATIENCE_SECONDS: Final = 60.0
"""How long a client may leave an answer unread."""


class Server:
    """Serves `methods` at `path` from `open` to `close`. Only the holder of the home's lock may open it."""

    def __init__(self, path: Path, methods: Methods, *, log: Log) -> None:
        self.path = path
        self.methods = methods
        self.log = log
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._inode: int | None = None
        self._door: loopback.Door | None = None

    async def open(self) -> None:
        """Listen. Where even loopback is no way, a home still works, but for commands beside the gateway."""
        try:
            sock = self._listen()
        except OSError as error:
            self.log.warning(
                "control.closed",
                error=error,
                remedy="commands cannot reach this process; move the home to a local disk",
            )
            return
        self._inode = os.stat(self.path).st_ino
        self._server = await asyncio.start_server(self._connected, sock=sock, limit=wire.LIMIT)

    def _listen(self) -> socket.socket:
        try:
            return place.listen(self.path)
        except OSError as error:
            sock, self._door = loopback.listen(self.path)
            self.log.info("control.loopback", port=self._door.port, reason=error.strerror or str(error))
            return sock

    async def close(self) -> None:
        """Stop listening and let go of every client."""
        if self._server is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        self._server.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        self._server = None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(_Line(reader, writer)), name="control")
        self._clients.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._clients.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log.error("control.fell", error=error)  # a bug of ours: it costs this client its answer, nobody else

    async def _serve(self, line: _Line) -> None:
        try:
            if not await self._trusts(line):
                self.log.warning("control.stranger")
                return
            if len(self._clients) > MOST_CLIENTS:
                raise Transient("too many commands at once", remedy="try again")
            while (request := await line.read()) is not None:
                await self._answer(line, request)
        except EverholdError as error:  # what cannot be understood leaves nothing to go on with
            with contextlib.suppress(OSError, TimeoutError):
                await line.write({"id": None, "error": wire.to_json(error)})
        except (OSError, TimeoutError) as error:
            self.log.debug("control.left", error=error)
        finally:
            line.close()

    async def _trusts(self, line: _Line) -> bool:
        if self._door is not None:
            return await loopback.admit(line.reader, line.writer, self._door)
        return place.is_trusted(line.socket)

    async def _answer(self, line: _Line, request: dict[str, Any]) -> None:
        id, name, params = request.get("id"), request.get("method"), request.get("params", {})
        if not isinstance(id, int | str) or not isinstance(name, str):
            raise Misuse("a request has an id and a method", remedy='{"id": 1, "method": "ping", "params": {}}')
        try:
            if self.methods.follows(name):
                await self._follow(line, id, name, params)
                return
            data = wire.encode({"id": id, "result": await self.methods.call(name, params)})
        except EverholdError as error:
            data = wire.encode({"id": id, "error": wire.to_json(error)})
        await line.put(data)

    async def _follow(self, line: _Line, id: int | str, name: str, params: object) -> None:
        """Send events until the client leaves; whatever else it says meanwhile ends it, too."""

        async def send() -> None:
            async for event in self.methods.follow(name, params):
                await line.write({"id": id, "event": event})

        sending = asyncio.ensure_future(send())
        leaving = asyncio.ensure_future(line.reader.read(1))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait({sending, leaving})
        if not sending.cancelled():
            sending.result()
        raise ConnectionError("the follower left")


class _Line:
    """One client's connection, line by line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def socket(self) -> socket.socket:
        found: socket.socket = self.writer.get_extra_info("socket")
        return found

    async def read(self) -> dict[str, Any] | None:
        """The next request, None once the client is gone."""
        try:
            return wire.decode(await self.reader.readuntil(b"\n"))
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError:
            raise Misuse(f"that line is longer than {wire.LIMIT >> 20} MB", remedy="send less at once") from None

    async def write(self, message: dict[str, Any]) -> None:
        await self.put(wire.encode(message))

    async def put(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.writer.drain()

    def close(self) -> None:
        """Let go at once: whoever has not read its answer by now is not waited for longer than a moment."""
        self.writer.close()
