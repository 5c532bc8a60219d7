"""A search that takes too long affects the turn that asked, and no other."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.memories.builtin import BuiltinMemory, IndexHit, MemoryIndex
from everhold.memories.builtin.index import _TooManyChunks
from everhold.ports.memory import MemoryQuery
from tests.memories.builtin.index_scenario import ADA, IndexScenario
from tests.waiting import LIMIT_SECONDS, wait_until

ENDLESS_SQL = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"


class EndlessIndex(MemoryIndex):
    """Reads without an end, on another thread, when it is asked about an elephant."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, embeddings="table")
        self.is_reading = threading.Event()

    def _find_hits(self, asking: Any, *, most: int | None = None) -> list[IndexHit]:
        if "elephant" not in asking.text:
            return super()._find_hits(asking, most=most)
        if most is not None:
            raise _TooManyChunks
        self.is_reading.set()
        self._reader.execute(ENDLESS_SQL).fetchall()
        return []


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[BuiltinMemory]:
    scenario = IndexScenario(tmp_path)
    await scenario.say("The cellar is flooded.")
    index = EndlessIndex(tmp_path / "other.db")
    yield BuiltinMemory(index=index, store=scenario.log, agent="main")
    await index.close()
    await scenario.close()


def ask(text: str) -> MemoryQuery:
    return MemoryQuery(text=text, agent="main", session="other", name="n", audience=ADA, person="ada", limit=5)


async def give_up(search: asyncio.Task[Any]) -> None:
    search.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await search


async def test_an_abandoned_search_does_not_delay_the_next(memory: BuiltinMemory) -> None:
    assert isinstance(memory.index, EndlessIndex)
    slow = asyncio.ensure_future(memory.find(ask("the elephant")))
    await wait_until(memory.index.is_reading.is_set)
    waiting = asyncio.ensure_future(memory.find(ask("another elephant")))  # behind the first one
    await asyncio.sleep(0)
    await give_up(waiting)
    await give_up(slow)
    async with asyncio.timeout(LIMIT_SECONDS):
        (hit,) = await memory.find(ask("what about the cellar?"))
    assert hit.text == "The cellar is flooded."
