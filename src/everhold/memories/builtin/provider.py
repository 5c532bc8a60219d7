"""The built-in memory as a provider: always there, needs no service. The log is what it remembers, so storing is
nothing but a hint that there is more to take in, and forgetting follows from what the log says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from everhold.core.exchange import note_key
from everhold.memories.builtin.index import Index
from everhold.memories.builtin.tail import Hit
from everhold.memories.builtin.words import telling
from everhold.ports.memory import Batch, Capability, Forgotten, Found, Health, Query
from everhold.ports.platform import Delivery
from everhold.ports.store import Store

NAME: Final = "builtin"
KINDS: Final = {"heard": "message", "said": "reply", "noted": "note"}
LETTERS: Final = 5
"""Letters found for each token that can be shown: somewhat more than it has, so that a duplicate can be left out."""


class Builtin:
    """One agent's view of the index. Many instances may share one index; the store is the log it is derived from."""

    capabilities = frozenset({Capability.FORGET, Capability.EXPORT, Capability.HEALTH})
    delivery = Delivery.KEYED
    deadline = 5.0
    visible_after = 0.0

    def __init__(self, *, index: Index, store: Store, agent: str) -> None:
        self.index = index
        self.store_of_record = store
        self.agent = agent

    async def store(self, batch: Batch) -> Mapping[str, str]:
        """Take in what the log has; every key is where it stands in the log already."""
        await self.index.catch_up(self.store_of_record)
        return {item.key: item.key for item in batch.items}

    async def find(self, query: Query) -> Sequence[Found]:
        """What everybody present may hear of, best first. Another agent's memory is not asked through this one."""
        if query.agent != self.agent or not telling(query.text):
            return ()
        hits = await self.index.search(
            self.store_of_record,
            query.text,
            agent=query.agent,
            audience=query.audience,
            here=query.session,
            seen=query.seen,
            limit=query.limit,
            letters=query.tokens * LETTERS if query.tokens else None,
        )
        return [found(hit) for hit in hits]

    async def search(
        self, text: str, *, agent: str, audience: Sequence[str], session: str | None = None, limit: int = 10
    ) -> Sequence[Found]:
        """What the `session_search` tool finds: the same, within one session if one is named."""
        if agent != self.agent:
            return ()
        hits = await self.index.search(
            self.store_of_record, text, agent=agent, audience=audience, session=session, limit=limit
        )
        return [found(hit) for hit in hits]

    async def health(self) -> Health:
        """Always well: without the stronger model it finds less, and says what it goes by."""
        passages, waiting = await self.index.left()
        what = {
            "model": "by words and by a model" + (f", {waiting:,} of {passages:,} passages to go" if waiting else ""),
            "table": "by words and by a table of word meanings",
        }[self.index.level]
        return Health(well=True, text=f"{what}; {self.index.trouble}" if self.index.trouble else what)

    async def probe(self, batch: Batch) -> Sequence[str]:
        return [item.key for item in batch.items]

    async def forget(self, person: str) -> Forgotten:
        """Erased entries leave the index with the `erased` that names them; this only makes it happen now."""
        await self.index.wiped(self.store_of_record)
        return Forgotten(deleted=0)

    async def export(self, person: str) -> AsyncIterator[Found]:
        """Nothing: all it has stands in the log."""
        nothing: tuple[Found, ...] = ()
        for found in nothing:
            yield found


def found(hit: Hit) -> Found:
    return Found(
        text=hit.text,
        score=hit.score,
        session=hit.session,
        seq=hit.seq,
        person=hit.person,
        at=hit.at,
        key=note_key(hit.session, hit.seq) if hit.kind == "noted" else f"{hit.session}:{hit.seq}",
        author=hit.author,
        kind=KINDS.get(hit.kind, ""),
        origin=hit.origin,
    )
