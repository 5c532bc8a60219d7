"""What the next turn is shown, of a session with a long past: the cost is the window, not the history."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.house import Chance, open_store, room
from bench.past import Past
from bench.table import Row, at_most, median
from everhold.core.context import build_model_request, fingerprint_request, render_messages
from everhold.engine.context_cache import load_context_at
from everhold.stores.sqlite import SqliteStore

LIMIT_MS = 5.0
MESSAGES = 10_000
FOLD_TURNS = 200
"""With messages of this length and a window of 100,000 tokens, folding at 60 % comes round about this often."""


def view_rows(rounds: int) -> list[Row]:
    rows = []
    for since_fold, words in ((FOLD_TURNS // 2, "half way to the next fold"), (FOLD_TURNS - 1, "just before it")):
        with room() as directory:
            asyncio.run(_age(directory, since_fold))
            found = [load(directory) for _ in range(max(5, rounds))]
        what = f"context of {MESSAGES:,} messages, cold, {words}"
        rows.append(at_most(what, median([took for took, _ in found]), "ms", LIMIT_MS, beside=f"{found[0][1]} shown"))
    return rows


async def _age(directory: Path, since_fold: int) -> None:
    store = open_store(directory, synchronous="OFF")
    past = Past(store, "s-old", fold_every=FOLD_TURNS)
    turns = MESSAGES // 2
    await past.live(turns - turns % FOLD_TURNS - FOLD_TURNS)
    await past.live(since_fold)
    await store.close()


def load(directory: Path) -> tuple[float, int]:
    """Milliseconds to a request ready to be sent, in a process that has seen nothing of it yet; messages in it."""

    async def run() -> tuple[float, int]:
        store = SqliteStore.open(directory / "log.db", chance=Chance())
        session = await store.get_session("s-old")
        started = time.perf_counter()
        view = await load_context_at(store, session, at=session.last_seq + 1)
        request = build_model_request(render_messages(view), system="You answer at once.")
        fingerprint_request(request)
        took = time.perf_counter() - started
        await store.close()
        return took * 1e3, len(request.messages)

    return asyncio.run(run())
