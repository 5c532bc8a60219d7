"""The entry point of the Mem0 provider."""

from __future__ import annotations

from typing import Final

from everhold.memories.factory import MemoryFactory
from everhold.memories.mem0.provider import Mem0Memory

factory: Final = MemoryFactory(
    "everhold.memories.mem0.settings:Mem0Settings",
    package="mem0ai",
    extra="mem0",
    build=lambda settings, context: Mem0Memory(
        settings, agent=context.agent, log=context.log, directory=context.directory
    ),
)
