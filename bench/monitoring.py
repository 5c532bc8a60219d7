"""Scrape the metrics of a store in which a hundred thousand sessions wait and fail."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import apsw
import psycopg

from bench.in_process import SystemRandom, open_store, temporary_directory
from bench.postgres import read_server_seconds
from bench.table import Row, at_most, median
from everhold.admin.monitoring import GatewayMonitor, ProcessState
from everhold.app import SystemClock
from everhold.engine.gates import Gates
from everhold.ports.hosts import HostStatus
from everhold.ports.store import Store
from everhold.stores.postgres import PostgresStore
from everhold.telemetry.metrics import render_prometheus
from everhold.testing.contracts.platform_harness import SilentLogger
from everhold.testing.postgres_server import DURABLE_SETTINGS, PostgresTestServer, run_postgres_server

SESSIONS = 100_000
CONSUMERS = ("turn", "platform:table:main")
CPU_LIMIT_MS = 40.0
LOOP_LIMIT_MS = 2.0


def monitoring_rows(rounds: int) -> list[Row]:
    what = f"/metrics, {SESSIONS:,} sessions waiting, all failing"
    times = max(5, rounds)
    with temporary_directory() as directory:
        asyncio.run(_populate(directory))
        cpu, loop, series = asyncio.run(scrape(directory, times))
    with temporary_directory() as directory, run_postgres_server(DURABLE_SETTINGS) as server:
        with server.lend_store_database() as url:
            _populate_postgres(url)
            here, remote, away = asyncio.run(_scrape_postgres(server, url, directory, times))
    return [
        at_most(f"{what}, CPU", median(cpu), "ms", CPU_LIMIT_MS, beside=f"{series} series"),
        at_most(f"{what}, on the event loop", median(loop), "ms", LOOP_LIMIT_MS),
        at_most("the same on PostgreSQL, CPU here and of the server", median(here) + remote, "ms", CPU_LIMIT_MS),
        at_most("the same, on the event loop", median(away), "ms", LOOP_LIMIT_MS),
    ]


async def _populate(directory: Path) -> None:
    """The sessions have a message that waits for its turn, which failed. A tenth also have a reply that waits."""
    await open_store(directory, synchronous="OFF").close()
    now = time.time()
    db = apsw.Connection(str(directory / "log.db"))
    insert = (
        "insert into cursors(session, consumer, since, wait, due, error, attempts) values (?, ?, ?, 60, ?, 'down', 3)"
    )
    with db:
        for number in range(SESSIONS):
            session = f"s{number:06}"
            db.execute(
                "insert into sessions(id, agent, address, created) values (?, 'main', ?, ?)", (session, session, now)
            )
            db.execute("insert into pending(session, seq, asks) values (?, 1, 1)", (session,))
            for consumer in CONSUMERS[: 2 if number % 10 == 0 else 1]:
                db.execute(insert, (session, consumer, now, now + 60))
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.close()


def _populate_postgres(url: str) -> None:
    """The same rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "insert into sessions(id, agent, address, created) "
            f"select 's' || n, 'main', 's' || n, 0 from generate_series(1, {SESSIONS}) n"
        )
        connection.execute(
            f"insert into pending(session, seq, asks) select 's' || n, 1, true from generate_series(1, {SESSIONS}) n"
        )
        for consumer, step in zip(CONSUMERS, (1, 10), strict=True):
            connection.execute(
                "insert into cursors(session, consumer, since, wait, due, error, attempts) "
                "select 's' || n, %s, extract(epoch from now()), 60, extract(epoch from now()) + 60, 'down', 3 "
                f"from generate_series(1, {SESSIONS}, {step}) n",
                (consumer,),
            )
        connection.execute("vacuum analyze")


def build_monitor(gates: Gates, home: Path) -> GatewayMonitor:
    """Return the monitor of a process with nothing but a store."""

    async def has_grown() -> bool:
        return True

    async def list_hosts() -> list[HostStatus]:
        return []

    def describe() -> ProcessState:
        return ProcessState(
            version="0",
            store_kind="sqlite",
            accounts={},
            held_accounts=(),
            held_cursors={},
            agents=1,
            today="2026-01-01",
            is_draining=False,
            is_ready=True,
            trace_behind_seconds=0.0,
        )

    return GatewayMonitor(
        gates,
        home=home,
        get_backup_directory=lambda: home,
        has_backups=True,
        has_grown=has_grown,
        list_hosts=list_hosts,
        describe=describe,
    )


async def scrape(directory: Path, times: int) -> tuple[list[float], list[float], int]:
    """CPU milliseconds of a scrape in the process and on the thread of the event loop, and the number of series."""
    return await _scrape(open_store(directory), directory, times)


async def _scrape_postgres(
    server: PostgresTestServer, url: str, home: Path, times: int
) -> tuple[list[float], float, list[float]]:
    """CPU milliseconds of a scrape here, of the server in the mean, and on the thread of the event loop."""
    store = await PostgresStore.open(url, chance=SystemRandom())
    before = read_server_seconds(server)
    here, loop, _ = await _scrape(store, home, times)
    return here, (read_server_seconds(server) - before) / (times + 1) * 1e3, loop


async def _scrape(store: Store, home: Path, times: int) -> tuple[list[float], list[float], int]:
    """A scrape whose count is too old measures it anew, so the pauses are longer than the cost of these allows."""
    gates = Gates(store=store, clock=SystemClock(), chance=SystemRandom(), log=SilentLogger(), owner="bench")
    monitor = build_monitor(gates, home)
    cpu, loop, series = [], [], 0
    await monitor.collect()
    for _ in range(times):
        await asyncio.sleep(2.0)
        on_loop, whole = time.thread_time(), time.process_time()
        text = render_prometheus(await monitor.collect())
        loop.append((time.thread_time() - on_loop) * 1e3)
        cpu.append((time.process_time() - whole) * 1e3)
        series = sum(not line.startswith("#") for line in text.splitlines())
        assert f"everhold_messages_pending {SESSIONS}" in text
    await monitor.close()
    await store.close()
    return cpu, loop, series
