"""Start a gateway with a hundred thousand sessions. Nothing before `ready` may read each of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from bench.gateway import Gateway
from bench.history import SessionHistory
from bench.in_process import SystemRandom, temporary_directory
from bench.table import Row, at_most, interleave, median
from everhold.infra.home import Home
from everhold.stores.sqlite import SqliteStore

SESSIONS = 100_000
LIMIT_SECONDS = 2.0
AT_ONCE = 500
QUIET_SECONDS = 2.0


def many_sessions_rows(rounds: int) -> list[Row]:
    with temporary_directory() as directory, temporary_directory() as empty:
        home = Home(directory).create()
        asyncio.run(_populate(home))
        _settle(directory)

        def up(where: Path) -> Callable[[], float]:
            def start() -> float:
                gateway = Gateway(where, config="")
                gateway.close()
                return gateway.ready_seconds

            return start

        found = interleave(rounds, {"many": up(directory), "none": up(empty)})
    beside = f"with no session {median(found['none']):.2f} s"
    what = f"up, from exec to ready, {SESSIONS:,} sessions in the store, wall"
    return [at_most(what, median(found["many"]), "s", LIMIT_SECONDS, beside=beside)]


async def _populate(home: Home) -> None:
    """Write sessions with one answered message each and no work due."""
    store = SqliteStore.open(home.store, chance=SystemRandom(), synchronous="OFF")
    for start in range(0, SESSIONS, AT_ONCE):
        chats = [f"s{number:06}" for number in range(start, start + AT_ONCE)]
        await asyncio.gather(
            *(SessionHistory(store, chat, chat=chat, platform="http", account="").live(1) for chat in chats)
        )
    await store.close()
    db = apsw.Connection(str(home.store))
    with db:
        for consumer in ("turn", "compression"):
            db.execute(
                "insert or ignore into cursors(session, consumer, processed_seq, since, wait, due) "
                "select id, ?, next_seq - 1, null, 0, null from sessions",
                (consumer,),
            )
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.close()


def _settle(directory: Path) -> None:
    """Run the gateway until its index has caught up, as it would have in use."""
    gateway = Gateway(directory, config="")
    used = -1.0
    while gateway.cpu() - used > 0.05 * QUIET_SECONDS:
        used = gateway.cpu()
        time.sleep(QUIET_SECONDS)
    gateway.close()
