from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from everhold.memories.hindsight.plugin import factory
from everhold.memories.hindsight.provider import HindsightMemory
from everhold.testing.services.hindsight import HindsightService
from tests.memories.memory_items import open_memories


@pytest.fixture
async def service() -> AsyncIterator[HindsightService]:
    async with HindsightService() as service:
        yield service


Make = Callable[..., HindsightMemory]


@pytest.fixture
async def make(service: HindsightService, tmp_path: Path) -> AsyncIterator[Make]:
    """A memory over the real SDK, pointed at the service on loopback."""
    async with open_memories(
        factory, tmp_path, base_url=service.url, deadline_seconds=5.0, confirm_seconds=0.2
    ) as make:
        yield make


@pytest.fixture
def memory(make: Make) -> HindsightMemory:
    return make()
