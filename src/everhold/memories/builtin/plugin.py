"""The entry point of the built-in memory. It has no settings, and the gateway builds it itself, because the memory
reads the log and only the gateway holds the log.
"""

from __future__ import annotations

from typing import Any, Final

from everhold.errors import InvalidRequest
from everhold.ports.memory import MemoryProvider
from everhold.ports.plugin import PluginContext


class BuiltinMemoryFactory:
    @property
    def Settings(self) -> Any:
        """Return the settings class, as every plug-in factory does."""
        from pydantic import BaseModel, ConfigDict  # imported late, because listing plug-ins does not need it

        class BuiltinSettings(BaseModel):
            """No settings."""

            model_config = ConfigDict(extra="forbid", frozen=True)

        return BuiltinSettings

    def __call__(self, settings: Any, context: PluginContext) -> MemoryProvider:
        raise InvalidRequest(
            f"{context.instance}: the built-in memory is part of the gateway", remedy="name it `builtin`"
        )


factory: Final = BuiltinMemoryFactory()
