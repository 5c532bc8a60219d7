"""Erases a person at Supermemory, and reads back: documents, and what Supermemory has learned from them.

Supermemory answers 200 even if it refused to delete some documents. What it learned is found by searches and in the
profile, so a document counts as deleted only when lists, searches and the profile show nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.core.wording import describe_count
from everhold.memories.remote import ErasureScope, build_states, make_deletion_id, read_time, split_deletion_id
from everhold.memories.scope import list_audience_marks, list_peer_choices, make_document_id
from everhold.ports.memory import SEARCH_PROBE_TEXT, ErasureState, ErasureTarget, ProviderDeletion

if TYPE_CHECKING:
    from everhold.memories.supermemory.provider import SupermemoryMemory

DOCUMENTS: Final = "documents"
REFUSED: Final = "refused"
MAX_FOUND: Final = 100
"""The most results of one search."""


class SupermemoryErasure:
    """What one person has at Supermemory under all their identities."""

    def __init__(self, memory: SupermemoryMemory, target: ErasureTarget) -> None:
        self.memory = memory
        self.client = memory.client
        self.target = target
        self.scope = ErasureScope(target)

    async def ask(self) -> list[ProviderDeletion]:
        """Delete the documents of what the person said to the agent alone, and of erased items that others heard."""
        found: list[ProviderDeletion] = []
        for ns, documents in (await self._list_documents()).items():
            newest = await self._find_newest_fact(ns)
            refused = await self.client.delete_documents(ns, list(documents))
            found += _record_documents(ns, list(documents.values()), newest)
            found += [_record_refusal(ns, id, reason) for id, reason in refused.items()]
        return found

    async def _list_documents(self) -> dict[str, dict[str, Any]]:
        """Return namespace -> id -> document."""
        found: dict[str, dict[str, Any]] = {}
        target = self.target
        for identity in target.identities:
            for ns, is_private in self.memory.list_own_namespaces(identity, target.peers, target.shared_peers).items():
                for one in await self.memory.list_own_documents(ns, identity, is_private=is_private):
                    if self._is_taken(one):
                        found.setdefault(ns, {})[one.id] = one
        namespaces = (
            ns
            for audience in target.audiences
            for peers in list_peer_choices(audience, target.peers_of)
            for ns in self.memory.list_namespaces(audience, peers)
        )
        for ns in dict.fromkeys(namespaces):
            for id in map(make_document_id, target.keys):
                if id not in found.get(ns, {}) and (one := await self.client.get_document(ns, id)) is not None:
                    found.setdefault(ns, {})[id] = one
        return found

    async def _find_newest_fact(self, ns: str) -> float:
        """Return when the newest fact was learned that the erasure is about. It is younger than its document."""
        learned = map(get_created, await self.client.list_memories(ns))
        return max((at for at in learned if self.scope.takes_item("", stored_at=at)), default=0.0)

    def _is_taken(self, document: Any) -> bool:
        about = document.metadata or {}
        at = float(about.get("everhold_at") or 0.0)
        return self.scope.takes_item(str(about.get("everhold", "")), at=at, stored_at=get_created(document))


def _record_documents(ns: str, documents: Sequence[Any], newest: float) -> list[ProviderDeletion]:
    """Return the deletion of documents, one for each audience, because a shared namespace is searched by audience."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for document in documents:
        groups.setdefault(list_audience_marks(document.metadata or {}), []).append(document)
    return [
        ProviderDeletion(
            id=make_deletion_id(DOCUMENTS, ns, str(len(marks)), *marks, *(it.id for it in some)),
            what=f"{describe_count(len(some), 'document')} in namespace {ns}",
            count=len(some),
            upto=max(newest, *map(get_created, some)),
        )
        for marks, some in groups.items()
    ]


def _record_refusal(ns: str, document: str, reason: str) -> ProviderDeletion:
    """Return the deletion of a document that Supermemory refused to delete. It is unconfirmed at once."""
    return ProviderDeletion(
        id=make_deletion_id(REFUSED, ns, document),
        what=f"a document in namespace {ns}",
        state=ErasureState.UNCONFIRMED,
        reason=f"Supermemory refused: {reason}",
    )


async def confirm_deletions(
    memory: SupermemoryMemory, deletions: Sequence[ProviderDeletion]
) -> Mapping[str, ErasureState]:
    left: dict[str, bool] = {}
    for it in deletions:
        kind, (ns, *parts) = split_deletion_id(it.id)
        if kind == REFUSED:
            left[it.id] = await memory.client.get_document(ns, parts[0]) is not None
        else:
            count = int(parts[0])
            marks, ids = parts[1 : count + 1], parts[count + 1 :]
            left[it.id] = await _are_documents_left(memory, ns, marks, ids, it.upto)
    return build_states(left)


async def _are_documents_left(
    memory: SupermemoryMemory, ns: str, marks: Sequence[str], ids: Sequence[str], upto: float
) -> bool:
    """Read back by id, by list, by search as recall searches, and in the profile."""
    if any([await memory.client.get_document(ns, id) for id in ids]):
        return True
    listed = await memory.client.list_documents(ns, {})
    if any(it.id in ids for it in listed):
        return True
    learned = await memory.client.list_memories(ns)
    for filter in dict.fromkeys(((), tuple(marks))):
        learned += await memory.search_namespace(
            ns, SEARCH_PROBE_TEXT, dict.fromkeys(filter, "yes"), limit=MAX_FOUND, threshold=0.0
        )
    if any(_is_left(it, ids, upto) for it in learned):
        return True
    # a fact of a profile does not say where it comes from
    return not listed and memory.has_profiles and bool(await memory.read_profile(ns))


def _is_left(found: Any, ids: Sequence[str], upto: float) -> bool:
    """Whether a learned fact or a hit comes from a deleted document. Without our key only its time tells."""
    key = str((found.metadata or {}).get("everhold", ""))
    return make_document_id(key) in ids if key else get_created(found) <= upto


def get_created(result: Any) -> float:
    return read_time(result.system.created_at or result.system.updated_at) if result.system else 0.0
