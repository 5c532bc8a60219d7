"""Newline JSON over a unix socket, between the killed process and the services outside of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from everhold.errors import EverholdError, InDoubt, Overloaded, Refused, TooLong, Transient

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
CLOSE_SECONDS: Final = 3.0
_RETRYABLE_ERRORS: Final = {kind.__name__: kind for kind in (Transient, Overloaded)}
_OTHER_ERRORS: Final = {kind.__name__: kind for kind in (Refused, TooLong, InDoubt)}


class KillRequest(Struct, frozen=True, kw_only=True):
    """One request: the service, the method, and the time of sending."""

    service: str
    action: str
    sent_at: float
    arguments: dict[str, Any] = {}


class KillReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One response line: a piece of a stream, a result, or the name of one of everhold's errors."""

    piece: str | None = None
    result: Any = None
    error: str = ""
    message: str = ""
    retry_after: float | None = None


SendPiece: TypeAlias = Callable[[str], Awaitable[None]]
KillRequestHandler: TypeAlias = Callable[[KillRequest, SendPiece], Awaitable[Any]]


class KillClient:
    """The services as the process sees them. A connection has one request at a time; a broken one is not reused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(
        self,
        service: str,
        do: str,
        given: dict[str, Any] | None = None,
        *,
        on_piece: Callable[[str], None] | None = None,
    ) -> Any:
        """Return the answer of the service; raise its error, or InDoubt when there is no answer."""
        connection = self._idle.pop() if self._idle else await self._connect()
        reader, writer = connection
        try:
            question = KillRequest(service=service, action=do, sent_at=time.time(), arguments=given or {})
            writer.write(msgspec.json.encode(question) + b"\n")
            while (reply := await self._read_reply(reader)).piece is not None:
                if on_piece is not None:
                    on_piece(reply.piece)
        except BaseException:
            writer.close()
            raise
        self._idle.append(connection)
        if reply.error:
            raise _make_error(reply)
        return reply.result

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(str(self.path), limit=MAX_LINE_BYTES)
        except OSError as error:
            raise Transient(f"no server listens at {self.path}") from error

    async def _read_reply(self, reader: asyncio.StreamReader) -> KillReply:
        try:
            line = await reader.readline()
        except OSError as error:
            raise InDoubt(f"the connection broke: {error}") from error
        if not line.endswith(b"\n"):
            raise InDoubt("the connection ended before the answer")
        return msgspec.json.decode(line, type=KillReply)


def _make_error(reply: KillReply) -> EverholdError:
    if reply.error in _RETRYABLE_ERRORS:
        return _RETRYABLE_ERRORS[reply.error](reply.message, retry_after=reply.retry_after)
    return _OTHER_ERRORS[reply.error](reply.message)


class KillServer:
    """Serves the connections of all processes, one after another."""

    def __init__(self, answer: KillRequestHandler) -> None:
        self.answer = answer
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._serve_connection, str(path), limit=MAX_LINE_BYTES)

    async def close(self) -> None:
        """Stop listening, and finish the current requests."""
        if self._server is not None:
            self._server.close()
        if self._open:
            await asyncio.wait(self._open, timeout=CLOSE_SECONDS)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                await self._answer_request(msgspec.json.decode(line, type=KillRequest), writer)
        except OSError:
            return  # the caller is dead
        finally:
            writer.close()

    async def _answer_request(self, question: KillRequest, writer: asyncio.StreamWriter) -> None:
        async def piece(text: str) -> None:
            await _write_reply(writer, KillReply(piece=text))

        try:
            reply = KillReply(result=await self.answer(question, piece))
        except EverholdError as error:
            wait = error.retry_after if isinstance(error, Transient) else None
            reply = KillReply(error=type(error).__name__, message=error.message, retry_after=wait)
        await _write_reply(writer, reply)


async def _write_reply(writer: asyncio.StreamWriter, reply: KillReply) -> None:
    writer.write(msgspec.json.encode(reply) + b"\n")
    await writer.drain()
