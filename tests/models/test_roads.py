"""The ways to a model server: both read what servers really send, and name what goes wrong alike."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trustme

from everhold.models.direct import Direct
from everhold.models.proxied import Proxied
from everhold.models.road import Broken, Road, Slow, Undecodable, Unreachable
from everhold.models.wire import _has_proxy
from tests.waiting import LIMIT_SECONDS

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ROADS = pytest.mark.parametrize("way", [Direct, Proxied])


class Far:
    """A server that does exactly what it is told, and counts who came."""

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
async def serving(far: Handler, trust: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(far, "127.0.0.1", 0, ssl=trust)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def road(
    way: type[Direct] | type[Proxied], port: int, *, trust: ssl.SSLContext | None = None, seconds: float = LIMIT_SECONDS
) -> Road:
    scheme, host = ("https", "localhost") if trust else ("http", "127.0.0.1")
    return way(
        f"{scheme}://{host}:{port}/v1/x?y=1",
        headers={"x-mine": "yes"},
        connect_seconds=seconds,
        send_seconds=seconds,
        trust=trust,
    )


async def read(way: Road, body: bytes = b"{}") -> tuple[int, bytes]:
    async with way.post(body) as reply:
        return reply.status, b"".join([piece async for piece in reply.pieces()])


def plain(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


@ROADS
async def test_one_connection_is_used_again(way: type[Direct]) -> None:
    far = Far(plain(b"one"), CHUNKED, plain(b"three"))
    async with serving(far) as port:
        there = road(way, port)
        assert [await read(there) for _ in range(3)] == [(200, b"one"), (200, b"abcde"), (200, b"three")]
        assert far.lines == 1
        assert far.asked[0].startswith(b"POST /v1/x?y=1 HTTP/1.1\r\n")
        assert b"\r\nx-mine: yes\r\n" in far.asked[0].lower()
        await there.close()


@ROADS
async def test_questions_asked_at_once_have_a_connection_each(way: type[Direct]) -> None:
    far = Far(*[plain(b"x")] * 5)
    async with serving(far) as port:
        there = road(way, port)
        assert [status for status, _ in await asyncio.gather(*(read(there) for _ in range(5)))] == [200] * 5
        assert 1 < far.lines <= 5
        await there.close()


@ROADS
async def test_a_connection_that_was_hung_up_on_is_not_used_again(way: type[Direct]) -> None:
    far = Far(plain(b"one"), plain(b"two"), closes=True)
    async with serving(far) as port:
        there = road(way, port)
        assert await read(there) == (200, b"one")
        for _ in range(100):  # until the other side's goodbye is here
            await asyncio.sleep(0.001)
        assert await read(there) == (200, b"two")
        assert far.lines == 2
        await there.close()


@ROADS
async def test_an_answer_nobody_read_to_its_end_is_not_mistaken_for_the_next(way: type[Direct]) -> None:
    far = Far(plain(b"x" * 3_000_000), plain(b"second"))
    async with serving(far) as port:
        there = road(way, port)
        async with there.post(b"{}") as reply:
            async for _ in reply.pieces():
                break
        assert await read(there) == (200, b"second")
        await there.close()


@ROADS
async def test_what_ends_with_its_connection_is_whole(way: type[Direct]) -> None:
    far = Far(b"HTTP/1.0 200 OK\r\n\r\nall of it", closes=True)
    async with serving(far) as port:
        assert await read(road(way, port)) == (200, b"all of it")


@ROADS
async def test_large_questions_and_answers_pass(way: type[Direct]) -> None:
    far = Far(plain(b"a" * 9_000_000))
    async with serving(far) as port:
        status, body = await read(road(way, port), b"q" * 5_000_000)
        assert (status, len(body), far.asked[0].count(b"q")) == (200, 9_000_000, 5_000_000)


@ROADS
async def test_a_word_before_the_answer_is_no_answer(way: type[Direct]) -> None:
    far = Far(b"HTTP/1.1 103 Early Hints\r\n\r\n" + plain(b"no", status="429 Slow Down"))
    async with serving(far) as port:
        assert await read(road(way, port)) == (429, b"no")


@ROADS
async def test_what_was_packed_unasked_is_unpacked(way: type[Direct]) -> None:
    far = Far(plain(gzip.compress(b"words" * 1000), "Content-Encoding: gzip"))
    async with serving(far) as port:
        assert await read(road(way, port)) == (200, b"words" * 1000)


@ROADS
@pytest.mark.parametrize(
    "answer, closes, error",
    [
        (b"", True, Broken),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", True, Broken),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", True, Broken),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab", False, Broken),
        (b"nonsense\r\n\r\n", True, Broken),
        (plain(b"not gzip", "Content-Encoding: gzip"), False, Undecodable),
    ],
)
async def test_what_is_no_answer_has_a_name(
    way: type[Direct], answer: bytes, closes: bool, error: type[Exception]
) -> None:
    async with serving(Far(answer, closes=closes)) as port:
        with pytest.raises(error):
            await read(road(way, port))


@ROADS
async def test_nobody_there(way: type[Direct]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable):
            await read(road(way, free.getsockname()[1]))


@ROADS
async def test_a_question_that_does_not_leave(way: type[Direct]) -> None:
    async def deaf(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async with serving(deaf) as port:
        with pytest.raises(Slow, match="sending"):
            await read(road(way, port, seconds=0.2), b"q" * 50_000_000)


@ROADS
async def test_only_who_is_trusted_is_spoken_to(way: type[Direct]) -> None:
    authority = trustme.CA()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(served)
    known, unknown = ssl.create_default_context(), ssl.create_default_context()
    authority.configure_trust(known)
    far = Far(plain(b"secret"))
    async with serving(far, trust=served) as port:
        with pytest.raises(Unreachable):
            await read(road(way, port, trust=unknown))
        assert far.asked == []
        assert await read(road(way, port, trust=known)) == (200, b"secret")


async def test_a_proxy_is_taken_where_the_environment_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert not _has_proxy("https", "models.example")
    far = Far(plain(b"by proxy"))
    async with serving(far) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        assert _has_proxy("http", "models.example")
        assert not _has_proxy("https", "models.example")
        there = Proxied(
            "http://models.example/v1",
            headers={},
            connect_seconds=LIMIT_SECONDS,
            send_seconds=LIMIT_SECONDS,
            trust=None,
        )
        assert await read(there) == (200, b"by proxy")
        assert far.asked[0].startswith(b"POST http://models.example/v1 HTTP/1.1\r\n")
    monkeypatch.setenv("no_proxy", "models.example")
    assert not _has_proxy("http", "models.example")


async def test_a_head_without_end_is_cut() -> None:
    async with serving(Far(b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 200_000)) as port:
        with pytest.raises(Broken, match="no end"):
            await read(road(Direct, port))


async def test_what_comes_unasked_ends_the_connection() -> None:
    """An answer too many would be taken for that to the next question."""
    far = Far(plain(b"one") + plain(b"two"), plain(b"three"))
    async with serving(far) as port:
        way = road(Direct, port)
        assert await read(way) == (200, b"one")
        assert await read(way) == (200, b"three")
        assert far.lines == 2


@pytest.mark.parametrize("value", ["two\r\nx-evil: lines", "nul\0", "ümlaut"])
async def test_a_header_that_would_be_more_than_one_is_never_sent(value: str) -> None:
    far = Far(plain(b"one"))
    async with serving(far) as port:
        way = Direct(
            f"http://127.0.0.1:{port}/",
            headers={"x-key": value},
            connect_seconds=LIMIT_SECONDS,
            send_seconds=LIMIT_SECONDS,
            trust=None,
        )
        with pytest.raises(Unreachable, match="character") as refused:
            await read(way)
        assert value not in str(refused.value)
