"""Find the one cursor that is due among those of a hundred thousand sessions."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import apsw

from bench.in_process import open_store, temporary_directory
from bench.table import Row, at_most, median

LIMIT_MS = 1.0
SESSIONS = 100_000


def due_cursor_rows(rounds: int) -> list[Row]:
    rows = []
    cases = {"all others idle": (None, 1), "all others waiting": (3600.0, 1), "all of them due, taking 64": (-60.0, 64)}
    for words, (others, limit) in cases.items():
        with temporary_directory() as directory:
            asyncio.run(_populate(directory, others))
            found = asyncio.run(look(directory, limit, max(20, 4 * rounds)))
        rows.append(at_most(f"due work among {SESSIONS:,} sessions, {words}", median(found), "ms", LIMIT_MS))
    return rows


async def _populate(directory: Path, others: float | None) -> None:
    """`others`: in how many seconds the other cursors are due; None: never."""
    await open_store(directory, synchronous="OFF").close()
    now = time.time()
    db = apsw.Connection(str(directory / "log.db"))
    due = None if others is None else now + others
    with db:
        for number in range(SESSIONS):
            session = f"s{number:06}"
            db.execute(
                "insert into sessions(id, agent, address, created) values (?, 'main', ?, ?)", (session, session, now)
            )
            for consumer in ("turn", "platform:table:main"):
                db.execute(
                    "insert into cursors(session, consumer, since, wait, due) values (?, ?, ?, ?, ?)",
                    (session, consumer, None if due is None else min(now, due), max(0.0, others or 0.0), due),
                )
    db.execute("analyze")
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.close()


async def look(directory: Path, limit: int, times: int) -> list[float]:
    """CPU milliseconds to find the next due time and claim the cursors."""
    store = open_store(directory)
    found = []
    for number in range(times):
        if limit == 1:
            await store.writer.write(
                lambda cur, number=number: cur.execute(  # type: ignore[misc]
                    "update cursors set since = ?, wait = 0, due = ? where session = ? and consumer = 'turn'",
                    (time.time(), time.time(), f"s{(number * 7919 + 5) % SESSIONS:06}"),
                )
            )
        started = time.process_time()
        due = await store.get_next_due()
        claims = await store.claim_cursors(owner="bench", lease=120, limit=limit)
        found.append((time.process_time() - started) * 1e3)
        assert due == 0
        assert len(claims) == limit, len(claims)
    await store.close()
    return found
