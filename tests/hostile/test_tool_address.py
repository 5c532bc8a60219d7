"""The attacker is a tool server at a URL. It cannot fill our memory, or hold a connection for ever."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gzip
import itertools
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
Stream = Callable[["HostileAddress", asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "START_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(mcp, "LIVENESS_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(mcp, "STARTUP_WAIT_SECONDS", LIMIT_SECONDS)


class HostileAddress(HttpListener):
    """Starts like a tool server with one tool, and then answers each call of it as the test says. `stream` answers the
    request for notifications."""

    def __init__(self, answer: Answer, stream: Stream | None = None) -> None:
        super().__init__()
        self._answer = answer
        self._stream = stream or refuse_stream
        self.methods: collections.Counter[str] = collections.Counter()
        self.streams: list[float] = []
        """When a stream was asked for."""
        self.lists: list[float] = []
        """When the tools were asked for."""
        self.listed = asyncio.Event()
        self.replies = 0
        """How many of its own questions were answered."""
        self.replied = asyncio.Event()

    async def serve_request(
        self, received: RawHttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if received.method == "GET":
            self.streams.append(asyncio.get_running_loop().time())
            await self._stream(self, writer)
            return False
        message = json.loads(received.body or b"{}")
        self.methods[message.get("method", "")] += 1
        match message.get("method"):
            case "initialize":
                about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                await self.send(writer, {**about, "serverInfo": {"name": "evil", "version": "1"}}, message["id"])
            case "tools/list":
                self.lists.append(asyncio.get_running_loop().time())
                self.listed.set()
                await self.send(writer, {"tools": [{"name": "go", "inputSchema": {"type": "object"}}]}, message["id"])
            case "tools/call":
                await self._answer(writer, message["id"])
                return False
            case None if "result" in message:
                self.replies += 1
                self.replied.set()
                writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
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
        writer.write(HEAD + b"mcp-session-id: s\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


async def refuse_stream(_: HostileAddress, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
    await writer.drain()


EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@contextlib.asynccontextmanager
async def run_address(
    answer: Answer, directory: Path, *, stream: Stream | None = None
) -> AsyncIterator[tuple[Any, HostileAddress]]:
    async with HostileAddress(answer, stream) as server:
        async with run_servers(directory, evil={"url": f"{server.url}/mcp"}) as made:
            await made.ready()
            yield made, server


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
    async with run_address(answer, tmp_path) as (made, _):
        result = await made.run("evil_go")
        assert result.error or "unknown" in result.text.lower()
        await wait_until(lambda: any(reason in fall for fall in made.falls))


# -- the stream of notifications ---------------------------------------------------------------------------------------


async def announce_after_each_list(server: HostileAddress, writer: asyncio.StreamWriter) -> None:
    """Say that the tools changed, whenever they were listed."""
    told = json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    writer.write(EVENTS)
    with contextlib.suppress(ConnectionError):
        while True:
            server.listed.clear()
            writer.write(f"event: message\ndata: {told}\n\n".encode())
            await writer.drain()
            await server.listed.wait()


async def test_announcements_without_end_are_followed_ever_more_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each list is checked and committed, so a server could keep the gateway busy for nothing."""
    monkeypatch.setattr(mcp, "SHORTEST_RELIST_SECONDS", 0.1)
    async with run_address(drip, tmp_path, stream=announce_after_each_list) as (_, server):
        await wait_until(lambda: len(server.lists) >= 6)
        gaps = [later - earlier for earlier, later in itertools.pairwise(server.lists[1:6])]
    assert all(gap > 0.05 * 2**number for number, gap in enumerate(gaps)), gaps


async def finish_call(writer: asyncio.StreamWriter, id: Any) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "done"}]}}).encode()
    writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()


async def test_a_call_lets_the_next_announcement_count_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose tools depend on what was called is not slowed down."""
    monkeypatch.setattr(mcp, "SHORTEST_RELIST_SECONDS", 0.01)
    async with run_address(finish_call, tmp_path, stream=announce_after_each_list) as (made, server):
        await wait_until(lambda: len(server.lists) >= 4)
        monkeypatch.setattr(mcp, "LONGEST_RELIST_SECONDS", 100_000.0)
        waiting = made.servers.get_server("evil")
        waiting._relist_seconds = 100_000.0
        before = len(server.lists)
        assert (await made.run("evil_go")).text == "done"
        await wait_until(lambda: len(server.lists) > before)


async def ask_without_end(server: HostileAddress, writer: asyncio.StreamWriter) -> None:
    """Ask whether we are there, and ask again once the SDK has answered with a request of its own."""
    writer.write(EVENTS)
    with contextlib.suppress(ConnectionError):
        for number in itertools.count():
            server.replied.clear()
            told = json.dumps({"jsonrpc": "2.0", "id": f"p{number}", "method": "ping"})
            writer.write(f"event: message\ndata: {told}\n\n".encode())
            await writer.drain()
            await server.replied.wait()


LINES_OF_A_QUESTION = 3


async def test_questions_without_end_end_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests with which we answer are no reason to count anew."""
    monkeypatch.setattr(mcp_http, "MAX_EVENT_LINES", 90)
    async with run_address(drip, tmp_path, stream=ask_without_end) as (made, server):
        await wait_until(lambda: any("lines of events" in fall for fall in made.falls))
        assert server.replies >= 90 // LINES_OF_A_QUESTION, "each question was answered before the next"


async def test_a_count_that_starts_anew_with_each_reply_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plants the rule that every request of ours resets the count."""
    on_request = mcp_http.McpAnswers._on_request

    async def count_anew(self: mcp_http.McpAnswers, request: httpx2.Request) -> None:
        self.allow_more()
        await on_request(self, request)

    monkeypatch.setattr(mcp_http.McpAnswers, "_on_request", count_anew)
    monkeypatch.setattr(mcp_http, "MAX_EVENT_LINES", 90)
    async with run_address(drip, tmp_path, stream=ask_without_end) as (made, server):
        await wait_until(lambda: made.falls or server.replies > 2 * 90 // LINES_OF_A_QUESTION)
        assert not any("lines of events" in fall for fall in made.falls), "the attack needs the count"


async def end_at_once(_: HostileAddress, writer: asyncio.StreamWriter) -> None:
    writer.write(EVENTS + b"retry: 0\n\n")
    await writer.drain()


async def test_a_stream_that_ends_at_once_is_not_asked_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server tells the SDK to wait for no time."""
    monkeypatch.setattr(mcp_http, "STREAM_PAUSE_SECONDS", 0.2)
    async with run_address(drip, tmp_path, stream=end_at_once) as (_, server):
        await wait_until(lambda: len(server.streams) >= 5)
        gaps = [later - earlier for earlier, later in itertools.pairwise(server.streams[:5])]
    assert sum(gaps) > 0.7, gaps


# -- slow answers ------------------------------------------------------------------------------------------------------


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
