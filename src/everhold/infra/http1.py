"""A direct HTTP/1.1 client: one request at a time per connection, with connection reuse.

A general HTTP client takes several times the CPU time of the rest of a turn. This one sends requests with a body.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

import httptools
from msgspec import Struct

from everhold.infra.deadline import TaskDeadline
from everhold.infra.http_transport import BodyUndecodable, TransportBroken, TransportTimeout, TransportUnreachable

if TYPE_CHECKING:
    import ssl

IDLE_SECONDS: Final = 30.0
"""How long an idle connection is kept."""
MAX_IDLE_CONNECTIONS: Final = 20
MAX_BUFFERED_PIECES: Final = 64
"""How many received pieces may wait to be read before the connection stops receiving."""
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_INFLATED_BYTES: Final = 16 * 1024 * 1024
"""Of one piece that arrives. Compression makes a thousand bytes of one."""
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Of an answer that is read as a whole."""
_TARGET_PATTERN: Final = re.compile(r"[!-~]+")
_HEADER_NAME_PATTERN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE_PATTERN: Final = re.compile(r"[ -~\t]*")
_INFLATE_WINDOW_BITS: Final = 32 + zlib.MAX_WBITS
"""Decodes gzip or zlib."""


class HttpAnswer(Struct, frozen=True, kw_only=True):
    """A whole answer. The header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Http1Transport:
    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        connect_seconds: float,
        send_seconds: float,
        trust: ssl.SSLContext | None,
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "a base_url has a host"
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = {"host": host if parts.port is None else f"{host}:{parts.port}", "accept": "*/*", **headers}
        self._headers = lines
        self._target = parts.path.rstrip("/")
        self._request_head = _build_request_head("POST", target, lines)
        self._connect_seconds = connect_seconds
        self._send_seconds = send_seconds
        self._ssl_context = trust
        self._idle: deque[_Http1Connection] = deque()

    def post(self, body: bytes) -> _Http1Exchange:
        return _Http1Exchange(self, self._request_head, body)

    async def fetch(
        self, method: str, path: str, body: bytes, *, seconds: float, max_bytes: int = MAX_ANSWER_BYTES
    ) -> HttpAnswer:
        """Send a request to a path below the URL, and return the whole answer. Raises TimeoutError after `seconds`."""
        head = _build_request_head(method, f"{self._target}/{path}", self._headers)
        received = bytearray()
        with TaskDeadline(asyncio.get_running_loop().time() + seconds):
            async with _Http1Exchange(self, head, body) as reply:
                async for piece in reply.iterate_body():
                    received += piece
                    if len(received) > max_bytes:
                        raise TransportBroken(f"its answer has more than {max_bytes:,} bytes")
                    if reply.is_consumed:
                        break
                return HttpAnswer(status=reply.status, headers=reply.headers, body=bytes(received))

    async def send_request(self, head: bytes | None, body: bytes) -> _Http1Connection:
        """Return a connection on which the head of the answer has arrived."""
        if head is None:
            raise TransportUnreachable("its URL or one of its headers has a character that HTTP does not allow")
        connection = await self._acquire_connection()
        try:
            await connection.send_request(head, body, seconds=self._send_seconds)
        except BaseException:
            self.release_connection(connection)
            raise
        return connection

    def release_connection(self, connection: _Http1Connection) -> None:
        """Keep the connection for the next request, if it can be reused."""
        if connection.is_reusable and len(self._idle) < MAX_IDLE_CONNECTIONS:
            connection.start_idle_timer(IDLE_SECONDS)
            self._idle.append(connection)
        else:
            connection.abort()

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    async def _acquire_connection(self) -> _Http1Connection:
        while self._idle:
            # the last used connection is the least likely to be closed
            connection = self._idle.pop()
            if connection.is_open:
                connection.stop_idle_timer()
                return connection
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(
                    _Http1Connection,
                    self._host,
                    self._port,
                    ssl=self._ssl_context,
                    server_hostname=self._host if self._ssl_context else None,
                )
        except TimeoutError as error:
            raise TransportTimeout("connection") from error
        except (OSError, UnicodeError) as error:
            raise TransportUnreachable(str(error) or type(error).__name__) from error
        return connection


class _Http1Exchange:
    """One request: its connection, while the answer is read."""

    __slots__ = ("_body", "_connection", "_head", "_transport")

    def __init__(self, transport: Http1Transport, head: bytes | None, body: bytes) -> None:
        self._transport = transport
        self._head = head
        self._body = body

    async def __aenter__(self) -> _Http1Connection:
        self._connection = await self._transport.send_request(self._head, self._body)
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        self._transport.release_connection(self._connection)


def _build_request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes | None:
    """Return the head of a request up to its length, or None if it would not be valid HTTP."""
    if not _TARGET_PATTERN.fullmatch(target) or not all(
        _HEADER_NAME_PATTERN.fullmatch(n) and _HEADER_VALUE_PATTERN.fullmatch(v) for n, v in headers.items()
    ):
        return None
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join((f"{method} {target} HTTP/1.1", *lines, "content-length: ")).encode("ascii")


class _Http1Connection(asyncio.Protocol):
    """One connection, and the answer that it receives."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._write_paused = False
        """The send buffer is above its limit."""
        self._read_paused = False
        self._body_received = True
        self._keep_alive = True
        """Neither side closes the connection after this answer."""
        self._head_bytes = 0
        self._error: Exception | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._decompressor: zlib._Decompress | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # some event loops' transports have the methods without the base class

    def data_received(self, data: bytes) -> None:
        if self._error is not None:
            return
        try:
            if self._body_received:
                raise TransportBroken("the server sent data without a request")
            self._parser.feed_data(data)
            if not self.status:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    raise TransportBroken("the head of its answer has no end")
        except (TransportBroken, BodyUndecodable) as error:
            self._abort_with(error)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._abort_with(
                cause if isinstance(cause, TransportBroken | BodyUndecodable) else BodyUndecodable(str(cause))
            )
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._abort_with(TransportBroken(f"the data is not HTTP: {error}"))
        self._wake_waiter()

    def eof_received(self) -> None:
        """Handle the end of the connection. Some answers end with it; the others are incomplete."""
        if (
            self.status
            and not self._body_received
            and not {"content-length", "transfer-encoding"} & self.headers.keys()
        ):
            self._keep_alive = False
            self._finish_body()
        elif not self._body_received:
            self._fail(TransportBroken("the connection was closed"))
        self._wake_waiter()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail(TransportBroken(str(error) if error else "the connection was closed"))

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._wake_waiter()

    # -- called by the parser

    def on_message_begin(self) -> None:
        if self._body_received:
            raise TransportBroken("the server sent data without a request")
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # a lower status is informational and precedes the answer
            self._choose_encoding()
            self.status = status

    def on_body(self, data: bytes) -> None:
        if self._decompressor is not None:
            data = self._decompressor.decompress(data, MAX_INFLATED_BYTES)
            if self._decompressor.unconsumed_tail:
                raise BodyUndecodable(
                    f"a piece of its answer is larger than {MAX_INFLATED_BYTES:,} bytes when inflated"
                )
        self._pieces.append(data)
        if len(self._pieces) > MAX_BUFFERED_PIECES and not self._read_paused and self._transport is not None:
            self._read_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status:
            self._keep_alive = self._parser.should_keep_alive()
            self._finish_body()

    # -- called by the client

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._error is None

    @property
    def is_consumed(self) -> bool:
        return self._body_received and not self._pieces

    @property
    def is_reusable(self) -> bool:
        """Return whether the last answer was read to its end and the server keeps the connection open."""
        return self.is_open and self.is_consumed and self._keep_alive and not self._write_paused

    def start_idle_timer(self, seconds: float) -> None:
        if self._read_paused and self._transport is not None:
            self._read_paused = False
            self._transport.resume_reading()
        self._expiry = asyncio.get_running_loop().call_later(seconds, self.abort)

    def stop_idle_timer(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def abort(self) -> None:
        self.stop_idle_timer()
        if self._transport is not None:
            self._transport.abort()

    async def send_request(self, head: bytes, body: bytes, *, seconds: float) -> None:
        """Send a request and wait for the head of its answer."""
        self._pieces.clear()
        self._body_received, self.status, self.headers, self._decompressor, self._head_bytes = False, 0, {}, None, 0
        if self._transport is None:
            raise self._error or TransportBroken("the connection was closed")
        self._transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        if self._write_paused:
            await self._wait_until_sent(seconds)
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait_for_progress()

    def iterate_body(self) -> _Http1Connection:
        return self

    def __aiter__(self) -> _Http1Connection:
        return self

    async def __anext__(self) -> bytes:
        """Return the data received since the last call. It is not a generator, because the event loop would have to
        track one."""
        while True:
            if self._pieces:
                # pass on everything that has arrived at once, because a short answer arrives as a whole
                piece = b"".join(self._pieces)
                self._pieces.clear()
                if self._read_paused and self._transport is not None:
                    self._read_paused = False
                    self._transport.resume_reading()
                if piece:
                    return piece
            if self._body_received:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            await self._wait_for_progress()

    # -- internal

    async def _wait_until_sent(self, seconds: float) -> None:
        """Wait until the request is sent, or the answer comes earlier."""
        try:
            async with asyncio.timeout(seconds):
                while self._write_paused and not self.status and self._error is None:
                    await self._wait_for_progress()
        except TimeoutError as error:
            raise TransportTimeout("end of our sending") from error

    async def _wait_for_progress(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake_waiter(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._wake_waiter()

    def _abort_with(self, error: Exception) -> None:
        self._fail(error)
        self.abort()

    def _finish_body(self) -> None:
        if self._decompressor is not None:
            self._pieces.append(self._decompressor.flush())
        self._body_received = True

    def _choose_encoding(self) -> None:
        match self.headers.get("content-encoding", "").strip().lower():
            case "" | "identity":
                pass
            case "gzip" | "x-gzip" | "deflate":
                self._decompressor = zlib.decompressobj(_INFLATE_WINDOW_BITS)
            case other:
                raise BodyUndecodable(f"{other}, which was not requested")
