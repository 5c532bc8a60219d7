"""A turn with an instant model, from accept to delivery: what everhold itself costs, and whether that grows."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.history import ENTRIES_PER_TURN, SessionHistory
from bench.in_process import InProcessGateway, open_store, run_on_gateway_loop, temporary_directory
from bench.table import Row, at_most, interleave, median, ratio

LIMIT_MS = 1.5
FLAT = 1.2
MANY = 32
WINDOW_TOKENS = 12_000
"""A window that fills up within a round, so that compressions are part of what is measured."""
COMPRESSION_TURNS = 40


def turn_rows(rounds: int) -> list[Row]:
    found = interleave(rounds, {"one": lambda: cost(1, 150), "many": lambda: cost(MANY, 640)})
    return [
        at_most("turn, one session at a time, CPU", median(found["one"]), "ms", LIMIT_MS),
        at_most(f"turn, {MANY} sessions at once, CPU", median(found["many"]), "ms", LIMIT_MS),
    ]


def cost(sessions: int, turns: int) -> float:
    """CPU milliseconds of one turn."""

    async def run(directory: Path) -> float:
        async with InProcessGateway(open_store(directory)).open() as gateway:

            async def talk(chat: str, count: int) -> None:
                for _ in range(count):
                    await gateway.turn(chat)

            await asyncio.gather(*(talk(f"c{number}", 3) for number in range(sessions)))
            await gateway.wait_until_idle()
            started = time.process_time()
            await asyncio.gather(*(talk(f"c{number}", turns // sessions) for number in range(sessions)))
            await gateway.wait_until_idle()
            return (time.process_time() - started) / (turns // sessions * sessions) * 1e3

    with temporary_directory() as directory:
        return run_on_gateway_loop(run(directory))


def flat_rows(rounds: int, *, entries: int = 100_000) -> list[Row]:
    with temporary_directory() as young, temporary_directory() as old:
        asyncio.run(_age(young, 100))
        asyncio.run(_age(old, entries))
        found = interleave(rounds, {"young": lambda: _talk(young), "old": lambda: _talk(old)})
    return [
        at_most(
            f"turn at {entries:,} entries, with compression, CPU",
            median(found["old"]),
            "ms",
            FLAT,
            beside=f"at 100 entries {median(found['young']):.2f} ms",
            ratio=ratio(found["old"], found["young"]),
        )
    ]


async def _age(directory: Path, entries: int) -> None:
    store = open_store(directory, synchronous="OFF")
    history = SessionHistory(store, "s-old", chat="old", compress_every_turns=COMPRESSION_TURNS)
    await history.live(entries // ENTRIES_PER_TURN)
    await store.close()


def _talk(directory: Path, *, turns: int = 120) -> float:
    """CPU milliseconds of one more turn in the existing session, over a few compressions."""

    async def run() -> float:
        async with InProcessGateway(open_store(directory), context_tokens=WINDOW_TOKENS).open() as gateway:
            await gateway.turn("old")
            await gateway.wait_until_idle()
            started = time.process_time()
            for _ in range(turns):
                await gateway.turn("old")
            await gateway.wait_until_idle()
            return (time.process_time() - started) / turns * 1e3

    return run_on_gateway_loop(run())
