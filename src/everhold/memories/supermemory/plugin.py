"""How Supermemory is found among the installed memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from everhold.memories.sdk import require
from everhold.memories.supermemory.provider import SupermemoryMemory
from everhold.ports.plugin import Context

if TYPE_CHECKING:
    from everhold.memories.supermemory.settings import SupermemorySettings


class _Factory:
    @property
    def Settings(self) -> type[SupermemorySettings]:
        from everhold.memories.supermemory.settings import SupermemorySettings  # listing plug-ins does not need it

        return SupermemorySettings

    def __call__(self, settings: Any, context: Context) -> SupermemoryMemory:
        require("supermemory", extra="supermemory")
        return SupermemoryMemory(settings, agent=context.agent, log=context.log)


factory: Final = _Factory()
