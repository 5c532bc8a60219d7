"""Computes the stronger vectors of chunks in the background, slowly enough not to delay chats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from everhold.memories.builtin.index import MemoryIndex
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger

BATCH_SIZE: Final = 16
IDLE_SECONDS: Final = 2.0
"""Interval between checks for new chunks."""
REPORT_SECONDS: Final = 30.0
"""Interval between progress log lines."""


async def run_embedding_backfill(
    index: MemoryIndex, log: EventLogger, clock: Clock, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Run while a model is in use; return at once if there is none. It pauses as long as it worked."""
    done, reported = 0, clock.monotonic()
    while index.embedding_level == "model":
        started = clock.monotonic()
        filled = await index.fill_embeddings(BATCH_SIZE)
        done += filled
        now = clock.monotonic()
        if done and (not filled or now - reported >= REPORT_SECONDS):
            passages, left = await index.count_pending_embeddings()
            log.info("index.filling", filled=done, left=left, passages=passages)
            done, reported = 0, now
        await sleep(now - started if filled else IDLE_SECONDS)
    if index.model_problem:
        log.warning("index.level_changed", level=index.embedding_level, reason=index.model_problem)
