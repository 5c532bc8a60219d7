"""One POST to a model server, kept to its deadlines. Never retries: whether to ask again is the caller's to decide."""

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

from everhold.errors import Misuse
from everhold.limit import Limit
from everhold.models.faults import Whom, dropped, fault, garbled, late, unreachable
from everhold.models.road import Broken, Reply, Road, Slow, Undecodable, Unreachable
from everhold.models.sse import Events, Oversized
from everhold.ports.clock import Clock
from everhold.secret import Secret

if TYPE_CHECKING:
    import ssl

MOST: Final = 64 * 1024 * 1024
"""Bytes of one answer."""
MOST_COMPLAINT: Final = 64 * 1024
DRAIN: Final = 0.1
"""Seconds for a body to end after its last event: a connection read to its end can be used again."""


class Deadlines(Struct, frozen=True, kw_only=True):
    """Seconds. `first_byte` runs from sending to the first byte of the answer, `idle` between any two pieces of it.

    `tail` is for what may follow a complete answer, such as its usage; that it does not come is no failure.
    """

    connect: float = 10.0
    first_byte: float = 120.0
    idle: float = 60.0
    total: float = 600.0
    tail: float = 5.0


class Reading(Protocol):
    """Whoever makes an answer out of what arrives. Raises our errors for what is no answer."""

    @property
    def finished(self) -> bool:
        """The other side said that its answer is complete."""

    @property
    def closed(self) -> bool:
        """Nothing of interest can follow."""

    def event(self, name: str, data: bytes) -> None: ...

    def whole(self, data: bytes) -> None: ...


class Wire:
    """A connection pool to one endpoint. The client is made at the first call, in the loop that calls."""

    def __init__(
        self,
        *,
        url: str,
        model: str,
        headers: Mapping[str, Secret],
        deadlines: Deadlines,
        clock: Clock,
        plain: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Misuse(f"base_url of model {model} is no http(s) address", remedy="write https://host/v1")
        if parts.username or parts.password:
            raise Misuse(
                f"base_url of model {model} holds a name or a password",
                remedy="put the key into .env and its name into `api_key_env`",
            )
        self._url = url
        self._https = parts.scheme == "https"
        self._loopback = _is_loopback(parts.hostname)
        host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        self._headers = {**plain, **{name: _header(name, value, model) for name, value in headers.items()}}
        hidden = [word for name in headers for word in self._headers[name].split()] + [
            parts.username,
            parts.password,
            parts.query,
        ]
        # shorter ones are schemes and flags; masking them would eat the words around them
        secrets = {word for word in hidden if word and len(word) >= 8}
        self.whom = Whom(model=model, host=host, secrets=tuple(map(Secret, sorted(secrets, key=len, reverse=True))))
        self._deadlines = deadlines
        self._clock = clock
        self._hostname = parts.hostname
        self._road: Road | None = None

    def __repr__(self) -> str:
        return f"<Wire to {self.whom}>"

    def now(self) -> float:
        return self._clock.now()

    async def aclose(self) -> None:
        if self._road is not None:
            road, self._road = self._road, None
            await road.close()

    async def ask(self, body: bytes, reading: Reading) -> None:
        """Send `body` and let `reading` have the answer. Returns once it is finished; raises what is no answer."""
        # raised outside the except block: a transport error drags the request, with its headers, along as context
        error: Exception | None
        try:
            error = await self._ask(body, reading)
        except Oversized as oversized:
            error = garbled(self.whom, str(oversized))
        if reading.finished:
            return
        raise error or dropped(self.whom)

    async def _ask(self, body: bytes, reading: Reading) -> Exception | None:
        loop = asyncio.get_running_loop()
        limits = self._deadlines
        now = loop.time()
        end = now + limits.total
        phase, seconds = "first byte", limits.first_byte
        try:
            with Limit(min(end, now + seconds)) as limit:
                async with self._open().post(body) as reply:
                    if reply.status != 200:
                        return await self._refusal(reply)
                    sink = _Sink(self.whom, reading, events=_is_stream(reply))
                    async for chunk in reply.pieces():
                        sink.feed(chunk)
                        if reply.over:
                            break
                        if reading.closed:
                            phase, seconds = "ending", DRAIN
                        elif reading.finished:
                            phase, seconds = "ending", limits.tail
                        else:
                            phase, seconds = "next piece", limits.idle
                        limit.move(min(end, loop.time() + seconds))
                    sink.close()
        except TimeoutError:
            if loop.time() >= end:
                return late(self.whom, phase="whole answer", seconds=limits.total)
            return late(self.whom, phase=phase, seconds=seconds)
        except Slow as slow:
            return late(
                self.whom, phase=slow.phase, seconds=limits.connect if slow.phase == "connection" else limits.idle
            )
        except Unreachable as failed:
            return unreachable(self.whom, str(failed))
        except Undecodable:
            return garbled(self.whom, "an encoding it did not keep to")
        except Broken as failed:
            return dropped(self.whom, str(failed))
        return None

    async def _refusal(self, reply: Reply) -> Exception:
        body = bytearray()
        try:
            async for piece in reply.pieces():
                body += piece
                if len(body) >= MOST_COMPLAINT:
                    break
        except (Broken, Undecodable):
            pass  # the status alone decides; the words were a courtesy
        said = bytes(body[:MOST_COMPLAINT])
        return fault(self.whom, status=reply.status, headers=reply.headers, body=said, now=self.now())

    def _open(self) -> Road:
        if self._road is None:
            headers = {
                "content-type": "application/json",
                "accept-encoding": "identity",
                "user-agent": "everhold",
                **self._headers,
            }
            limits = self._deadlines
            scheme = "https" if self._https else "http"
            if not self._loopback and _has_proxy(scheme, self._hostname):
                from everhold.models.proxied import Proxied as Way
            else:
                from everhold.models.direct import Direct as Way  # type: ignore[assignment]  # as good as the other
            self._road = Way(
                self._url,
                headers=headers,
                connect_seconds=limits.connect,
                send_seconds=limits.idle,
                trust=_trust() if self._https else None,
            )
        return self._road


class _Sink:
    """Hands the bytes of a 200 answer to the reading, event by event or as a whole."""

    def __init__(self, whom: Whom, reading: Reading, *, events: bool) -> None:
        self._whom = whom
        self._reading = reading
        self._events = Events() if events else None
        self._whole = bytearray()
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > MOST:
            raise Oversized(f"more than {MOST} bytes")
        if self._events is None:
            self._whole += chunk
            return
        for name, data in self._events.feed(chunk):
            self._reading.event(name, data)

    def close(self) -> None:
        if self._events is None:
            if not self._whole.lstrip().startswith((b"data:", b"event:", b":")):
                self._reading.whole(bytes(self._whole))
                return
            # a stream under the wrong name
            self._events = Events()
            for name, data in self._events.feed(bytes(self._whole)):
                self._reading.event(name, data)
        for name, data in self._events.close():
            self._reading.event(name, data)


def at(base_url: str, path: str) -> str:
    """The address of `path` under `base_url`, whose query and whose already complete path are kept."""
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


def _is_stream(reply: Reply) -> bool:
    return "event-stream" in reply.headers.get("content-type", "").lower()


def _has_proxy(scheme: str, host: str) -> bool:
    """Whether the environment wants this host to be reached through a proxy."""
    proxies = getproxies()
    return (scheme in proxies or "all" in proxies) and not proxy_bypass(host)


def _header(name: str, value: Secret, model: str) -> str:
    text = value.reveal().strip()
    if not text.isascii() or not text.isprintable():
        raise Misuse(
            f"the {name} header of model {model} holds characters that no header can carry",
            remedy="look for a line break or a typographic quote in its value in .env",
        )
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@cache
def _trust() -> ssl.SSLContext:
    """One for all: making it costs more than a turn."""
    import httpx2

    return httpx2.create_ssl_context()
