"""Both transports read what servers really send, and raise the same errors."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trustme

from everhold.infra.http1 import Http1Transport
from everhold.infra.http_transport import (
    BodyUndecodable,
    HttpTransport,
    TransportBroken,
    TransportTimeout,
    TransportUnreachable,
)
from everhold.models.http_client import _has_proxy
from everhold.models.proxy import ProxyTransport
from tests.waiting import LIMIT_SECONDS

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ROADS = pytest.mark.parametrize("way", [Http1Transport, ProxyTransport])


class ScriptedServer:
    """A server that does exactly what a test says, and counts connections."""

    def __init__(self, *answers: bytes, closes: bool = False) -> None:
        self.answers = list(answers)
        self.closes = closes
        self.asked: list[bytes] = []
        self.lines = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines += 1
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                )
                self.asked.append(head + await reader.readexactly(length))
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.closes:
                    break
            if self.closes:
                writer.close()
            else:
                await reader.read()


@contextlib.asynccontextmanager
async def serve(far: Handler, trust: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(far, "127.0.0.1", 0, ssl=trust)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def make_transport(
    way: type[Http1Transport] | type[ProxyTransport],
    port: int,
    *,
    trust: ssl.SSLContext | None = None,
    seconds: float = LIMIT_SECONDS,
) -> HttpTransport:
    scheme, host = ("https", "localhost") if trust else ("http", "127.0.0.1")
    return way(
        f"{scheme}://{host}:{port}/v1/x?y=1",
        headers={"x-mine": "yes"},
        connect_seconds=seconds,
        send_seconds=seconds,
        trust=trust,
    )


async def read_response(way: HttpTransport, body: bytes = b"{}") -> tuple[int, bytes]:
    async with way.post(body) as reply:
        return reply.status, b"".join([piece async for piece in reply.iterate_body()])


def make_response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


@ROADS
async def test_one_connection_is_reused(way: type[Http1Transport]) -> None:
    far = ScriptedServer(make_response(b"one"), CHUNKED, make_response(b"three"))
    async with serve(far) as port:
        there = make_transport(way, port)
        assert [await read_response(there) for _ in range(3)] == [(200, b"one"), (200, b"abcde"), (200, b"three")]
        assert far.lines == 1
        assert far.asked[0].startswith(b"POST /v1/x?y=1 HTTP/1.1\r\n")
        assert b"\r\nx-mine: yes\r\n" in far.asked[0].lower()
        await there.close()


@ROADS
async def test_concurrent_requests_use_separate_connections(way: type[Http1Transport]) -> None:
    far = ScriptedServer(*[make_response(b"x")] * 5)
    async with serve(far) as port:
        there = make_transport(way, port)
        assert [status for status, _ in await asyncio.gather(*(read_response(there) for _ in range(5)))] == [200] * 5
        assert 1 < far.lines <= 5
        await there.close()


@ROADS
async def test_a_closed_connection_is_not_reused(way: type[Http1Transport]) -> None:
    far = ScriptedServer(make_response(b"one"), make_response(b"two"), closes=True)
    async with serve(far) as port:
        there = make_transport(way, port)
        assert await read_response(there) == (200, b"one")
        for _ in range(100):  # until the client has closed the connection
            await asyncio.sleep(0.001)
        assert await read_response(there) == (200, b"two")
        assert far.lines == 2
        await there.close()


@ROADS
async def test_an_unfinished_answer_is_not_mistaken_for_the_next(way: type[Http1Transport]) -> None:
    far = ScriptedServer(make_response(b"x" * 3_000_000), make_response(b"second"))
    async with serve(far) as port:
        there = make_transport(way, port)
        async with there.post(b"{}") as reply:
            async for _ in reply.iterate_body():
                break
        assert await read_response(there) == (200, b"second")
        await there.close()


@ROADS
async def test_an_answer_that_ends_with_its_connection_is_complete(way: type[Http1Transport]) -> None:
    far = ScriptedServer(b"HTTP/1.0 200 OK\r\n\r\nall of it", closes=True)
    async with serve(far) as port:
        assert await read_response(make_transport(way, port)) == (200, b"all of it")


@ROADS
async def test_large_requests_and_answers_work(way: type[Http1Transport]) -> None:
    far = ScriptedServer(make_response(b"a" * 9_000_000))
    async with serve(far) as port:
        status, body = await read_response(make_transport(way, port), b"q" * 5_000_000)
        assert (status, len(body), far.asked[0].count(b"q")) == (200, 9_000_000, 5_000_000)


@ROADS
async def test_an_informational_response_is_not_the_answer(way: type[Http1Transport]) -> None:
    far = ScriptedServer(b"HTTP/1.1 103 Early Hints\r\n\r\n" + make_response(b"no", status="429 Slow Down"))
    async with serve(far) as port:
        assert await read_response(make_transport(way, port)) == (429, b"no")


@ROADS
async def test_an_unrequested_content_encoding_is_decoded(way: type[Http1Transport]) -> None:
    far = ScriptedServer(make_response(gzip.compress(b"words" * 1000), "Content-Encoding: gzip"))
    async with serve(far) as port:
        assert await read_response(make_transport(way, port)) == (200, b"words" * 1000)


@ROADS
@pytest.mark.parametrize(
    "answer, closes, error",
    [
        (b"", True, TransportBroken),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", True, TransportBroken),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", True, TransportBroken),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab", False, TransportBroken),
        (b"nonsense\r\n\r\n", True, TransportBroken),
        (make_response(b"not gzip", "Content-Encoding: gzip"), False, BodyUndecodable),
    ],
)
async def test_invalid_answers_raise_named_errors(
    way: type[Http1Transport], answer: bytes, closes: bool, error: type[Exception]
) -> None:
    async with serve(ScriptedServer(answer, closes=closes)) as port:
        with pytest.raises(error):
            await read_response(make_transport(way, port))


@ROADS
async def test_a_missing_server_raises_an_error(way: type[Http1Transport]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(TransportUnreachable):
            await read_response(make_transport(way, free.getsockname()[1]))


@ROADS
async def test_a_request_that_cannot_be_sent_raises_an_error(way: type[Http1Transport]) -> None:
    async def deaf(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async with serve(deaf) as port:
        with pytest.raises(TransportTimeout, match="sending"):
            await read_response(make_transport(way, port, seconds=0.2), b"q" * 50_000_000)


@ROADS
async def test_only_trusted_certificates_are_accepted(way: type[Http1Transport]) -> None:
    authority = trustme.CA()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(served)
    known, unknown = ssl.create_default_context(), ssl.create_default_context()
    authority.configure_trust(known)
    far = ScriptedServer(make_response(b"secret"))
    async with serve(far, trust=served) as port:
        with pytest.raises(TransportUnreachable):
            await read_response(make_transport(way, port, trust=unknown))
        assert far.asked == []
        assert await read_response(make_transport(way, port, trust=known)) == (200, b"secret")


async def test_the_environment_s_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert not _has_proxy("https", "models.example")
    far = ScriptedServer(make_response(b"by proxy"))
    async with serve(far) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        assert _has_proxy("http", "models.example")
        assert not _has_proxy("https", "models.example")
        there = ProxyTransport(
            "http://models.example/v1",
            headers={},
            connect_seconds=LIMIT_SECONDS,
            send_seconds=LIMIT_SECONDS,
            trust=None,
        )
        assert await read_response(there) == (200, b"by proxy")
        assert far.asked[0].startswith(b"POST http://models.example/v1 HTTP/1.1\r\n")
    monkeypatch.setenv("no_proxy", "models.example")
    assert not _has_proxy("http", "models.example")


async def test_an_endless_response_head_is_cut_off() -> None:
    async with serve(ScriptedServer(b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 200_000)) as port:
        with pytest.raises(TransportBroken, match="no end"):
            await read_response(make_transport(Http1Transport, port))


async def test_unrequested_data_ends_the_connection() -> None:
    """A superfluous answer would be taken for the answer to the next request."""
    far = ScriptedServer(make_response(b"one") + make_response(b"two"), make_response(b"three"))
    async with serve(far) as port:
        way = make_transport(Http1Transport, port)
        assert await read_response(way) == (200, b"one")
        assert await read_response(way) == (200, b"three")
        assert far.lines == 2


@pytest.mark.parametrize("value", ["two\r\nx-evil: lines", "nul\0", "ümlaut"])
async def test_a_header_with_a_line_break_is_never_sent(value: str) -> None:
    far = ScriptedServer(make_response(b"one"))
    async with serve(far) as port:
        way = Http1Transport(
            f"http://127.0.0.1:{port}/",
            headers={"x-key": value},
            connect_seconds=LIMIT_SECONDS,
            send_seconds=LIMIT_SECONDS,
            trust=None,
        )
        with pytest.raises(TransportUnreachable, match="character") as refused:
            await read_response(way)
        assert value not in str(refused.value)
