"""The one hand that writes: takes whatever is queued, commits it as one transaction, then tells everybody at once.

It knows nothing of entries or lanes; a job is a function of a cursor. Nobody is told that a job succeeded before the
transaction it was part of is on disk. `InlineWriter` is the same promise without a thread, for simulated worlds.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

import apsw

from everhold.errors import StoreBusy, StoreDamaged, StoreError
from everhold.stores.sqlite.errors import is_fatal, is_transaction_lost, translate_error
from everhold.stores.sqlite.watermark import WatermarkFile

MAX_BATCH_JOBS: Final = 256
RESULTS_PER_LOOP: Final = 4
"""How many of those who are not in a hurry are told at a time: what each does next keeps everybody else waiting."""
CHECKPOINT_PAGES: Final = 2000
"""The write-ahead log is copied into the database once it is this long."""
OTHER_LOOP_POLL_SECONDS: Final = 0.01
"""How soon a second event loop looks again whether the first one's commit is over."""
MAX_SYNC_LAG_SECONDS: Final = 1.0
"""For so long at most a power cut could take a job that need not be durable, when no durable one comes after it."""
QUICK_DISK_SECONDS: Final = 0.002
"""A disk that answers so soon is waited for on the spot, where nobody would make use of the wait: going to sleep and
being woken twice is dearer."""
UNUSED_WAIT_SECONDS: Final = 0.0001
"""Whoever computed for less than this during a wait made no use of it: so much goes into being woken."""
MAX_UNUSED_WAITS: Final = 3
"""After so many waits in a row that nobody made use of, they are spent on the spot."""
INLINE_COMMITS_PER_CHECK: Final = 16
"""After so many of those it is seen whether that is still so."""
SYNCHRONOUS_NORMAL: Final = 1
"""SQLite's level at which a commit is written whole and in order, but not waited for until the next that is."""

T = TypeVar("T")
WriteJob: TypeAlias = Callable[[apsw.Cursor], T]
BulkWriter: TypeAlias = Callable[[apsw.Cursor, list[Any]], list[Any]]
"""Does at once what several jobs that are alike would do one after another; raises if it does not know how."""


# Plain tuples: two of each are made for every commit there is.
_QueuedJob: TypeAlias = tuple[WriteJob[Any], asyncio.Future[Any], bool, bool, bool, Any]
"""The job, who waits for it, whether it is urgent, light and durable, and what it is about if others are alike."""
_is_light: Final = itemgetter(3)
_is_durable: Final = itemgetter(4)
_bulk_key: Final = itemgetter(5)
_JobOutcome: TypeAlias = tuple[asyncio.Future[Any], bool, Any, Exception | None]
_is_urgent: Final = itemgetter(1)
_WriterBatch: TypeAlias = tuple[list[_QueuedJob], list[Any] | None, asyncio.AbstractEventLoop]
"""A batch, what its jobs returned if they have been run, and where to answer."""


class _BaseWriter:
    """What both writers share: the connection, and what is done around a commit."""

    def __init__(self, db: apsw.Connection, path: Path) -> None:
        self.db = db
        self.cursor = db.cursor()
        self.path = path
        self.broken: StoreError | None = None
        """Why nothing can be written any more, until the process has started anew."""
        self.scrub_needed = False
        """Set by a job that removed something for good, because that must not live on in the write-ahead log."""
        self.last_pos: int | None = None
        """Set by a job that appended to the log: the last pos. None: it is unknown and has to be asked for."""
        self.batches = 0
        self.jobs = 0
        self._wal_pages = 0
        self.bulk_writer: BulkWriter | None = None
        """What to do with several jobs that are alike, if there is a better way than one after another."""
        self.has_written = False
        """Set by every commit that changed anything. One that did not was not synced, whatever the level."""
        self._full_level: int = db.pragma("synchronous")
        self._current_level = self._full_level
        db.set_wal_hook(self._on_wal_commit)

    def _on_wal_commit(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        self.has_written = True
        return apsw.SQLITE_OK

    @property
    def is_wal_long(self) -> bool:
        """Whether the write-ahead log is due to be copied into the database."""
        return self._wal_pages >= CHECKPOINT_PAGES

    def run_transaction(self, job: WriteJob[T], *, durable: bool = True) -> T:
        """Run a job as a transaction of its own, here and now."""
        execute = self.cursor.execute
        try:
            self.set_synchronous(durable=durable)
            execute("begin immediate")
            try:
                result = job(self.cursor)
            except BaseException as error:
                self.last_pos = None
                if not isinstance(error, apsw.Error):
                    execute("rollback")
                raise
            execute("commit")
        except apsw.Error as error:
            raise self.roll_back(error) from error
        self.batches += 1
        self.jobs += 1
        return result

    def set_synchronous(self, *, durable: bool) -> None:
        """Whether the commits from here on wait for the disk."""
        level = self._full_level if durable else min(self._full_level, SYNCHRONOUS_NORMAL)
        if level != self._current_level:
            # a pragma works when it is compiled: out of the cache it would do nothing
            self.cursor.execute(f"pragma synchronous = {level}", can_cache=False)
            self._current_level = level

    def roll_back(self, error: apsw.Error) -> StoreError:
        """Undo what was begun, and remember the error if nothing after it can be trusted."""
        fault = translate_error(error, self.path)
        self.last_pos = None
        if is_fatal(error) and self.broken is None:
            self.broken = fault
            self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        try:
            if self.db.in_transaction:
                self.cursor.execute("rollback")
        except apsw.Error as second:
            if self.broken is None:
                self.broken = translate_error(second, self.path)
        return fault

    def build_refusal(self) -> StoreError:
        """A fresh copy of what broke the writer, for one more caller."""
        if self.broken is None:
            return StoreError(f"{self.path} is closed")
        kind = StoreDamaged if isinstance(self.broken, StoreDamaged) else StoreError
        return kind(self.broken.message, remedy=self.broken.remedy)

    def checkpoint_wal(self) -> None:
        """Copy a long write-ahead log into the database, and empty it after something was removed for good."""
        if not self.scrub_needed and not self.is_wal_long:
            return
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if self.scrub_needed else apsw.SQLITE_CHECKPOINT_PASSIVE
        try:
            self.db.wal_checkpoint(mode=mode)
        except (apsw.FullError, apsw.BusyError, apsw.LockedError):
            return  # the log keeps what it has and the next commit tries again
        except apsw.Error as error:
            self.roll_back(error)
            return
        self.scrub_needed = False
        self._wal_pages = 0


class InlineWriter(_BaseWriter):
    """Runs each job at once, on the thread that asks."""

    read_cursor = None  # others write to the same file

    async def write(
        self, job: WriteJob[T], *, urgent: bool = False, light: bool = False, durable: bool = True, alike: object = None
    ) -> T:
        if self.broken is not None:
            raise self.build_refusal()
        result = self.run_transaction(job)
        self.checkpoint_wal()
        return result

    async def close(self) -> None:
        self.db.close()


@dataclass(frozen=True, slots=True)
class WriterClocks:
    """The clocks by which the writer decides where it waits for the disk. A test puts its own here."""

    elapsed_seconds: Callable[[], float] = time.perf_counter
    """Read before and after each commit."""
    computed_seconds: Callable[[], float] = time.thread_time
    """How long the calling thread has computed: read when the connection leaves the event loop and when it is back."""


class ThreadWriter(_BaseWriter):
    """Runs jobs where they are asked for, and lets a thread wait for the disk.

    The connection is in one place at a time. On the event loop it runs the light jobs that have queued up, as one
    transaction; the thread commits it and brings the connection back. What may take longer runs on the thread from the
    start. A writer that did everything on its thread would ask for Python's attention after each statement, and wait
    for it behind the very work that waits for the writer. Where the disk is quick and nobody makes use of the wait for
    it, it is not worth a thread.
    """

    def __init__(self, db: apsw.Connection, path: Path, mark: WatermarkFile | None, *, patience: float) -> None:
        super().__init__(db, path)
        self._watermark = mark
        self._read_cursor = db.cursor()
        self._lock_wait_ms = int(patience * 1000)
        self._queue: list[_QueuedJob] = []
        self._is_with_thread = False
        """The connection is with the thread."""
        self._home_loop: asyncio.AbstractEventLoop | None = None
        """Where it was when it left for the thread."""
        self._is_thread_idle = True
        """The thread has nothing more to do with it, though nobody may have heard of that yet."""
        self._flush_loop: asyncio.AbstractEventLoop | None = None
        """Where `_flush` is about to run."""
        self._batches: SimpleQueue[_WriterBatch | None] = SimpleQueue()
        self._current_batch: _WriterBatch | None = None
        self._is_sync_owed = True
        """Something may have been written, perhaps by who was here before us, that the disk was not waited for with."""
        self._sync_loop: asyncio.AbstractEventLoop | None = None
        """Where it is about to be seen to that the disk has it."""
        self.clocks = WriterClocks()
        self._average_sync_seconds = 2 * QUICK_DISK_SECONDS
        """How long the disk has lately taken, on average."""
        self._left_thread_time = 0.0
        """How long the event loop's thread had computed when the connection left."""
        self._unused_waits = 0
        """How many waits in a row the event loop made no use of."""
        self._inline_commits = 0
        """How many it has spent on the spot since it was last seen whether it could use one."""
        self._closed = False
        self._is_thread_ended = False
        """The thread was told to go."""
        self._skips_scrub_wait = False
        """Somebody reads for so long that nobody waits any more to empty the write-ahead log."""
        self._wal_handle: int | None = None
        """The write-ahead log, opened once: there may be no handle left when it has to be synced."""
        db.set_busy_timeout(0)  # the event loop waits for nobody
        self._thread = threading.Thread(target=self._run_thread, name="everhold-writer", daemon=True)
        self._thread.start()

    # -- on the event loop

    @property
    def read_cursor(self) -> apsw.Cursor | None:
        return None if self._is_with_thread or self._is_thread_ended or self.broken is not None else self._read_cursor

    def write(
        self, job: WriteJob[T], *, urgent: bool = False, light: bool = False, durable: bool = True, alike: object = None
    ) -> asyncio.Future[T]:
        """What `job` returned, once it is durable. The callers of `urgent` jobs are told first.

        A `light` job takes so little time that all others can wait for it. The caller of a job that is not `durable` is
        told once it is written, though a power cut could still take it, but never before everything durable ahead of it
        is on the disk. Jobs that say what they are about are `alike`; `bulk` may do several of them as one.
        """
        if self._closed or self.broken is not None:
            raise self.build_refusal()
        loop = asyncio.get_running_loop()
        # the first commit in a log that starts over is one that the disk is waited for with, whatever it says
        if not durable and light and self._wal_pages and not self._is_with_thread and not self._queue:
            with contextlib.suppress(StoreBusy):  # somebody else is writing: the thread has the patience
                result = self.run_transaction(job, durable=False)
                self._is_sync_owed = True
                self._schedule_sync(loop)
                told: asyncio.Future[T] = loop.create_future()
                told.set_result(result)
                return told
        future: asyncio.Future[T] = loop.create_future()
        self._queue.append((job, future, urgent, light, durable, alike))
        self._schedule_flush(loop)
        return future

    async def close(self) -> None:
        self._closed = True
        if self.broken is None and not self._is_thread_ended:  # whoever was cancelled here may come again
            with contextlib.suppress(StoreError):
                # whatever is queued goes before it
                await self._enqueue_empty_commit(asyncio.get_running_loop())
        if not self._is_thread_ended:
            self._is_thread_ended = True
            self._batches.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _enqueue_empty_commit(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A commit of nothing, which comes behind everything that is queued."""
        future: asyncio.Future[None] = loop.create_future()
        self._queue.append((_commit_nothing, future, False, False, True, None))
        self._schedule_flush(loop)
        return future

    def _schedule_flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the queue written, once everybody who is ready now has had the chance to join it."""
        if self._is_with_thread and self._home_loop is not loop:
            # it left from another loop, which may have ended without hearing that it is back
            if not self._is_thread_idle:
                loop.call_later(OTHER_LOOP_POLL_SECONDS, self._schedule_flush, loop)
                return
            self._is_with_thread = False
        if not self._is_with_thread and self._flush_loop is not loop:
            self._flush_loop = loop
            loop.call_soon(self._flush, loop)

    def _schedule_sync(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that the disk gets what it was not waited for with, though nobody may have anything more to say."""
        if self._sync_loop is not loop:
            self._sync_loop = loop
            loop.call_later(MAX_SYNC_LAG_SECONDS, self._sync_if_owed, loop)

    def _sync_if_owed(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sync_loop = None
        if self._is_sync_owed and not self._closed and self.broken is None:
            self._enqueue_empty_commit(loop).cancel()  # nobody waits for it

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flush_loop = None
        if self._is_with_thread or not self._queue:
            return
        batch, self._queue = self._queue[:MAX_BATCH_JOBS], self._queue[MAX_BATCH_JOBS:]
        if self.broken is not None or self._is_thread_ended:
            _resolve_outcomes(self._refuse_batch(batch), loop)
            if self._queue:
                self._schedule_flush(loop)
            return
        results: list[Any] | None = None
        if all(map(_is_light, batch)):
            try:
                results = self._run_in_transaction(batch)
            except apsw.BusyError:
                pass  # somebody else is writing: the thread has the patience
            except apsw.Error as error:
                self.roll_back(error)
        # what was erased leaves the log before anybody hears of a later commit: that is for the thread
        if results is not None and self._can_commit_inline() and not self.scrub_needed:
            self._inline_commits += 1
            try:
                outcomes = self._commit_batch(batch, results)
            except BaseException:  # whatever it was, nobody may wait for ever
                self._mark_stopped()
                _resolve_outcomes(self._refuse_batch(batch), loop)
                raise
            _resolve_outcomes(outcomes, loop)
            if self._is_sync_owed:
                self._schedule_sync(loop)
            if not self.is_wal_long:
                if self._queue:
                    self._schedule_flush(loop)
                return
            batch, results = [], None  # there is only something to be tidied up
        self._is_with_thread, self._is_thread_idle, self._home_loop = True, False, loop
        if batch:
            self._left_thread_time, self._inline_commits = self.clocks.computed_seconds(), 0
        self._batches.put((batch, results, loop))

    def _can_commit_inline(self) -> bool:
        """Whether the disk is quick, and nobody here would make use of the wait for it."""
        return (
            self._unused_waits >= MAX_UNUSED_WAITS
            and self._average_sync_seconds < QUICK_DISK_SECONDS
            and self._inline_commits < INLINE_COMMITS_PER_CHECK
        )

    def _run_in_transaction(self, batch: list[_QueuedJob]) -> list[Any] | None:
        """Run all jobs in one transaction that is left open, since hardly ever one fails; None, and nothing done, if
        one does."""
        self.set_synchronous(durable=_any_durable(batch))
        strategies: tuple[Callable[[apsw.Cursor, list[_QueuedJob]], list[Any]], ...] = (_run_one_by_one,)
        if self.bulk_writer is not None and len(batch) - [*map(_bulk_key, batch)].count(None) > 1:
            strategies = (self._run_in_bulk, _run_one_by_one)
        for run in strategies:
            self.cursor.execute("begin immediate")
            try:
                return run(self.cursor, batch)
            except BaseException as error:
                self.last_pos = None
                if isinstance(error, apsw.Error) and is_transaction_lost(error):
                    raise
                self.cursor.execute("rollback")
                if not isinstance(error, Exception):
                    raise
        return None  # whatever a job raises is its caller's alone: they all go again, each by itself

    def _run_in_bulk(self, cursor: apsw.Cursor, batch: list[_QueuedJob]) -> list[Any]:
        """In the order they came; those next to each other that are alike as one."""
        assert self.bulk_writer is not None
        results: list[Any] = []
        alike: list[Any] = []
        for job, _, _, _, _, about in batch:
            if about is not None:
                alike.append(about)
                continue
            if alike:
                results += self.bulk_writer(cursor, alike)
                alike = []
            results.append(job(cursor))
        if alike:
            results += self.bulk_writer(cursor, alike)
        return results

    def _on_batch_committed(self, outcomes: list[_JobOutcome], loop: asyncio.AbstractEventLoop, *, back: bool) -> None:
        """A batch was committed; and, unless the thread has more to do, the connection is here again."""
        if outcomes:
            used = self.clocks.computed_seconds() - self._left_thread_time
            self._unused_waits = self._unused_waits + 1 if used < UNUSED_WAIT_SECONDS else 0
            _resolve_outcomes(outcomes, loop)
            if self._is_sync_owed:
                self._schedule_sync(loop)
        if back and self._home_loop is loop:
            self._is_with_thread = False
            if self._queue:
                self._schedule_flush(loop)

    # -- on the thread

    def _run_thread(self) -> None:
        try:
            while (load := self._batches.get()) is not None:
                self._current_batch = load
                batch, results, loop = load
                outcomes = self._commit_batch(batch, results)
                if self.scrub_needed:
                    self._scrub_wal()
                if self.is_wal_long:
                    self._current_batch = ([], None, loop)
                    self._report_outcomes(outcomes, loop, back=False)
                    self.checkpoint_wal()
                    outcomes = []
                self._current_batch = None
                self._report_outcomes(outcomes, loop)
        finally:
            self._clean_up_thread()

    def _clean_up_thread(self) -> None:
        """Whatever ended this thread, nobody may wait for it for ever."""
        if not self._closed:
            self._mark_stopped()
        if self._current_batch is not None:
            batch, _, loop = self._current_batch
            self._report_outcomes(self._refuse_batch(batch), loop)
        if self._watermark is not None:
            self._watermark.close()
        if self._wal_handle is not None:
            os.close(self._wal_handle)
        self.db.close()

    def _commit_batch(self, batch: list[_QueuedJob], results: list[Any] | None) -> list[_JobOutcome]:
        if self.broken is not None:
            return self._refuse_batch(batch)
        self.has_written = False
        began = self.clocks.elapsed_seconds()
        try:
            if results is None:
                outcomes = self._run_in_savepoints(batch)
            else:
                self.cursor.execute("commit")
                outcomes = [
                    (future, urgent, result, None)
                    for (_, future, urgent, _, _, _), result in zip(batch, results, strict=True)
                ]
            if not _any_durable(batch):
                self._is_sync_owed = self._is_sync_owed or self.has_written
            else:
                self._record_durable()
        except apsw.Error as error:
            fault = self.roll_back(error)
            return [
                (future, urgent, None, type(fault)(fault.message, remedy=fault.remedy))
                for _, future, urgent, _, _, _ in batch
            ]
        self._average_sync_seconds += (self.clocks.elapsed_seconds() - began - self._average_sync_seconds) / 8
        self.batches += 1
        self.jobs += len(batch)
        return outcomes

    def _run_in_savepoints(self, batch: list[_QueuedJob]) -> list[_JobOutcome]:
        """All jobs in one transaction, each in a savepoint: one job's failure leaves its neighbours alone."""
        cursor = self.cursor
        execute = cursor.execute
        outcomes: list[_JobOutcome] = []
        self.set_synchronous(durable=_any_durable(batch))
        self.db.set_busy_timeout(self._lock_wait_ms)
        try:
            execute("begin immediate")
        finally:
            self.db.set_busy_timeout(0)
        for job, future, urgent, _, _, _ in batch:
            execute("savepoint job")
            try:
                outcomes.append((future, urgent, job(cursor), None))
            # One job's failure is its caller's alone, whatever it is; the neighbours in the batch go on.
            except Exception as error:
                if isinstance(error, apsw.Error):
                    if is_transaction_lost(error):
                        raise
                    error = translate_error(error, self.path)
                execute("rollback to job")
                self.last_pos = None
                outcomes.append((future, urgent, None, error))
            execute("release job")
        execute("commit")
        return outcomes

    def _scrub_wal(self) -> None:
        """Empty the write-ahead log, which takes a moment when nobody reads in it. Who reads for long is not waited for
        twice: everybody else's commits would wait, too."""
        self.db.set_busy_timeout(0 if self._skips_scrub_wait else self._lock_wait_ms)
        try:
            self.checkpoint_wal()
        finally:
            self.db.set_busy_timeout(0)
        self._skips_scrub_wait = self.scrub_needed

    def _record_durable(self) -> None:
        """What was committed is on the disk, and all ahead of it: SQLite syncs nothing for a commit of nothing."""
        if self._is_sync_owed and not self.has_written:
            self._sync_wal()
        self._is_sync_owed = False
        if self._watermark is not None:
            if self.last_pos is None:
                self.last_pos = self.cursor.execute("select max(pos) from entries").get or 0
            self._watermark.advance(self.last_pos)

    def _sync_wal(self) -> None:
        if self._full_level <= SYNCHRONOUS_NORMAL:
            return  # nobody wants to wait for the disk
        if self._wal_handle is None:
            try:
                self._wal_handle = os.open(f"{self.path}-wal", os.O_RDWR)
            except FileNotFoundError:
                return
            except OSError as error:  # nothing is lost: what is owed stays owed
                raise apsw.CantOpenError(f"the write-ahead log could not be opened: {error}") from error
        try:
            os.fsync(self._wal_handle)
        except OSError as error:
            raise apsw.IOError(f"the write-ahead log could not be synced: {error}") from error

    def _mark_stopped(self) -> None:
        if self.broken is None:
            self.broken = StoreError(f"the writer of {self.path} has stopped", remedy="start everhold again")

    def _refuse_batch(self, batch: list[_QueuedJob]) -> list[_JobOutcome]:
        return [(future, urgent, None, self.build_refusal()) for _, future, urgent, _, _, _ in batch]

    def _report_outcomes(
        self, outcomes: list[_JobOutcome], loop: asyncio.AbstractEventLoop, *, back: bool = True
    ) -> None:
        self._is_thread_idle = back
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(functools.partial(self._on_batch_committed, outcomes, loop, back=back))


def _commit_nothing(_: apsw.Cursor) -> None: ...


def _run_one_by_one(cursor: apsw.Cursor, batch: list[_QueuedJob]) -> list[Any]:
    return [job(cursor) for job, _, _, _, _, _ in batch]


def _any_durable(batch: list[_QueuedJob]) -> bool:
    return any(map(_is_durable, batch))


def _resolve_outcomes(outcomes: list[_JobOutcome], loop: asyncio.AbstractEventLoop) -> None:
    """Tell those in a hurry at once, and the others a few with each round of the loop, in the order they came."""
    if len(outcomes) <= RESULTS_PER_LOOP or all(map(_is_urgent, outcomes)):
        _settle_futures(outcomes)
    else:
        _settle_futures([outcome for outcome in outcomes if outcome[1]])
        _resolve_gradually([outcome for outcome in outcomes if not outcome[1]], loop)


def _resolve_gradually(outcomes: list[_JobOutcome], loop: asyncio.AbstractEventLoop) -> None:
    _settle_futures(outcomes[:RESULTS_PER_LOOP])
    if len(outcomes) > RESULTS_PER_LOOP:
        loop.call_soon(_resolve_gradually, outcomes[RESULTS_PER_LOOP:], loop)


def _settle_futures(outcomes: list[_JobOutcome]) -> None:
    for future, _, result, error in outcomes:
        if future.done():
            continue  # its caller gave up waiting; what was committed stands
        try:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        except RuntimeError:
            pass  # its loop is closed: nobody waits there any more
