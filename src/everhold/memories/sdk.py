"""A vendor's package, when it is first needed: off the loop, because importing one takes up to seconds."""

from __future__ import annotations

import asyncio
import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from everhold.errors import InvalidRequest
from everhold.infra.extras import describe_install


def require_package(distribution: str, *, extra: str) -> None:
    """Refuse at once, without importing anything, if the package is not installed."""
    try:
        version(distribution)
    except PackageNotFoundError:
        raise InvalidRequest(f"the package {distribution} is not installed", remedy=describe_install(extra)) from None


async def load_module(module: str, *, offers: str, remedy: str) -> ModuleType:
    """The module; Misuse if it cannot be imported, or is another one of the same name."""
    try:
        found = await asyncio.to_thread(importlib.import_module, module)
    except ImportError as error:
        raise InvalidRequest(f"the module {module} cannot be imported: {error}", remedy=remedy) from error
    if not hasattr(found, offers):
        raise InvalidRequest(
            f"the module {module} that is installed has no {offers}: it is another package", remedy=remedy
        )
    return found
