"""A memory that keeps each person's items apart under their peers, and can move and delete them. Its process may die at
any call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from everhold.core.peers import PeerRule
from everhold.errors import Transient
from everhold.memories.scope import get_present, list_person_peers
from everhold.ports.memory import (
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
)
from everhold.ports.platform import DeliveryGuarantee
from everhold.testing.fakes import get_memory_text


class PeerMemoryService:
    """What the memory stores, and what happens at its calls. It outlives the gateway."""

    def __init__(self) -> None:
        self.items: list[tuple[str, str, str, str]] = []
        """(session name, peer, key, text) of every stored item. A repeated store is a second row."""
        self.is_down = False
        self.calls = 0
        self.on_call: Callable[[int, str], None] = lambda _number, _when: None
        """Called with the number of the call, `before` and `after` it takes effect."""

    def list_texts(self, peer: str) -> list[str]:
        return [text for _, it, _, text in self.items if it == peer]


class PeerMemory:
    """One instance of the memory with a rule. A changed rule is another instance of the same service."""

    capabilities: ClassVar = frozenset({MemoryCapability.PROBE, MemoryCapability.RETRACT, MemoryCapability.REMOVE})
    deadline = 5.0
    visible_after = 0.0

    def __init__(
        self,
        service: PeerMemoryService,
        rule: PeerRule | None = None,
        delivery: DeliveryGuarantee = DeliveryGuarantee.PROBE,
    ) -> None:
        self.service = service
        self.peer_rule = rule or PeerRule()
        self.delivery = delivery

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        await self._begin()
        for item in batch.items:
            if isinstance(item, MemoryRetraction):
                self.service.items = [row for row in self.service.items if row[2] not in item.keys]
                continue
            if isinstance(item, MemoryNote) and item.supersedes:
                self.service.items = [row for row in self.service.items if row[2] != item.supersedes]
            rows = [row for row in self._build_rows(batch.name, item) if not self._is_known(row)]
            self.service.items += rows
        await self._end()
        return {item.key: f"remote-{item.key}" for item in batch.items}

    def _is_known(self, row: tuple[str, str, str, str]) -> bool:
        return self.delivery is not DeliveryGuarantee.PROBE and row in self.service.items

    def _build_rows(self, name: str, item: MemoryItem) -> list[tuple[str, str, str, str]]:
        if isinstance(item, Exchange):
            return [(name, one.peer or one.author, item.key, one.text) for one in item.heard]
        assert isinstance(item, MemoryNote)
        return [(name, peer, item.key, get_memory_text(item)) for peer in dict.fromkeys(item.peers.values())]

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        await self._begin()
        there = [
            item.key
            for item in batch.items
            if not isinstance(item, MemoryRetraction)
            and all(row in self.service.items for row in self._build_rows(batch.name, item))
        ]
        await self._end()
        return there

    async def remove(self, batch: MemoryBatch) -> Sequence[str]:
        await self._begin()
        gone = [row for item in batch.items for row in self._build_rows(batch.name, item)]
        self.service.items = [row for row in self.service.items if row not in gone]
        await self._end()
        return ()

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        if self.service.is_down:
            raise Transient("it is down")
        peers = list_person_peers(get_present(query), query.peers)
        words = set(query.text.split())
        return [
            MemoryHit(text=text, score=1.0)
            for _, peer, _, text in self.service.items
            if peer in peers and words & set(text.split())
        ]

    async def _begin(self) -> None:
        if self.service.is_down:
            raise Transient("it is down")
        self.service.calls += 1
        self.service.on_call(self.service.calls, "before")
        await asyncio.sleep(0)

    async def _end(self) -> None:
        self.service.on_call(self.service.calls, "after")
        await asyncio.sleep(0)
