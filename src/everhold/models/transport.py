"""The ways to a model server: what Wire needs of a connection, and the names of what can go wrong on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class TransportUnreachable(Exception):
    """No connection came about."""


class TransportTimeout(Exception):
    """Connecting (`connection`) or sending (`end of our sending`) took longer than it may."""

    def __init__(self, phase: str) -> None:
        super().__init__(phase)
        self.phase = phase


class TransportBroken(Exception):
    """The connection ended, or spoke no HTTP, before the answer was over."""


class BodyUndecodable(Exception):
    """The body is not in the encoding it claims to be in."""


class TransportResponse(Protocol):
    """An answer whose head has arrived."""

    status: int

    @property
    def headers(self) -> Mapping[str, str]:
        """By their names in lower case."""

    @property
    def is_consumed(self) -> bool:
        """Whether all of the body was handed out; where that is known without waiting."""

    def iterate_body(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""


class ModelTransport(Protocol):
    """Connections to one endpoint, kept for the next question."""

    def post(self, body: bytes) -> AbstractAsyncContextManager[TransportResponse]:
        """Ask once; raises the errors of this module, and never asks again."""

    async def close(self) -> None: ...
