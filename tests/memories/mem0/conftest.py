from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from everhold.memories.mem0.plugin import factory
from everhold.memories.mem0.provider import Mem0Memory
from everhold.testing.services.embeddings import EmbeddingsService
from everhold.testing.services.mem0 import Mem0Service
from tests.memories.memory_items import open_memories


@pytest.fixture
async def service() -> AsyncIterator[Mem0Service]:
    async with Mem0Service() as service:
        yield service


Make = Callable[..., Mem0Memory]


@pytest.fixture
async def make(service: Mem0Service, tmp_path: Path) -> AsyncIterator[Make]:
    """A memory over the real package, pointed at the service on loopback."""
    async with open_memories(
        factory,
        tmp_path,
        base_url=service.url,
        api_key="m0-key",
        deadline_seconds=5.0,
        visible_seconds=0.0,
        confirm_seconds=0.2,
    ) as make:
        yield make


@pytest.fixture
def memory(make: Make) -> Mem0Memory:
    return make()


@pytest.fixture
async def embeddings() -> AsyncIterator[EmbeddingsService]:
    async with EmbeddingsService() as service:
        yield service


@pytest.fixture
def local(make: Make, embeddings: EmbeddingsService) -> Mem0Memory:
    """Mem0's own library in this process, with its vectors on disk."""
    model = {"openai_base_url": f"{embeddings.url}/v1", "api_key": "none"}
    config = {
        "embedder": {"provider": "openai", "config": {**model, "model": "words", "embedding_dims": 64}},
        "llm": {"provider": "openai", "config": {**model, "model": "none"}},
    }
    return make(mode="local", config=config)
