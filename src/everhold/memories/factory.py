"""The entry point of a memory service. It finds the settings, builds one instance and imports late."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from everhold.memories.sdk import require_package
from everhold.ports.plugin import PluginContext

if TYPE_CHECKING:
    from pydantic import BaseModel

P = TypeVar("P")


class MemoryFactory(Generic[P]):
    """Builds a provider with `build`. `package` is the vendor's SDK, `extra` is the extra that installs it."""

    def __init__(self, settings: str, *, package: str, extra: str, build: Callable[[Any, PluginContext], P]) -> None:
        self._settings = settings
        self._package = package
        self._extra = extra
        self._build = build

    @property
    def Settings(self) -> type[BaseModel]:
        module, _, name = self._settings.partition(":")
        found: type[BaseModel] = getattr(
            import_module(module), name
        )  # imported late, because listing plug-ins does not need it
        return found

    def check_package(self) -> None:
        """Raise InvalidRequest if the vendor's SDK is not installed."""
        require_package(self._package, extra=self._extra)

    def __call__(self, settings: Any, context: PluginContext) -> P:
        self.check_package()
        return self._build(settings, context)
