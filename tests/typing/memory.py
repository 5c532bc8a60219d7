"""A memory provider by another author: store and find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from everhold import (
    DeliveryGuarantee,
    Exchange,
    MemoryBatch,
    MemoryHit,
    MemoryNote,
    MemoryProvider,
    MemoryQuery,
    MemoryRetraction,
)


class NotebookProvider:
    """Stores one page per key."""

    delivery = DeliveryGuarantee.UPSERT
    deadline = 5.0
    visible_after = 0.0

    def __init__(self) -> None:
        self.pages: dict[str, tuple[tuple[str, ...], str]] = {}

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        for item in batch.items:
            match item:
                case Exchange():
                    text = " ".join(one.text for one in (*item.heard, *item.said))
                    self.pages[item.key] = (item.stamp.audience, text)
                case MemoryNote():
                    self.pages[item.key] = (item.stamp.audience, item.text)
                case MemoryRetraction():
                    for key in item.keys:
                        self.pages.pop(key, None)
                case _:
                    assert_never(item)  # there are no other items
        return {item.key: f"page-{item.key}" for item in batch.items}

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        present = set(query.audience)
        return [
            MemoryHit(text=text, key=key)
            for key, (audience, text) in self.pages.items()
            if present <= set(audience) and query.text in text
        ]

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        return [item.key for item in batch.items if item.key in self.pages]


class NoReceiptsProvider:
    """Returns no receipts."""

    delivery = DeliveryGuarantee.BLIND
    deadline = 5.0
    visible_after = 0.0

    async def store(self, batch: MemoryBatch) -> None: ...

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return []

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        return []


class MinimalProvider:
    """Has only the required methods."""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        return {}

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return []


good: MemoryProvider = NotebookProvider()
minimal: MemoryProvider = MinimalProvider()
no_receipts: MemoryProvider = NoReceiptsProvider()  # type: ignore[assignment]


def make_query_without_audience() -> MemoryQuery:
    """Fail to make a query without an audience, because there is no default."""
    return MemoryQuery(text="x", agent="main", session="s", name="s", person="ada")  # type: ignore[call-arg]
