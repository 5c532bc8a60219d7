"""The only writer of the database: commits all queued jobs as one transaction, then resolves their futures.

A job is a function of an SQL cursor. A durable job's future is resolved only after its transaction is on disk.
`InlineWriter` does the same without a thread, for the simulator.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

import apsw

from everhold.errors import StoreBusy, StoreError
from everhold.stores.sqlite.errors import is_fatal, is_transaction_lost, translate_error
from everhold.stores.sqlite.files import StoreFiles, compute_wal_bytes
from everhold.stores.sqlite.watermark import WatermarkFile

MAX_BATCH_JOBS: Final = 256
RESULTS_PER_LOOP: Final = 4
"""How many futures of jobs that are not urgent are resolved per iteration of the event loop, because each resumed
caller delays the others."""
CHECKPOINT_PAGES: Final = 2000
"""The write-ahead log is copied into the database once it is this long."""
OTHER_LOOP_POLL_SECONDS: Final = 0.01
"""How often a second event loop checks whether the first one's commit is finished."""
MAX_SYNC_LAG_SECONDS: Final = 1.0
"""The longest time after which a job that need not be durable is synced, if no durable job follows it."""
QUICK_DISK_SECONDS: Final = 0.002
"""A disk that syncs faster than this is waited for on the event loop if the loop has nothing else to do, because
switching to the thread and back takes longer."""
UNUSED_WAIT_SECONDS: Final = 0.0001
"""If the event loop computes for less than this during a commit, it had nothing else to do. Waking it takes this
long."""
MAX_UNUSED_WAITS: Final = 3
"""After this many such commits in a row, commits run on the event loop."""
INLINE_COMMITS_PER_CHECK: Final = 16
"""After this many commits on the event loop, one runs on the thread again to check whether the loop is still idle."""
SYNCHRONOUS_NORMAL: Final = 1
"""SQLite's level at which a commit is written completely and in order, but synced only with the next durable one."""

T = TypeVar("T")
WriteJob: TypeAlias = Callable[[apsw.Cursor], T]
BulkWriter: TypeAlias = Callable[[apsw.Cursor, list[Any]], list[Any]]
"""Does the work of several jobs that are alike at once. Raises if it cannot."""


# Plain tuples, because two are made for every commit.
QueuedJob: TypeAlias = tuple[WriteJob[Any], asyncio.Future[Any], bool, bool, bool, Any]
"""The job, its future, whether it is urgent, light and durable, and its argument for the bulk writer or None."""
_is_light: Final = itemgetter(3)
_is_durable: Final = itemgetter(4)
_bulk_key: Final = itemgetter(5)
JobOutcome: TypeAlias = tuple[asyncio.Future[Any], bool, Any, Exception | None]
_is_urgent: Final = itemgetter(1)
_WriterBatch: TypeAlias = tuple[list[QueuedJob], list[Any] | None, asyncio.AbstractEventLoop]
"""A batch, the results of its jobs if they have been run, and the event loop of their futures."""


class _BaseWriter:
    """What both writers share: the connection, transactions and checkpoints."""

    def __init__(self, db: apsw.Connection, path: Path, files: StoreFiles | None = None) -> None:
        self.db = db
        self.cursor = db.cursor()
        self.path = path
        self._files = files
        self._page_bytes: int = db.pragma("page_size")
        self.broken: StoreError | None = None
        """Why nothing can be written any more, until the process restarts."""
        self.long_reads = 0
        self.scrub_needed = False
        """Set by a job that erased data, because that must not remain in the write-ahead log."""
        self.last_pos: int | None = None
        """The last pos, set by a job that appended entries. None: it is unknown and has to be queried."""
        self.batches = 0
        self.jobs = 0
        self._wal_pages = 0
        self.bulk_writer: BulkWriter | None = None
        """Runs several jobs that are alike at once, if set."""
        self.has_written = False
        """Set by every commit that changed anything. SQLite does not sync a commit without changes, whatever the
        level."""
        self._full_level: int = db.pragma("synchronous")
        self._quick_level = min(self._full_level, SYNCHRONOUS_NORMAL)
        self._current_level = self._full_level
        self._lock_wait_ms = 0
        """How long a batch waits for the lock of another process."""
        db.set_wal_hook(self._on_wal_commit)

    def _on_wal_commit(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        self.has_written = True
        return apsw.SQLITE_OK

    @property
    def is_wal_long(self) -> bool:
        """Whether the write-ahead log should be copied into the database."""
        return self._wal_pages >= CHECKPOINT_PAGES

    def run_transaction(self, job: WriteJob[T], *, durable: bool = True) -> T:
        """Run a job in a transaction of its own, on the calling thread."""
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

    def run_batch_in_transaction(self, batch: list[QueuedJob]) -> list[Any] | None:
        """Run all jobs in one transaction and leave it open. Return None, with nothing done, if one of them fails,
        which is rare.
        """
        self.set_synchronous(durable=any_durable(batch))
        strategies: tuple[Callable[[apsw.Cursor, list[QueuedJob]], list[Any]], ...] = _ONE_BY_ONE
        if len(batch) > 1 and self.bulk_writer is not None and len(batch) - [*map(_bulk_key, batch)].count(None) > 1:
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
        return None  # a job's error concerns only its caller, so all jobs run again, each in a savepoint

    def _run_in_bulk(self, cursor: apsw.Cursor, batch: list[QueuedJob]) -> list[Any]:
        """Run the jobs in their order. Consecutive jobs that are alike run as one."""
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

    def run_batch_in_savepoints(self, batch: list[QueuedJob]) -> list[JobOutcome]:
        """Run all jobs in one transaction, each in a savepoint, so that the failure of one does not affect the
        others.
        """
        cursor = self.cursor
        execute = cursor.execute
        outcomes: list[JobOutcome] = []
        self.set_synchronous(durable=any_durable(batch))
        self.db.set_busy_timeout(self._lock_wait_ms)
        try:
            execute("begin immediate")
        finally:
            self.db.set_busy_timeout(0)
        for job, future, urgent, _, _, _ in batch:
            execute("savepoint job")
            try:
                outcomes.append((future, urgent, job(cursor), None))
            # The failure of a job, whatever it is, concerns only its caller; the other jobs continue.
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

    def set_synchronous(self, *, durable: bool) -> None:
        """Set whether the following commits wait for the disk."""
        level = self._full_level if durable else self._quick_level
        if level != self._current_level:
            # A pragma takes effect when it is compiled, so a cached statement would do nothing.
            self.cursor.execute(f"pragma synchronous = {level}", can_cache=False)
            self._current_level = level

    def roll_back(self, error: apsw.Error) -> StoreError:
        """Roll the transaction back. If the error is fatal, mark the writer as broken."""
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
        """Return a new copy of the error that broke the writer, for one more caller."""
        if self.broken is None:
            return StoreError(f"{self.path} is closed")
        return type(self.broken)(self.broken.message, remedy=self.broken.remedy)

    def check_files(self) -> bool:
        """Return whether the writer works. Mark it as broken if its files are no longer where they were opened."""
        if self.broken is None and self._files is not None and (change := self._files.find_change()):
            self._report_missing(change)
        return self.broken is None

    def _report_missing(self, change: str) -> None:
        assert self._files is not None
        self.broken = self._files.build_error(change, last_pos=self.last_pos)

    @contextlib.contextmanager
    def allow_long_read(self) -> Iterator[None]:
        """While the block runs, no commit waits for a long read to end. An erasure then leaves the write-ahead log as
        it is, and the next commit after the read empties it.
        """
        self.long_reads += 1
        try:
            yield
        finally:
            self.long_reads -= 1

    def checkpoint_wal(self) -> None:
        """Copy a long write-ahead log into the database. Empty the log if data was erased."""
        if not self.scrub_needed and not self.is_wal_long:
            return
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if self.scrub_needed else apsw.SQLITE_CHECKPOINT_PASSIVE
        pages, self._wal_pages = self._wal_pages, 0
        if self._files is not None:
            self._files.expect_new_state()
        try:
            self.db.wal_checkpoint(mode=mode)
        except (apsw.FullError, apsw.BusyError, apsw.LockedError):
            self._wal_pages = pages
            return  # the log stays as it is, and the next commit tries again
        except apsw.Error as error:
            self.roll_back(error)
            return
        finally:
            if self._files is not None:
                self._files.expect_new_state()
        self.scrub_needed = False


class InlineWriter(_BaseWriter):
    """Runs each job at once, on the calling thread."""

    read_cursor = None  # other stores write to the same file

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
    """The clocks by which the writer decides where to commit. Tests replace them."""

    elapsed_seconds: Callable[[], float] = time.perf_counter
    """Read before and after each commit."""
    computed_seconds: Callable[[], float] = time.thread_time
    """CPU time of the calling thread, read when the connection leaves the event loop and when it is back."""


class ThreadWriter(_BaseWriter):
    """Runs light jobs on the event loop, and commits on a thread.

    Either the event loop or the thread uses the connection. The event loop runs the queued light jobs in one
    transaction; the thread commits it and returns the connection. Jobs that may take longer run on the thread. If all
    jobs ran on the thread, it would need the GIL after each statement, and compete for it with the tasks that wait for
    the writer. If the disk is quick and the event loop has nothing else to do, the commit runs on the event loop, too.
    """

    def __init__(
        self, db: apsw.Connection, path: Path, mark: WatermarkFile | None, *, files: StoreFiles, patience: float
    ) -> None:
        super().__init__(db, path, files)
        self._watermark = mark
        self._read_cursor = db.cursor()
        self._lock_wait_ms = int(patience * 1000)
        self._queue: list[QueuedJob] = []
        self._is_with_thread = False
        """The thread uses the connection."""
        self._home_loop: asyncio.AbstractEventLoop | None = None
        """The event loop that passed it to the thread."""
        self._is_thread_idle = True
        """The thread has finished with it, though the event loop may not have noticed yet."""
        self._flush_loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which `_flush` is scheduled."""
        self._batches: SimpleQueue[_WriterBatch | None] = SimpleQueue()
        self._current_batch: _WriterBatch | None = None
        self._is_sync_owed = True
        """Commits may exist that were not synced, perhaps from an earlier process."""
        self._sync_loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which a sync is scheduled."""
        self.clocks = WriterClocks()
        self._average_sync_seconds = 2 * QUICK_DISK_SECONDS
        """Moving average of the duration of a commit."""
        self._left_thread_time = 0.0
        """CPU time of the event loop's thread when the connection left it."""
        self._unused_waits = 0
        """How many commits in a row on the thread during which the event loop was idle."""
        self._inline_commits = 0
        """How many commits ran on the event loop since the last one on the thread."""
        self._closed = False
        self._is_thread_ended = False
        """The thread was asked to end."""
        self._skips_scrub_wait = False
        """A read takes so long that emptying the write-ahead log no longer waits for it."""
        self._wal_handle = os.open(f"{path}-wal", os.O_RDWR)
        """The write-ahead log, opened once, because no file handle may be free when it has to be synced."""
        db.set_busy_timeout(0)  # the event loop must not wait for a lock
        self._thread = threading.Thread(target=self._run_thread, name="everhold-writer", daemon=True)
        self._thread.start()

    # -- on the event loop

    @property
    def read_cursor(self) -> apsw.Cursor | None:
        return None if self._is_with_thread or self._is_thread_ended or self.broken is not None else self._read_cursor

    def write(
        self, job: WriteJob[T], *, urgent: bool = False, light: bool = False, durable: bool = True, alike: object = None
    ) -> asyncio.Future[T]:
        """Queue `job` and return the future of its result, which is resolved once the job is durable.

        Futures of `urgent` jobs are resolved first. A `light` job is so quick that it may run on the event loop. The
        future of a job that is not `durable` is resolved once it is written, although a power cut may still remove it,
        but never before all earlier durable jobs are on disk. `bulk_writer` may run several jobs at once that have
        `alike`, which is its argument.
        """
        if self._closed or self.broken is not None:
            raise self.build_refusal()
        loop = asyncio.get_running_loop()
        # SQLite syncs the first commit of a restarted write-ahead log in any case, so that one goes to the thread.
        if not durable and light and self._wal_pages and not self._is_with_thread and not self._queue:
            with contextlib.suppress(StoreBusy):  # another process writes; the thread waits for its lock
                result = self.run_transaction(job, durable=False)
                self._is_sync_owed = True
                self._schedule_sync(loop)
                resolved: asyncio.Future[T] = loop.create_future()
                resolved.set_result(result)
                return resolved
        future: asyncio.Future[T] = loop.create_future()
        self._queue.append((job, future, urgent, light, durable, alike))
        self._schedule_flush(loop)
        return future

    async def close(self) -> None:
        self._closed = True
        if self.broken is None and not self._is_thread_ended:  # a caller that was cancelled here may call again
            with contextlib.suppress(StoreError):
                # all queued jobs are committed before it
                await self._enqueue_empty_commit(asyncio.get_running_loop())
        if not self._is_thread_ended:
            self._is_thread_ended = True
            self._batches.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _enqueue_empty_commit(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Queue an empty commit after all queued jobs."""
        future: asyncio.Future[None] = loop.create_future()
        self._queue.append((_commit_nothing, future, False, False, True, None))
        self._schedule_flush(loop)
        return future

    def _schedule_flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write the queue in the next iteration of the event loop, so that all tasks that are ready can add jobs."""
        if self._is_with_thread and self._home_loop is not loop:
            # Another loop passed the connection to the thread, and may have ended without noticing its return.
            if not self._is_thread_idle:
                loop.call_later(OTHER_LOOP_POLL_SECONDS, self._schedule_flush, loop)
                return
            self._is_with_thread = False
        if not self._is_with_thread and self._flush_loop is not loop:
            self._flush_loop = loop
            loop.call_soon(self._flush, loop)

    def _schedule_sync(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule a sync of commits that were not durable, in case no durable commit follows."""
        if self._sync_loop is not loop:
            self._sync_loop = loop
            loop.call_later(MAX_SYNC_LAG_SECONDS, self._sync_if_owed, loop)

    def _sync_if_owed(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sync_loop = None
        if self._is_sync_owed and not self._closed and self.broken is None:
            self._enqueue_empty_commit(loop).cancel()  # its result is not needed

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
                results = self.run_batch_in_transaction(batch)
            except apsw.BusyError:
                pass  # another process writes; the thread waits for its lock
            except apsw.Error as error:
                self.roll_back(error)
        # Erased data must leave the write-ahead log before a later commit is reported, and the thread does that.
        if results is not None and self._can_commit_inline() and not self.scrub_needed:
            self._inline_commits += 1
            try:
                outcomes = self._commit_batch(batch, results)
            except BaseException:  # whatever the error, no caller may wait for ever
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
            batch, results = [], None  # only the checkpoint is left to do
        self._is_with_thread, self._is_thread_idle, self._home_loop = True, False, loop
        if batch:
            self._left_thread_time, self._inline_commits = self.clocks.computed_seconds(), 0
        self._batches.put((batch, results, loop))

    def _can_commit_inline(self) -> bool:
        """Return whether the disk is quick and the event loop has nothing else to do during a commit."""
        return (
            self._unused_waits >= MAX_UNUSED_WAITS
            and self._average_sync_seconds < QUICK_DISK_SECONDS
            and self._inline_commits < INLINE_COMMITS_PER_CHECK
        )

    def _on_batch_committed(self, outcomes: list[JobOutcome], loop: asyncio.AbstractEventLoop, *, back: bool) -> None:
        """Resolve the futures of a committed batch. With `back`, the thread has returned the connection."""
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
            while (current := self._batches.get()) is not None:
                self._current_batch = current
                batch, results, loop = current
                # A batch without jobs only asks for the checkpoint.
                outcomes = self._commit_batch(batch, results) if batch else []
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
        """Refuse all waiting jobs and close the files, so that no caller waits for an ended thread."""
        if not self._closed:
            self._mark_stopped()
        if self._current_batch is not None:
            batch, _, loop = self._current_batch
            self._report_outcomes(self._refuse_batch(batch), loop)
        if self._watermark is not None:
            self._watermark.close()
        os.close(self._wal_handle)
        if self.broken is not None:
            self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.db.close()

    def check_files(self) -> bool:
        if self._is_thread_ended:  # SQLite deletes the write-ahead log when it is closed
            return self.broken is None
        if super().check_files() and self._is_wal_short():
            self._report_missing(f"{self.path}-wal was overwritten while everhold used it")
        return self.broken is None

    def _is_wal_short(self) -> bool:
        """Return whether committed pages are gone. A commit behind the gap would hide it."""
        needed = compute_wal_bytes(self._wal_pages, self._page_bytes)
        return needed > 0 and os.lseek(self._wal_handle, 0, os.SEEK_END) < needed

    def _commit_batch(self, batch: list[QueuedJob], results: list[Any] | None) -> list[JobOutcome]:
        if self.broken is None and self._is_wal_short():
            self.check_files()
        if self.broken is not None:
            return self._refuse_batch(batch)
        self.has_written = False
        began = self.clocks.elapsed_seconds()
        try:
            if results is None:
                outcomes = self.run_batch_in_savepoints(batch)
            else:
                self.cursor.execute("commit")
                outcomes = build_outcomes(batch, results)
            if not any_durable(batch):
                self._is_sync_owed = self._is_sync_owed or self.has_written
            else:
                self._record_durable()
            if not self.check_files():
                return self._refuse_batch(batch)
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

    def _scrub_wal(self) -> None:
        """Empty the write-ahead log, after waiting for reads that use it. A long read is not waited for twice, because
        all commits would wait, too.
        """
        is_waiting_useless = self._skips_scrub_wait or self.long_reads > 0
        self.db.set_busy_timeout(0 if is_waiting_useless else self._lock_wait_ms)
        try:
            self.checkpoint_wal()
        finally:
            self.db.set_busy_timeout(0)
        self._skips_scrub_wait = self.scrub_needed

    def _record_durable(self) -> None:
        """Make sure that all commits are on disk, and advance the watermark. SQLite does not sync an empty commit."""
        if self._is_sync_owed and not self.has_written:
            self._sync_wal()
        self._is_sync_owed = False
        if self._watermark is not None:
            if self.last_pos is None:
                self.last_pos = self.cursor.execute("select max(pos) from entries").get or 0
            if not self._watermark.advance(self.last_pos):
                self._report_missing(f"{self.path} was overwritten with an older copy while everhold used it")

    def _sync_wal(self) -> None:
        if self._full_level <= SYNCHRONOUS_NORMAL:
            return  # the store was opened without syncing
        try:
            os.fsync(self._wal_handle)
        except OSError as error:
            raise apsw.IOError(f"the write-ahead log could not be synced: {error}") from error

    def _mark_stopped(self) -> None:
        if self.broken is None:
            self.broken = StoreError(f"the writer of {self.path} has stopped", remedy="start everhold again")

    def _refuse_batch(self, batch: list[QueuedJob]) -> list[JobOutcome]:
        return [(future, urgent, None, self.build_refusal()) for _, future, urgent, _, _, _ in batch]

    def _report_outcomes(
        self, outcomes: list[JobOutcome], loop: asyncio.AbstractEventLoop, *, back: bool = True
    ) -> None:
        self._is_thread_idle = back
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits there
            loop.call_soon_threadsafe(functools.partial(self._on_batch_committed, outcomes, loop, back=back))


def _commit_nothing(_: apsw.Cursor) -> None: ...


def _run_one_by_one(cursor: apsw.Cursor, batch: list[QueuedJob]) -> list[Any]:
    return [job(cursor) for job, _, _, _, _, _ in batch]


_ONE_BY_ONE: Final = (_run_one_by_one,)


def build_outcomes(batch: list[QueuedJob], results: list[Any]) -> list[JobOutcome]:
    """Return what the futures of committed jobs get."""
    return [(future, urgent, result, None) for (_, future, urgent, _, _, _), result in zip(batch, results, strict=True)]


def any_durable(batch: list[QueuedJob]) -> bool:
    return batch[0][4] or any(map(_is_durable, batch))


def _resolve_outcomes(outcomes: list[JobOutcome], loop: asyncio.AbstractEventLoop) -> None:
    """Resolve urgent futures at once, and the others gradually, in their order."""
    if len(outcomes) <= RESULTS_PER_LOOP or all(map(_is_urgent, outcomes)):
        settle_futures(outcomes)
    else:
        settle_futures([outcome for outcome in outcomes if outcome[1]])
        _resolve_gradually([outcome for outcome in outcomes if not outcome[1]], loop)


def _resolve_gradually(outcomes: list[JobOutcome], loop: asyncio.AbstractEventLoop) -> None:
    settle_futures(outcomes[:RESULTS_PER_LOOP])
    if len(outcomes) > RESULTS_PER_LOOP:
        loop.call_soon(_resolve_gradually, outcomes[RESULTS_PER_LOOP:], loop)


def settle_futures(outcomes: list[JobOutcome]) -> None:
    for future, _, result, error in outcomes:
        if future.done():
            continue  # its caller no longer waits; the commit stays
        try:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        except RuntimeError:
            pass  # its loop is closed, so no task waits there
