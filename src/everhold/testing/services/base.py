"""A small HTTP service with state and faults: what all fakes of memory services share.

Its state outlives its clients. A fault applies to the next matching requests and does something that real services were
seen to do.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Literal, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from everhold.testing.http_listener import HttpListener, RawHttpRequest, abort_connection, write_response

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

_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_WORD: Final = re.compile(r"\w+")


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


class LoopbackService(HttpListener):
    """`async with TheService() as service:`, then point a client at `service.url`."""

    buffer_bytes = 2**24
    routes: ClassVar[tuple[tuple[str, str, str], ...]]
    """(method, path with {names}, the method that answers)."""
    state: Any
    """What it stores; can be copied deeply."""

    def __init__(self, *, key: str | None = None) -> None:
        super().__init__()
        self.key = key
        self.requests: list[ServiceRequest] = []
        self._count = itertools.count(1)
        self._faults: list[ServiceFault] = []
        self._table = [
            (method, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path) + r"/?"), name)
            for method, path, name in self.routes
        ]

    # -- use ---------------------------------------------------------------------------------------------------------

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

    # -- connections -------------------------------------------------------------------------------------------------

    async def serve_request(
        self, received: RawHttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        call = _parse_request(received)
        self.requests.append(call)
        return await self._answer_request(call, writer)

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
                asyncio.get_running_loop().call_later(0.01, abort_connection, writer)
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
        abort_connection(writer)

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

    def _next_time(self) -> str:
        """Return a later time than all before."""
        return (_EPOCH + timedelta(seconds=next(self._count))).isoformat()

    def is_authorised(self, headers: Mapping[str, str]) -> bool:
        return self.key is None or headers.get("authorization") == f"Bearer {self.key}"

    def make_unauthorised_reply(self) -> ServiceReply:
        return ServiceReply({"detail": "Invalid API key"}, 401)


def score_overlap(query: str, text: str) -> float:
    """Return the share of the query's words that a text contains; a stand-in for embeddings."""
    asked, there = (set(_WORD.findall(it.casefold())) for it in (query, text))
    return len(asked & there) / len(asked) if asked else 0.0


# -- wire format -------------------------------------------------------------------------------------------------------


def _parse_request(received: RawHttpRequest) -> ServiceRequest:
    parts = urlsplit(received.target)
    try:
        content = json.loads(received.body) if received.body else None
    except ValueError:
        content = None
    pairs = tuple(parse_qsl(parts.query))
    return ServiceRequest(received.method, parts.path, dict(pairs), received.headers, content, pairs)


async def _write_reply(writer: asyncio.StreamWriter, reply: ServiceReply) -> None:
    data = (
        reply.body if isinstance(reply.body, bytes) else b"" if reply.body is None else json.dumps(reply.body).encode()
    )
    kind = "text/html" if isinstance(reply.body, bytes) and reply.body else "application/json"
    await write_response(writer, reply.status, {"content-type": kind, **reply.headers}, data)


def _make_failure_reply(fault: ServiceFault) -> ServiceReply:
    headers = {"retry-after": f"{fault.retry_after:g}"} if fault.retry_after is not None else {}
    return ServiceReply({"detail": f"the service said {fault.status}"}, fault.status, headers)
