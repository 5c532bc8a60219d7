"""A whole answer is fetched over a kept connection, within a time and a size."""

from __future__ import annotations

import pytest

from everhold.infra.http1 import Http1Transport
from everhold.infra.http_transport import TransportBroken, TransportUnreachable

from .test_transport import CHUNKED, ScriptedServer, make_response, serve

SECONDS = 100.0


def make_caller(port: int) -> Http1Transport:
    url, headers = f"http://127.0.0.1:{port}/api/", {"x-mine": "yes"}
    return Http1Transport(url, headers=headers, connect_seconds=SECONDS, send_seconds=SECONDS, trust=None)


async def test_calls_to_several_paths_share_a_connection() -> None:
    far = ScriptedServer(make_response(b"one", "X-Told: 1", status="429 No"), CHUNKED)
    async with serve(far) as port:
        calls = make_caller(port)
        first = await calls.fetch("POST", "chat.postMessage", b"a=1", seconds=SECONDS)
        second = await calls.fetch("PATCH", "chat.update", b"", seconds=SECONDS)
        await calls.close()
    assert (first.status, first.headers["x-told"], first.body) == (429, "1", b"one")
    assert (second.status, second.body) == (200, b"abcde")
    assert far.lines == 1
    assert far.asked[0].startswith(b"POST /api/chat.postMessage HTTP/1.1\r\n")
    assert far.asked[0].endswith(b"\r\nx-mine: yes\r\ncontent-length: 3\r\n\r\na=1")
    assert far.asked[1].startswith(b"PATCH /api/chat.update HTTP/1.1\r\n")


async def test_an_answer_that_does_not_come_ends_with_a_timeout_and_closes_the_connection() -> None:
    far = ScriptedServer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", make_response(b"new"))
    async with serve(far) as port:
        calls = make_caller(port)
        with pytest.raises(TimeoutError):
            await calls.fetch("POST", "x", b"", seconds=0.05)
        assert (await calls.fetch("POST", "x", b"", seconds=SECONDS)).body == b"new"
        await calls.close()
    assert far.lines == 2, "what is left of the first answer is not the second"


async def test_an_answer_has_a_largest_size() -> None:
    async with serve(ScriptedServer(make_response(b"x" * 101))) as port:
        calls = make_caller(port)
        with pytest.raises(TransportBroken, match="more than 100 bytes"):
            await calls.fetch("POST", "x", b"", seconds=SECONDS, max_bytes=100)
        await calls.close()


@pytest.mark.parametrize("path", ["a b", "x\r\nevil: 1", "é"])
async def test_a_path_cannot_add_to_the_head(path: str) -> None:
    with pytest.raises(TransportUnreachable):
        await make_caller(1).fetch("POST", path, b"", seconds=SECONDS)
