"""Monitoring takes a bounded share of a core, waits for nothing for long, and has as many series however many sessions
there are."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from everhold.admin.audit import AuditReport
from everhold.admin.monitoring import LOAD_REST, CachedMeasurement, GatewayMonitor, ProcessState
from everhold.core.audit import AuditCounts, AuditFinding
from everhold.engine.gates import Gates
from everhold.errors import StoreError
from everhold.ports.hosts import HostStatus
from everhold.ports.store import DeadLetter, RetryDelay, Wakeup
from everhold.stores.sqlite import SqliteStore
from everhold.telemetry.metrics import PROMISE_BROKEN, render_prometheus
from everhold.testing.contracts.store_scenario import SeededRandom, StoreClock, StoreScenario
from everhold.testing.gateway import RecordingLogger
from tests.waiting import wait_until


class ManualClock:
    def __init__(self) -> None:
        self.at = 1_000.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


STATE = ProcessState(
    version="1.2.3",
    store_kind="sqlite",
    accounts={("telegram", "main"): True, ("slack", "work"): False},
    held_accounts=(),
    held_cursors={"memory:a": 1, "memory:b": 2},
    agents=1,
    today="2026-01-01",
    is_draining=False,
    is_ready=True,
    trace_behind_seconds=0.0,
)


@dataclasses.dataclass
class MonitoredStore:
    """A store with its monitor."""

    scenario: StoreScenario
    monitor: GatewayMonitor
    clock: ManualClock
    gates: Gates
    has_grown: bool = True

    async def scrape(self) -> list[str]:
        return render_prometheus(await self.monitor.collect()).splitlines()


@asynccontextmanager
async def open_monitored(path: Path, home: Path | None = None) -> AsyncIterator[MonitoredStore]:
    store_clock, clock = StoreClock(), ManualClock()
    store = SqliteStore.open(path / "log.db", chance=SeededRandom(), now=store_clock)
    gates = Gates(store=store, clock=clock, chance=SeededRandom(), log=RecordingLogger(), owner="me")
    found: MonitoredStore

    async def has_grown() -> bool:
        return found.has_grown

    async def list_hosts() -> list[HostStatus]:
        return []

    monitor = GatewayMonitor(
        gates,
        home=path,
        get_backup_directory=lambda: path,
        has_backups=True,
        has_grown=has_grown,
        list_hosts=list_hosts,
        describe=lambda: STATE,
    )
    found = MonitoredStore(StoreScenario(store, store_clock), monitor, clock, gates)
    try:
        yield found
    finally:
        await monitor.close()
        await store.close()


async def fill(found: MonitoredStore, sessions: int) -> None:
    """Make sessions that wait, fail and have dead letters."""
    scenario = found.scenario
    for number in range(sessions):
        session = f"session{number}"
        await scenario.open_session(session)
        await scenario.commit_heard(session=session, wake="")
        wakeups = tuple(Wakeup(consumer=it, owner="me", lease=60.0) for it in ("turn", "memory:a", "platform:p:q"))
        for claim in (await scenario.commit(session=session, wakeups=wakeups)).claims:
            wait = RetryDelay(seconds=1e6)
            error = f"{session} said the secret word"
            await scenario.update_cursor(claim, session=session, error=error, attempts=1, wait=wait, release=True)
        await scenario.commit(
            session=session, dead_letters=(DeadLetter(consumer="memory:a", session=session, seq=1, reason=session),)
        )


async def test_there_are_as_many_series_with_many_sessions_as_with_few(tmp_path: Path) -> None:
    names = []
    for sessions in (3, 60):
        directory = tmp_path / str(sessions)
        directory.mkdir()
        async with open_monitored(directory) as found:
            await fill(found, sessions)
            lines = await found.scrape()
            assert f'everhold_cursors_failing{{consumer="turn"}} {sessions}' in lines
            assert f'everhold_dead_letters{{consumer="memory:a"}} {sessions}' in lines
            assert not any("session0" in line or "secret" in line for line in lines)
            names.append([line.rpartition(" ")[0] for line in lines])
    assert names[0] == names[1]


async def test_what_was_counted_a_moment_ago_is_not_counted_again(tmp_path: Path) -> None:
    clock, counted = ManualClock(), []

    async def count() -> int:
        counted.append(1)
        clock.at += 2.0
        return len(counted)

    cached = CachedMeasurement(count, monotonic=clock.monotonic, rest=LOAD_REST)
    assert await cached.get(wait_seconds=1e6) == (1, 2.0)
    clock.at += 2.0 * LOAD_REST - 1.0
    assert await cached.get(wait_seconds=1e6) == (1, 2.0 * LOAD_REST + 1.0)
    clock.at += 1.0
    assert await cached.get(wait_seconds=1e6) == (2, 2.0)


async def test_many_scrapes_at_once_count_once() -> None:
    counted, go = [], asyncio.Event()

    async def count() -> int:
        counted.append(1)
        await go.wait()
        return 7

    cached = CachedMeasurement(count, monotonic=ManualClock().monotonic, rest=1.0)
    scrapes = [asyncio.create_task(cached.get(wait_seconds=1e6)) for _ in range(50)]
    await wait_until(lambda: bool(counted))
    go.set()
    assert {(await it) for it in scrapes} == {(7, 0.0)}
    assert len(counted) == 1


async def test_a_scrape_does_not_wait_for_a_store_that_hangs() -> None:
    async def hang() -> int:
        await asyncio.Event().wait()
        return 1

    cached = CachedMeasurement(hang, monotonic=ManualClock().monotonic, rest=1.0)
    assert await cached.get(wait_seconds=0.01) is None
    await cached.close()


async def test_a_store_that_fails_keeps_its_last_counts_and_their_age_grows() -> None:
    clock, fails = ManualClock(), False

    async def count() -> int:
        if fails:
            raise StoreError("the server is away")
        return 1

    cached = CachedMeasurement(count, monotonic=clock.monotonic, rest=1.0)
    assert await cached.get(wait_seconds=1e6) == (1, 0.0)
    fails = True
    clock.at += 60.0
    assert await cached.get(wait_seconds=1e6) == (1, 60.0)
    assert cached.error == "the server is away"


async def test_a_scrape_counts_nothing_on_the_thread_of_the_event_loop(tmp_path: Path) -> None:
    async with open_monitored(tmp_path) as found:
        await fill(found, 2)
        slow = watch_slow_reads(found.scenario.store)
        assert 'everhold_cursors_due{consumer="turn"} 2' in await found.scrape()
        assert slow == []
        await found.scenario.store.list_cursors(waiting=True)  # what a scrape did before
        assert slow != []


def watch_slow_reads(store: object) -> list[str]:
    """Return a list that receives the statements of the loop's connections that read a row for each session."""
    assert isinstance(store, SqliteStore)
    found: list[str] = []

    def trace(cursor: object, sql: str, values: object) -> bool:
        if any(f"from {table}" in sql for table in ("cursors", "dead_letters", "pending", "entries", "sessions")):
            found.append(sql)
        return True

    for connection in (store._read_connection, store.writer.db):
        connection.exec_trace = trace
    return found


async def test_the_last_audit_is_shown_by_promise_with_its_age(tmp_path: Path) -> None:
    async with open_monitored(tmp_path) as found:
        assert not any(line.startswith("everhold_promise_broken{") for line in await found.scrape())
        findings = [AuditFinding(promise="P2", session="s", text="lost", level="broken")]
        found.monitor.record_audit(AuditReport(findings=findings, checked=AuditCounts()))
        found.clock.at += 60.0
        lines = await found.scrape()
    assert f'{PROMISE_BROKEN.full_name}{{promise="P2"}} 1' in lines
    assert f'{PROMISE_BROKEN.full_name}{{promise="P1"}} 0' in lines
    assert "everhold_audit_age_seconds 60" in lines


async def test_a_backup_ages_only_while_something_is_in_no_backup(tmp_path: Path) -> None:
    async with open_monitored(tmp_path) as found:
        (tmp_path / "everhold-19700101T001500Z-00000000000000000007.db").touch()
        found.clock.at += 500.0
        found.has_grown = False
        assert "everhold_backup_age_seconds 0" in await found.scrape()
        found.has_grown = True
        (line,) = [line for line in await found.scrape() if line.startswith("everhold_backup_age_seconds")]
        assert float(line.split()[1]) > 0


async def test_the_state_of_the_process_is_shown(tmp_path: Path) -> None:
    async with open_monitored(tmp_path) as found:
        lines = await found.scrape()
    assert 'everhold_platform_connected{platform="slack",account="work"} 0' in lines
    assert 'everhold_platform_connected{platform="telegram",account="main"} 1' in lines
    assert 'everhold_leases_held{consumer="memory"} 3' in lines
    assert 'everhold_info{version="1.2.3",store="sqlite"} 1' in lines
    assert any(line.startswith("everhold_disk_free_bytes ") for line in lines)
