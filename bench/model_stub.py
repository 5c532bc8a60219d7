"""A model server that answers immediately: chat completions on loopback, in its own process.

It needs only the standard library. `python bench/model_stub.py` prints its port and serves until its stdin closes. With
a number of seconds it streams each answer for as long. `GET /last` returns the last request with tools, so that another
client can make the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

REPLY = "Certainly. That is how it was done before, and how it should be done again."
HEAD = {"id": "c", "created": 1, "model": "instant"}
_DELTA = {"role": "assistant", "content": REPLY}
_OPEN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_DONE = b"data: [DONE]\n\n"


def _event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({**HEAD, "object": "chat.completion.chunk", **fields}).encode() + b"\n\n"


def _chunks(*pieces: bytes) -> bytes:
    return b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces)


def _words(text: str) -> bytes:
    delta = {"role": "assistant", "content": text}
    return _event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])


_END = _event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
PIECES = 10
"""In how many pieces an answer is streamed."""


def whole(value: dict[str, Any]) -> bytes:
    data = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)


def _usage(body: bytes) -> dict[str, int]:
    """Return the token counts of an answer. They are about right, because callers calibrate on them."""
    read = len(body) // 4
    return {"prompt_tokens": read, "completion_tokens": 20, "total_tokens": read + 20}


def answer(body: bytes) -> bytes:
    """Return the response to a request."""
    if _is_stream(body):
        return _OPEN + _chunks(_words(REPLY), _END, _event(choices=[], usage=_usage(body)), _DONE, b"")
    choice = {"index": 0, "finish_reason": "stop", "message": _DELTA}
    return whole({**HEAD, "object": "chat.completion", "choices": [choice], "usage": _usage(body)})


def _is_stream(body: bytes) -> bool:
    return b'"stream":true' in body or b'"stream": true' in body


MODELS = whole({"object": "list", "data": [{"id": "instant", "object": "model", "context_length": 2_000_000}]})


class Caller(asyncio.Protocol):
    """One connection with sequential requests."""

    last_request = b"{}"
    """The last request with tools. Reviews and compressions have none."""

    def __init__(self, stream_seconds: float) -> None:
        self.buffer = bytearray()
        self.stream_seconds = stream_seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.buffer[:end]).lower()
            _, _, rest = head.partition(b"content-length:")
            length = int(rest.partition(b"\r\n")[0] or 0)
            if len(self.buffer) < end + 4 + length:
                return
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            if head.startswith(b"get "):
                last = b"/last " in head.partition(b"\r\n")[0]
                self.transport.write(whole(json.loads(Caller.last_request)) if last else MODELS)
                continue
            if b'"tools"' in body:
                Caller.last_request = body
            if _is_stream(body):
                self._stream(body)
            else:
                self.transport.write(answer(body))

    def _stream(self, body: bytes) -> None:
        if not self.stream_seconds:
            self.transport.write(answer(body))
            return
        size = -(-len(REPLY) // PIECES)
        pieces = [REPLY[at : at + size] for at in range(0, len(REPLY), size)]
        loop = asyncio.get_running_loop()
        self.transport.write(_OPEN)
        for number, piece in enumerate(pieces):
            loop.call_later(self.stream_seconds * number / PIECES, self.transport.write, _chunks(_words(piece)))
        end = _chunks(_END, _event(choices=[], usage=_usage(body)), _DONE, b"")
        loop.call_later(self.stream_seconds, self.transport.write, end)


async def main() -> None:
    loop = asyncio.get_running_loop()
    stream_seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    server = await loop.create_server(lambda: Caller(stream_seconds), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
