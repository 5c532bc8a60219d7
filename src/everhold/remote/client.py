"""The asking side: control's methods for commands, over a socket or in this very process. Answers are plain JSON."""

from __future__ import annotations

import asyncio
import itertools
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Final

from everhold.errors import Misuse, Transient
from everhold.remote import loopback, place, wire

AGAIN_SECONDS: Final = 0.05
PATIENCE: Final = 100
"""How often a busy socket is tried."""


class Gone(Transient):
    """Nobody answers at the socket, or whoever did is gone. What was asked may have been done."""


class Calls(ABC):
    """What a command may ask of control, wherever that is."""

    @abstractmethod
    async def call(self, method: str, /, **params: Any) -> Any:
        """Ask once. Raises what control raises, and Gone."""

    @abstractmethod
    def follow(self, session: str, *, after: int = 0) -> AsyncGenerator[dict[str, Any], None]:
        """A session as it grows: `{"entry": …}` without a gap, `{"piece": {op, at, text}}` as a hint."""

    async def ping(self) -> dict[str, Any]:
        return await self._object("ping")

    async def find(self, name: str) -> dict[str, Any]:
        return await self._object("find", name=name)

    async def place(self, name: str, *, agent: str = "") -> dict[str, Any]:
        return await self._object("place", name=name, agent=agent)

    async def sessions(self, *, limit: int) -> dict[str, Any]:
        return await self._object("sessions", limit=limit)

    async def entries(self, session: str, *, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        more = True
        while more:
            page = await self._object("entries", session=session, after=after)
            more = page["more"]
            for entry in page["entries"]:
                after = entry["seq"]
                yield entry

    async def context(self, name: str, *, at: int | None = None) -> dict[str, Any]:
        return await self._object("context", name=name, at=at)

    async def folds(self, name: str) -> dict[str, Any]:
        return await self._object("folds", name=name)

    async def search(self, text: str, *, limit: int) -> dict[str, Any]:
        return await self._object("search", text=text, limit=limit)

    async def status(self) -> dict[str, Any]:
        return await self._object("status")

    async def agents(self) -> dict[str, Any]:
        return await self._object("agents")

    async def audit(self, name: str | None = None) -> dict[str, Any]:
        return await self._object("audit", name=name)

    async def undo(self, name: str, *, what: str, count: int) -> dict[str, Any]:
        return await self._object("undo", name=name, what=what, count=count)

    async def compress(self, name: str, *, keep: int | None, focus: str, preview: bool) -> dict[str, Any]:
        return await self._object("compress", name=name, keep=keep, focus=focus, preview=preview)

    async def diff(self, name: str, *, fold: int) -> dict[str, Any]:
        return await self._object("diff", name=name, fold=fold)

    async def stop(self, name: str) -> dict[str, Any]:
        return await self._object("stop", name=name)

    async def note(self, name: str, text: str) -> dict[str, Any]:
        return await self._object("note", name=name, text=text)

    async def memory_status(self) -> dict[str, Any]:
        return await self._object("memory.status")

    async def memory_search(self, text: str, *, agent: str, person: str, limit: int) -> dict[str, Any]:
        return await self._object("memory.search", text=text, agent=agent, person=person, limit=limit)

    async def memory_backfill(
        self, memory: str, *, agent: str, since: float, until: float | None, per_minute: int, really: bool
    ) -> dict[str, Any]:
        return await self._object(
            "memory.backfill",
            memory=memory,
            agent=agent,
            since=since,
            until=until,
            per_minute=per_minute,
            really=really,
        )

    async def memory_replay(self, memory: str, *, since: float, agent: str, really: bool) -> dict[str, Any]:
        return await self._object("memory.replay", memory=memory, since=since, agent=agent, really=really)

    async def memory_why(self, name: str, *, at: int | None) -> dict[str, Any]:
        return await self._object("memory.why", name=name, at=at)

    async def memory_forget(self, person: str, *, really: bool) -> dict[str, Any]:
        return await self._object("memory.forget", person=person, really=really)

    async def memory_import(self, name: str, *, path: str, really: bool) -> dict[str, Any]:
        return await self._object("memory.import", name=name, path=path, really=really)

    async def memory_export(self, person: str, *, to: str) -> dict[str, Any]:
        return await self._object("memory.export", person=person, to=to)

    async def parked(self) -> dict[str, Any]:
        return await self._object("parked")

    async def replay(self, ids: list[int]) -> dict[str, Any]:
        return await self._object("replay", ids=ids)

    async def send(self, incoming: dict[str, Any]) -> dict[str, Any]:
        return await self._object("send", incoming=incoming)

    async def backup(self, *, to: str = "") -> dict[str, Any]:
        return await self._object("backup", to=to)

    async def _object(self, method: str, /, **params: Any) -> dict[str, Any]:
        answer = await self.call(method, **params)
        if not isinstance(answer, dict):
            raise wire.from_json(None)
        return answer


class RemoteControl(Calls):
    """Control in another process. Each question is a connection of its own: there is nothing to keep in step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ids = itertools.count(1)

    async def call(self, method: str, /, **params: Any) -> Any:
        reader, writer = await self._ask(method, params)
        try:
            return (await self._next(reader)).get("result")
        finally:
            writer.close()

    async def follow(self, session: str, *, after: int = 0) -> AsyncGenerator[dict[str, Any], None]:
        reader, writer = await self._ask("follow", {"session": session, "after": after})
        try:
            while True:
                event = (await self._next(reader)).get("event")
                if isinstance(event, dict):
                    yield event
        finally:
            writer.close()

    async def _ask(self, method: str, params: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        door = loopback.find(self.path)
        sock = await self._connect(door)
        reader, writer = await asyncio.open_connection(sock=sock, limit=wire.LIMIT)
        try:
            if door is not None:
                await loopback.enter(reader, writer, door)
            writer.write(wire.encode({"id": next(self._ids), "method": method, "params": params}))
            await writer.drain()
        except OSError as error:
            writer.close()
            raise _went() if door is None else _nobody(self.path, error) from None
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _connect(self, door: loopback.Door | None) -> socket.socket:
        for attempt in itertools.count():
            try:
                return place.connect(self.path) if door is None else loopback.connect(door)
            except BlockingIOError:  # so many at once that this one has to stand in line
                if attempt >= PATIENCE:
                    raise Transient(f"too many are asking at {self.path}", remedy="try again") from None
                await asyncio.sleep(AGAIN_SECONDS)
            except OSError as error:
                raise _nobody(self.path, error) from None
        raise AssertionError

    async def _next(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        try:
            line = await reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, OSError):
            raise _went() from None
        except asyncio.LimitOverrunError:
            raise Misuse("the gateway's answer is too long", remedy="is it of the same version?") from None
        message = wire.decode(line)
        if "error" in message:
            raise wire.from_json(message["error"])
        return message


def _nobody(path: Path, error: OSError) -> Gone:
    return Gone(f"nobody answers at {path}: {error.strerror or error}", remedy="everhold up")


def _went() -> Gone:
    return Gone("the gateway went away before it answered", remedy="`everhold logs` may say why; then try again")
