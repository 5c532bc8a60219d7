"""Newline JSON over a unix socket, between a process that may be killed and the world that outlives it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from everhold.errors import EverholdError, InDoubt, Overloaded, Refused, TooLong, Transient

LIMIT: Final = 16 * 1024 * 1024
CLOSE_SECONDS: Final = 3.0
_WAITS: Final = {kind.__name__: kind for kind in (Transient, Overloaded)}
_OTHERS: Final = {kind.__name__: kind for kind in (Refused, TooLong, InDoubt)}


class Question(Struct, frozen=True, kw_only=True):
    """One request: who is asked to do what, and when it was sent."""

    whom: str
    do: str
    sent: float
    given: dict[str, Any] = {}


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line back: a piece of something that grows, a result, or an error of ours by name."""

    piece: str | None = None
    result: Any = None
    error: str = ""
    message: str = ""
    retry_after: float | None = None


Pieces: TypeAlias = Callable[[str], Awaitable[None]]
Answer: TypeAlias = Callable[[Question, Pieces], Awaitable[Any]]


class Far:
    """The far end, as the process sees it. One request at a time on a connection; a broken one is never used again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(
        self,
        whom: str,
        do: str,
        given: dict[str, Any] | None = None,
        *,
        on_piece: Callable[[str], None] | None = None,
    ) -> Any:
        """What `whom` answers; raises what `whom` raised, or InDoubt when nobody answers."""
        connection = self._idle.pop() if self._idle else await self._connect()
        reader, writer = connection
        try:
            question = Question(whom=whom, do=do, sent=time.time(), given=given or {})
            writer.write(msgspec.json.encode(question) + b"\n")
            while (reply := await self._line(reader)).piece is not None:
                if on_piece is not None:
                    on_piece(reply.piece)
        except BaseException:
            writer.close()
            raise
        self._idle.append(connection)
        if reply.error:
            raise _error(reply)
        return reply.result

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(str(self.path), limit=LIMIT)
        except OSError as error:
            raise Transient(f"nobody listens at {self.path}") from error

    async def _line(self, reader: asyncio.StreamReader) -> Reply:
        try:
            line = await reader.readline()
        except OSError as error:
            raise InDoubt(f"the connection broke: {error}") from error
        if not line.endswith(b"\n"):
            raise InDoubt("the connection ended before the answer")
        return msgspec.json.decode(line, type=Reply)


def _error(reply: Reply) -> EverholdError:
    if reply.error in _WAITS:
        return _WAITS[reply.error](reply.message, retry_after=reply.retry_after)
    return _OTHERS[reply.error](reply.message)


class Service:
    """Answers whoever connects, however often they are killed."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._handle, str(path), limit=LIMIT)

    async def close(self) -> None:
        """Listen no more, and let everybody finish who is still at something."""
        if self._server is not None:
            self._server.close()
        if self._open:
            await asyncio.wait(self._open, timeout=CLOSE_SECONDS)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                await self._reply(msgspec.json.decode(line, type=Question), writer)
        except OSError:
            return  # whoever asked is dead
        finally:
            writer.close()

    async def _reply(self, question: Question, writer: asyncio.StreamWriter) -> None:
        async def piece(text: str) -> None:
            await _write(writer, Reply(piece=text))

        try:
            reply = Reply(result=await self.answer(question, piece))
        except EverholdError as error:
            wait = error.retry_after if isinstance(error, Transient) else None
            reply = Reply(error=type(error).__name__, message=error.message, retry_after=wait)
        await _write(writer, reply)


async def _write(writer: asyncio.StreamWriter, reply: Reply) -> None:
    writer.write(msgspec.json.encode(reply) + b"\n")
    await writer.drain()
