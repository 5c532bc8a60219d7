"""How Honcho is found among the installed memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from everhold.memories.honcho.provider import HonchoMemory
from everhold.memories.sdk import require
from everhold.ports.plugin import Context

if TYPE_CHECKING:
    from everhold.memories.honcho.settings import HonchoSettings


class _Factory:
    @property
    def Settings(self) -> type[HonchoSettings]:
        from everhold.memories.honcho.settings import HonchoSettings  # listing plug-ins does not need it

        return HonchoSettings

    def __call__(self, settings: Any, context: Context) -> HonchoMemory:
        require("honcho-ai", extra="honcho")
        return HonchoMemory(settings, agent=context.agent, log=context.log)


factory: Final = _Factory()
