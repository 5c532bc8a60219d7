"""A plug-in's factory, and the small ports that are handed to it."""

from __future__ import annotations

from pathlib import PurePosixPath

from pydantic import BaseModel

from everhold import Clock, EventLogger, MemoryProvider, PluginContext, RandomSource
from everhold.infra.plugins import PluginFactory
from tests.typing.memory import Notebook


class NotebookSettings(BaseModel):
    """What stands in the configuration."""

    pages: int = 100


class NotebookFactory:
    Settings = NotebookSettings

    def __call__(self, settings: NotebookSettings, context: PluginContext) -> Notebook:
        context.log.info("notebook.opened", pages=settings.pages, agent=context.agent)
        return Notebook()


class Stopped:
    """A clock that stands."""

    def now(self) -> float:
        return 1.0

    def monotonic(self) -> float:
        return 1.0


class Loaded:
    """Dice that always fall the same way."""

    def bytes(self, n: int, /) -> bytes:
        return b"\0" * n

    def random(self) -> float:
        return 0.5


class Quiet:
    """A log that nobody reads."""

    def debug(self, event: str, /, **fields: object) -> None: ...

    def info(self, event: str, /, **fields: object) -> None: ...

    def warning(self, event: str, /, **fields: object) -> None: ...

    def error(self, event: str, /, **fields: object) -> None: ...

    def bind(self, **fields: object) -> Quiet:
        return self


factory: PluginFactory[MemoryProvider] = NotebookFactory()
clock: Clock = Stopped()
chance: RandomSource = Loaded()
log: EventLogger = Quiet()
context = PluginContext(agent="main", instance="notes", directory=PurePosixPath("/tmp/notes"), log=log, clock=clock)
provider: MemoryProvider = factory(NotebookSettings(), context)

not_a_clock: Clock = Loaded()  # type: ignore[assignment]
