"""How plug-ins of hermes-agent are found among the memories: one name, and the plug-in as a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.memories.hermes import setup
from everhold.memories.hermes.provider import HermesPlugin
from everhold.ports.memory import Wanted
from everhold.ports.plugin import Context

if TYPE_CHECKING:
    from everhold.memories.hermes.settings import HermesSettings


class _Factory:
    argument: Final = "path"
    """The setting that may follow the name after a colon: `hermes-plugin:PATH`."""

    @property
    def Settings(self) -> type[HermesSettings]:
        from everhold.memories.hermes.settings import HermesSettings  # listing plug-ins does not need it

        return HermesSettings

    async def questions(self, settings: HermesSettings, context: Context) -> Sequence[Wanted]:
        """What the plug-in itself wants to know."""
        return await setup.questions(settings, context)

    async def answered(
        self, settings: HermesSettings, context: Context, answers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        return await setup.answered(settings, context, answers)

    async def tried(self, settings: HermesSettings, context: Context) -> str:
        return await setup.tried(settings, context)

    def __call__(self, settings: Any, context: Context) -> HermesPlugin:
        return HermesPlugin(settings, context)


factory: Final = _Factory()
