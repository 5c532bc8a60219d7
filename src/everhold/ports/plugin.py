"""What a plug-in's factory is given besides its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import PurePath

from msgspec import Struct

from everhold.ports.clock import Clock
from everhold.ports.log import Log


class Context(Struct, frozen=True, kw_only=True):
    """On whose behalf an instance is built: one instance per configured name and agent."""

    agent: str
    instance: str
    """The name it has in the configuration; a provider may be configured twice."""
    directory: PurePath
    """Its own directory inside the home, for what it may lose: caches, models. It exists, and is nobody else's."""
    log: Log
    """Bound to agent and instance."""
    clock: Clock
    blob: Callable[[str], Awaitable[bytes | None]] | None = None
    """What is kept under a digest, such as a picture that somebody sent. For models, which show it."""
