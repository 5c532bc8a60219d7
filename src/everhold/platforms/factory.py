"""The entry point of a platform. It imports the adapter, and with it the vendor's library, only to build an account."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from pydantic import BaseModel

from everhold.errors import InvalidRequest
from everhold.infra.extras import describe_install
from everhold.ports.platform import Platform
from everhold.ports.plugin import PluginContext


class PlatformFactory:
    """Builds the adapter `module:class`. `extra` is the extra that installs the vendor's library."""

    def __init__(self, settings: type[BaseModel], adapter: str, *, extra: str) -> None:
        self.Settings = settings
        self._adapter = adapter
        self._extra = extra

    def __call__(self, settings: Any, context: PluginContext) -> Platform:
        module, _, name = self._adapter.partition(":")
        try:
            adapter = getattr(import_module(module), name)
        except ImportError as error:
            raise InvalidRequest(
                f"its library is missing: {error.name}", remedy=describe_install(self._extra)
            ) from error
        return cast(Platform, adapter(settings, context))
