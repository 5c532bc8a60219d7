"""How Hindsight is found among the installed memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from everhold.memories.hindsight.provider import HindsightMemory
from everhold.memories.sdk import require
from everhold.ports.plugin import Context

if TYPE_CHECKING:
    from everhold.memories.hindsight.settings import HindsightSettings


class _Factory:
    @property
    def Settings(self) -> type[HindsightSettings]:
        from everhold.memories.hindsight.settings import HindsightSettings  # listing plug-ins does not need it

        return HindsightSettings

    def __call__(self, settings: Any, context: Context) -> HindsightMemory:
        require("hindsight-client", extra="hindsight")
        return HindsightMemory(settings, agent=context.agent, log=context.log)


factory: Final = _Factory()
