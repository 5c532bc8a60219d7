"""The four services on loopback, and a configuration that attaches them to a real gateway."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from everhold.testing.services.base import LoopbackService
from everhold.testing.services.hindsight import HindsightService
from everhold.testing.services.honcho import HonchoService
from everhold.testing.services.mem0 import Mem0Service
from everhold.testing.services.supermemory import SupermemoryService

NAMES = ("honcho", "hindsight", "mem0", "supermemory")
WRITES = {
    "honcho": "/messages$",
    "hindsight": "/memories$",
    "mem0": "/v3/memories/add/",
    "supermemory": "/document$",
}
"""Where the services receive an exchange."""
every_write = pytest.mark.parametrize("write", ["turn", "async", "session", 3])
one_write = pytest.mark.parametrize(
    "write", ["turn", *(pytest.param(write, marks=pytest.mark.prove) for write in ("async", "session", 3))]
)
"""For slow tests: `make prove` runs the others; tests/engine/test_memory_writes.py covers all in virtual time."""


@dataclass
class MemoryServices:
    """All services, running."""

    honcho: HonchoService = field(default_factory=HonchoService)
    hindsight: HindsightService = field(default_factory=HindsightService)
    mem0: Mem0Service = field(default_factory=Mem0Service)
    supermemory: SupermemoryService = field(default_factory=SupermemoryService)

    def __getitem__(self, name: str) -> LoopbackService:
        service: LoopbackService = getattr(self, name)
        return service

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[MemoryServices]:
        async with contextlib.AsyncExitStack() as stack:
            for name in NAMES:
                await stack.enter_async_context(self[name])
            yield self

    def said_texts(self, name: str) -> list[str]:
        """Return what people said as a service stored it: the first line of each exchange, in order."""
        match name:
            case "honcho":
                return [row["content"] for row in self.honcho.state.messages if row["metadata"]["everhold_part"] == 0]
            case "hindsight":
                texts = [row["text"] for row in self.hindsight.state.documents.values()]
            case "mem0":
                texts = self.mem0.texts()
            case _:
                texts = self.supermemory.texts()
        return [text.partition("\n")[0].removeprefix("ada: ") for text in texts if text.startswith("ada: ")]

    def noted_texts(self, name: str) -> list[str]:
        """Return the notes as a service stored them."""
        match name:
            case "honcho":
                return self.honcho.list_conclusion_texts()
            case "hindsight":
                texts = [row["text"] for row in self.hindsight.state.documents.values()]
            case "mem0":
                texts = self.mem0.texts()
            case _:
                texts = self.supermemory.texts()
        return [text for text in texts if not text.startswith("ada: ")]

    def fault(self, how: Any, **more: Any) -> None:
        for name in NAMES:
            self[name].plan_fault(how, WRITES[name], method="POST", **more)

    def settings(self, name: str, **more: Any) -> dict[str, Any]:
        quick: dict[str, Any] = {"base_url": self[name].url, "api_key_env": "MODEL_KEY", "deadline_seconds": 8.0}
        if name != "honcho":
            quick["confirm_seconds"] = 0.3
        if name != "hindsight":
            quick["visible_seconds"] = 0.3
        return {**quick, **more}

    def config(
        self, *names: str, agent: dict[str, Any] | None = None, write: str | int | None = None, **more: Any
    ) -> str:
        chosen = names or NAMES
        memories = {name: self.settings(name, **more.get(name, {})) for name in chosen}
        if write is not None:
            memories = {name: {**given, "write": write} for name, given in memories.items()}
        # the search over all messages is not tested here
        main = {"memories": list(chosen), "recall": {"deadline_seconds": 60}, **(agent or {})}
        people = [{"name": "ada"}, {"name": "bob"}]
        settings = {"defaults": {"tools": []}, "agents": {"main": main}, "memories": memories, "people": people}
        # a copy that is made during a slow run would hold what a test forgets
        backup = {"every_hours": 0, "increment_minutes": 0}
        return json.dumps({**settings, "backup": backup})
