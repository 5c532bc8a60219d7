from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.memories.supermemory.plugin import factory
from everhold.memories.supermemory.provider import SupermemoryMemory
from everhold.testing.services.supermemory import SupermemoryService
from tests.memories.memory_items import make_context


@pytest.fixture
async def service() -> AsyncIterator[SupermemoryService]:
    async with SupermemoryService() as service:
        yield service


Make = Callable[..., SupermemoryMemory]


@pytest.fixture
async def make(service: SupermemoryService, tmp_path: Path) -> AsyncIterator[Make]:
    """A memory over the real SDK, pointed at the service on loopback."""
    made: list[SupermemoryMemory] = []

    def build(*, agent: str = "main", **settings: Any) -> SupermemoryMemory:
        given = {
            "base_url": service.url,
            "api_key": "sm-key",
            "deadline_seconds": 5.0,
            "visible_seconds": 0.0,
            "confirm_seconds": 0.2,
            **settings,
        }
        memory = factory(factory.Settings.model_validate(given), make_context(tmp_path, agent=agent))
        made.append(memory)
        return memory

    yield build
    for memory in made:
        await memory.close()


@pytest.fixture
def memory(make: Make) -> SupermemoryMemory:
    return make()
