"""Commits changes in groups: those that arrive while a transaction is under way go together into the next one.

Several queues commit in parallel, each on a connection of its own. A session always belongs to the same queue, so its
changes keep their order. The queues of different hosts meet at the locks of `loading`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import psycopg
from psycopg import errors as pg

from everhold.core.commit_rules import apply_change, list_needs
from everhold.errors import Conflict, EverholdError, OutcomeUnknown, Refused, StoreError
from everhold.ports.clock import RandomSource
from everhold.ports.store import Change, CommitResult
from everhold.stores.postgres.connections import PostgresConnector
from everhold.stores.postgres.errors import (
    INVALID_VALUE_ERRORS,
    REPEATABLE_ERRORS,
    is_connection_lost,
    translate_error,
)
from everhold.stores.postgres.loading import MAX_BATCH_ENTRIES, LoadedBatch, load_batch
from everhold.stores.postgres.outcomes import CommitOutcome, find_outcome, read_timeline
from everhold.stores.postgres.saving import SPEND_SHARDS, OldRows, plan_writes
from everhold.stores.postgres.statements import COMMIT, PgConnection, Statement, run_statements

MAX_BATCH_JOBS: Final = 256
MAX_ATTEMPTS: Final = 8
"""How often a batch is repeated that certainly wrote nothing, because others were in its way."""
MAX_OUTAGE_SECONDS: Final = 30.0
"""How long a batch waits for the server. A standby needs some seconds to take over."""
RETRY_SECONDS: Final = (0.0, 0.02, 0.1, 0.3, 1.0, 2.0, 3.0)
MAX_KNOWN_ROOTS: Final = 100_000


class CommitUnconfirmed(Exception):
    """The server reported success, but not that a standby has the commit."""


@dataclass(slots=True)
class CommitJob:
    """A change that waits for its commit."""

    change: Change
    future: asyncio.Future[CommitResult]


@dataclass(slots=True)
class CommitStatistics:
    """What the queues did, for tests and metrics."""

    batches: int = 0
    jobs: int = 0
    round_trips: int = 0
    repeats: int = 0
    unknown: int = 0
    """Commits whose outcome had to be found out."""


@dataclass(slots=True)
class KnownRoots:
    """Sessions that are known to be no branches. A session never gets another parent."""

    ids: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def __call__(self, id: str) -> bool:
        return id in self.ids

    def learn(self, loaded: LoadedBatch) -> None:
        for id, row in loaded.work.sessions.items():
            if not row.parent and not row.is_new:
                self.ids[id] = None
        while len(self.ids) > MAX_KNOWN_ROOTS:
            self.ids.popitem(last=False)


class CommitQueue:
    """One connection and the changes that wait for it."""

    def __init__(
        self,
        connector: PostgresConnector,
        *,
        chance: RandomSource,
        clock: Callable[[], float] | None,
        shard: int,
        statistics: CommitStatistics,
        observe_time: Callable[[float], None],
    ) -> None:
        self._connector = connector
        self._chance = chance
        self._clock = clock
        self._shard = shard % SPEND_SHARDS
        self._statistics = statistics
        self._observe_time = observe_time
        self._roots = KnownRoots()
        self._queue: list[CommitJob] = []
        self._connection: PgConnection | None = None
        self._timeline = ""
        self._warnings: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def submit(self, change: Change) -> asyncio.Future[CommitResult]:
        future: asyncio.Future[CommitResult] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            raise StoreError("the store is closed")
        self._queue.append(CommitJob(change, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="postgres commits")
        return future

    async def close(self) -> None:
        """Commit what waits, and close the connection."""
        self._is_closed = True
        if self._task is not None:
            await self._task
        if self._connection is not None:
            await self._connection.close()

    async def _run(self) -> None:
        """Commit until nothing waits."""
        try:
            while self._queue:
                batch = self._take_batch()
                try:
                    await self._commit_batch(batch)
                except Exception as error:
                    _refuse(batch, error)
        finally:
            self._task = None
            _refuse(self._queue, StoreError("the store is closed"))
            self._queue.clear()

    def _take_batch(self) -> list[CommitJob]:
        """Take the jobs of the next transaction. One that blocks other sessions goes alone."""
        taken: list[CommitJob] = []
        entries = 0
        for job in self._queue[:MAX_BATCH_JOBS]:
            entries += len(job.change.entries)
            if taken and (entries > MAX_BATCH_ENTRIES or _goes_alone(job.change) or _goes_alone(taken[-1].change)):
                break
            taken.append(job)
        del self._queue[: len(taken)]
        return taken

    # -- one batch ---------------------------------------------------------------------------------------------------

    async def _commit_batch(self, batch: list[CommitJob]) -> None:
        """Commit a batch, and answer its callers. Repeat it as long as it certainly wrote nothing."""
        ends = asyncio.get_running_loop().time() + MAX_OUTAGE_SECONDS
        attempt = 0
        while True:
            try:
                outcomes = await self._try_batch(batch)
            except INVALID_VALUE_ERRORS as error:
                await self._drop_connection()
                if len(batch) == 1:
                    raise Refused(
                        f"a value of the change cannot be stored: {error}",
                        remedy="clean its text before it is committed",
                    ) from error
                await self._commit_one_by_one(batch)
                return
            except psycopg.Error as error:
                await self._drop_connection()
                attempt += 1
                if is_connection_lost(error):
                    may_repeat = asyncio.get_running_loop().time() < ends
                else:
                    may_repeat = isinstance(error, REPEATABLE_ERRORS) and attempt < MAX_ATTEMPTS
                if not may_repeat:
                    if isinstance(error, pg.UniqueViolation):
                        raise Conflict(f"another host wrote the same: {error}", remedy="read again") from error
                    raise translate_error(error) from error
                self._statistics.repeats += 1
                await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS)) - 1])
                continue
            except BaseException:
                await self._drop_connection()
                raise
            _answer(batch, outcomes)
            return

    async def _commit_one_by_one(self, batch: list[CommitJob]) -> None:
        for job in batch:
            try:
                await self._commit_batch([job])
            except Exception as error:
                _refuse([job], error)

    async def _try_batch(self, batch: Sequence[CommitJob]) -> list[CommitResult | EverholdError]:
        """Run one transaction. Return what each caller gets. Raises psycopg.Error if nothing was written."""
        connection = await self._ensure_connection()
        changes = [job.change for job in batch]
        durable = is_durable(changes)
        self._statistics.round_trips += 1
        loaded = await load_batch(
            connection, list_needs(changes), durable=durable, roots=self._roots, clock=self._clock
        )
        loaded.timeline = self._timeline
        self._observe_time(loaded.at)
        self._roots.learn(loaded)
        old = OldRows(loaded.work)
        outcomes: list[CommitResult | EverholdError] = []
        for change in changes:
            try:
                outcomes.append(apply_change(loaded.work, change, self._chance))
            except EverholdError as error:
                outcomes.append(error)
        writes = list(plan_writes(loaded.work, shard=self._shard, old=old))
        self._statistics.round_trips += 1
        await self._write(connection, loaded, writes, durable=durable)
        self._statistics.batches += 1
        self._statistics.jobs += len(batch)
        return outcomes

    async def _write(
        self,
        connection: PgConnection,
        loaded: LoadedBatch,
        writes: Sequence[Statement],
        *,
        durable: bool,
    ) -> None:
        """Write and commit, in one round trip. If the answer is lost, find out whether it was committed."""
        self._warnings.clear()
        try:
            await run_statements(connection, [*writes, (COMMIT, ())])
            if durable and self._warnings:
                raise CommitUnconfirmed(self._warnings[0])
        except CommitUnconfirmed as error:
            raise OutcomeUnknown(
                f"the server committed without a confirmation of its standby: {error}",
                remedy="repeat the change, because a failover may lose it",
            ) from error
        except psycopg.Error as error:
            if not is_connection_lost(error) or not writes:
                raise
            self._statistics.unknown += 1
            await self._settle_outcome(loaded, error, durable=durable)

    async def _settle_outcome(self, loaded: LoadedBatch, error: psycopg.Error, *, durable: bool) -> None:
        """Return if the transaction was committed. Raises `error` if it was not, or OutcomeUnknown."""
        await self._drop_connection()
        outcome = await find_outcome(self._connector, loaded, durable=durable)
        if outcome is CommitOutcome.ABORTED:
            raise error
        if outcome is CommitOutcome.UNKNOWN:
            raise OutcomeUnknown(
                f"the connection was lost during a commit, and it is unknown whether it was committed: {error}",
                remedy="repeat the change; a change that was committed is recognised by its dedup key or its fence",
            ) from error

    # -- the connection ----------------------------------------------------------------------------------------------

    async def _ensure_connection(self) -> PgConnection:
        if self._connection is None or self._connection.closed:
            connection = await self._connector.connect()
            connection.add_notice_handler(self._on_notice)
            self._timeline = await read_timeline(connection)
            self._connection = connection
        return self._connection

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        # The only warning of a commit says that the wait for a standby was cancelled. Its text is translated.
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "")

    async def _drop_connection(self) -> None:
        """Close the connection, which ends its transaction. After an error in a pipeline the driver may be wrong about
        which statements are prepared."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class GroupWriter:
    """All queues of one store."""

    def __init__(
        self,
        connector: PostgresConnector,
        *,
        writers: int,
        chance: RandomSource,
        clock: Callable[[], float] | None,
        observe_time: Callable[[float], None],
    ) -> None:
        self.statistics = CommitStatistics()
        first = int.from_bytes(chance.bytes(1), "big")
        self.queues = [
            CommitQueue(
                connector,
                chance=chance,
                clock=clock,
                shard=first + number,
                statistics=self.statistics,
                observe_time=observe_time,
            )
            for number in range(writers)
        ]

    async def commit(self, change: Change) -> CommitResult:
        queue = self.queues[zlib.crc32(change.session.encode("utf-8", "surrogatepass")) % len(self.queues)]
        # A cancelled caller does not undo its commit.
        return await queue.submit(change)

    async def close(self) -> None:
        for queue in self.queues:
            await queue.close()


def is_durable(changes: Sequence[Change]) -> bool:
    """Return whether the callers wait until the transaction is on disk. One that must wait decides for all."""
    return any(change.durable for change in changes)


def _goes_alone(change: Change) -> bool:
    """Return whether a change locks more than rows of its session, or changes what others of its batch had read."""
    return bool(change.erase or change.people or change.first_seen or change.peers or change.read is not None)


def _answer(batch: Sequence[CommitJob], outcomes: Sequence[CommitResult | EverholdError]) -> None:
    for job, outcome in zip(batch, outcomes, strict=True):
        if job.future.done():
            continue  # its caller no longer waits; the commit stays
        if isinstance(outcome, CommitResult):
            job.future.set_result(outcome)
        else:
            job.future.set_exception(outcome)


def _refuse(batch: Sequence[CommitJob], error: Exception) -> None:
    """Tell every caller of a batch that has no answer yet."""
    for job in batch:
        if job.future.done():
            continue
        if isinstance(error, EverholdError):
            job.future.set_exception(type(error)(error.message, remedy=error.remedy))
        else:
            job.future.set_exception(error)
