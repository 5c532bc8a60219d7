"""How the built-in memory is found among the installed ones. It has nothing to configure, and the gateway builds it
itself, because it reads the log that only the gateway holds.
"""

from __future__ import annotations

from typing import Any, Final

from everhold.errors import InvalidRequest
from everhold.ports.memory import MemoryProvider
from everhold.ports.plugin import PluginContext


class BuiltinMemoryFactory:
    @property
    def Settings(self) -> Any:
        """What a plug-in's factory carries."""
        from pydantic import BaseModel, ConfigDict  # listing plug-ins does not need it

        class BuiltinSettings(BaseModel):
            """Nothing to set."""

            model_config = ConfigDict(extra="forbid", frozen=True)

        return BuiltinSettings

    def __call__(self, settings: Any, context: PluginContext) -> MemoryProvider:
        raise InvalidRequest(
            f"{context.instance}: the built-in memory is part of the gateway", remedy="name it `builtin`"
        )


factory: Final = BuiltinMemoryFactory()
