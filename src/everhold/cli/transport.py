"""HTTP to a running gateway, over `api.sock` or loopback. Imports only the standard library.

Each request has its own connection, so there is no state to restore after a gateway was replaced.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everhold.api import loopback, unix_socket
from everhold.api.loopback import LoopbackEndpoint
from everhold.errors import Refused, Transient

RETRY_SECONDS: Final = 0.05
MAX_CONNECTS: Final = 100
"""How often to try to connect to a socket whose backlog is full."""
PIECE_BYTES: Final = 1 << 16


class GatewayGone(Transient):
    """No process answers at the socket, or it ended during the request. The request may have been processed."""


@dataclass
class ApiResponse:
    """The status of a response, and its body as it arrives."""

    status: int
    is_json: bool
    body: AsyncIterator[bytes]


class ApiTransport(ABC):
    """Sends requests to the API."""

    @abstractmethod
    def open(self, method: str, target: str, body: bytes | None) -> AbstractAsyncContextManager[ApiResponse]:
        """Send a request. The response is valid inside the block. Raises GatewayGone, also while the body is read."""


class SocketTransport(ApiTransport):
    """The API in another process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @asynccontextmanager
    async def open(self, method: str, target: str, body: bytes | None) -> AsyncGenerator[ApiResponse, None]:
        endpoint = loopback.read_endpoint(self.path)
        sock = await self._connect(endpoint)
        reader, writer = await asyncio.open_connection(sock=sock)
        try:
            if endpoint is not None:
                try:
                    await loopback.prove_to_gateway(reader, writer, endpoint)
                except OSError as error:
                    raise _make_unreachable_error(self.path, error) from None
            # do not wait until everything is sent, because a refusal may arrive earlier and would be lost with the
            # connection
            writer.write(_render_request(method, target, body))
            yield await _read_response(reader)
        finally:
            writer.close()

    async def _connect(self, endpoint: LoopbackEndpoint | None) -> socket.socket:
        for attempt in itertools.count():
            try:
                return unix_socket.connect_to(self.path) if endpoint is None else loopback.connect_to(endpoint)
            except BlockingIOError:  # the backlog is full
                if attempt >= MAX_CONNECTS:
                    raise Transient(f"too many commands are waiting at {self.path}", remedy="try again") from None
                await asyncio.sleep(RETRY_SECONDS)
            except OSError as error:
                raise _make_unreachable_error(self.path, error) from None
        raise AssertionError


def _render_request(method: str, target: str, body: bytes | None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "host: localhost", "connection: close"]
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")


async def _read_response(reader: asyncio.StreamReader) -> ApiResponse:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
        raise _make_gone_error() from None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    version, _, rest = first.partition(" ")
    status = rest.partition(" ")[0]
    if not version.startswith("HTTP/1.") or not status.isdigit():
        raise make_foreign_error()
    is_json = headers.get("content-type", "").startswith("application/json")
    return ApiResponse(int(status), is_json, _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                yield (await reader.readexactly(size + 2))[:-2]
        elif (left := int(headers.get("content-length", -1))) >= 0:
            while left:
                piece = await reader.readexactly(min(left, PIECE_BYTES))
                left -= len(piece)
                yield piece
        else:
            while piece := await reader.read(PIECE_BYTES):
                yield piece
    except ValueError:
        raise make_foreign_error() from None
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
        raise _make_gone_error() from None


def make_foreign_error() -> Refused:
    return Refused(
        "the process that answers at the home's socket is not an everhold gateway",
        remedy="end it, delete api.sock in the home, and start `everhold up`",
    )


def _make_unreachable_error(path: Path, error: OSError) -> GatewayGone:
    return GatewayGone(f"no gateway answers at {path}: {error.strerror or error}", remedy="everhold up")


def _make_gone_error() -> GatewayGone:
    return GatewayGone("the gateway ended before it answered", remedy="`everhold logs` may show why; then try again")
