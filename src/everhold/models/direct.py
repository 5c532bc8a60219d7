"""Straight to a model server over HTTP/1.1: one question at a time on a connection, which is kept for the next.

A general HTTP client costs several times the CPU of all else a turn does; this one knows only how to POST.
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

from everhold.models.road import Broken, Slow, Undecodable, Unreachable

if TYPE_CHECKING:
    import ssl

IDLE_SECONDS: Final = 30.0
"""How long a connection nobody uses is kept."""
MOST_IDLE: Final = 20
MOST_AHEAD: Final = 64
"""Pieces of an answer that may wait for their reader before we stop listening."""
MOST_HEAD_BYTES: Final = 64 * 1024
_TARGET: Final = re.compile(r"[!-~]+")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[ -~\t]*")
_INFLATE: Final = 32 + zlib.MAX_WBITS
"""gzip or zlib, whichever it is."""


class Direct:
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
        assert parts.hostname is not None, "whoever configured it was asked for one"
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = {"host": host if parts.port is None else f"{host}:{parts.port}", "accept": "*/*", **headers}
        self._head = _head(target, lines)
        self._connect_seconds = connect_seconds
        self._send_seconds = send_seconds
        self._trust = trust
        self._idle: deque[_Line] = deque()

    def post(self, body: bytes) -> _Asking:
        return _Asking(self, body)

    async def ask(self, body: bytes) -> _Line:
        """The line on which the head of the answer has arrived."""
        if self._head is None:
            raise Unreachable("its address or a header of it has a character that HTTP does not allow")
        line = await self._line()
        try:
            await line.ask(self._head, body, seconds=self._send_seconds)
        except BaseException:
            self.done(line)
            raise
        return line

    def done(self, line: _Line) -> None:
        """Keep the line for the next question, if it can be used again."""
        if line.reusable and len(self._idle) < MOST_IDLE:
            line.rest(IDLE_SECONDS)
            self._idle.append(line)
        else:
            line.hang_up()

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().hang_up()

    async def _line(self) -> _Line:
        while self._idle:
            # the one that was used last is the least likely to have been hung up on
            line = self._idle.pop()
            if line.open:
                line.wake()
                return line
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, line = await loop.create_connection(
                    _Line, self._host, self._port, ssl=self._trust, server_hostname=self._host if self._trust else None
                )
        except TimeoutError as error:
            raise Slow("connection") from error
        except (OSError, UnicodeError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        return line


class _Asking:
    """One question: the line it is asked on, for as long as its answer is read."""

    __slots__ = ("_body", "_line", "_road")

    def __init__(self, road: Direct, body: bytes) -> None:
        self._road = road
        self._body = body

    async def __aenter__(self) -> _Line:
        self._line = await self._road.ask(self._body)
        return self._line

    async def __aexit__(self, *_: object) -> None:
        self._road.done(self._line)


def _head(target: str, headers: Mapping[str, str]) -> bytes | None:
    """What every question begins with, up to its length; None if that would not be HTTP."""
    if not _TARGET.fullmatch(target) or not all(_NAME.fullmatch(n) and _VALUE.fullmatch(v) for n, v in headers.items()):
        return None
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "content-length: "]
    return "\r\n".join(lines).encode("ascii")


class _Line(asyncio.Protocol):
    """One connection, and the reply that is arriving on it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._bell: asyncio.Future[None] | None = None
        self._full = False
        """More of our question waits to leave than should."""
        self._paused = False
        self._over = True
        self._lasting = True
        """Neither side means to hang up after this reply."""
        self._head_bytes = 0
        self._error: Exception | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._inflate: zlib._Decompress | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    # -- what the connection tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # some loops' transports are one without saying so

    def data_received(self, data: bytes) -> None:
        if self._error is not None:
            return
        try:
            if self._over:
                raise Broken("it spoke without having been asked")
            self._parser.feed_data(data)
            if not self.status:
                self._head_bytes += len(data)
                if self._head_bytes > MOST_HEAD_BYTES:
                    raise Broken("the head of its answer has no end")
        except (Broken, Undecodable) as error:
            self._break(error)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._break(cause if isinstance(cause, Broken | Undecodable) else Undecodable(str(cause)))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(Broken(f"what came is no HTTP: {error}"))
        self._ring()

    def eof_received(self) -> None:
        """Some answers end with their connection; the others are cut."""
        if self.status and not self._over and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self._lasting = False
            self._end()
        elif not self._over:
            self._fail(Broken("the connection was closed"))
        self._ring()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail(Broken(str(error) if error else "the connection was closed"))

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._ring()

    # -- what the parser tells us

    def on_message_begin(self) -> None:
        if self._over:
            raise Broken("it spoke without having been asked")
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # what is below is a word before the answer
            self._choose_encoding()
            self.status = status

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data if self._inflate is None else self._inflate.decompress(data))
        if len(self._pieces) > MOST_AHEAD and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status:
            self._lasting = self._parser.should_keep_alive()
            self._end()

    # -- what its user does

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._error is None

    @property
    def over(self) -> bool:
        return self._over and not self._pieces

    @property
    def reusable(self) -> bool:
        """The last reply was read to its end, and the other side did not mean to go."""
        return self.open and self.over and self._lasting and not self._full

    def rest(self, seconds: float) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._expiry = asyncio.get_running_loop().call_later(seconds, self.hang_up)

    def wake(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def hang_up(self) -> None:
        self.wake()
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, head: bytes, body: bytes, *, seconds: float) -> None:
        """Send a question and wait for the head of its reply."""
        self._pieces.clear()
        self._over, self.status, self.headers, self._inflate, self._head_bytes = False, 0, {}, None, 0
        if self._transport is None:
            raise self._error or Broken("the connection was closed")
        self._transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        if self._full:
            await self._written(seconds)
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    def pieces(self) -> _Line:
        return self

    def __aiter__(self) -> _Line:
        return self

    async def __anext__(self) -> bytes:
        """What has come since; not a generator, which its loop would have to keep account of."""
        while True:
            if self._pieces:
                # what has come by now goes on together: a short answer is there all at once
                piece = b"".join(self._pieces)
                self._pieces.clear()
                if self._paused and self._transport is not None:
                    self._paused = False
                    self._transport.resume_reading()
                if piece:
                    return piece
            if self._over:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            await self._wait()

    # -- inside

    async def _written(self, seconds: float) -> None:
        """Until the question has left, or the answer came before that."""
        try:
            async with asyncio.timeout(seconds):
                while self._full and not self.status and self._error is None:
                    await self._wait()
        except TimeoutError as error:
            raise Slow("end of our sending") from error

    async def _wait(self) -> None:
        self._bell = asyncio.get_running_loop().create_future()
        await self._bell

    def _ring(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._ring()

    def _break(self, error: Exception) -> None:
        self._fail(error)
        self.hang_up()

    def _end(self) -> None:
        if self._inflate is not None:
            self._pieces.append(self._inflate.flush())
        self._over = True

    def _choose_encoding(self) -> None:
        match self.headers.get("content-encoding", "").strip().lower():
            case "" | "identity":
                pass
            case "gzip" | "x-gzip" | "deflate":
                self._inflate = zlib.decompressobj(_INFLATE)
            case other:
                raise Undecodable(f"{other}, which was not asked for")
