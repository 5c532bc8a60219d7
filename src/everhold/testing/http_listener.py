"""Connections and requests of the HTTP servers in `everhold.testing`. It needs only the standard library."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, NamedTuple, Self

_PHRASES: Final = {
    200: "OK", 201: "Created", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden",
    404: "Not Found", 405: "Method Not Allowed", 409: "Conflict", 422: "Unprocessable Entity",
    429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


class RawHttpRequest(NamedTuple):
    """One request as it came. The names of headers are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class HttpListener:
    """Serves on 127.0.0.1. Subclasses answer the requests."""

    buffer_bytes: ClassVar = 2**20

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop of its thread, if it is served from a thread."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int | None = None) -> None:
        """Listen on this port; if none is given, on the last one, at first on any free one."""
        port = self.port if port is None else port
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", port, limit=self.buffer_bytes)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close all connections and keep the state. `start` brings it back at the same address."""
        if self._server is None:
            return
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in list(self._writers):
            abort_connection(writer)
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @contextlib.contextmanager
    def threaded(self) -> Iterator[Self]:
        """Serve from a thread of its own, for callers without an event loop or with a virtual one."""
        with run_loop_in_thread(type(self).__name__) as loop:
            self.loop = loop
            asyncio.run_coroutine_threadsafe(self.start(), loop).result()
            try:
                yield self
            finally:
                asyncio.run_coroutine_threadsafe(self.stop(), loop).result()

    async def serve_request(
        self, received: RawHttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer a request; return whether the connection may be used again."""
        raise NotImplementedError

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (received := await _read_request(reader)) is not None:
                if not await self.serve_request(received, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller disconnected
        finally:
            self._writers.discard(writer)
            writer.close()


@contextlib.contextmanager
def run_loop_in_thread(name: str) -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _read_request(reader: asyncio.StreamReader) -> RawHttpRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return RawHttpRequest(method, target, headers, await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    data = b""
    while size := int((await reader.readline()).split(b";")[0].strip() or b"0", 16):
        data += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return data


def format_head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Status')}", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


async def write_response(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], data: bytes) -> None:
    writer.write(format_head(status, {**headers, "content-length": str(len(data))}) + data)
    await writer.drain()


def abort_connection(writer: asyncio.StreamWriter) -> None:
    """Reset the connection."""
    handle: socket.socket | None = writer.get_extra_info("socket")
    if handle is not None and handle.fileno() >= 0:
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
