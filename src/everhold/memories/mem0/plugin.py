"""How Mem0 is found among the installed memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from everhold.memories.mem0.provider import Mem0Memory
from everhold.memories.sdk import require
from everhold.ports.plugin import Context

if TYPE_CHECKING:
    from everhold.memories.mem0.settings import Mem0Settings


class _Factory:
    @property
    def Settings(self) -> type[Mem0Settings]:
        from everhold.memories.mem0.settings import Mem0Settings  # listing plug-ins does not need it

        return Mem0Settings

    def __call__(self, settings: Any, context: Context) -> Mem0Memory:
        require("mem0ai", extra="mem0")
        return Mem0Memory(settings, agent=context.agent, log=context.log, directory=context.directory)


factory: Final = _Factory()
