"""A small HTTP service with state and faults: what all fakes of memory services share.

Its state outlives its clients. A fault applies to the next matching requests and does something that real services were
seen to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

ServiceFaultKind: TypeAlias = Literal[
    "refuse",  # respond with `status` without doing it
    "after",  # do it, then respond with `status`
    "lose",  # do it, then close the connection
    "drop",  # close the connection without doing it
    "hang",  # do nothing and send no response
    "wait",  # do it and respond when the fault is `released`
    "mute",  # do it and send no response
    "slow",  # wait `seconds`, do it, respond
    "late",  # close the connection, but do it `seconds` later
    "idle",  # do it, respond, then reset the idle connection
    "hollow",  # respond as if it had been done, and store nothing
    "garbage",  # do it, and send an unreadable response
    "empty",  # do nothing, respond with success and an empty body
    "twice",  # do it twice
]

_WORD: Final = re.compile(r"\w+")
_PHRASES: Final = {
    200: "OK", 201: "Created", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
    405: "Method Not Allowed", 409: "Conflict", 422: "Unprocessable Entity", 429: "Too Many Requests",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


@dataclass(frozen=True)
class ServiceRequest:
    """One request as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    json: Any
    pairs: tuple[tuple[str, str], ...] = ()
    """The query, with all values of repeated names."""


@dataclass(frozen=True)
class ServiceReply:
    """A response."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class ServiceRefusal(Exception):
    """An error response."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.reply = ServiceReply(body, status)


@dataclass
class ServiceFault:
    """What happens to the next `times` matching requests; without a number, to all until `clear_faults`."""

    kind: ServiceFaultKind
    method: str = ""
    path: str = ""
    """A regular expression that is searched in the path."""
    says: str = ""
    """Only requests whose body contains this text match."""
    times: int | None = 1
    skip: int = 0
    """Matching requests that are let through first."""
    status: int = 503
    retry_after: float | None = None
    seconds: float = 0.0
    released: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    """Requests that wait for the release."""

    def applies_to(self, call: ServiceRequest) -> bool:
        if (self.method and call.method != self.method) or not re.search(self.path, call.path):
            return False
        if self.says and self.says not in json.dumps(call.json, ensure_ascii=False):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class LoopbackService:
    """`async with TheService() as service:`, then point a client at `service.url`."""

    routes: ClassVar[tuple[tuple[str, str, str], ...]]
    """(method, path with {names}, the method that answers)."""
    state: Any
    """What it stores; can be copied deeply."""

    def __init__(self, *, key: str | None = None) -> None:
        self.key = key
        self.requests: list[ServiceRequest] = []
        self.connections = 0
        self.port = 0
        self._faults: list[ServiceFault] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._table = [
            (method, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path) + r"/?"), name)
            for method, path, name in self.routes
        ]

    # -- use ---------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def plan_fault(
        self, how: ServiceFaultKind, path: str = "", *, method: str = "", times: int | None = 1, **more: Any
    ) -> ServiceFault:
        """Arm a fault. The first matching fault applies."""
        armed = ServiceFault(kind=how, path=path, method=method, times=times, **more)
        self._faults.append(armed)
        return armed

    @property
    def pending_faults(self) -> int:
        """Return the faults that no request has met yet."""
        return len(self._faults)

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def find_requests(self, path: str, method: str = "") -> list[ServiceRequest]:
        """Return the requests that reached it, carried out or not."""
        return [call for call in self.requests if (not method or call.method == method) and re.search(path, call.path)]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", self.port, limit=2**24)
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
            _abort_connection(writer)
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @contextlib.contextmanager
    def threaded(self) -> Iterator[Self]:
        """Serve from a thread of its own, for callers without an event loop or with a virtual one."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name=type(self).__name__, daemon=True)
        thread.start()
        self._loop = loop
        asyncio.run_coroutine_threadsafe(self.start(), loop).result()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self.stop(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    # -- connections -------------------------------------------------------------------------------------------------

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        self._start_task(self._serve(reader, writer))

    def _start_task(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (call := await _read_request(reader)) is not None:
                self.requests.append(call)
                if not await self._answer_request(call, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client closed the connection
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer_request(self, call: ServiceRequest, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; return whether the connection may be used again."""
        fault = next((it for it in self._faults if it.applies_to(call)), None)
        self._faults = [it for it in self._faults if it.times is None or it.times > 0]
        if fault is None:
            await _write_reply(writer, self.execute_request(call))
            return True
        match fault.kind:
            case "refuse":
                await _write_reply(writer, _make_failure_reply(fault))
            case "after":
                self.execute_request(call)
                await _write_reply(writer, _make_failure_reply(fault))
            case "slow":
                await asyncio.sleep(fault.seconds)
                await _write_reply(writer, self.execute_request(call))
            case "hollow":
                kept = copy.deepcopy(self.state)
                reply = self.execute_request(call)
                self.state = kept
                await _write_reply(writer, reply)
            case "garbage":
                self.execute_request(call)
                await _write_reply(writer, ServiceReply(b"<html>upstream said something else</html>", 200))
            case "empty":
                await _write_reply(writer, ServiceReply(b"", 200))
            case "twice":
                self.execute_request(call)
                await _write_reply(writer, self.execute_request(call))
            case "idle":
                await _write_reply(writer, self.execute_request(call))
                asyncio.get_running_loop().call_later(0.01, _abort_connection, writer)
            case "hang":
                await asyncio.Event().wait()
            case "wait":
                fault.waiting += 1
                try:
                    await fault.released.wait()
                    await _write_reply(writer, self.execute_request(call))
                finally:
                    fault.waiting -= 1
            case "mute":
                self.execute_request(call)
                await asyncio.Event().wait()
            case "lose" | "drop" | "late":
                self._cut_off(call, fault, writer)
                return False
        return True

    def _cut_off(self, call: ServiceRequest, fault: ServiceFault, writer: asyncio.StreamWriter) -> None:
        """Break the connection: after the request was carried out, long before, or without carrying it out."""
        if fault.kind == "lose":
            self.execute_request(call)
        elif fault.kind == "late":
            asyncio.get_running_loop().call_later(fault.seconds, self.execute_request, call)
        _abort_connection(writer)

    def execute_request(self, call: ServiceRequest) -> ServiceReply:
        """Carry out a request."""
        if not self.is_authorised(call.headers):
            return self.make_unauthorised_reply()
        known = False
        for method, pattern, name in self._table:
            found = pattern.fullmatch(call.path)
            known = known or found is not None
            if found is None or method != call.method:
                continue
            answer: Callable[..., Any] = getattr(self, name)
            try:
                reply = answer(call, **{key: unquote(value) for key, value in found.groupdict().items()})
            except ServiceRefusal as refusal:
                return refusal.reply
            return reply if isinstance(reply, ServiceReply) else ServiceReply(reply)
        status, why = (405, "Method Not Allowed") if known else (404, "Not Found")
        return ServiceReply({"detail": why}, status)

    def is_authorised(self, headers: Mapping[str, str]) -> bool:
        return self.key is None or headers.get("authorization") == f"Bearer {self.key}"

    def make_unauthorised_reply(self) -> ServiceReply:
        return ServiceReply({"detail": "Invalid API key"}, 401)


def score_overlap(query: str, text: str) -> float:
    """Return the share of the query's words that a text contains; a stand-in for embeddings."""
    asked, there = (set(_WORD.findall(it.casefold())) for it in (query, text))
    return len(asked & there) / len(asked) if asked else 0.0


# -- wire format -------------------------------------------------------------------------------------------------------


async def _read_request(reader: asyncio.StreamReader) -> ServiceRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    try:
        content = json.loads(body) if body else None
    except ValueError:
        content = None
    pairs = tuple(parse_qsl(parts.query))
    return ServiceRequest(method, parts.path, dict(pairs), headers, content, pairs)


async def _write_reply(writer: asyncio.StreamWriter, reply: ServiceReply) -> None:
    data = (
        reply.body if isinstance(reply.body, bytes) else b"" if reply.body is None else json.dumps(reply.body).encode()
    )
    kind = "text/html" if isinstance(reply.body, bytes) and reply.body else "application/json"
    headers = {"content-type": kind, **reply.headers, "content-length": str(len(data))}
    lines = [
        f"HTTP/1.1 {reply.status} {_PHRASES.get(reply.status, 'Status')}",
        *(f"{key}: {value}" for key, value in headers.items()),
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + data)
    await writer.drain()


def _make_failure_reply(fault: ServiceFault) -> ServiceReply:
    headers = {"retry-after": f"{fault.retry_after:g}"} if fault.retry_after is not None else {}
    return ServiceReply({"detail": f"the service said {fault.status}"}, fault.status, headers)


def _abort_connection(writer: asyncio.StreamWriter) -> None:
    handle: socket.socket | None = writer.get_extra_info("socket")
    if handle is not None and not writer.transport.is_closing():
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
