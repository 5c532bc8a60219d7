"""A small HTTP server for fakes. It parses requests, and fails them before or after they are carried out."""

from __future__ import annotations

import asyncio
import email.parser
import email.policy
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from everhold.testing.http_listener import HttpListener, RawHttpRequest, abort_connection, write_response


@dataclass(frozen=True)
class LoopbackRequest:
    """One parsed request. `files` are the multipart files: name -> (file name, content)."""

    method: str
    path: str
    headers: dict[str, str]
    query: dict[str, str]
    body: bytes
    fields: dict[str, Any] = field(default_factory=dict)
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)


@dataclass(frozen=True)
class LoopbackResponse:
    status: int = 200
    body: bytes = b""
    media: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: Any, *, status: int = 200, **headers: str) -> LoopbackResponse:
        return cls(status=status, body=json.dumps(value).encode(), headers=headers)


LoopbackFaultKind = Literal["drop before", "drop after", "hang", "answer"]


@dataclass(frozen=True)
class LoopbackFault:
    """A fault of the next call of a kind. `drop after` loses the answer of a call that was carried out."""

    call: str
    kind: LoopbackFaultKind
    answer: LoopbackResponse | None = None


class LoopbackServer(HttpListener):
    """Serves on 127.0.0.1. Subclasses name the calls and answer them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """(name, fields) of every call, failed ones included."""
        self.is_down = False
        """New connections are refused, and existing ones are closed at the next call."""
        self.held = asyncio.Event()
        """Set while a call hangs, so that a test can wait for it."""
        self._faults: deque[LoopbackFault] = deque()
        self._hanging: dict[str, asyncio.Event] = {}

    def plan_fault(
        self, on: str, kind: LoopbackFaultKind, *, answer: LoopbackResponse | None = None, times: int = 1
    ) -> None:
        """Let the next `times` calls of `on` fail."""
        self._faults.extend([LoopbackFault(on, kind, answer)] * times)

    def hang_calls(self, on: str) -> None:
        """Let all calls of `on` hang, until `release_calls`."""
        self._hanging[on] = asyncio.Event()

    def release_calls(self, on: str) -> None:
        """Answer the calls that hang, and those that follow."""
        self._hanging.pop(on).set()

    async def wait_for_faults(self, on: str) -> None:
        """Wait until every planned fault of `on` has happened."""
        while any(fault.call == on for fault in self._faults):  # noqa: ASYNC110  # only tests wait here
            await asyncio.sleep(0.01)

    def disconnect(self) -> None:
        """Refuse all connections until `reconnect`."""
        self.is_down = True
        for writer in list(self._writers):
            abort_connection(writer)

    def reconnect(self) -> None:
        self.is_down = False

    # -- for subclasses

    def name_call(self, request: LoopbackRequest) -> str:
        """Return the name of a call, for faults and for `calls`."""
        raise NotImplementedError

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        """Carry out a call and return its answer."""
        raise NotImplementedError

    # -- a connection

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_down:
            abort_connection(writer)
            return
        super()._on_connection(reader, writer)

    async def serve_request(
        self, received: RawHttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        return not self.is_down and await self._handle_request(_parse_request(received), reader, writer)

    async def _handle_request(
        self, request: LoopbackRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        name = self.name_call(request)
        self.calls.append((name, {**request.query, **request.fields}))
        fault = next((fault for fault in self._faults if fault.call == name), None)
        if fault is not None:
            self._faults.remove(fault)
        if name in self._hanging:
            self.held.set()
            await self._hanging[name].wait()
        match fault:
            case LoopbackFault(kind="drop before"):
                abort_connection(writer)
                return False
            case LoopbackFault(kind="hang"):
                self.held.set()
                await asyncio.Event().wait()
            case LoopbackFault(kind="answer", answer=LoopbackResponse() as answer):
                await _write_response(writer, answer)
                return True
            case _:
                pass
        answer = await self.answer_call(request)
        if fault is not None and fault.kind == "drop after":
            abort_connection(writer)
            return False
        await _write_response(writer, answer)
        return True


def _parse_request(received: RawHttpRequest) -> LoopbackRequest:
    parts = urlsplit(received.target)
    fields, files = _parse_form(received.headers.get("content-type", ""), received.body)
    return LoopbackRequest(
        method=received.method,
        path=unquote(parts.path),
        headers=received.headers,
        query=dict(parse_qsl(parts.query, keep_blank_values=True)),
        body=received.body,
        fields=fields,
        files=files,
    )


def _parse_form(media: str, body: bytes) -> tuple[dict[str, Any], dict[str, tuple[str, bytes]]]:
    if media.startswith("application/json"):
        value = json.loads(body or b"{}")
        return (value if isinstance(value, dict) else {}), {}
    if media.startswith("application/x-www-form-urlencoded"):
        return dict(parse_qsl(body.decode(), keep_blank_values=True)), {}
    if not media.startswith("multipart/form-data"):
        return {}, {}
    fields: dict[str, Any] = {}
    files: dict[str, tuple[str, bytes]] = {}
    whole = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(
        b"Content-Type: %s\r\n\r\n%s" % (media.encode(), body)
    )
    for part in whole.iter_parts():
        name = str(part.get_param("name", header="content-disposition"))
        content, file = part.get_payload(decode=True), part.get_filename()
        assert isinstance(content, bytes)
        if file is None:
            fields[name] = content.decode()
        else:
            files[name] = (file, content)
    return fields, files


async def _write_response(writer: asyncio.StreamWriter, answer: LoopbackResponse) -> None:
    await write_response(writer, answer.status, {"content-type": answer.media, **answer.headers}, answer.body)
