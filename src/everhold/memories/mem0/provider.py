"""Mem0 as a memory provider: one memory for each exchange or note, with its key in the metadata.

Mem0 does not recognise a repeat, so an attempt in doubt is probed by its key. With `infer` on, Mem0 stores what a
language model extracts, which cannot be probed. The configured policy then decides about attempts in doubt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from everhold.errors import InDoubt
from everhold.memories.mem0.backends import Mem0Backend, Mem0LocalBackend, Mem0PlatformBackend
from everhold.memories.mem0.tools import build_tools
from everhold.memories.remote import (
    REMOTE_CAPABILITIES,
    check_health,
    make_metadata,
    make_text,
    read_hit,
    read_time,
    store_each,
)
from everhold.memories.scope import build_audience_marks, can_hear, expand_template, get_only_person, is_only_for
from everhold.memories.settings import fill_agent_name
from everhold.memories.signature import compute_signature
from everhold.ports.log import EventLogger
from everhold.ports.memory import (
    Exchange,
    ForgetResult,
    MemoryBatch,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    ProviderHealth,
)
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.tool import Tool

if TYPE_CHECKING:
    from everhold.memories.mem0.settings import Mem0Settings


class Mem0Memory:
    """One instance for one agent."""

    capabilities: ClassVar = REMOTE_CAPABILITIES

    def __init__(self, settings: Mem0Settings, *, agent: str, log: EventLogger, directory: PurePath) -> None:
        self.settings = settings
        self.agent = agent
        self.log = log
        self.delivery = DeliveryGuarantee.BLIND if settings.infer else DeliveryGuarantee.PROBE
        self.deadline = settings.deadline_seconds + settings.confirm_seconds
        # the library carries out nothing after the call has returned
        self.visible_after = settings.visible_seconds if settings.mode == "platform" else 0.0
        kind = Mem0PlatformBackend if settings.mode == "platform" else Mem0LocalBackend
        self.backend: Mem0Backend = kind(settings, directory)

    # -- storing -----------------------------------------------------------------------------------------------------

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        return await store_each(batch, self._store_item)

    async def _store_item(self, batch: MemoryBatch, item: MemoryItem) -> str:
        if isinstance(item, MemoryRetraction):
            await self._delete_memories(await self._find_retracted(batch, item))
            return ""
        await self._delete_memories(await self._find_outdated(item))
        text = make_text(item)
        if not text:
            return ""
        if isinstance(item, MemoryNote) and item.action == "replace" and (there := await self._find_stored(item)):
            return str(there[0]["id"])
        await self.backend.add(
            text, user=self.get_user_id(item.stamp.audience), metadata=_metadata(item), infer=self.settings.infer
        )
        if self.settings.infer or not self.settings.confirm:
            return ""
        there = await self._find_stored(item)
        if not there:
            raise InDoubt("Mem0 reported a memory as stored, but it is not there")
        return str(there[0]["id"])

    async def _delete_memories(self, memories: Sequence[dict[str, Any]]) -> int:
        return sum([await self.backend.delete(str(memory["id"])) for memory in memories])

    # -- probing -----------------------------------------------------------------------------------------------------

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        arrived = []
        for item in batch.items:
            if isinstance(item, MemoryRetraction):
                here = not await self._find_retracted(batch, item)
            else:
                here = not await self._find_outdated(item) and (
                    not make_text(item) or bool(await self._find_stored(item))
                )
            if here:
                arrived.append(item.key)
        return arrived

    async def _find_stored(self, item: Exchange | MemoryNote) -> list[dict[str, Any]]:
        """Return the memory of an item. If a request was carried out twice there are several, and all but one are
        deleted.
        """
        found = await self._list_memories(item.stamp.audience, {"everhold": [item.key]})
        found = [one for one in found if _get_metadata(one).get("everhold") == item.key]
        if len(found) > 1 and not self.settings.infer:
            found.sort(key=lambda one: (str(one.get("created_at") or ""), str(one["id"])))
            await self._delete_memories(found[1:])
            self.log.warning("memory.duplicated", key=item.key, deleted=len(found) - 1)
        return found[:1] if not self.settings.infer else found

    async def _find_outdated(self, item: Exchange | MemoryNote) -> list[dict[str, Any]]:
        """Return the memories that a note replaces or removes."""
        if not isinstance(item, MemoryNote) or item.action == "add":
            return []
        where = {"everhold": [item.supersedes]} if item.supersedes else {"everhold_fact": [item.fact]}
        if not any(value for values in where.values() for value in values):
            return []
        found = await self._list_memories(item.stamp.audience, where)
        return [one for one in found if _get_metadata(one).get("everhold") != item.key]

    async def _find_retracted(self, batch: MemoryBatch, item: MemoryRetraction) -> list[dict[str, Any]]:
        found = []
        for audience in dict.fromkeys(batch.heard_by.get(key, ()) for key in item.keys):
            found += await self._list_memories(audience, {"everhold": list(item.keys)})
        return [one for one in found if _get_metadata(one).get("everhold") in item.keys]

    async def _list_memories(self, audience: Sequence[str], where: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        """Return the memories of these users that have these values."""
        user, *before = self._list_user_ids(audience)
        found = list(await self.backend.list_memories(user, where))
        for shared in before:
            found += [
                one for one in await self.backend.list_memories(shared, where) if can_hear(audience, _get_metadata(one))
            ]
        return found

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        if query.agent != self.agent or not query.audience or not query.text.strip():
            return ()
        text, limit = query.text.strip(), max(1, min(100, query.limit))
        user, *before = self._list_user_ids(query.audience)
        found = list(await self.backend.search(text, user=user, marks=self._build_marks(query), limit=limit))
        for shared in before:
            those = await self.backend.search(
                text, user=shared, marks=build_audience_marks(query.audience), limit=limit
            )
            found += [one for one in those if can_hear(query.audience, _get_metadata(one))]
        return [_to_memory_hit(one, get_only_person(query.audience)) for one in found if self._can_hear(one, query)]

    def _build_marks(self, query: MemoryQuery) -> dict[str, str]:
        """Return the metadata values that a hit must have for the people present. With one user_id per person,
        everything filed under it is theirs.
        """
        return {} if self._has_private_user(query) else build_audience_marks(query.audience)

    def _has_private_user(self, query: MemoryQuery) -> bool:
        return bool(get_only_person(query.audience)) and "{person}" in self.settings.user

    def _can_hear(self, memory: Mapping[str, Any], query: MemoryQuery) -> bool:
        about = _get_metadata(memory)
        if not about.get("everhold"):
            # Not written by everhold, or by an early version: it belongs to the user it is filed under, who is alone
            # here.
            return self._has_private_user(query)
        return can_hear(query.audience, about) and (
            self.settings.share_agents or about.get("everhold_agent") == self.agent
        )

    # -- other capabilities ------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return build_tools(self)

    async def forget(self, person: str) -> ForgetResult:
        """Delete the memories of what a person said to the agent alone. Memories that others heard are kept and
        reported.
        """
        mine = await self._list_private_memories(person)
        return ForgetResult(deleted=await self._delete_memories(mine), kept=("memories of what was said in groups",))

    async def _list_private_memories(self, person: str) -> list[dict[str, Any]]:
        audience = (f"person:{person}",)
        where = (
            {}
            if "{person}" in self.settings.user
            else {name: [value] for name, value in build_audience_marks(audience).items()}
        )
        found = await self._list_memories(audience, where)
        return [one for one in found if is_only_for(audience, _get_metadata(one))]

    async def export(self, person: str) -> AsyncIterator[MemoryHit]:
        for one in await self._list_private_memories(person):
            yield _to_memory_hit(one, person)

    async def health(self) -> ProviderHealth:
        return await check_health(
            self.backend.list_memories(self.get_user_id(("person:nobody",)), {"everhold": ["nothing"]})
        )

    async def close(self) -> None:
        await self.backend.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        return compute_signature("mem0", self.settings)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def get_user_id(self, audience: Sequence[str]) -> str:
        """Return the user_id of an audience."""
        return self._list_user_ids(audience)[0]

    def _list_user_ids(self, audience: Sequence[str]) -> tuple[str, ...]:
        """Return the user_id of an audience, then the user_id that early versions used, which others may share."""
        template = fill_agent_name(self.settings.user, "shared") if self.settings.share_agents else self.settings.user
        return expand_template(template, agent=self.agent, audience=audience)


def _metadata(item: Exchange | MemoryNote) -> dict[str, Any]:
    """Return the metadata of an item with its time, because Mem0 has no field for it."""
    return make_metadata(item) | {"everhold_at": item.at}


def _get_metadata(memory: Mapping[str, Any]) -> Mapping[str, Any]:
    about = memory.get("metadata")
    return about if isinstance(about, Mapping) else {}


def _to_memory_hit(memory: Mapping[str, Any], person: str) -> MemoryHit:
    about = _get_metadata(memory)
    score = memory.get("score")
    return read_hit(
        str(memory.get("memory") or ""),
        about,
        person=person,
        score=float(score) if isinstance(score, int | float) else 0.0,
        at=float(about.get("everhold_at") or read_time(memory.get("created_at"))),
    )
