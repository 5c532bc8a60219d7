"""A PluginContext for tests, as the gateway would make it."""

from __future__ import annotations

import time
from pathlib import Path

from everhold.ports.plugin import PluginContext
from everhold.testing.gateway import RecordingLogger


class WallClock:
    """The machine's time."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def make_plugin_context(*, directory: Path, agent: str = "main", instance: str = "it") -> PluginContext:
    """Make a context for an agent, with an existing directory."""
    directory.mkdir(parents=True, exist_ok=True)
    return PluginContext(agent=agent, instance=instance, directory=directory, log=RecordingLogger(), clock=WallClock())
