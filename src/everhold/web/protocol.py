"""HTTP/1.1 as the gateway speaks it: uvicorn's protocol on a parser in C, with a bound on the head of a request.

What is said in two parts, a head and its body, leaves in one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES: Final = 64 * 1024
CORK: Final = "everhold.cork"
"""Where a request's scope has its connection's cork."""


class BoundedHead(HttpToolsProtocol):
    """The parser itself would read a head that never ends for as long as somebody sends one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(Cork(transport))  # type: ignore[arg-type]  # it passes on whatever it does not know

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)  # before it is read: the end of a request in it begins the count anew
        super().data_received(data)
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CORK] = self.transport  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()


class Cork:
    """A transport that can hold back what is written until the rest of it is there: two writes cost twice as much."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held: list[bytes] = []
        self._holding = False
        self.is_closing = transport.is_closing

    def hold(self) -> None:
        self._holding = True

    def let_go(self) -> None:
        self._holding = False
        if self._held:
            held, self._held = self._held, []
            self._transport.write(b"".join(held))

    def write(self, data: bytes) -> None:
        if self._holding:
            self._held.append(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self.let_go()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
