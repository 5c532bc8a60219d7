"""How Honcho is found among the installed memories."""

from __future__ import annotations

from typing import Final

from everhold.memories.factory import MemoryFactory
from everhold.memories.honcho.provider import HonchoMemory

factory: Final = MemoryFactory(
    "everhold.memories.honcho.settings:HonchoSettings",
    package="honcho-ai",
    extra="honcho",
    build=lambda settings, context: HonchoMemory(settings, agent=context.agent, log=context.log),
)
