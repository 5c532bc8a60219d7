"""Supermemory as a memory provider: one document for each exchange or note, with an id made from its key.

Supermemory recognises a repeated document. A different document under the same id cannot occur, because the content of
a key never changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from everhold.errors import InDoubt, Transient
from everhold.memories.remote import (
    REMOTE_CAPABILITIES,
    check_health,
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
    is_only_for,
    make_safe_id,
)
from everhold.memories.settings import fill_agent_name
from everhold.memories.signature import compute_signature
from everhold.memories.supermemory.client import SupermemoryClient, SupermemoryNotFound, build_filter
from everhold.memories.supermemory.tools import build_tools
from everhold.ports.log import EventLogger
from everhold.ports.memory import (
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

    # -- storing -----------------------------------------------------------------------------------------------------

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        return await store_each(batch, self._store_item)

    async def _store_item(self, batch: MemoryBatch, item: MemoryItem) -> str:
        for ns, documents in (await self._list_retracted_documents(batch, item)).items():
            await self.client.delete_documents(ns, documents)
        document = self._build_document(item)
        if document is None:
            return ""
        ns = self.get_namespace(item.stamp.audience) if not isinstance(item, MemoryRetraction) else ""
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
            await self.client.delete_documents(ns, [document])
            raise Transient("Supermemory could not process a document that it had accepted")
        if status == "gone":
            raise InDoubt("Supermemory reported a document as stored, but it is not there")
        if status != "done":
            raise InDoubt(f"Supermemory accepted a document but has not stored it yet ({status})")

    async def _list_retracted_documents(self, batch: MemoryBatch, item: MemoryItem) -> dict[str, list[str]]:
        """Return namespace -> the documents that an item removes."""
        gone: dict[str, list[str]] = {}
        if isinstance(item, MemoryRetraction):
            for key in item.keys:
                for ns in self._list_namespaces(batch.heard_by.get(key, ())):
                    gone.setdefault(ns, []).append(make_document_id(key))
        elif isinstance(item, MemoryNote) and item.action != "add":
            for ns in self._list_namespaces(item.stamp.audience):
                if item.supersedes:
                    gone[ns] = [make_document_id(item.supersedes)]
                elif item.fact:
                    # The previous version may be from another session, so it is found by the fact it is about.
                    listed = await self.client.list_documents(ns, {"everhold_fact": item.fact})
                    gone[ns] = [one.id for one in listed if one.id != make_document_id(item.key)]
        return gone

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
                    for ns in self._list_namespaces(item.stamp.audience)
                ]
                here = any(one is not None and one.system.status != "failed" for one in found)
            if here and not left:
                arrived.append(item.key)
        return arrived

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        if query.agent != self.agent or not query.audience or not query.text.strip():
            return ()
        ns, *before = self._list_namespaces(query.audience)
        found = [one for one in await self._search_namespace(ns, query) if self._can_hear(one, query)]
        for shared in before:
            those = await self._search_namespace(shared, query, shared=True)
            found += [
                one for one in those if can_hear(query.audience, one.metadata or {}) and self._can_hear(one, query)
            ]
        return [_to_memory_hit(one, get_only_person(query.audience)) for one in found]

    async def _search_namespace(self, ns: str, query: MemoryQuery, *, shared: bool = False) -> Sequence[Any]:
        options: dict[str, Any] = {}
        if shared or "{person}" not in self.settings.namespace:
            # Several people share this namespace. Filter by audience, so that hits which must not be shown do not
            # displace the others.
            options["filter"] = build_filter(build_audience_marks(query.audience))
        try:
            answer = await self.client.call(
                "searching",
                lambda sdk: sdk.search(
                    ns,
                    query=query.text.strip(),
                    search_mode=self.settings.search_mode,
                    limit=max(1, min(100, query.limit)),
                    threshold=self.settings.threshold,
                    **options,
                ),
            )
        except SupermemoryNotFound:
            return ()
        if answer is None or answer.results is None:
            raise Transient("Supermemory returned an answer that cannot be read")
        results: Sequence[Any] = answer.results
        return results

    def _can_hear(self, result: Any, query: MemoryQuery) -> bool:
        about = result.metadata or {}
        if not (result.memory or result.chunk):
            return False
        if not about.get("everhold"):
            # Not written by everhold, or by an early version: it belongs to the only person of this namespace.
            return bool(get_only_person(query.audience)) and "{person}" in self.settings.namespace
        return can_hear(query.audience, about) and (
            self.settings.share_agents or about.get("everhold_agent") == self.agent
        )

    # -- other capabilities ------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return build_tools(self)

    async def forget(self, person: str) -> ForgetResult:
        """Delete the documents of what a person said to the agent alone. Documents that others heard are kept and
        reported.
        """
        deleted = 0
        for ns, mine in (await self._list_documents_of(person)).items():
            deleted += sum(
                [await self.client.delete_documents(ns, mine[at : at + 100]) for at in range(0, len(mine), 100)]
            )
        return ForgetResult(deleted=deleted, kept=("documents of what was said in groups",))

    async def export(self, person: str) -> AsyncIterator[MemoryHit]:
        listed = await self._list_documents_of(person)
        for ns, id_ in [(ns, id_) for ns, ids in listed.items() for id_ in ids]:
            document = await self.client.get_document(ns, id_)
            if document is not None:
                hit = read_hit(document.content or "", document.metadata or {}, person=person)
                yield msgspec.structs.replace(hit, person=person)

    async def _list_documents_of(self, person: str) -> dict[str, list[str]]:
        """Return namespace -> documents of what a person said to the agent alone."""
        audience = (f"person:{person}",)
        mine: dict[str, list[str]] = {}
        for number, ns in enumerate(self._list_namespaces(audience)):
            apart = "{person}" in self.settings.namespace and number == 0
            found = await self.client.list_documents(ns, {} if apart else build_audience_marks(audience))
            mine[ns] = [one.id for one in found if is_only_for(audience, one.metadata or {})]
        return mine

    async def health(self) -> ProviderHealth:
        return await check_health(self.client.get_document(self.get_namespace(()), "everhold-nothing"))

    async def close(self) -> None:
        await self.client.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        return compute_signature("supermemory", self.settings)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def get_namespace(self, audience: Sequence[str]) -> str:
        """Return the namespace of an audience."""
        return self._list_namespaces(audience)[0]

    def _list_namespaces(self, audience: Sequence[str]) -> tuple[str, ...]:
        """Return the namespace of an audience, then the namespace that early versions used, which others may share."""
        template = self.settings.namespace
        template = fill_agent_name(template, "shared") if self.settings.share_agents else template
        return expand_template(template, agent=self.agent, audience=audience)

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


def make_document_id(key: str) -> str:
    """Return the id of the document for an exchange or note."""
    return f"everhold-{make_safe_id(key)}"


def _to_memory_hit(result: Any, person: str) -> MemoryHit:
    created = result.system.created_at or result.system.updated_at if result.system else None
    return read_hit(
        result.memory or result.chunk,
        result.metadata or {},
        person=person,
        score=float(result.similarity or 0.0),
        at=read_time(created),
    )
