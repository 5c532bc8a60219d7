"""A plug-in's factory, and the small ports that it gets."""

from __future__ import annotations

from pathlib import PurePosixPath

from pydantic import BaseModel

from everhold import Clock, EventLogger, MemoryProvider, PluginContext, RandomSource
from everhold.infra.plugins import PluginFactory
from tests.typing.memory import NotebookProvider


class NotebookSettings(BaseModel):
    """The plug-in's section of the configuration."""

    pages: int = 100


class NotebookFactory:
    Settings = NotebookSettings

    def __call__(self, settings: NotebookSettings, context: PluginContext) -> NotebookProvider:
        context.log.info("notebook.opened", pages=settings.pages, agent=context.agent)
        return NotebookProvider()


class StoppedClock:
    """Always shows the same time."""

    def now(self) -> float:
        return 1.0

    def monotonic(self) -> float:
        return 1.0


class ConstantRandom:
    """Always returns the same value."""

    def bytes(self, n: int, /) -> bytes:
        return b"\0" * n

    def random(self) -> float:
        return 0.5


class NullLogger:
    """Drops every event."""

    def debug(self, event: str, /, **fields: object) -> None: ...

    def info(self, event: str, /, **fields: object) -> None: ...

    def warning(self, event: str, /, **fields: object) -> None: ...

    def error(self, event: str, /, **fields: object) -> None: ...

    def bind(self, **fields: object) -> NullLogger:
        return self


factory: PluginFactory[MemoryProvider] = NotebookFactory()
clock: Clock = StoppedClock()
random_source: RandomSource = ConstantRandom()
log: EventLogger = NullLogger()
context = PluginContext(agent="main", instance="notes", directory=PurePosixPath("/tmp/notes"), log=log, clock=clock)
provider: MemoryProvider = factory(NotebookSettings(), context)

not_a_clock: Clock = ConstantRandom()  # type: ignore[assignment]
