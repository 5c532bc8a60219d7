"""The attacker is a tool server at a URL. It cannot fill our memory, or hold a connection for ever."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everhold.errors import Transient
from everhold.testing.http_listener import HttpListener, RawHttpRequest
from everhold.tools import mcp, mcp_http
from tests.tools.test_mcp import run_servers
from tests.waiting import LIMIT_SECONDS, wait_until

pytest.importorskip("mcp")

Answer = Callable[[asyncio.StreamWriter, Any], Awaitable[None]]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "START_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(mcp, "LIVENESS_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(mcp, "STARTUP_WAIT_SECONDS", LIMIT_SECONDS)


class HostileAddress(HttpListener):
    """Starts like a tool server with one tool, and then answers each call of it as the test says."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    async def serve_request(
        self, received: RawHttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        message = json.loads(received.body or b"{}")
        match message.get("method"):
            case "initialize":
                about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                await self.send(writer, {**about, "serverInfo": {"name": "evil", "version": "1"}}, message["id"])
            case "tools/list":
                await self.send(writer, {"tools": [{"name": "go", "inputSchema": {"type": "object"}}]}, message["id"])
            case "tools/call":
                await self._answer(writer, message["id"])
                return False
            case None:
                writer.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
            case _ if "id" in message:
                told = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "unknown"}}
                body = json.dumps(told).encode()
                writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
            case _:
                writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        return True

    async def send(self, writer: asyncio.StreamWriter, result: Any, id: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@contextlib.asynccontextmanager
async def run_address(answer: Answer, directory: Path, **entry: Any) -> AsyncIterator[Any]:
    async with HostileAddress(answer) as server:
        async with run_servers(directory, evil={"url": f"{server.url}/mcp", **entry}) as made:
            await made.ready()
            assert not made.complaints(), made.complaints()
            yield made


async def pour(writer: asyncio.StreamWriter, _: Any) -> None:
    """Send a body without an end."""
    writer.write(HEAD + b"\r\n" + b'{"jsonrpc": "2.0", "id": 1, "result": "')
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()


async def pour_events(writer: asyncio.StreamWriter, _: Any) -> None:
    """Send notifications without an end."""
    told = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}})
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(f"event: message\ndata: {told}\n\n".encode() * 100)
            await writer.drain()


async def inflate(writer: asyncio.StreamWriter, _: Any) -> None:
    """Send a small body that becomes a large one."""
    body = gzip.compress(b'{"x": "' + b"x" * 50_000_000)
    writer.write(HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()


@pytest.mark.parametrize(
    "answer, reason", [(pour, "it sent more than"), (pour_events, "it sent more than"), (inflate, "compresses")]
)
async def test_an_answer_without_an_end_ends_the_connection(
    tmp_path: Path, answer: Answer, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_http, "MAX_ANSWER_BYTES", 1_000_000)
    async with run_address(answer, tmp_path) as made:
        result = await made.run("evil_go")
        assert result.error or "unknown" in result.text.lower()
        await wait_until(lambda: any(reason in fall for fall in made.falls))


async def drip(writer: asyncio.StreamWriter, _: Any) -> None:
    """Send a body so slowly that no read takes long."""
    writer.write(HEAD + b"\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)


async def test_an_answer_that_drips_is_given_up() -> None:
    async with HostileAddress(drip) as server:
        answers = mcp_http.McpAnswers(most_seconds=0.2)
        async with httpx2.AsyncClient(event_hooks=answers.hooks, trust_env=False, timeout=LIMIT_SECONDS) as client:
            with pytest.raises(Transient, match=r"took more than 0\.2 s"):
                await client.post(server.url, json={"method": "tools/call", "id": 1})
        assert answers.ended.is_set()


async def test_a_stream_of_notifications_may_stay_open() -> None:
    """It has no end by design, so only its size is limited."""
    answers = mcp_http.McpAnswers(most_seconds=0.0)
    request = httpx2.Request("GET", "http://127.0.0.1/")
    response = httpx2.Response(200, request=request, content=pieces())
    await answers._on_response(response)
    assert [piece async for piece in response.aiter_raw()] == [b"a", b"b"]
    assert not answers.ended.is_set()


async def pieces() -> AsyncIterator[bytes]:
    for piece in (b"a", b"b"):
        await asyncio.sleep(0.01)
        yield piece
