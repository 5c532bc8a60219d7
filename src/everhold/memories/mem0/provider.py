"""Mem0 as a memory provider: one memory for each exchange or note, with its key in the metadata.

Mem0 recognises no repeat, so whoever doubts asks for the key first. With `infer` on, what arrives is whatever a
language model made of it: nobody can tell then, and doubt follows the configured policy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from everhold.errors import InDoubt
from everhold.memories.mem0.backends import Backend, Local, Platform
from everhold.memories.mem0.tools import tools_of
from everhold.memories.remote import (
    REMOTE_CAPABILITIES,
    check_health,
    make_metadata,
    make_text,
    read_hit,
    read_time,
    store_each,
)
from everhold.memories.scope import alone, marks, may_hear, only_for, places
from everhold.memories.settings import filled
from everhold.memories.signature import signature
from everhold.ports.log import Log
from everhold.ports.memory import (
    Batch,
    Exchange,
    Forgotten,
    Found,
    Health,
    Memory,
    Note,
    Query,
    Retraction,
)
from everhold.ports.platform import Delivery
from everhold.ports.tool import Tool

if TYPE_CHECKING:
    from everhold.memories.mem0.settings import Mem0Settings


class Mem0Memory:
    """One instance for one agent."""

    capabilities: ClassVar = REMOTE_CAPABILITIES

    def __init__(self, settings: Mem0Settings, *, agent: str, log: Log, directory: PurePath) -> None:
        self.settings = settings
        self.agent = agent
        self.log = log
        self.delivery = Delivery.BLIND if settings.infer else Delivery.PROBE
        self.deadline = settings.deadline_seconds + settings.confirm_seconds
        # in this process nothing is carried out later
        self.visible_after = settings.visible_seconds if settings.mode == "platform" else 0.0
        kind = Platform if settings.mode == "platform" else Local
        self.backend: Backend = kind(settings, directory)

    # -- storing -----------------------------------------------------------------------------------------------------

    async def store(self, batch: Batch) -> Mapping[str, str]:
        return await store_each(batch, self._keep)

    async def _keep(self, batch: Batch, item: Memory) -> str:
        if isinstance(item, Retraction):
            await self._delete(await self._undone(batch, item))
            return ""
        await self._delete(await self._outdated(item))
        text = make_text(item)
        if not text:
            return ""
        if isinstance(item, Note) and item.action == "replace" and (there := await self._there(item)):
            return str(there[0]["id"])
        await self.backend.add(
            text, user=self.user(item.stamp.audience), metadata=_metadata(item), infer=self.settings.infer
        )
        if self.settings.infer or not self.settings.confirm:
            return ""
        there = await self._there(item)
        if not there:
            raise InDoubt("Mem0 said that a memory was stored, and it is not there")
        return str(there[0]["id"])

    async def _delete(self, memories: Sequence[dict[str, Any]]) -> int:
        return sum([await self.backend.delete(str(memory["id"])) for memory in memories])

    # -- asking what is there ----------------------------------------------------------------------------------------

    async def probe(self, batch: Batch) -> Sequence[str]:
        arrived = []
        for item in batch.items:
            if isinstance(item, Retraction):
                here = not await self._undone(batch, item)
            else:
                here = not await self._outdated(item) and (not make_text(item) or bool(await self._there(item)))
            if here:
                arrived.append(item.key)
        return arrived

    async def _there(self, item: Exchange | Note) -> list[dict[str, Any]]:
        """The memory of an item. If a request was carried out twice there are several: all but one are deleted."""
        found = await self._those(item.stamp.audience, {"everhold": [item.key]})
        found = [one for one in found if _about(one).get("everhold") == item.key]
        if len(found) > 1 and not self.settings.infer:
            found.sort(key=lambda one: (str(one.get("created_at") or ""), str(one["id"])))
            await self._delete(found[1:])
            self.log.warning("memory.doubled", key=item.key, deleted=len(found) - 1)
        return found[:1] if not self.settings.infer else found

    async def _outdated(self, item: Exchange | Note) -> list[dict[str, Any]]:
        """What a note takes back."""
        if not isinstance(item, Note) or item.action == "add":
            return []
        where = {"everhold": [item.supersedes]} if item.supersedes else {"everhold_fact": [item.fact]}
        if not any(value for values in where.values() for value in values):
            return []
        found = await self._those(item.stamp.audience, where)
        return [one for one in found if _about(one).get("everhold") != item.key]

    async def _undone(self, batch: Batch, item: Retraction) -> list[dict[str, Any]]:
        found = []
        for audience in dict.fromkeys(batch.heard_by.get(key, ()) for key in item.keys):
            found += await self._those(audience, {"everhold": list(item.keys)})
        return [one for one in found if _about(one).get("everhold") in item.keys]

    async def _those(self, audience: Sequence[str], where: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        """What is kept for these people and has these values."""
        user, *before = self._users(audience)
        found = list(await self.backend.those(user, where))
        for shared in before:
            found += [one for one in await self.backend.those(shared, where) if may_hear(audience, _about(one))]
        return found

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, query: Query) -> Sequence[Found]:
        if query.agent != self.agent or not query.audience or not query.text.strip():
            return ()
        text, limit = query.text.strip(), max(1, min(100, query.limit))
        user, *before = self._users(query.audience)
        found = list(await self.backend.search(text, user=user, marks=self._marks(query), limit=limit))
        for shared in before:
            those = await self.backend.search(text, user=shared, marks=marks(query.audience), limit=limit)
            found += [one for one in those if may_hear(query.audience, _about(one))]
        return [_found(one, alone(query.audience)) for one in found if self._may_hear(one, query)]

    def _marks(self, query: Query) -> dict[str, str]:
        """What a memory must carry to be heard by those present. With a user for each, anything else is theirs, too."""
        return {} if self._apart(query) else marks(query.audience)

    def _apart(self, query: Query) -> bool:
        return bool(alone(query.audience)) and "{person}" in self.settings.user

    def _may_hear(self, memory: Mapping[str, Any], query: Query) -> bool:
        about = _about(memory)
        if not about.get("everhold"):
            # from before, or from elsewhere: it belongs to the user it is filed under, who is alone here
            return self._apart(query)
        return may_hear(query.audience, about) and (
            self.settings.share_agents or about.get("everhold_agent") == self.agent
        )

    # -- the rest ----------------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return tools_of(self)

    async def forget(self, person: str) -> Forgotten:
        """What was said to the agent alone. What others heard, too, is not deleted, and named."""
        mine = await self._heard_alone(person)
        return Forgotten(deleted=await self._delete(mine), kept=("memories of what was said in company",))

    async def _heard_alone(self, person: str) -> list[dict[str, Any]]:
        audience = (f"person:{person}",)
        where = {} if "{person}" in self.settings.user else {name: [value] for name, value in marks(audience).items()}
        found = await self._those(audience, where)
        return [one for one in found if only_for(audience, _about(one))]

    async def export(self, person: str) -> AsyncIterator[Found]:
        for one in await self._heard_alone(person):
            yield _found(one, person)

    async def health(self) -> Health:
        return await check_health(self.backend.those(self.user(("person:nobody",)), {"everhold": ["nothing"]}))

    async def close(self) -> None:
        await self.backend.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        return signature("mem0", self.settings)

    # -- small things ------------------------------------------------------------------------------------------------

    def user(self, audience: Sequence[str]) -> str:
        """The user_id that stands for those who are present."""
        return self._users(audience)[0]

    def _users(self, audience: Sequence[str]) -> tuple[str, ...]:
        """That one, and the one which others may share where something was kept earlier."""
        template = filled(self.settings.user, "shared") if self.settings.share_agents else self.settings.user
        return places(template, agent=self.agent, audience=audience)


def _metadata(item: Exchange | Note) -> dict[str, Any]:
    """Mem0 has no time of its own for an item, so the metadata carry it."""
    return make_metadata(item) | {"everhold_at": item.at}


def _about(memory: Mapping[str, Any]) -> Mapping[str, Any]:
    about = memory.get("metadata")
    return about if isinstance(about, Mapping) else {}


def _found(memory: Mapping[str, Any], person: str) -> Found:
    about = _about(memory)
    score = memory.get("score")
    return read_hit(
        str(memory.get("memory") or ""),
        about,
        person=person,
        score=float(score) if isinstance(score, int | float) else 0.0,
        at=float(about.get("everhold_at") or read_time(memory.get("created_at"))),
    )
