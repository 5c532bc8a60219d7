"""A server for fakes with WebSockets, in plain frames: no compression, no fragments."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import struct
from typing import Any, Final

from everhold.testing.http_listener import abort_connection
from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackServer

_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT: Final = 1
CLOSE: Final = 8
PONG: Final = 10


class LoopbackSocket:
    """The server's side of one WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.closed = False

    async def send_json(self, value: Any) -> bool:
        """Send a JSON value, and return whether the client was connected. That does not mean that it was read."""
        return await self._send_frame(TEXT, json.dumps(value).encode())

    async def send_raw_text(self, data: bytes) -> bool:
        """Send bytes as a text frame, valid UTF-8 or not."""
        return await self._send_frame(TEXT, data)

    async def receive_json(self) -> Any | None:
        """Return the next JSON value from the client, or None when it has disconnected."""
        while True:
            try:
                head, length = await self._reader.readexactly(2)
                size = length & 0x7F
                if size == 126:
                    (size,) = struct.unpack("!H", await self._reader.readexactly(2))
                elif size == 127:
                    (size,) = struct.unpack("!Q", await self._reader.readexactly(8))
                mask = await self._reader.readexactly(4)
                data = bytes(byte ^ mask[n % 4] for n, byte in enumerate(await self._reader.readexactly(size)))
            except (ConnectionError, asyncio.IncompleteReadError):
                self.closed = True
                return None
            match head & 0x0F:
                case 1:
                    return json.loads(data)
                case 8:
                    await self.close()
                    return None
                case 9:
                    await self._send_frame(PONG, data)
                case _:
                    pass

    async def close(self, code: int = 1000) -> None:
        if not self.closed:
            await self._send_frame(CLOSE, struct.pack("!H", code))
            self.closed = True
            self._writer.close()

    def abort(self) -> None:
        """Abort the connection without a close frame."""
        self.closed = True
        abort_connection(self._writer)

    async def _send_frame(self, kind: int, data: bytes) -> bool:
        if self.closed:
            return False
        size = len(data)
        length = (
            bytes([size])
            if size < 126
            else b"\x7e" + struct.pack("!H", size)
            if size < 2**16
            else b"\x7f" + struct.pack("!Q", size)
        )
        try:
            self._writer.write(bytes([0x80 | kind]) + length + data)
            await self._writer.drain()
        except ConnectionError:
            self.closed = True
        return not self.closed


class LoopbackSocketServer(LoopbackServer):
    """A `LoopbackServer` whose subclasses also serve sockets (`serve_socket`)."""

    def __init__(self) -> None:
        super().__init__()
        self.sockets: list[LoopbackSocket] = []

    async def serve_socket(self, request: LoopbackRequest, socket: LoopbackSocket) -> None:
        """Serve one socket until it is closed."""
        raise NotImplementedError

    async def broadcast_raw_text(self, data: bytes) -> None:
        """Send these bytes through every socket."""
        for socket in list(self.sockets):
            await socket.send_raw_text(data)

    def abort_sockets(self) -> None:
        """Abort every socket. Clients may connect again at once."""
        for socket in list(self.sockets):
            socket.abort()

    async def _handle_request(
        self, request: LoopbackRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if request.headers.get("upgrade", "").lower() != "websocket":
            return await super()._handle_request(request, reader, writer)
        await self._upgrade(request, reader, writer)
        return False

    async def _upgrade(
        self, request: LoopbackRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proof = base64.b64encode(
            hashlib.sha1(request.headers["sec-websocket-key"].encode() + _MAGIC, usedforsecurity=False).digest()
        )
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + proof + b"\r\n\r\n"
        )
        socket = LoopbackSocket(reader, writer)
        self.sockets.append(socket)
        try:
            await self.serve_socket(request, socket)
        finally:
            socket.closed = True
            self.sockets.remove(socket)
