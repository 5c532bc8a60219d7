"""The entry point of a model provider: finds its settings and builds one model, importing as late as possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from everhold.ports.plugin import PluginContext

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M")


class ModelFactory(Generic[M]):
    """Makes the model `build` returns. `settings` is the name of a class in everhold.models.settings."""

    def __init__(self, settings: str, build: Callable[[Any, PluginContext], M]) -> None:
        self._settings = settings
        self._build = build

    @property
    def Settings(self) -> type[BaseModel]:
        """What a plug-in's factory carries."""
        from everhold.models import settings  # pydantic, which listing plug-ins does not need

        found: type[BaseModel] = getattr(settings, self._settings)
        return found

    def __call__(self, settings: Any, context: PluginContext) -> M:
        return self._build(settings, context)
