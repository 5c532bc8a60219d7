"""How plug-ins of hermes-agent are found among the memories: one name, and the plug-in as a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from everhold.memories.hermes.provider import HermesPlugin
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

    def __call__(self, settings: Any, context: Context) -> HermesPlugin:
        return HermesPlugin(settings, context)


factory: Final = _Factory()
