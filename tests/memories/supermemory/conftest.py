from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from everhold.memories.supermemory.plugin import factory
from everhold.memories.supermemory.provider import SupermemoryMemory
from everhold.testing.services.supermemory import SupermemoryService
from tests.memories.memory_items import open_memories


@pytest.fixture
async def service() -> AsyncIterator[SupermemoryService]:
    async with SupermemoryService() as service:
        yield service


Make = Callable[..., SupermemoryMemory]


@pytest.fixture
async def make(service: SupermemoryService, tmp_path: Path) -> AsyncIterator[Make]:
    """A memory over the real SDK, pointed at the service on loopback."""
    async with open_memories(
        factory,
        tmp_path,
        base_url=service.url,
        api_key="sm-key",
        deadline_seconds=5.0,
        visible_seconds=0.0,
        confirm_seconds=0.2,
    ) as make:
        yield make


@pytest.fixture
def memory(make: Make) -> SupermemoryMemory:
    return make()
