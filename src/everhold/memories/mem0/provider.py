"""Mem0 as a memory provider: one memory for each exchange or note, with its key in the metadata.

Mem0 does not recognise a repeat, so an attempt in doubt is probed by its key. With `infer` on, Mem0 stores what a
language model extracts, which cannot be probed. The configured policy then decides about attempts in doubt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from everhold.core.peers import MAX_PEERS, PeerRule
from everhold.core.people import build_present
from everhold.errors import InDoubt
from everhold.memories.mem0.backends import Mem0Backend, Mem0LocalBackend, Mem0PlatformBackend
from everhold.memories.mem0.tools import build_tools
from everhold.memories.remote import (
    REMOTE_CAPABILITIES,
    ErasureScope,
    build_states,
    check_health,
    compute_signature,
    make_deletion_id,
    make_metadata,
    make_text,
    read_hit,
    read_time,
    split_deletion_id,
    store_each,
)
from everhold.memories.scope import (
    build_audience_marks,
    can_hear,
    expand_template,
    get_only_person,
    get_present,
    is_only_for,
    list_audiences,
    list_peer_choices,
    list_present_names,
    name_audience,
)
from everhold.memories.settings import fill_agent_name
from everhold.ports.log import EventLogger
from everhold.ports.memory import (
    SEARCH_PROBE_TEXT,
    ErasureState,
    ErasureTarget,
    Exchange,
    MemoryBatch,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    ProviderDeletion,
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
        self.peer_rule = PeerRule()

    # -- storing -----------------------------------------------------------------------------------------------------

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        return await store_each(batch, self._store_item)

    async def _store_item(self, batch: MemoryBatch, item: MemoryItem) -> str:
        if isinstance(item, MemoryRetraction):
            await self._delete_memories(await self._find_retracted(batch, item))
            return ""
        await self._delete_memories(await self._find_outdated(batch, item))
        text = make_text(item)
        if not text:
            return ""
        if isinstance(item, MemoryNote) and item.action == "replace" and (there := await self._find_stored(item)):
            return str(there[0]["id"])
        await self.backend.add(
            text,
            user=self.get_user_id(item.stamp.audience, item.peers),
            metadata=make_metadata(item),
            infer=self.settings.infer,
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
                here = not await self._find_outdated(batch, item) and (
                    not make_text(item) or bool(await self._find_stored(item))
                )
            if here:
                arrived.append(item.key)
        return arrived

    async def _find_stored(self, item: Exchange | MemoryNote) -> list[dict[str, Any]]:
        """Return the memory of an item. If a request was carried out twice there are several, and all but one are
        deleted.
        """
        found = await self._list_memories(item.stamp.audience, {"everhold": [item.key]}, item.peers)
        found = [one for one in found if _get_metadata(one).get("everhold") == item.key]
        if len(found) > 1 and not self.settings.infer:
            found.sort(key=lambda one: (str(one.get("created_at") or ""), str(one["id"])))
            await self._delete_memories(found[1:])
            self.log.warning("memory.duplicated", key=item.key, deleted=len(found) - 1)
        return found[:1] if not self.settings.infer else found

    async def _find_outdated(self, batch: MemoryBatch, item: Exchange | MemoryNote) -> list[dict[str, Any]]:
        """Return the memories that a note replaces or removes."""
        if not isinstance(item, MemoryNote) or item.action == "add":
            return []
        where = {"everhold": [item.supersedes]} if item.supersedes else {"everhold_fact": [item.fact]}
        if not any(value for values in where.values() for value in values):
            return []
        known = batch.peers_of.get(item.supersedes) or batch.peers_of.get(item.fact) or {}
        found = {
            str(one["id"]): one
            for peers in (item.peers, known)
            for one in await self._list_memories(item.stamp.audience, where, peers)
        }
        return [one for one in found.values() if _get_metadata(one).get("everhold") != item.key]

    async def _find_retracted(self, batch: MemoryBatch, item: MemoryRetraction) -> list[dict[str, Any]]:
        found = []
        for key in item.keys:
            audience, peers = batch.heard_by.get(key, ()), batch.peers_of.get(key, {})
            found += await self._list_memories(audience, {"everhold": [key]}, peers)
        return [one for one in found if _get_metadata(one).get("everhold") in item.keys]

    async def _list_memories(
        self,
        audience: Sequence[str],
        where: Mapping[str, Sequence[str]],
        peers: Mapping[str, str] = MappingProxyType({}),
    ) -> list[dict[str, Any]]:
        """Return the memories of these users that have these values."""
        user, *before = self._list_user_ids(audience, peers)
        present = build_present(audience)
        found = list(await self.backend.list_memories(user, where))
        for shared in before:
            those = await self.backend.list_memories(shared, where)
            found += [one for one in those if can_hear(present, _get_metadata(one), _get_time(one))]
        return found

    async def remove(self, batch: MemoryBatch) -> Sequence[str]:
        left = []
        for item in batch.items:
            if isinstance(item, MemoryRetraction):
                continue
            await self._delete_memories(await self._find_stored(item))
            if await self._find_stored(item):
                left.append(item.key)
        return left

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        if query.agent != self.agent or not query.audience or not query.text.strip():
            return ()
        text, limit = query.text.strip(), max(1, min(100, query.limit))
        present, found = get_present(query), dict[str, dict[str, Any]]()
        for user, marks, is_private, since in self._list_questions(query):
            for one in await self.backend.search(text, user=user, marks=marks, limit=limit):
                heard = is_private or can_hear(present, _get_metadata(one), _get_time(one))
                if heard and self._can_hear(one, query, since=since):
                    found.setdefault(str(one.get("id")), one)
        person = get_only_person(query.audience)
        return [_to_memory_hit(one, person) for one in found.values()]

    def _list_questions(self, query: MemoryQuery) -> list[tuple[str, dict[str, str], bool, float]]:
        """Return (user_id, marks that a hit must have, whether everything under the user_id is the person's, start of
        its time) for each search. With one user_id per person, everything filed under it is theirs.
        """
        present, asked = get_present(query), dict[tuple[str, str], tuple[str, dict[str, str], bool, float]]()
        all_marks = [build_audience_marks(audience) for audience in list_audiences(present)]
        for who, is_person, since in list_present_names(get_present(query), query.peers):
            user, *before = self._expand_user(who, is_person=is_person)
            private = self._has_private_user(query)
            places = [(user, {}, True)] if private else [(user, marks, False) for marks in all_marks]
            places += [(shared, marks, False) for shared in before for marks in all_marks]
            for place in places:
                asked.setdefault((place[0], " ".join(place[1])), (*place, since))
        return list(asked.values())[:MAX_PEERS]

    def _has_private_user(self, query: MemoryQuery) -> bool:
        return bool(get_only_person(query.audience)) and "{person}" in self.settings.user

    def _can_hear(self, memory: Mapping[str, Any], query: MemoryQuery, *, since: float) -> bool:
        about = _get_metadata(memory)
        if not about.get("everhold"):
            # Not written by everhold, or by an early version: it belongs to the user it is filed under, who is alone
            # here.
            return self._has_private_user(query) and _get_time(memory) >= since
        return can_hear(get_present(query), about, _get_time(memory)) and (
            self.settings.share_agents or about.get("everhold_agent") == self.agent
        )

    # -- other capabilities ------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return build_tools(self)

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        """Delete the memories of what the person said to the agent alone, and of erased items that others heard."""
        scope = ErasureScope(target)
        mine = {
            str(it["id"]): it
            for identity in target.identities
            for it in await self._list_private_memories(identity, target.peers, target.shared_peers)
            if _is_taken(it, scope)
        }
        where = {"everhold": list(target.keys)}
        for audience in target.audiences if target.keys else ():
            for peers in list_peer_choices(audience, target.peers_of):
                mine |= {str(it["id"]): it for it in await self._list_memories(audience, where, peers)}
        for id in target.remote_ids:
            if id not in mine and (one := await self.backend.get(id)) is not None:
                mine[id] = one
        await self._delete_memories(list(mine.values()))
        found = []
        for user in dict.fromkeys(map(self._get_user, mine.values())):
            ids = [id for id, it in mine.items() if self._get_user(it) == user]
            what = f"{len(ids)} memories of user {user}"
            found.append(ProviderDeletion(id=make_deletion_id("memories", user, *ids), what=what, count=len(ids)))
        purged = await self.backend.purge_history(list(mine), [str(it.get("memory") or "") for it in mine.values()])
        if purged:
            found.append(
                ProviderDeletion(
                    id=make_deletion_id("history", *mine), what="the history file", count=purged, hidden=True
                )
            )
        if self.settings.infer:
            found.append(_name_inferred())
        return found

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        """Read back by id, by list and by search."""
        left: dict[str, bool] = {}
        for it in deletions:
            kind, ids = split_deletion_id(it.id)
            if kind == "history":
                left[it.id] = bool(await self.backend.count_history(ids))
                continue
            user, *ids = ids
            listed = await self.backend.list_memories(user, {})
            found = await self.backend.search(SEARCH_PROBE_TEXT, user=user, marks={}, limit=100)
            seen = {str(it["id"]) for it in (*listed, *found)}
            left[it.id] = any([await self.backend.get(id) for id in ids]) or not seen.isdisjoint(ids)
        return build_states(left)

    def _get_user(self, memory: Mapping[str, Any]) -> str:
        return str(memory.get("user_id") or self.get_user_id(()))

    async def _list_private_memories(
        self, person: str, peers: Sequence[str], shared_peers: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return what a person said to the agent alone. Under a peer that others have, too, only the marks tell."""
        audience = (f"person:{person}",)
        marks = {name: [value] for name, value in build_audience_marks(audience).items()}
        found: dict[str, dict[str, Any]] = {}
        for peer in dict.fromkeys((person, *peers, *shared_peers)):
            is_private = "{person}" in self.settings.user and peer not in shared_peers
            listed = await self._list_memories(audience, {} if is_private else marks, {person: peer})
            found |= {str(it["id"]): it for it in listed if is_only_for(audience, _get_metadata(it))}
        return list(found.values())

    async def export(
        self, person: str, *, peers: Sequence[str] = (), shared_peers: Sequence[str] = ()
    ) -> AsyncIterator[MemoryHit]:
        for one in await self._list_private_memories(person, peers, shared_peers):
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

    def get_user_id(self, audience: Sequence[str], peers: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the user_id of an audience."""
        return self._list_user_ids(audience, peers)[0]

    def _list_user_ids(
        self, audience: Sequence[str], peers: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[str, ...]:
        """Return the user_id of an audience, then the user_id that early versions used, which others may share."""
        return self._expand_user(name_audience(audience, peers), is_person=bool(get_only_person(audience)))

    def _expand_user(self, who: str, *, is_person: bool) -> tuple[str, ...]:
        template = fill_agent_name(self.settings.user, "shared") if self.settings.share_agents else self.settings.user
        return expand_template(template, agent=self.agent, who=who, is_person=is_person)


def _is_taken(memory: Mapping[str, Any], scope: ErasureScope) -> bool:
    about = _get_metadata(memory)
    at = float(about.get("everhold_at") or 0.0)
    return scope.takes_item(str(about.get("everhold", "")), at=at, stored_at=read_time(memory.get("created_at")))


def _name_inferred() -> ProviderDeletion:
    return ProviderDeletion(
        id="inferred",
        what="what Mem0's language model made of words in groups",
        state=ErasureState.CANNOT,
        reason="with `infer` on, nobody knows whose words a memory was made of; look through them by hand",
    )


def _get_metadata(memory: Mapping[str, Any]) -> Mapping[str, Any]:
    about = memory.get("metadata")
    return about if isinstance(about, Mapping) else {}


def _get_time(memory: Mapping[str, Any]) -> float:
    about = _get_metadata(memory)
    return float(about.get("everhold_at") or read_time(memory.get("created_at")))


def _to_memory_hit(memory: Mapping[str, Any], person: str) -> MemoryHit:
    about = _get_metadata(memory)
    score = memory.get("score")
    return read_hit(
        str(memory.get("memory") or ""),
        about,
        person=person,
        score=float(score) if isinstance(score, int | float) else 0.0,
        at=_get_time(memory),
    )
