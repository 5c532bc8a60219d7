"""A memory provider as a stranger would write it: store this, find this."""

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


class Notebook:
    """One page per key."""

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
                    assert_never(item)  # the three are all there are
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


class Forgetful:
    """Stores, and tells nobody where."""

    delivery = DeliveryGuarantee.BLIND
    deadline = 5.0
    visible_after = 0.0

    async def store(self, batch: MemoryBatch) -> None: ...

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return []

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        return []


class Least:
    """As little as there may be."""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        return {}

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return []


good: MemoryProvider = Notebook()
least: MemoryProvider = Least()
forgetful: MemoryProvider = Forgetful()  # type: ignore[assignment]


def asks_for_nobody() -> MemoryQuery:
    """There is no default scope: who asks must say who is present."""
    return MemoryQuery(text="x", agent="main", session="s", name="s", person="ada")  # type: ignore[call-arg]
