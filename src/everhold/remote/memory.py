"""What may be asked of memory over the socket."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from everhold.core.entries import clean
from everhold.errors import Misuse
from everhold.forgetting import Forgetting
from everhold.memory import Memory
from everhold.papers import bring_in, facts_out, read, write_down


class At(Struct, forbid_unknown_fields=True):
    name: str
    at: int | None = None


class Forget(Struct, forbid_unknown_fields=True):
    person: str
    really: bool = False


class Export(Struct, forbid_unknown_fields=True):
    person: str
    to: str


class BringIn(Struct, forbid_unknown_fields=True):
    name: str
    path: str
    really: bool = False


class Backfill(Struct, forbid_unknown_fields=True):
    memory: str
    agent: str = ""
    since: float = 0.0
    until: float | None = None
    per_minute: int = 60
    really: bool = False


class Replay(Struct, forbid_unknown_fields=True):
    memory: str
    since: float
    agent: str = ""
    really: bool = True


class Recall(Struct, forbid_unknown_fields=True):
    text: str
    agent: str = ""
    person: str = ""
    limit: int = 20


class Nothing(Struct, forbid_unknown_fields=True): ...


@dataclasses.dataclass(frozen=True)
class Remembering:
    """Memory, asked by name. `local` is who sits at this machine."""

    memory: Memory
    agent: Callable[[], str]
    local: Callable[[], str]

    async def status(self, _: Nothing) -> dict[str, Any]:
        return await self.memory.status()

    async def search(self, given: Recall) -> dict[str, Any]:
        limit = max(1, min(given.limit, 100))
        return await self.memory.search(
            given.text, agent=given.agent or self.agent(), person=given.person or self.local(), limit=limit
        )

    async def backfill(self, given: Backfill) -> dict[str, Any]:
        return await self.memory.backfill(
            given.memory,
            agent=given.agent,
            since=given.since,
            until=float("inf") if given.until is None else given.until,
            per_minute=given.per_minute,
            really=given.really,
        )

    async def replay(self, given: Replay) -> dict[str, Any]:
        return await self.memory.replay(given.memory, since=given.since, agent=given.agent, really=given.really)

    async def why(self, given: At) -> dict[str, Any]:
        return await self.memory.why(given.name, at=given.at)

    async def forget(self, given: Forget) -> dict[str, Any]:
        if given.really:
            return forgetting_json(await self.memory.forget(given.person))
        return forgetting_json(await self.memory.plan(given.person))

    async def export(self, given: Export) -> dict[str, Any]:
        directory = Path(given.to)
        if not directory.is_absolute():
            raise Misuse(f"{given.to!r} is no full path", remedy="name a directory")
        if clean(given.person)[1]:  # before a file is named after them
            raise Misuse(f"{given.person!r} holds code points that are no characters", remedy="write names in UTF-8")
        made = await write_down(self.memory.export(given.person), given.person, directory)
        return {**made, "files": [*made["files"], *await facts_out(self.memory, given.person, directory)]}

    async def bring_in(self, given: BringIn) -> dict[str, Any]:
        files = read(Path(given.path))
        return await bring_in(self.memory, given.name, files, really=given.really)


def forgetting_json(found: Forgetting) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {**plain, "entries": found.entries}
