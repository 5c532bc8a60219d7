from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.memories.honcho.plugin import factory
from everhold.memories.honcho.provider import HonchoMemory
from everhold.testing.services.honcho import HonchoService
from tests.memories.memory_items import make_context


@pytest.fixture
async def service() -> AsyncIterator[HonchoService]:
    async with HonchoService() as service:
        yield service


Make = Callable[..., HonchoMemory]


@pytest.fixture
async def make(service: HonchoService, tmp_path: Path) -> AsyncIterator[Make]:
    """A memory over the real SDK, pointed at the service on loopback."""
    made: list[HonchoMemory] = []

    def build(*, agent: str = "main", **settings: Any) -> HonchoMemory:
        given = {
            "base_url": service.url,
            "workspace": "home",
            "deadline_seconds": 5.0,
            "visible_seconds": 0.0,
            **settings,
        }
        memory = factory(factory.Settings.model_validate(given), make_context(tmp_path, agent=agent))
        made.append(memory)
        return memory

    yield build
    for memory in made:
        await memory.close()


@pytest.fixture
def memory(make: Make) -> HonchoMemory:
    return make()
