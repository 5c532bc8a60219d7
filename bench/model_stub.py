"""A model server that answers immediately: chat completions on loopback, in its own process.

It needs only the standard library. `python bench/model_stub.py` prints its port and serves until its stdin closes.
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
    return b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in (*pieces, b""))


_WORDS = (
    _event(choices=[{"index": 0, "delta": _DELTA, "finish_reason": None}]),
    _event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]),
)


def whole(value: dict[str, Any]) -> bytes:
    data = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)


def answer(body: bytes) -> bytes:
    """Return the response to a request. Its token count is about right, because callers calibrate on it."""
    read = len(body) // 4
    usage = {"prompt_tokens": read, "completion_tokens": 20, "total_tokens": read + 20}
    if b'"stream":true' in body or b'"stream": true' in body:
        return _OPEN + _chunks(*_WORDS, _event(choices=[], usage=usage), _DONE)
    choice = {"index": 0, "finish_reason": "stop", "message": _DELTA}
    return whole({**HEAD, "object": "chat.completion", "choices": [choice], "usage": usage})


MODELS = whole({"object": "list", "data": [{"id": "instant", "object": "model", "context_length": 2_000_000}]})


class Caller(asyncio.Protocol):
    """One connection with sequential requests."""

    def __init__(self) -> None:
        self.buffer = bytearray()

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
            self.transport.write(MODELS if head.startswith(b"get ") else answer(body))


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Caller, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
