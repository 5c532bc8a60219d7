"""What a plug-in's factory is given, for tests: a context as the gateway would make it."""

from __future__ import annotations

import time
from pathlib import Path

from everhold.ports.plugin import PluginContext
from everhold.testing.gateway import RecordingLogger


class WallClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def make_plugin_context(*, directory: Path, agent: str = "main", instance: str = "it") -> PluginContext:
    """On behalf of an agent, with a directory that exists."""
    directory.mkdir(parents=True, exist_ok=True)
    return PluginContext(agent=agent, instance=instance, directory=directory, log=RecordingLogger(), clock=WallClock())
