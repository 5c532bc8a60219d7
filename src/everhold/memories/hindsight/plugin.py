"""The entry point of the Hindsight provider."""

from __future__ import annotations

from typing import Final

from everhold.memories.factory import MemoryFactory
from everhold.memories.hindsight.provider import HindsightMemory

factory: Final = MemoryFactory(
    "everhold.memories.hindsight.settings:HindsightSettings",
    package="hindsight-client",
    extra="hindsight",
    build=lambda settings, context: HindsightMemory(settings, agent=context.agent, log=context.log),
)
