"""The built-in memory as a provider: always there, needs no service. The log is what it remembers, so storing is
nothing but a hint that there is more to take in, and forgetting follows from what the log says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from everhold.core.exchange import build_note_key
from everhold.memories.builtin.index import MemoryIndex
from everhold.memories.builtin.tokenizing import has_content_words
from everhold.memories.builtin.unindexed import IndexHit
from everhold.ports.memory import ForgetResult, MemoryBatch, MemoryCapability, MemoryHit, MemoryQuery, ProviderHealth
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import Store

NAME: Final = "builtin"
KINDS: Final = {"heard": "message", "said": "reply", "noted": "note"}
CHARS_PER_TOKEN: Final = 5
"""Letters found for each token that can be shown: somewhat more than it has, so that a duplicate can be left out."""


class BuiltinMemory:
    """One agent's view of the index. Many instances may share one index; the store is the log it is derived from."""

    capabilities = frozenset({MemoryCapability.FORGET, MemoryCapability.EXPORT, MemoryCapability.HEALTH})
    delivery = DeliveryGuarantee.KEYED
    deadline = 5.0
    visible_after = 0.0

    def __init__(self, *, index: MemoryIndex, store: Store, agent: str) -> None:
        self.index = index
        self.store_of_record = store
        self.agent = agent

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        """Take in what the log has; every key is where it stands in the log already."""
        await self.index.catch_up(self.store_of_record)
        return {item.key: item.key for item in batch.items}

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        """What everybody present may hear of, best first. Another agent's memory is not asked through this one."""
        if query.agent != self.agent or not has_content_words(query.text):
            return ()
        hits = await self.index.search(
            self.store_of_record,
            query.text,
            agent=query.agent,
            audience=query.audience,
            here=query.session,
            seen=query.seen,
            limit=query.limit,
            letters=query.tokens * CHARS_PER_TOKEN if query.tokens else None,
        )
        return [to_memory_hit(hit) for hit in hits]

    async def search(
        self, text: str, *, agent: str, audience: Sequence[str], session: str | None = None, limit: int = 10
    ) -> Sequence[MemoryHit]:
        """What the `session_search` tool finds: the same, within one session if one is named."""
        if agent != self.agent:
            return ()
        hits = await self.index.search(
            self.store_of_record, text, agent=agent, audience=audience, session=session, limit=limit
        )
        return [to_memory_hit(hit) for hit in hits]

    async def health(self) -> ProviderHealth:
        """Always well: without the stronger model it finds less, and says what it goes by."""
        passages, waiting = await self.index.count_pending_embeddings()
        what = {
            "model": "by words and by a model" + (f", {waiting:,} of {passages:,} passages to go" if waiting else ""),
            "table": "by words and by a table of word meanings",
        }[self.index.embedding_level]
        return ProviderHealth(
            well=True, text=f"{what}; {self.index.model_problem}" if self.index.model_problem else what
        )

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        return [item.key for item in batch.items]

    async def forget(self, person: str) -> ForgetResult:
        """Erased entries leave the index with the `erased` that names them; this only makes it happen now."""
        await self.index.wipe_erased(self.store_of_record)
        return ForgetResult(deleted=0)

    async def export(self, person: str) -> AsyncIterator[MemoryHit]:
        """Nothing: all it has stands in the log."""
        nothing: tuple[MemoryHit, ...] = ()
        for found in nothing:
            yield found


def to_memory_hit(hit: IndexHit) -> MemoryHit:
    return MemoryHit(
        text=hit.text,
        score=hit.score,
        session=hit.session,
        seq=hit.seq,
        person=hit.person,
        at=hit.at,
        key=build_note_key(hit.session, hit.seq) if hit.kind == "noted" else f"{hit.session}:{hit.seq}",
        author=hit.author,
        kind=KINDS.get(hit.kind, ""),
        origin=hit.origin,
    )
