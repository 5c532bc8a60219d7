"""Collects the values of the metrics. Nothing here reads a row for each session on the event loop.

What has to be counted in the store is counted on a thread, by sums, and kept for a while. How long depends on what
the count cost, so monitoring takes a bounded share of a core however large the store is and however often it is asked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Generic, Literal, TypeVar

from everhold.admin.audit import AuditReport
from everhold.core.audit import PROMISES
from everhold.core.consumers import MEMORY_PREFIX, PLATFORM_PREFIX, parse_consumer
from everhold.engine.gates import Gates
from everhold.errors import StoreError
from everhold.infra.backup_files import list_backups
from everhold.ports.hosts import HostStatus
from everhold.ports.measurements import ConsumerBacklog, StoreLoad
from everhold.ports.store import BudgetSpend
from everhold.telemetry import metrics
from everhold.telemetry.metrics import METRICS, MetricDefinition, MetricValue

T = TypeVar("T")

LOAD_REST: Final = 20.0
"""Counting what waits takes at most this part of the time: one twentieth."""
BACKLOG_REST: Final = 400.0
"""Reading every session that is behind takes at most one part in so many."""
LOAD_WAIT_SECONDS: Final = 5.0
"""How long a scrape waits for a count. After that it shows the last one, with its age."""
BACKLOG_WAIT_SECONDS: Final = 0.1
LOOP_PROBE_SECONDS: Final = 0.5
NO_VALUE: Final[Mapping[str, float]] = {}


class CachedMeasurement(Generic[T]):
    """The last result of a measurement. It is repeated when it is asked for, but not more often than its cost allows.
    A failure keeps the last result, whose age then grows.
    """

    def __init__(self, measure: Callable[[], Awaitable[T]], *, monotonic: Callable[[], float], rest: float) -> None:
        self.error = ""
        """Why the last attempt failed."""
        self._measure = measure
        self._monotonic = monotonic
        self._rest = rest
        self._value: tuple[float, T] | None = None
        self._not_before = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def get(self, *, wait_seconds: float) -> tuple[T, float] | None:
        """Return the result and its age. Wait for a new one if it is time, at most so long. None: there is none."""
        if self._task is None and self._monotonic() >= self._not_before:
            self._task = asyncio.create_task(self._run(), name="measurement")
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=wait_seconds)
        return None if self._value is None else (self._value[1], self._monotonic() - self._value[0])

    async def close(self) -> None:
        """End a measurement that is running."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        since = self._monotonic()
        try:
            self._value = (since, await self._measure())
            self.error = ""
        except (StoreError, OSError) as error:
            self.error = str(error)
        finally:
            now = self._monotonic()
            self._not_before = now + (now - since) * self._rest
            self._task = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessState:
    """What the process knows about itself without asking the store."""

    version: str
    store_kind: Literal["sqlite", "postgresql"]
    accounts: Mapping[tuple[str, str], bool]
    """Platform and account -> whether it is connected."""
    held_accounts: Iterable[str]
    held_cursors: Mapping[str, int]
    """Consumer -> the cursors that workers hold."""
    agents: int
    today: str
    is_draining: bool
    is_ready: bool
    trace_behind_seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class _AuditState:
    at: float
    broken: Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DiskState:
    free_bytes: int
    backup_at: float | None
    """When the newest backup was made; None if there is none."""


class GatewayMonitor:
    """Collects the metrics of a gateway, except those of its HTTP server."""

    def __init__(
        self,
        gates: Gates,
        *,
        home: Path,
        get_backup_directory: Callable[[], Path],
        has_backups: bool,
        has_grown: Callable[[], Awaitable[bool]],
        list_hosts: Callable[[], Awaitable[list[HostStatus]]],
        describe: Callable[[], ProcessState],
    ) -> None:
        """`has_backups`: backups are files that this process makes. `has_grown`: something is in no backup yet."""
        self._gates = gates
        self._home = home
        self._get_backup_directory = get_backup_directory
        self._has_backups = has_backups
        self._has_grown = has_grown
        self._list_hosts = list_hosts
        self._describe = describe
        self._started_at = gates.clock.now()
        self._audit: _AuditState | None = None
        monotonic = gates.clock.monotonic
        self._load = CachedMeasurement(gates.store.measure_load, monotonic=monotonic, rest=LOAD_REST)
        self._backlogs = CachedMeasurement(gates.store.measure_backlogs, monotonic=monotonic, rest=BACKLOG_REST)
        self._disk = CachedMeasurement(
            lambda: asyncio.to_thread(self._read_disk), monotonic=monotonic, rest=BACKLOG_REST
        )

    def record_audit(self, report: AuditReport) -> None:
        """Remember the result of an audit of the whole store."""
        broken = Counter(finding.promise for finding in report.broken_findings)
        self._audit = _AuditState(at=self._gates.clock.now(), broken={it: broken[it] for it in PROMISES})

    async def keep_probing_loop(self) -> None:
        """Measure how late the event loop runs a timer, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOP_PROBE_SECONDS
            await asyncio.sleep(LOOP_PROBE_SECONDS)
            self._gates.metrics.observe(metrics.LOOP_LAG_SECONDS, loop.time() - due)

    async def close(self) -> None:
        for measurement in (self._load, self._backlogs, self._disk):
            await measurement.close()

    async def collect(self) -> dict[MetricDefinition, MetricValue]:
        """Return the value of every metric of this process and its store. HTTP metrics have none."""
        values: dict[MetricDefinition, MetricValue] = dict.fromkeys(METRICS, NO_VALUE)
        values.update(self._collect_registry())
        values.update(_render_process(self._describe()))
        values.update(await self._collect_store())
        values.update(await self._collect_disk())
        values.update(self._render_audit())
        return values

    def _collect_registry(self) -> dict[MetricDefinition, MetricValue]:
        registry = self._gates.metrics
        return {
            metric: registry.get_histogram(metric) if metric.kind == "histogram" else registry.get_counts(metric)
            for metric in METRICS
            if metric.kind != "gauge"
        }

    async def _collect_store(self) -> dict[MetricDefinition, MetricValue]:
        """What the store knows. If it does not answer, the last counts are shown, and their age grows."""
        values: dict[MetricDefinition, MetricValue] = {}
        load = await self._load.get(wait_seconds=LOAD_WAIT_SECONDS)
        backlogs = await self._backlogs.get(wait_seconds=BACKLOG_WAIT_SECONDS)
        if load is not None:
            values |= _render_load(load[0])
            values[metrics.STORE_MEASURED_AGE_SECONDS] = load[1]
        if backlogs is not None:
            values |= _render_backlogs(backlogs[0], self._gates.clock.now())
            values[metrics.BACKLOG_MEASURED_AGE_SECONDS] = backlogs[1]
        try:
            async with asyncio.timeout(LOAD_WAIT_SECONDS):
                values |= _render_spends(await self._gates.store.list_spends("agent:", self._describe().today))
                values[metrics.HOSTS] = Counter(map(_name_host_state, await self._list_hosts()))
        except (StoreError, TimeoutError):
            pass  # `store_measured_age_seconds` tells it
        return values

    async def _collect_disk(self) -> dict[MetricDefinition, MetricValue]:
        found = await self._disk.get(wait_seconds=LOAD_WAIT_SECONDS)
        if found is None:
            return {}
        values: dict[MetricDefinition, MetricValue] = {metrics.DISK_FREE_BYTES: float(found[0].free_bytes)}
        if self._has_backups:
            made_at = self._started_at if found[0].backup_at is None else found[0].backup_at
            age = self._gates.clock.now() - made_at if await self._has_grown() else 0.0
            values[metrics.BACKUP_AGE_SECONDS] = max(age, 0.0)
        return values

    def _read_disk(self) -> _DiskState:
        backups = list_backups(self._get_backup_directory()) if self._has_backups else []
        return _DiskState(free_bytes=shutil.disk_usage(self._home).free, backup_at=backups[-1].at if backups else None)

    def _render_audit(self) -> dict[MetricDefinition, MetricValue]:
        if self._audit is None:
            return {}
        return {
            metrics.PROMISE_BROKEN: {promise: float(count) for promise, count in self._audit.broken.items()},
            metrics.AUDIT_AGE_SECONDS: self._gates.clock.now() - self._audit.at,
        }


def _render_process(state: ProcessState) -> dict[MetricDefinition, MetricValue]:
    held: Counter[str] = Counter()
    for consumer, count in state.held_cursors.items():
        held[parse_consumer(consumer).kind] += count
    connected: dict[tuple[str, ...], float] = {key: float(it) for key, it in state.accounts.items()}
    info: dict[tuple[str, ...], float] = {(state.version, state.store_kind): 1.0}
    return {
        metrics.LEASES_HELD: held,
        metrics.PLATFORM_CONNECTED: connected,
        metrics.ACCOUNTS_HELD: dict.fromkeys(state.held_accounts, 1.0),
        metrics.AGENTS: state.agents,
        metrics.DRAINING: int(state.is_draining),
        metrics.READY: int(state.is_ready),
        metrics.TRACE_BEHIND_SECONDS: state.trace_behind_seconds,
        metrics.INFO: info,
    }


def _render_load(load: StoreLoad) -> dict[MetricDefinition, MetricValue]:
    failing = {it.consumer: float(it.failing) for it in load.consumers if it.failing}
    return {
        metrics.MESSAGES_PENDING: load.pending_messages,
        metrics.CURSORS_DUE: {it.consumer: float(it.due) for it in load.consumers},
        metrics.CURSORS_FAILING: failing,
        metrics.DUE_LAG_SECONDS: {it.consumer: it.lag_seconds for it in load.consumers},
        metrics.OLDEST_DUE_SECONDS: max((it.lag_seconds for it in load.consumers), default=0.0),
        metrics.DEAD_LETTERS: {consumer: float(count) for consumer, count in load.dead_letters.items()},
        metrics.DEAD_LETTERS_IN_DOUBT: load.dead_letters_in_doubt,
        metrics.RECEIPTS_IN_DOUBT: load.receipts_in_doubt,
        metrics.MEMORY_FAILING: {
            consumer.removeprefix(MEMORY_PREFIX): 1.0 for consumer in failing if consumer.startswith(MEMORY_PREFIX)
        },
        metrics.STORE_BYTES: load.size_bytes,
    }


def _render_backlogs(backlogs: Iterable[ConsumerBacklog], now: float) -> dict[MetricDefinition, MetricValue]:
    memories = {it.consumer.removeprefix(MEMORY_PREFIX): it for it in backlogs if it.consumer.startswith(MEMORY_PREFIX)}
    replies = {it.consumer: it for it in backlogs if it.consumer.startswith(PLATFORM_PREFIX)}
    return {
        metrics.MEMORY_BACKLOG_ITEMS: {memory: float(it.items) for memory, it in memories.items()},
        metrics.MEMORY_BACKLOG_AGE_SECONDS: _list_ages(memories, now),
        metrics.OUTBOX_OLDEST_SECONDS: _list_ages(replies, now),
    }


def _list_ages(backlogs: Mapping[str, ConsumerBacklog], now: float) -> dict[str, float]:
    return {name: max(0.0, now - it.oldest_at) for name, it in backlogs.items() if it.oldest_at is not None}


def _render_spends(spends: Iterable[BudgetSpend]) -> dict[MetricDefinition, MetricValue]:
    by_agent = {it.budget.removeprefix("agent:"): it for it in spends}
    return {
        metrics.SPEND_TODAY_TOKENS: {agent: float(it.tokens) for agent, it in by_agent.items()},
        metrics.SPEND_TODAY_USD: {agent: it.usd for agent, it in by_agent.items()},
    }


def _name_host_state(status: HostStatus) -> str:
    if status.is_draining:
        return "draining"
    return "alive" if status.is_alive else "dead"
