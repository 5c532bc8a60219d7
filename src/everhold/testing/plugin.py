"""What a plug-in's factory is given, for tests: a context as the gateway would make it."""

from __future__ import annotations

import time
from pathlib import Path

from everhold.ports.plugin import Context
from everhold.testing.house import Diary


class WallClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def context(*, directory: Path, agent: str = "main", instance: str = "it") -> Context:
    """On behalf of an agent, with a directory that exists."""
    directory.mkdir(parents=True, exist_ok=True)
    return Context(agent=agent, instance=instance, directory=directory, log=Diary(), clock=WallClock())
