"""The gateway's HTTP/1.1 protocol: uvicorn's protocol with a parser in C, and limits for heads and connections.

The head and the body of a response are written together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from everhold.api.loopback import LoopbackEndpoint, ServerHandshake
from everhold.api.rate_limits import get_peer_network
from everhold.api.scope_keys import CORK, OPERATOR_CONNECTION
from everhold.api.unix_socket import is_trusted_peer
from everhold.infra.connection_pool import ConnectionPool
from everhold.infra.http_protocol import BoundedHttpProtocol

BUSY_RESPONSE: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: 88\r\n\r\n"
    b'{"error":{"type":"busy","message":"too many connections are open","remedy":"try again"}}'
)


class BoundedHeadProtocol(BoundedHttpProtocol):
    """Also limits the number of connections."""

    def __init__(self, *args: Any, pool: ConnectionPool | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pool = pool
        self.peer = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(CorkedTransport(transport))  # type: ignore[arg-type]  # it delegates all other methods
        if self._pool is not None:
            self.peer = get_peer_network(self.client[0] if self.client else "")
            if not self._pool.add(self):
                transport.write(BUSY_RESPONSE)
                transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pool is not None:
            self._pool.remove(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        if self._pool is not None:
            self._pool.touch(self)
        super().on_response_complete()

    @property
    def is_proven(self) -> bool:
        return bool(getattr(self.transport, "is_proven", False))

    def is_idle(self) -> bool:
        """Whether the connection may be closed to make room: no request on it is being answered, or only one without a
        credential, whose client may send or read slowly."""
        cycle: Any = self.cycle  # None before the first request, whatever its annotation says
        return cycle is None or cycle.response_complete or not self.is_proven

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CORK] = self.transport  # type: ignore[typeddict-unknown-key]


class OperatorProtocol(BoundedHeadProtocol):
    """A connection of an operator: on `api.sock`, or on loopback after both sides have proved that they know the token.

    `on_refusal` is called when a peer is another user, or does not know the loopback token.
    """

    def __init__(
        self, *args: Any, endpoint: LoopbackEndpoint | None, on_refusal: Callable[[], None], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._handshake = ServerHandshake(endpoint) if endpoint is not None else None
        self._on_refusal = on_refusal
        self._is_trusted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self._handshake is None:
            self._is_trusted = is_trusted_peer(transport.get_extra_info("socket"))
            if not self._is_trusted:
                self._refuse_peer()

    def data_received(self, data: bytes) -> None:
        if not self._is_trusted:
            data = self._continue_handshake(data)
        if self._is_trusted and data:
            super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[OPERATOR_CONNECTION] = True  # type: ignore[typeddict-unknown-key]

    def _continue_handshake(self, data: bytes) -> bytes:
        """Continue the handshake and return the bytes that belong to HTTP."""
        handshake = self._handshake
        if handshake is None or self.transport.is_closing():
            return b""
        if reply := handshake.receive(data):
            self.transport.write(reply)
        if handshake.is_refused:
            self._refuse_peer()
        self._is_trusted = handshake.is_proven
        return handshake.take_rest() if self._is_trusted else b""

    def _refuse_peer(self) -> None:
        self._on_refusal()
        self.transport.close()


class CorkedTransport:
    """A transport that can hold back writes and send them together, because two writes cost twice as much as one."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held: list[bytes] = []
        self._holding = False
        self.is_proven = False
        """A request on this connection had a valid token."""
        self.is_closing = transport.is_closing

    def hold(self) -> None:
        self._holding = True

    def flush_held(self) -> None:
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
        self.flush_held()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
