"""The built-in memory as a provider: always present, needs no service. It is an index over the log. So storing only
prompts the index to read new entries, and forgetting follows from erasures in the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, timedelta, timezone
from typing import Final

from everhold.core.exchange import build_note_key
from everhold.memories.builtin.dates import read_question
from everhold.memories.builtin.index import MemoryIndex
from everhold.memories.builtin.languages import is_about_changes, is_about_oneself
from everhold.memories.builtin.tokenizing import has_content_words
from everhold.memories.builtin.unindexed import IndexHit
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryQuery,
    ProviderDeletion,
    ProviderHealth,
)
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import Store

NAME: Final = "builtin"
KINDS: Final = {"heard": "message", "said": "reply", "noted": "note"}
CHARS_PER_TOKEN: Final = 6
"""Characters to find per token that can be shown: more than a token has, so that duplicates can be dropped."""


class BuiltinMemory:
    """One agent's view of the index. Many instances may share one index; the store holds the log it is derived from."""

    capabilities = frozenset({MemoryCapability.FORGET, MemoryCapability.EXPORT, MemoryCapability.HEALTH})
    delivery = DeliveryGuarantee.KEYED
    deadline = 5.0
    visible_after = 0.0
    is_in_process = True

    def __init__(self, *, index: MemoryIndex, store: Store, agent: str) -> None:
        self.index = index
        self.store_of_record = store
        self.agent = agent

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        """Index the new entries of the log. An item's key is its place in the log, so it is also the receipt."""
        await self.index.catch_up(self.store_of_record)
        return {item.key: item.key for item in batch.items}

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        """Return the hits that everyone present may see, best first. Queries of another agent return nothing."""
        if query.agent != self.agent:
            return ()
        question = read_question(query.text, now=query.asked_at, zone=_make_zone(query.utc_offset_seconds))
        personal = is_about_oneself(question.topic)
        if not question.ranges and not personal and not has_content_words(query.text):
            return ()
        hits = await self.index.search(
            self.store_of_record,
            question.topic if question.topic.strip() else query.text,
            agent=query.agent,
            audience=query.audience,
            here=query.session,
            seen=query.seen,
            dates=question.ranges,
            personal=personal,
            changes=is_about_changes(question.topic),
            for_turn=True,
            limit=query.limit,
            letters=query.tokens * CHARS_PER_TOKEN if query.tokens else None,
        )
        return [to_memory_hit(hit) for hit in hits]

    async def search(
        self, text: str, *, agent: str, audience: Sequence[str], session: str | None = None, limit: int = 10
    ) -> Sequence[MemoryHit]:
        """Search for the `session_search` tool, within one session if one is named."""
        if agent != self.agent:
            return ()
        hits = await self.index.search(
            self.store_of_record, text, agent=agent, audience=audience, session=session, limit=limit
        )
        return [to_memory_hit(hit) for hit in hits]

    async def health(self) -> ProviderHealth:
        """Always healthy. The text says which embeddings are in use, because search finds less without the stronger
        model.
        """
        passages, waiting = await self.index.count_pending_embeddings()
        what = {
            "model": "by words and by a model" + (f", {waiting:,} of {passages:,} passages to go" if waiting else ""),
            "table": "by words and by a table of word meanings",
        }[self.index.embedding_level]
        return ProviderHealth(
            healthy=True, text=f"{what}; {self.index.model_problem}" if self.index.model_problem else what
        )

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        return [item.key for item in batch.items]

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        """Remove erased entries from the index now; they would leave it with the `erased` entry that names them."""
        await self.index.wipe_erased(self.store_of_record)
        return (ProviderDeletion(id="index", what="the search index"),)

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        """The index is a local file that was rewritten without the erased entries before `forget` returned."""
        await self.index.wipe_erased(self.store_of_record)
        return {it.id: ErasureState.CONFIRMED for it in deletions}

    async def export(self, person: str) -> AsyncIterator[MemoryHit]:
        """Yield nothing, because everything it has is in the log."""
        nothing: tuple[MemoryHit, ...] = ()
        for found in nothing:
            yield found


def _make_zone(utc_offset_seconds: int) -> timezone:
    return timezone(timedelta(seconds=utc_offset_seconds)) if utc_offset_seconds else UTC


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
        until=hit.until,
        replaced_by=hit.replaced_by,
    )
