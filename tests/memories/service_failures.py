"""What every memory with a service does when the service refuses or is down."""

from __future__ import annotations

import pytest

from everhold.errors import EverholdError, Transient
from everhold.memories.hindsight.provider import HindsightMemory
from everhold.memories.honcho.provider import HonchoMemory
from everhold.memories.mem0.provider import Mem0Memory
from everhold.memories.supermemory.provider import SupermemoryMemory
from everhold.testing.services.base import LoopbackService
from tests.memories.memory_items import deliver, make_batch, make_exchange, make_query

ServiceMemory = HindsightMemory | HonchoMemory | Mem0Memory | SupermemoryMemory


async def check_refusal(
    memory: ServiceMemory, service: LoopbackService, path: str, status: int, expected: type[EverholdError]
) -> None:
    service.plan_fault("refuse", path, status=status, retry_after=7.0 if status == 429 else None)
    with pytest.raises(expected) as caught:
        await memory.store(make_batch(make_exchange(1, "hello")))
    if isinstance(caught.value, Transient) and status == 429:
        assert caught.value.retry_after == 7.0


async def check_outage(memory: ServiceMemory, service: LoopbackService) -> None:
    """Nothing is stored while the service is down. Afterwards the batch is delivered."""
    await service.stop()
    with pytest.raises(Transient):
        await memory.store(make_batch(make_exchange(1, "hello")))
    with pytest.raises(Transient):
        await memory.find(make_query("hello"))
    assert not (await memory.health()).healthy
    await service.start()
    await deliver(memory, make_batch(make_exchange(1, "hello")))
    assert (await memory.health()).healthy
