"""One POST to a model server, with deadlines, and the parser of the events that it answers with. It never retries,
because the caller decides about retries.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from msgspec import Struct

from everhold.errors import InvalidRequest
from everhold.infra.deadline import TaskDeadline
from everhold.infra.http_transport import (
    BodyUndecodable,
    HttpTransport,
    TransportBroken,
    TransportResponse,
    TransportTimeout,
    TransportUnreachable,
)
from everhold.infra.secret import SecretString
from everhold.models.errors import (
    ModelEndpoint,
    build_dropped_error,
    build_garbled_error,
    build_http_error,
    build_timeout_error,
    build_unreachable_error,
)
from everhold.ports.clock import Clock

if TYPE_CHECKING:
    import ssl


MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of one answer."""
MAX_ERROR_BODY_BYTES: Final = 64 * 1024
DRAIN_SECONDS: Final = 0.1
"""Seconds for a body to end after its last event. A connection that was read to its end can be reused."""


class ModelDeadlines(Struct, frozen=True, kw_only=True):
    """Seconds. `first_byte` runs from sending to the first byte of the answer, `idle` between two pieces of it.

    `tail` is for data after a complete answer, such as its usage. It is no failure if that does not come.
    """

    connect: float = 10.0
    first_byte: float = 120.0
    idle: float = 60.0
    total: float = 600.0
    tail: float = 5.0


class ResponseReader(Protocol):
    """Builds an answer from received data. Raises everhold's errors for invalid data."""

    @property
    def finished(self) -> bool:
        """Whether the server marked its answer as complete."""

    @property
    def closed(self) -> bool:
        """Whether nothing relevant can follow."""

    def read_event(self, name: str, data: bytes) -> None: ...

    def read_whole(self, data: bytes) -> None: ...


class ModelHttpClient:
    """A connection pool for one endpoint. The client is made at the first call, in the caller's event loop."""

    def __init__(
        self,
        *,
        url: str,
        model: str,
        headers: Mapping[str, SecretString],
        deadlines: ModelDeadlines,
        clock: Clock,
        plain: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"base_url of model {model} is not an http(s) URL", remedy="write https://host/v1")
        if parts.username or parts.password:
            raise InvalidRequest(
                f"base_url of model {model} contains a user name or a password",
                remedy="put the key into .env and its name into `api_key_env`",
            )
        self._url = url
        self._https = parts.scheme == "https"
        self._loopback = _is_loopback(parts.hostname)
        host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        self._headers = {**plain, **{name: _encode_header(name, value, model) for name, value in headers.items()}}
        hidden = [word for name in headers for word in self._headers[name].split()] + [
            parts.username,
            parts.password,
            parts.query,
        ]
        # shorter values are schemes and flags, and masking them would garble the error text
        secrets = {word for word in hidden if word and len(word) >= 8}
        self.endpoint = ModelEndpoint(
            model=model, host=host, secrets=tuple(map(SecretString, sorted(secrets, key=len, reverse=True)))
        )
        self._deadlines = deadlines
        self._clock = clock
        self._hostname = parts.hostname
        self._transport: HttpTransport | None = None

    def __repr__(self) -> str:
        return f"<ModelHttpClient of {self.endpoint}>"

    def now(self) -> float:
        return self._clock.now()

    async def aclose(self) -> None:
        if self._transport is not None:
            transport, self._transport = self._transport, None
            await transport.close()

    async def post(self, body: bytes, reading: ResponseReader) -> None:
        """Send `body` and pass the answer to `reading`. Returns when the answer is complete; raises if there is
        none."""
        # raised outside the except block, because a transport error would carry the request with its headers as context
        error: Exception | None
        try:
            error = await self._post(body, reading)
        except StreamTooLarge as oversized:
            error = build_garbled_error(self.endpoint, str(oversized))
        if reading.finished:
            return
        try:
            raise error or build_dropped_error(self.endpoint)
        finally:
            # The error's traceback refers to this frame. A cycle would keep the request in memory until the next
            # garbage collection, which counts objects and not bytes.
            del error

    async def _post(self, body: bytes, reading: ResponseReader) -> Exception | None:
        loop = asyncio.get_running_loop()
        limits = self._deadlines
        now = loop.time()
        end = now + limits.total
        phase, seconds = "first byte", limits.first_byte
        try:
            with TaskDeadline(min(end, now + seconds)) as limit:
                async with self._open_transport().post(body) as reply:
                    if reply.status != 200:
                        return await self._read_refusal(reply)
                    sink = _ResponseFeed(self.endpoint, reading, events=_is_stream(reply))
                    async for chunk in reply.iterate_body():
                        sink.feed(chunk)
                        if reply.is_consumed:
                            break
                        if reading.closed:
                            phase, seconds = "ending", DRAIN_SECONDS
                        elif reading.finished:
                            phase, seconds = "ending", limits.tail
                        else:
                            phase, seconds = "next piece", limits.idle
                        limit.reschedule(min(end, loop.time() + seconds))
                    sink.close()
        except TimeoutError:
            if loop.time() >= end:
                return build_timeout_error(self.endpoint, phase="whole answer", seconds=limits.total)
            return build_timeout_error(self.endpoint, phase=phase, seconds=seconds)
        except TransportTimeout as slow:
            return build_timeout_error(
                self.endpoint, phase=slow.phase, seconds=limits.connect if slow.phase == "connection" else limits.idle
            )
        except TransportUnreachable as failed:
            return build_unreachable_error(self.endpoint, str(failed))
        except BodyUndecodable:
            return build_garbled_error(self.endpoint, "invalid data in its content encoding")
        except TransportBroken as failed:
            return build_dropped_error(self.endpoint, str(failed))
        return None

    async def _read_refusal(self, reply: TransportResponse) -> Exception:
        body = bytearray()
        try:
            async for piece in reply.iterate_body():
                body += piece
                if len(body) >= MAX_ERROR_BODY_BYTES:
                    break
        except (TransportBroken, BodyUndecodable):
            pass  # the status decides; the error text is optional
        said = bytes(body[:MAX_ERROR_BODY_BYTES])
        return build_http_error(self.endpoint, status=reply.status, headers=reply.headers, body=said, now=self.now())

    def _open_transport(self) -> HttpTransport:
        if self._transport is None:
            headers = {
                "content-type": "application/json",
                "accept-encoding": "identity",
                "user-agent": "everhold",
                **self._headers,
            }
            limits = self._deadlines
            scheme = "https" if self._https else "http"
            if not self._loopback and _has_proxy(scheme, self._hostname):
                from everhold.models.proxy import ProxyTransport as Way
            else:
                from everhold.infra.http1 import Http1Transport as Way  # type: ignore[assignment]  # as good as the other
            self._transport = Way(
                self._url,
                headers=headers,
                connect_seconds=limits.connect,
                send_seconds=limits.idle,
                trust=_load_ssl_context() if self._https else None,
            )
        return self._transport


class _ResponseFeed:
    """Passes the bytes of a 200 answer to the reading, event by event or as a whole."""

    def __init__(self, endpoint: ModelEndpoint, reading: ResponseReader, *, events: bool) -> None:
        self._endpoint = endpoint
        self._reader = reading
        self._sse_parser = SseParser() if events else None
        self._body = bytearray()
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > MAX_RESPONSE_BYTES:
            raise StreamTooLarge(f"more than {MAX_RESPONSE_BYTES} bytes")
        if self._sse_parser is None:
            self._body += chunk
            return
        for name, data in self._sse_parser.feed(chunk):
            self._reader.read_event(name, data)

    def close(self) -> None:
        if self._sse_parser is None:
            if not self._body.lstrip().startswith((b"data:", b"event:", b":")):
                self._reader.read_whole(bytes(self._body))
                return
            # a stream with the wrong content type
            self._sse_parser = SseParser()
            for name, data in self._sse_parser.feed(bytes(self._body)):
                self._reader.read_event(name, data)
        for name, data in self._sse_parser.close():
            self._reader.read_event(name, data)


def join_url(base_url: str, path: str) -> str:
    """Return the URL of `path` under `base_url`. Keeps its query, and its path if it is already complete."""
    parts = urlsplit(base_url)
    base = parts.path.rstrip("/")
    tail = path.rsplit("/v1", 1)[-1]
    if base.endswith(tail):
        whole = base
    elif base.endswith("/v1") and path.startswith("/v1/"):
        whole = base + path[len("/v1") :]
    else:
        whole = base + path
    return urlunsplit((parts.scheme, parts.netloc, whole, parts.query, ""))


def _is_stream(reply: TransportResponse) -> bool:
    return "event-stream" in reply.headers.get("content-type", "").lower()


def _has_proxy(scheme: str, host: str) -> bool:
    """Return whether the environment names a proxy for this host."""
    proxies = getproxies()
    return (scheme in proxies or "all" in proxies) and not proxy_bypass(host)


def _encode_header(name: str, value: SecretString, model: str) -> str:
    text = value.reveal().strip()
    if not text.isascii() or not text.isprintable():
        raise InvalidRequest(
            f"the {name} header of model {model} has characters that are not allowed in a header",
            remedy="look for a line break or a typographic quote in its value in .env",
        )
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@cache
def _load_ssl_context() -> ssl.SSLContext:
    """One context for all connections, because making one takes longer than a turn."""
    import httpx2

    return httpx2.create_ssl_context()


# -- server-sent events ------------------------------------------------------------------------------------------------

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of one event. A larger one is not an event stream."""
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class StreamTooLarge(ValueError):
    """An event that does not end."""


class SseParser:
    """Parses server-sent events from bytes that arrive in any pieces. It knows the framing, not the content.

    Feed it bytes, get whole events: (name, data). Comments and unknown fields are skipped.
    """

    def __init__(self) -> None:
        self._unparsed = bytearray()
        self._at_start = True
        self._after_cr = False
        self._size = 0
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[tuple[str, bytes]]:
        if self._at_start:
            chunk = bytes(self._unparsed) + chunk
            self._unparsed.clear()
            if len(chunk) < 3 and BYTE_ORDER_MARK.startswith(chunk):
                self._unparsed += chunk
                return []
            self._at_start = False
            chunk = chunk.removeprefix(BYTE_ORDER_MARK)
        if not chunk:
            return []
        # a CR ends its line at once; an LF that follows it ends nothing
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        out: list[tuple[str, bytes]] = []
        if b"\n" in chunk:
            *lines, rest = (bytes(self._unparsed) + chunk).split(b"\n")
            self._unparsed = bytearray(rest)
            self._parse_lines(lines, out)
        else:
            self._unparsed += chunk
        if self._size + len(self._unparsed) > MAX_EVENT_BYTES:
            raise StreamTooLarge(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return out

    def close(self) -> list[tuple[str, bytes]]:
        """Return the event at the end of a stream without a final blank line, which some servers omit."""
        out: list[tuple[str, bytes]] = []
        self._parse_lines([bytes(self._unparsed), b""] if self._unparsed else [b""], out)
        self._unparsed.clear()
        return out

    def _parse_lines(self, lines: list[bytes], out: list[tuple[str, bytes]]) -> None:
        for line in lines:
            if line.startswith(b"data: "):  # the most frequent line
                self._data.append(line[6:])
                self._size += len(line)  # with its name, because lines without data take memory, too
            elif line:
                field, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
                if field == b"data":
                    self._data.append(value)
                    self._size += len(line)
                elif field == b"event":
                    self._name = value
            else:
                if self._data:
                    out.append((self._name.decode("utf-8", "replace"), b"\n".join(self._data)))
                    self._data.clear()
                self._name = b""
                self._size = 0
