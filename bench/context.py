"""Load the context of a session with a long history. The cost depends on the context window, not on the history."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.history import SessionHistory
from bench.in_process import SystemRandom, open_store, temporary_directory
from bench.table import Row, at_most, median
from everhold.core.context import build_model_request, fingerprint_request, render_messages
from everhold.engine.context_cache import load_context_at
from everhold.stores.sqlite import SqliteStore

LIMIT_MS = 5.0
MESSAGES = 10_000
COMPRESSION_TURNS = 200
"""With messages of this length and a window of 100,000 tokens, a compression at 60 % comes about this often."""


def context_rows(rounds: int) -> list[Row]:
    rows = []
    for turns_since_compression, words in (
        (COMPRESSION_TURNS // 2, "half way to the next compression"),
        (COMPRESSION_TURNS - 1, "just before it"),
    ):
        with temporary_directory() as directory:
            asyncio.run(_age(directory, turns_since_compression))
            found = [load(directory) for _ in range(max(5, rounds))]
        what = f"context of {MESSAGES:,} messages, cold, {words}"
        rows.append(at_most(what, median([took for took, _ in found]), "ms", LIMIT_MS, beside=f"{found[0][1]} shown"))
    return rows


async def _age(directory: Path, turns_since_compression: int) -> None:
    store = open_store(directory, synchronous="OFF")
    history = SessionHistory(store, "s-old", compress_every_turns=COMPRESSION_TURNS)
    turns = MESSAGES // 2
    await history.live(turns - turns % COMPRESSION_TURNS - COMPRESSION_TURNS)
    await history.live(turns_since_compression)
    await store.close()


def load(directory: Path) -> tuple[float, int]:
    """Return the milliseconds until the request is ready, with empty caches, and the number of its messages."""

    async def run() -> tuple[float, int]:
        store = SqliteStore.open(directory / "log.db", chance=SystemRandom())
        session = await store.get_session("s-old")
        started = time.perf_counter()
        view = await load_context_at(store, session, at=session.last_seq + 1)
        request = build_model_request(render_messages(view), system="You answer at once.")
        fingerprint_request(request)
        took = time.perf_counter() - started
        await store.close()
        return took * 1e3, len(request.messages)

    return asyncio.run(run())
