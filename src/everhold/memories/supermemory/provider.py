"""Supermemory as a memory provider: one document for each exchange or note, with an id made from its key.

Supermemory recognises a repeated document. A different document under the same id cannot occur, because the content of
a key never changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from everhold.core.peers import MAX_PEERS, PeerRule
from everhold.errors import InDoubt, Transient
from everhold.memories.remote import (
    REMOTE_CAPABILITIES,
    check_health,
    compute_signature,
    make_metadata,
    make_text,
    read_hit,
    read_time,
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
    list_present_names,
    make_document_id,
    name_audience,
)
from everhold.memories.settings import fill_agent_name
from everhold.memories.supermemory.client import SupermemoryClient, SupermemoryNotFound, build_filter
from everhold.memories.supermemory.erasure import SupermemoryErasure, confirm_deletions
from everhold.memories.supermemory.tools import build_tools
from everhold.ports.log import EventLogger
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
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
from everhold.ports.tool import Tool, ToolContext

if TYPE_CHECKING:
    from everhold.memories.supermemory.settings import SupermemorySettings


class SupermemoryMemory:
    """One instance for one agent."""

    delivery = DeliveryGuarantee.UPSERT
    capabilities: ClassVar = REMOTE_CAPABILITIES

    def __init__(self, settings: SupermemorySettings, *, agent: str, log: EventLogger) -> None:
        self.settings = settings
        self.agent = agent
        self.log = log
        self.deadline = settings.deadline_seconds + settings.confirm_seconds
        self.visible_after = settings.visible_seconds
        self.client = SupermemoryClient(settings)
        self.peer_rule = PeerRule()

    # -- storing -----------------------------------------------------------------------------------------------------

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        return await store_each(batch, self._store_item)

    async def _store_item(self, batch: MemoryBatch, item: MemoryItem) -> str:
        for ns, documents in (await self._list_retracted_documents(batch, item)).items():
            await self.client.require_deletion(ns, documents)
        document = self._build_document(item)
        if document is None:
            return ""
        ns = self.get_namespace(item.stamp.audience, item.peers) if not isinstance(item, MemoryRetraction) else ""
        await self.client.add_document(ns, document)
        if self.settings.confirm:
            await self._confirm_document(ns, document["id"])
        return str(document["id"])

    async def _confirm_document(self, ns: str, document: str) -> None:
        """Wait until a document is stored. Accepted is not stored: Supermemory drops documents that it cannot process
        after two minutes.
        """
        status = await self.client.wait_for_document(ns, document, seconds=self.settings.confirm_seconds)
        if status == "failed":
            await self.client.require_deletion(ns, [document])
            raise Transient("Supermemory could not process a document that it had accepted")
        if status == "gone":
            raise InDoubt("Supermemory reported a document as stored, but it is not there")
        if status != "done":
            raise InDoubt(f"Supermemory accepted a document but has not stored it yet ({status})")

    async def _list_retracted_documents(self, batch: MemoryBatch, item: MemoryItem) -> dict[str, list[str]]:
        """Return namespace -> the documents that an item removes."""
        deleted_ids: dict[str, list[str]] = {}
        if isinstance(item, MemoryRetraction):
            for key in item.keys:
                for ns in self.list_namespaces(batch.heard_by.get(key, ()), batch.peers_of.get(key, {})):
                    deleted_ids.setdefault(ns, []).append(make_document_id(key))
        elif isinstance(item, MemoryNote) and item.action != "add":
            known = batch.peers_of.get(item.supersedes) or batch.peers_of.get(item.fact) or {}
            spaces = [ns for peers in (item.peers, known) for ns in self.list_namespaces(item.stamp.audience, peers)]
            for ns in dict.fromkeys(spaces):
                if item.supersedes:
                    deleted_ids[ns] = [make_document_id(item.supersedes)]
                elif item.fact:
                    # The previous version may be from another session, so it is found by the fact it is about.
                    listed = await self.client.list_documents(ns, {"everhold_fact": item.fact})
                    deleted_ids[ns] = [one.id for one in listed if one.id != make_document_id(item.key)]
        return deleted_ids

    # -- probing -----------------------------------------------------------------------------------------------------

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        arrived = []
        for item in batch.items:
            left = [
                document
                for ns, documents in (await self._list_retracted_documents(batch, item)).items()
                for document in documents
                if await self.client.get_document(ns, document) is not None
            ]
            document = self._build_document(item)
            here = document is None
            if document is not None and not isinstance(item, MemoryRetraction):
                found = [
                    await self.client.get_document(ns, document["id"])
                    for ns in self.list_namespaces(item.stamp.audience, item.peers)
                ]
                here = any(one is not None and one.system.status != "failed" for one in found)
            if here and not left:
                arrived.append(item.key)
        return arrived

    async def remove(self, batch: MemoryBatch) -> Sequence[str]:
        left = []
        for item in batch.items:
            if isinstance(item, MemoryRetraction):
                continue
            document = make_document_id(item.key)
            for ns in self.list_namespaces(item.stamp.audience, item.peers):
                await self.client.delete_documents(ns, [document])
                if await self.client.get_document(ns, document) is not None:
                    left.append(item.key)
        return left

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        if query.agent != self.agent or not query.audience or not query.text.strip():
            return ()
        present, found, ids = get_present(query), [], set[str]()
        for ns, marks, since in self._list_questions(query):
            for one in await self.search_namespace(ns, query.text.strip(), marks, limit=query.limit):
                heard = not marks or can_hear(present, one.metadata or {}, _get_time(one))
                if heard and one.id not in ids and self._can_hear(one, query, since=since):
                    ids.add(one.id)
                    found.append(one)
        return [_to_memory_hit(one, get_only_person(query.audience)) for one in found]

    def _list_questions(self, query: MemoryQuery) -> list[tuple[str, dict[str, str], float]]:
        """Return (namespace, marks that a hit must have, start of its time) for each search. If several people share a
        namespace, it is filtered by audience, so that hits which must not be shown do not displace the others.
        """
        asked: dict[tuple[str, str], tuple[str, dict[str, str], float]] = {}
        all_marks = [build_audience_marks(audience) for audience in list_audiences(get_present(query))]
        for who, is_person, since in list_present_names(get_present(query), query.peers):
            ns, *before = self._expand_namespace(who, is_person=is_person)
            own: list[dict[str, str]] = [{}] if "{person}" in self.settings.namespace else all_marks
            for place in [*((ns, marks) for marks in own), *((it, marks) for it in before for marks in all_marks)]:
                asked.setdefault((place[0], " ".join(place[1])), (*place, since))
        return list(asked.values())[:MAX_PEERS]

    async def search_namespace(
        self, ns: str, text: str, marks: Mapping[str, str], *, limit: int, threshold: float | None = None
    ) -> Sequence[Any]:
        options: dict[str, Any] = {"filter": build_filter(marks)} if marks else {}
        try:
            answer = await self.client.call(
                "searching",
                lambda sdk: sdk.search(
                    ns,
                    query=text,
                    search_mode=self.settings.search_mode,
                    limit=max(1, min(100, limit)),
                    threshold=self.settings.threshold if threshold is None else threshold,
                    **options,
                ),
            )
        except SupermemoryNotFound:
            return ()
        if answer is None or answer.results is None:
            raise Transient("Supermemory returned an answer that cannot be read")
        results: Sequence[Any] = answer.results
        return results

    def _can_hear(self, result: Any, query: MemoryQuery, *, since: float) -> bool:
        about = result.metadata or {}
        if not (result.memory or result.chunk):
            return False
        if not about.get("everhold"):
            # Not written by everhold, or by an early version: it belongs to the only person of this namespace.
            is_private = bool(get_only_person(query.audience)) and "{person}" in self.settings.namespace
            return is_private and _get_time(result) >= since
        return can_hear(get_present(query), about, _get_time(result)) and (
            self.settings.share_agents or about.get("everhold_agent") == self.agent
        )

    @property
    def has_profiles(self) -> bool:
        """Whether there is a profile that could be shown. A namespace that several people share has none."""
        return "{person}" in self.settings.namespace

    async def read_profile(self, ns: str) -> list[str]:
        """Return what Supermemory knows about the person of a namespace."""
        try:
            answer = await self.client.call("reading the profile", lambda sdk: sdk.profile(ns))
        except SupermemoryNotFound:
            return []
        profile = answer.profile if answer is not None else None
        known = [*(profile.static or ()), *(profile.dynamic or ())] if profile is not None else []
        return [str(fact.memory) for fact in known if fact.memory]

    # -- other capabilities ------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return build_tools(self)

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        return await SupermemoryErasure(self, target).ask()

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        return await confirm_deletions(self, deletions)

    async def export(
        self, person: str, *, peers: Sequence[str] = (), shared_peers: Sequence[str] = ()
    ) -> AsyncIterator[MemoryHit]:
        for ns, is_private in self.list_own_namespaces(person, peers, shared_peers).items():
            for listed in await self.list_own_documents(ns, person, is_private=is_private):
                document = await self.client.get_document(ns, listed.id)
                if document is not None:
                    hit = read_hit(document.content or "", document.metadata or {}, person=person)
                    yield msgspec.structs.replace(hit, person=person)

    def list_own_namespaces(self, person: str, peers: Sequence[str], shared_peers: Sequence[str]) -> dict[str, bool]:
        """Return namespace -> whether it is this person's alone, for what they said to the agent alone."""
        audience, found = (f"person:{person}",), dict[str, bool]()
        for peer in dict.fromkeys((person, *peers, *shared_peers)):
            ns, *before = self.list_namespaces(audience, {person: peer})
            is_private = "{person}" in self.settings.namespace and peer not in shared_peers
            found[ns] = found.get(ns, True) and is_private  # two names may mean the same namespace
            for shared in before:
                found.setdefault(shared, False)
        return found

    async def list_own_documents(self, ns: str, person: str, *, is_private: bool) -> list[Any]:
        """Return the documents of what a person said to the agent alone. In a namespace that is not theirs alone, only
        the marks tell.
        """
        audience = (f"person:{person}",)
        found = await self.client.list_documents(ns, {} if is_private else build_audience_marks(audience))
        return [one for one in found if is_only_for(audience, one.metadata or {})]

    async def health(self) -> ProviderHealth:
        return await check_health(self.client.get_document(self.get_namespace(()), "everhold-nothing"))

    async def close(self) -> None:
        await self.client.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        return compute_signature("supermemory", self.settings)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def get_namespace(self, audience: Sequence[str], peers: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the namespace of an audience."""
        return self.list_namespaces(audience, peers)[0]

    def list_namespaces(
        self, audience: Sequence[str], peers: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[str, ...]:
        """Return the namespace of an audience, then the namespace that early versions used, which others may share."""
        return self._expand_namespace(name_audience(audience, peers), is_person=bool(get_only_person(audience)))

    def list_present_namespaces(self, context: ToolContext) -> list[str]:
        """Return the namespaces that only the people present have and always had."""
        names = list_present_names(get_present(context).drop_reused_ids(), context.peers)
        return list(dict.fromkeys(self._expand_namespace(it.who, is_person=it.is_person)[0] for it in names))

    def _expand_namespace(self, who: str, *, is_person: bool) -> tuple[str, ...]:
        template = self.settings.namespace
        template = fill_agent_name(template, "shared") if self.settings.share_agents else template
        return expand_template(template, agent=self.agent, who=who, is_person=is_person)

    def _build_document(self, item: MemoryItem) -> dict[str, Any] | None:
        """Build the document for an item; None if the item has no text."""
        text = "" if isinstance(item, MemoryRetraction) else make_text(item)
        if isinstance(item, MemoryRetraction) or not text:
            return None
        return {
            "id": make_document_id(item.key),
            "content": text,
            "metadata": make_metadata(item),
            "task_type": self.settings.task,
            "dreaming": self.settings.dreaming,
            **({"date": datetime.fromtimestamp(item.at, UTC).isoformat()} if item.at else {}),
        }


def _get_time(result: Any) -> float:
    about = result.metadata or {}
    created = result.system.created_at or result.system.updated_at if result.system else None
    return float(about.get("everhold_at") or read_time(created))


def _to_memory_hit(result: Any, person: str) -> MemoryHit:
    return read_hit(
        result.memory or result.chunk,
        result.metadata or {},
        person=person,
        score=float(result.similarity or 0.0),
        at=_get_time(result),
    )
