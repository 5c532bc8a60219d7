"""The entry point of the Supermemory provider."""

from __future__ import annotations

from typing import Final

from everhold.memories.factory import MemoryFactory
from everhold.memories.supermemory.provider import SupermemoryMemory

factory: Final = MemoryFactory(
    "everhold.memories.supermemory.settings:SupermemorySettings",
    package="supermemory",
    extra="supermemory",
    build=lambda settings, context: SupermemoryMemory(settings, agent=context.agent, log=context.log),
)
