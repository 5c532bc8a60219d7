from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.memories.hindsight.plugin import factory
from everhold.memories.hindsight.provider import HindsightMemory
from everhold.testing.services.hindsight import HindsightService
from tests.memories.memory_items import make_context


@pytest.fixture
async def service() -> AsyncIterator[HindsightService]:
    async with HindsightService() as service:
        yield service


Make = Callable[..., HindsightMemory]


@pytest.fixture
async def make(service: HindsightService, tmp_path: Path) -> AsyncIterator[Make]:
    """A memory over the real SDK, pointed at the service on loopback."""
    made: list[HindsightMemory] = []

    def build(*, agent: str = "main", **settings: Any) -> HindsightMemory:
        given = {"base_url": service.url, "deadline_seconds": 5.0, "confirm_seconds": 0.2, **settings}
        memory = factory(factory.Settings.model_validate(given), make_context(tmp_path, agent=agent))
        made.append(memory)
        return memory

    yield build
    for memory in made:
        await memory.close()


@pytest.fixture
def memory(make: Make) -> HindsightMemory:
    return make()
