"""The interface between an HTTP client and its connections, and the errors of a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class TransportUnreachable(Exception):
    """The connection could not be made."""


class TransportTimeout(Exception):
    """Connecting (`connection`) or sending (`end of our sending`) took too long."""

    def __init__(self, phase: str) -> None:
        super().__init__(phase)
        self.phase = phase


class TransportBroken(Exception):
    """The connection ended, or sent invalid HTTP, before the answer was complete."""


class BodyUndecodable(Exception):
    """The body is not in its declared encoding."""


class TransportResponse(Protocol):
    """An answer whose head has arrived."""

    status: int

    @property
    def headers(self) -> Mapping[str, str]:
        """Header names in lower case."""

    @property
    def is_consumed(self) -> bool:
        """Whether the whole body was read, as far as that is known without waiting."""

    def iterate_body(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""


class HttpTransport(Protocol):
    """Connections to one endpoint, with reuse."""

    def post(self, body: bytes) -> AbstractAsyncContextManager[TransportResponse]:
        """Send one request. Raises the errors of this module and never retries."""

    async def close(self) -> None: ...
