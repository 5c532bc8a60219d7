"""What an agent brings to its turns: models, tools, prompt, memories. Built elsewhere, read here, never changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from everhold.core.entries import Body, Place
from everhold.core.mailbox import Busy
from everhold.flow import remember, voice
from everhold.ports.memory import MemoryProvider
from everhold.ports.model import Model
from everhold.ports.platform import Drafting, Platform
from everhold.ports.store import Wake
from everhold.ports.tool import Effect, Tool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """One agent as configured now."""

    agent: str
    system: str
    models: tuple[Model, ...]
    """The first is asked; the others when it cannot be."""
    summariser: Model
    tools: Mapping[str, Tool] = dataclasses.field(default_factory=dict)
    memories: tuple[str, ...] = ()
    busy: Busy = "queue"
    soft: float = 0.6
    hard: float = 0.85
    keep: int = 6
    ahead: bool = True
    model_deadline: float = 600.0
    text_limit: Callable[[Place], int] = lambda _: 4_000
    pulls: Callable[[Place], bool] = lambda _: False
    """Whether whoever is there reads the log itself, so that a committed reply is a delivered one."""

    @property
    def effects(self) -> dict[str, Effect]:
        return {name: tool.effect for name, tool in self.tools.items()}

    @property
    def author(self) -> str:
        return f"agent:{self.agent}"

    def voices(self, bodies: Iterable[Body]) -> tuple[Wake, ...]:
        """The voice lanes that have something to deliver once these bodies are committed."""
        places = [place for body in bodies if (place := voice.spoken_to(body)[0]) is not None]
        readers = dict.fromkeys(voice.reader_of(place) for place in places if not self.pulls(place))
        return tuple(Wake(reader=reader) for reader in readers)

    def remembers(self) -> tuple[Wake, ...]:
        """The lanes of this agent's memories."""
        return tuple(Wake(reader=remember.reader_of(memory)) for memory in self.memories)


class Runtimes(Protocol):
    """Where the flows find what they work with. May hand out something new after every change of configuration."""

    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime: ...

    def platform(self, name: str, account: str) -> Platform | None: ...

    def drafting(self, name: str, account: str) -> Drafting | None:
        """The platform as one that can show growing replies, if it can."""

    def in_doubt(self, reader: str) -> str:
        """`resend` or `hold`: what to do about something unkeyed whose answer was lost."""

    def memory(self, instance: str, agent: str) -> MemoryProvider | None: ...
