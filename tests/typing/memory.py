"""A memory provider as a stranger would write it: store this, find this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from everhold import Batch, Delivery, Exchange, Found, MemoryProvider, Note, Query, Retraction


class Notebook:
    """One page per key."""

    delivery = Delivery.UPSERT
    deadline = 5.0
    visible_after = 0.0

    def __init__(self) -> None:
        self.pages: dict[str, tuple[tuple[str, ...], str]] = {}

    async def store(self, batch: Batch) -> Mapping[str, str]:
        for item in batch.items:
            match item:
                case Exchange():
                    text = " ".join(one.text for one in (*item.heard, *item.said))
                    self.pages[item.key] = (item.stamp.audience, text)
                case Note():
                    self.pages[item.key] = (item.stamp.audience, item.text)
                case Retraction():
                    for key in item.keys:
                        self.pages.pop(key, None)
                case _:
                    assert_never(item)  # the three are all there are
        return {item.key: f"page-{item.key}" for item in batch.items}

    async def find(self, query: Query) -> Sequence[Found]:
        present = set(query.audience)
        return [
            Found(text=text, key=key)
            for key, (audience, text) in self.pages.items()
            if present <= set(audience) and query.text in text
        ]

    async def probe(self, batch: Batch) -> Sequence[str]:
        return [item.key for item in batch.items if item.key in self.pages]


class Forgetful:
    """Stores, and tells nobody where."""

    delivery = Delivery.BLIND
    deadline = 5.0
    visible_after = 0.0

    async def store(self, batch: Batch) -> None: ...

    async def find(self, query: Query) -> Sequence[Found]:
        return []

    async def probe(self, batch: Batch) -> Sequence[str]:
        return []


class Least:
    """As little as there may be."""

    async def store(self, batch: Batch) -> Mapping[str, str]:
        return {}

    async def find(self, query: Query) -> Sequence[Found]:
        return []


good: MemoryProvider = Notebook()
least: MemoryProvider = Least()
forgetful: MemoryProvider = Forgetful()  # type: ignore[assignment]


def asks_for_nobody() -> Query:
    """There is no default scope: who asks must say who is present."""
    return Query(text="x", agent="main", session="s", name="s", person="ada")  # type: ignore[call-arg]
