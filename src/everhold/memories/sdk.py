"""Loads a vendor's package on first use, outside the event loop, because an import takes up to seconds."""

from __future__ import annotations

import asyncio
import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from everhold.errors import InvalidRequest
from everhold.infra.extras import describe_install


def require_package(distribution: str, *, extra: str) -> None:
    """Raise InvalidRequest at once, without importing anything, if the package is not installed."""
    try:
        version(distribution)
    except PackageNotFoundError:
        raise InvalidRequest(f"the package {distribution} is not installed", remedy=describe_install(extra)) from None


async def load_module(module: str, *, offers: str, remedy: str) -> ModuleType:
    """Return the module. Raises InvalidRequest if it cannot be imported or is a different module of the same name."""
    try:
        found = await asyncio.to_thread(importlib.import_module, module)
    except ImportError as error:
        raise InvalidRequest(f"the module {module} cannot be imported: {error}", remedy=remedy) from error
    if not hasattr(found, offers):
        raise InvalidRequest(
            f"the module {module} that is installed has no {offers}: it is another package", remedy=remedy
        )
    return found
