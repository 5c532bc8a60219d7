"""The entry point for plug-ins of hermes-agent: one provider name, with the plug-in as a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.hermes.memory import setup
from everhold.hermes.memory.provider import HermesMemory
from everhold.ports.memory import SetupQuestion
from everhold.ports.plugin import PluginContext

if TYPE_CHECKING:
    from everhold.hermes.memory.settings import HermesSettings


class HermesFactory:
    argument: Final = "path"
    """The setting that may follow the name after a colon: `hermes-plugin:PATH`."""

    @property
    def Settings(self) -> type[HermesSettings]:
        from everhold.hermes.memory.settings import (
            HermesSettings,
        )  # imported late, because listing plug-ins does not need it

        return HermesSettings

    async def list_setup_questions(self, settings: HermesSettings, context: PluginContext) -> Sequence[SetupQuestion]:
        """Return the setup questions of the plug-in itself."""
        return await setup.list_questions(settings, context)

    async def save_setup_answers(
        self, settings: HermesSettings, context: PluginContext, answers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        return await setup.apply_answers(settings, context, answers)

    async def test_setup(self, settings: HermesSettings, context: PluginContext) -> str:
        return await setup.try_plugin(settings, context)

    def __call__(self, settings: Any, context: PluginContext) -> HermesMemory:
        return HermesMemory(settings, context)


factory: Final = HermesFactory()
