"""What an agent brings to its turns: models, tools, prompt, memories. Built elsewhere, read here, never changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

from everhold.core.entries import Place
from everhold.core.mailbox import Busy
from everhold.ports.memory import MemoryProvider
from everhold.ports.model import Model
from everhold.ports.platform import Drafting, Platform
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

    @property
    def effects(self) -> dict[str, Effect]:
        return {name: tool.effect for name, tool in self.tools.items()}

    @property
    def author(self) -> str:
        return f"agent:{self.agent}"


class Runtimes(Protocol):
    """Where the flows find what they work with. May hand out something new after every change of configuration."""

    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime: ...

    def platform(self, name: str, account: str) -> Platform | None: ...

    def drafting(self, name: str, account: str) -> Drafting | None:
        """The platform as one that can show growing replies, if it can."""

    def in_doubt(self, reader: str) -> str:
        """`resend` or `hold`: what to do about something unkeyed whose answer was lost."""

    def memory(self, instance: str, agent: str) -> MemoryProvider | None: ...
