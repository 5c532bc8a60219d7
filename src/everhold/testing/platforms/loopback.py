"""A small HTTP server for fakes. It parses requests, and fails them before or after they are carried out."""

from __future__ import annotations

import asyncio
import email.parser
import email.policy
import json
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit

_PHRASES: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
}


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


class LoopbackServer:
    """Serves on 127.0.0.1. Subclasses name the calls and answer them."""

    def __init__(self) -> None:
        self.port = 0
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """(name, fields) of every call, failed ones included."""
        self.is_down = False
        """New connections are refused, and existing ones are closed at the next call."""
        self.held = asyncio.Event()
        """Set while a call hangs, so that a test can wait for it."""
        self._faults: deque[LoopbackFault] = deque()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def plan_fault(
        self, on: str, kind: LoopbackFaultKind, *, answer: LoopbackResponse | None = None, times: int = 1
    ) -> None:
        """Let the next `times` calls of `on` fail."""
        self._faults.extend([LoopbackFault(on, kind, answer)] * times)

    async def wait_for_faults(self, on: str) -> None:
        """Wait until every planned fault of `on` has happened."""
        while any(fault.call == on for fault in self._faults):  # noqa: ASYNC110  # only tests wait here
            await asyncio.sleep(0.01)

    def disconnect(self) -> None:
        """Refuse all connections until `reconnect`."""
        self.is_down = True
        for writer in list(self._writers):
            _abort_connection(writer)

    def reconnect(self) -> None:
        self.is_down = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", port, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

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
            _abort_connection(writer)
            return
        self._writers.add(writer)
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_request(reader)) is not None and not self.is_down:
                if not await self._handle_request(request, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller disconnected
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _handle_request(self, request: LoopbackRequest, writer: asyncio.StreamWriter) -> bool:
        name = self.name_call(request)
        self.calls.append((name, {**request.query, **request.fields}))
        fault = next((fault for fault in self._faults if fault.call == name), None)
        if fault is not None:
            self._faults.remove(fault)
        match fault:
            case LoopbackFault(kind="drop before"):
                _abort_connection(writer)
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
            _abort_connection(writer)
            return False
        await _write_response(writer, answer)
        return True


async def _read_request(reader: asyncio.StreamReader) -> LoopbackRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await _read_body(reader, headers)
    parts = urlsplit(target)
    fields, files = _parse_form(headers.get("content-type", ""), body)
    return LoopbackRequest(
        method=method,
        path=unquote(parts.path),
        headers=headers,
        query=dict(parse_qsl(parts.query, keep_blank_values=True)),
        body=body,
        fields=fields,
        files=files,
    )


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    data = b""
    while size := int((await reader.readline()).strip() or b"0", 16):
        data += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return data


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
    headers = {"content-type": answer.media, "content-length": str(len(answer.body)), **answer.headers}
    lines = [
        f"HTTP/1.1 {answer.status} {_PHRASES.get(answer.status, 'Status')}",
        *(f"{k}: {v}" for k, v in headers.items()),
    ]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + answer.body)
    await writer.drain()


def _abort_connection(writer: asyncio.StreamWriter) -> None:
    handle: socket.socket | None = writer.get_extra_info("socket")
    if handle is not None and handle.fileno() >= 0:
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
