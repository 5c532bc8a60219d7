"""The entry point of a model provider: finds its settings and builds one model. Imports as late as possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from everhold.ports.plugin import PluginContext

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M")


class ModelFactory(Generic[M]):
    """Builds the model with `build`. `settings` names a class in everhold.models.settings."""

    def __init__(self, settings: str, build: Callable[[Any, PluginContext], M]) -> None:
        self._settings = settings
        self._build = build

    @property
    def Settings(self) -> type[BaseModel]:
        """The attribute that every plug-in factory has."""
        from everhold.models import settings  # imports pydantic, which listing plug-ins does not need

        found: type[BaseModel] = getattr(settings, self._settings)
        return found

    def __call__(self, settings: Any, context: PluginContext) -> M:
        return self._build(settings, context)
