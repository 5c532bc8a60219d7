"""A house for every test, awake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everhold.ports.model import Answer, Request
from everhold.testing.fakes import ScriptedModel
from everhold.testing.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    with house.awake():
        yield house


class HeldModel(ScriptedModel):
    """A model that answers when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self._free = asyncio.Event()
        self.text = "at last"

    @property
    def free(self) -> bool:
        return self._free.is_set()

    @free.setter
    def free(self, value: bool) -> None:
        (self._free.set if value else self._free.clear)()

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        self.asked.append(request)
        await self._free.wait()
        return Answer(text=self.text)
