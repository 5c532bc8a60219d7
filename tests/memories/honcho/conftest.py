from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from everhold.memories.honcho.plugin import factory
from everhold.memories.honcho.provider import HonchoMemory
from everhold.testing.services.honcho import HonchoService
from tests.memories.memory_items import open_memories


@pytest.fixture
async def service() -> AsyncIterator[HonchoService]:
    async with HonchoService() as service:
        yield service


Make = Callable[..., HonchoMemory]


@pytest.fixture
async def make(service: HonchoService, tmp_path: Path) -> AsyncIterator[Make]:
    """A memory over the real SDK, pointed at the service on loopback."""
    async with open_memories(
        factory, tmp_path, base_url=service.url, workspace="home", deadline_seconds=5.0, visible_seconds=0.0
    ) as make:
        yield make


@pytest.fixture
def memory(make: Make) -> HonchoMemory:
    return make()
