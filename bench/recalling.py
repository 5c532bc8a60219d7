"""What recall adds to a turn: the built-in memory in the same process, with a long and a short history."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.history import ENTRIES_PER_TURN, SessionHistory
from bench.in_process import MESSAGE, InProcessGateway, open_store, temporary_directory
from bench.recall.speed import sentences
from bench.table import Row, at_most, interleave, median, ratio
from everhold.core.entries import Heard
from everhold.engine.memory_client import MemoryClient
from everhold.memories.builtin import BuiltinMemory, MemoryIndex
from everhold.stores.sqlite import SqliteStore

LIMIT_MS = 1.0
TURNS = 60
COMPRESSION_TURNS = 40
WINDOW_TOKENS = 12_000
RECALL_SECONDS = 0.8
ENTRIES = (10, 4_500)
FEW_ITEMS, MANY_ITEMS = 10_000, 100_000
SESSIONS = 40
"""How many sessions the items of a large memory are from."""
GROWTH_LIMIT = 1.25
"""How much more CPU a turn may take with ten times as many items."""


class VariedHistory(SessionHistory):
    """A history in which all messages differ."""

    texts: Iterator[str]

    def _heard(self) -> Heard:
        return msgspec.structs.replace(super()._heard(), text=next(self.texts))


class RecallingGateway(InProcessGateway):
    """A gateway whose agent has the built-in memory."""

    def __init__(self, directory: Path, *, recall: bool) -> None:
        store = open_store(directory)
        super().__init__(store, context_tokens=WINDOW_TOKENS)
        self.index = MemoryIndex(directory / "index.db")
        memory = BuiltinMemory(index=self.index, store=store, agent="main")
        self._attached = MemoryClient(memory, instance="builtin", agent="main")
        if recall:
            self._runtime = dataclasses.replace(
                self._runtime, recall_memories=("builtin",), recall_seconds=RECALL_SECONDS
            )

    def find_memory(self, instance: str, agent: str) -> MemoryClient | None:
        return self._attached if instance == "builtin" else None

    async def say(self, text: str) -> None:
        delivered = self.platform.get_delivered_event("old")
        delivered.clear()
        await self.accept_message("old", text)
        await delivered.wait()


def texts(seed: int) -> Iterator[str]:
    """Generate messages of made-up words whose frequencies are as uneven as those of real words."""
    said = sentences(10_000, seed=seed)
    return (" ".join(pair) for pair in zip(said, said, strict=False))


def recalling_rows(rounds: int) -> list[Row]:
    rows: list[Row] = []
    for entries, various in ((ENTRIES[0], True), (ENTRIES[1], True), (ENTRIES[1], False)):
        with contextlib.ExitStack() as open_:
            without, recalls = (open_.enter_context(temporary_directory()) for _ in range(2))
            for directory in (without, recalls):
                asyncio.run(_age(directory, entries, various=various))
            found = interleave(
                rounds,
                {
                    "without": lambda: _talk(without, recall=False, various=various),  # noqa: B023  # called at once
                    "recalls": lambda: _talk(recalls, recall=True, various=various),  # noqa: B023
                },
            )
        kind = "of various text" if various else "of equal text"
        what = f"recall in a turn, {entries:,} entries {kind} in the session, CPU"
        beside = f"the turn without it {median(found['without']):.2f} ms"
        rows.append(at_most(what, _added(found), "ms", LIMIT_MS, beside=beside))
    return rows


def memory_growth_rows(rounds: int) -> list[Row]:
    with temporary_directory() as few, temporary_directory() as many:
        asyncio.run(_fill(few, FEW_ITEMS))
        asyncio.run(_fill(many, MANY_ITEMS))
        found = interleave(
            rounds,
            {
                "few": lambda: _talk(few, recall=True, various=True),
                "many": lambda: _talk(many, recall=True, various=True),
            },
        )
    beside = f"a memory of {FEW_ITEMS:,} items {median(found['few']):.2f} ms"
    what = f"turn with recall, a memory of {MANY_ITEMS:,} items, CPU"
    growth = ratio(found["many"], found["few"])
    return [at_most(what, median(found["many"]), "ms", GROWTH_LIMIT, beside=beside, ratio=growth)]


async def _fill(directory: Path, items: int) -> None:
    """Write a memory of messages and replies that all differ, from several sessions of one person."""
    store = open_store(directory, synchronous="OFF")
    said = itertools.chain.from_iterable(map(texts, itertools.count(100)))
    for number in range(SESSIONS):
        chat = f"chat{number}" if number else "old"
        history = VariedHistory(store, f"s-{chat}", chat=chat, compress_every_turns=COMPRESSION_TURNS)
        history.texts = said
        await history.live(items // 2 // SESSIONS)
    await _index(directory, store)


async def _index(directory: Path, store: SqliteStore) -> None:
    index = MemoryIndex(directory / "index.db")
    while await index.catch_up(store):
        pass
    await index.close()
    await store.close()


def _added(found: dict[str, list[float]]) -> float:
    """Return the median of the rounds' differences."""
    return median([recalls - without for recalls, without in zip(found["recalls"], found["without"], strict=True)])


async def _age(directory: Path, entries: int, *, various: bool) -> None:
    store = open_store(directory, synchronous="OFF")
    history = (VariedHistory if various else SessionHistory)(
        store, "s-old", chat="old", compress_every_turns=COMPRESSION_TURNS
    )
    if isinstance(history, VariedHistory):
        history.texts = texts(7)
    await history.live(entries // ENTRIES_PER_TURN)
    await _index(directory, store)


def _talk(directory: Path, *, recall: bool, various: bool) -> float:
    """CPU milliseconds of one more turn, index included."""

    async def run() -> float:
        async with RecallingGateway(directory, recall=recall).open() as gateway:
            assert isinstance(gateway, RecallingGateway)
            said = texts(11) if various else itertools.repeat(MESSAGE)
            await _say(gateway, list(itertools.islice(said, 10)))
            started = time.process_time()
            await _say(gateway, list(itertools.islice(said, TURNS)))
            spent = time.process_time() - started
            await gateway.index.close()
            return spent / TURNS * 1e3

    return asyncio.run(run())


async def _say(gateway: RecallingGateway, said: Sequence[str]) -> None:
    for text in said:
        await gateway.say(text)
    await gateway.wait_until_idle()
