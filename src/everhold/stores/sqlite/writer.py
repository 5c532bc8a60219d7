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
from everhold.stores.sqlite.faults import ends_transaction, is_fatal, translate
from everhold.stores.sqlite.mark import Mark

BATCH: Final = 256
AT_ONCE: Final = 4
"""How many of those who are not in a hurry are told at a time: what each does next keeps everybody else waiting."""
CHECKPOINT_PAGES: Final = 2000
"""The write-ahead log is copied into the database once it is this long."""
ELSEWHERE_SECONDS: Final = 0.01
"""How soon a second event loop looks again whether the first one's commit is over."""
LAG_SECONDS: Final = 1.0
"""For so long at most a power cut could take a job that need not be durable, when no durable one comes after it."""
QUICK_SECONDS: Final = 0.002
"""A disk that answers so soon is waited for on the spot, where nobody would make use of the wait: going to sleep and
being woken twice is dearer."""
IDLE_SECONDS: Final = 0.0001
"""Whoever computed for less than this during a wait made no use of it: so much goes into being woken."""
IDLE: Final = 3
"""After so many waits in a row that nobody made use of, they are spent on the spot."""
LOOK_AGAIN: Final = 16
"""After so many of those it is seen whether that is still so."""
NORMAL: Final = 1
"""SQLite's level at which a commit is written whole and in order, but not waited for until the next that is."""

T = TypeVar("T")
Job: TypeAlias = Callable[[apsw.Cursor], T]
Bulk: TypeAlias = Callable[[apsw.Cursor, list[Any]], list[Any]]
"""Does at once what several jobs that are alike would do one after another; raises if it does not know how."""


# Plain tuples: two of each are made for every commit there is.
_Queued: TypeAlias = tuple[Job[Any], asyncio.Future[Any], bool, bool, bool, Any]
"""The job, who waits for it, whether it is urgent, light and durable, and what it is about if others are alike."""
_is_light: Final = itemgetter(3)
_is_durable: Final = itemgetter(4)
_about: Final = itemgetter(5)
_Outcome: TypeAlias = tuple[asyncio.Future[Any], bool, Any, Exception | None]
_is_urgent: Final = itemgetter(1)
_Load: TypeAlias = tuple[list[_Queued], list[Any] | None, asyncio.AbstractEventLoop]
"""A batch, what its jobs returned if they have been run, and where to answer."""


class _Hand:
    """What both writers share: the connection, and what is done around a commit."""

    def __init__(self, db: apsw.Connection, path: Path) -> None:
        self.db = db
        self.cursor = db.cursor()
        self.path = path
        self.broken: StoreError | None = None
        """Why nothing can be written any more, until the process has started anew."""
        self.scrub = False
        """Set by a job that removed something for good, because that must not live on in the write-ahead log."""
        self.reached: int | None = None
        """Set by a job that appended to the log: the last pos. None: it is unknown and has to be asked for."""
        self.batches = 0
        self.jobs = 0
        self._pages = 0
        self.bulk: Bulk | None = None
        """What to do with several jobs that are alike, if there is a better way than one after another."""
        self.wrote = False
        """Set by every commit that changed anything. One that did not was not synced, whatever the level."""
        self._durable: int = db.pragma("synchronous")
        self._level = self._durable
        db.set_wal_hook(self._committed)

    def _committed(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        self.wrote = True
        return apsw.SQLITE_OK

    @property
    def long(self) -> bool:
        """Whether the write-ahead log is due to be copied into the database."""
        return self._pages >= CHECKPOINT_PAGES

    def at_once(self, job: Job[T], *, durable: bool = True) -> T:
        """Run a job as a transaction of its own, here and now."""
        execute = self.cursor.execute
        try:
            self.sync(durable=durable)
            execute("begin immediate")
            try:
                result = job(self.cursor)
            except BaseException as error:
                self.reached = None
                if not isinstance(error, apsw.Error):
                    execute("rollback")
                raise
            execute("commit")
        except apsw.Error as error:
            raise self.fail(error) from error
        self.batches += 1
        self.jobs += 1
        return result

    def sync(self, *, durable: bool) -> None:
        """Whether the commits from here on wait for the disk."""
        level = self._durable if durable else min(self._durable, NORMAL)
        if level != self._level:
            # a pragma works when it is compiled: out of the cache it would do nothing
            self.cursor.execute(f"pragma synchronous = {level}", can_cache=False)
            self._level = level

    def fail(self, error: apsw.Error) -> StoreError:
        """Undo what was begun, and remember the error if nothing after it can be trusted."""
        fault = translate(error, self.path)
        self.reached = None
        if is_fatal(error) and self.broken is None:
            self.broken = fault
            self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        try:
            if self.db.in_transaction:
                self.cursor.execute("rollback")
        except apsw.Error as second:
            if self.broken is None:
                self.broken = translate(second, self.path)
        return fault

    def refusal(self) -> StoreError:
        """A fresh copy of what broke the writer, for one more caller."""
        if self.broken is None:
            return StoreError(f"{self.path} is closed")
        kind = StoreDamaged if isinstance(self.broken, StoreDamaged) else StoreError
        return kind(self.broken.message, remedy=self.broken.remedy)

    def tidy(self) -> None:
        """Copy a long write-ahead log into the database, and empty it after something was removed for good."""
        if not self.scrub and not self.long:
            return
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if self.scrub else apsw.SQLITE_CHECKPOINT_PASSIVE
        try:
            self.db.wal_checkpoint(mode=mode)
        except (apsw.FullError, apsw.BusyError, apsw.LockedError):
            return  # the log keeps what it has and the next commit tries again
        except apsw.Error as error:
            self.fail(error)
            return
        self.scrub = False
        self._pages = 0


class InlineWriter(_Hand):
    """Runs each job at once, on the thread that asks."""

    reads = None  # others write to the same file

    async def write(
        self, job: Job[T], *, urgent: bool = False, light: bool = False, durable: bool = True, alike: object = None
    ) -> T:
        if self.broken is not None:
            raise self.refusal()
        result = self.at_once(job)
        self.tidy()
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


class ThreadWriter(_Hand):
    """Runs jobs where they are asked for, and lets a thread wait for the disk.

    The connection is in one place at a time. On the event loop it runs the light jobs that have queued up, as one
    transaction; the thread commits it and brings the connection back. What may take longer runs on the thread from the
    start. A writer that did everything on its thread would ask for Python's attention after each statement, and wait
    for it behind the very work that waits for the writer. Where the disk is quick and nobody makes use of the wait for
    it, it is not worth a thread.
    """

    def __init__(self, db: apsw.Connection, path: Path, mark: Mark | None, *, patience: float) -> None:
        super().__init__(db, path)
        self._mark = mark
        self._reads = db.cursor()
        self._patience = int(patience * 1000)
        self._queue: list[_Queued] = []
        self._away = False
        """The connection is with the thread."""
        self._from: asyncio.AbstractEventLoop | None = None
        """Where it was when it left for the thread."""
        self._idle = True
        """The thread has nothing more to do with it, though nobody may have heard of that yet."""
        self._called: asyncio.AbstractEventLoop | None = None
        """Where `_flush` is about to run."""
        self._loads: SimpleQueue[_Load | None] = SimpleQueue()
        self._load: _Load | None = None
        self._owed = True
        """Something may have been written, perhaps by who was here before us, that the disk was not waited for with."""
        self._due: asyncio.AbstractEventLoop | None = None
        """Where it is about to be seen to that the disk has it."""
        self.clocks = WriterClocks()
        self._pace = 2 * QUICK_SECONDS
        """How long the disk has lately taken, on average."""
        self._left = 0.0
        """How long the event loop's thread had computed when the connection left."""
        self._unused = 0
        """How many waits in a row the event loop made no use of."""
        self._spent = 0
        """How many it has spent on the spot since it was last seen whether it could use one."""
        self._closed = False
        self._ended = False
        """The thread was told to go."""
        self._waited = False
        """Somebody reads for so long that nobody waits any more to empty the write-ahead log."""
        self._log: int | None = None
        """The write-ahead log, opened once: there may be no handle left when it has to be synced."""
        db.set_busy_timeout(0)  # the event loop waits for nobody
        self._thread = threading.Thread(target=self._work, name="everhold-writer", daemon=True)
        self._thread.start()

    # -- on the event loop

    @property
    def reads(self) -> apsw.Cursor | None:
        return None if self._away or self._ended or self.broken is not None else self._reads

    def write(
        self, job: Job[T], *, urgent: bool = False, light: bool = False, durable: bool = True, alike: object = None
    ) -> asyncio.Future[T]:
        """What `job` returned, once it is durable. The callers of `urgent` jobs are told first.

        A `light` job takes so little time that all others can wait for it. The caller of a job that is not `durable` is
        told once it is written, though a power cut could still take it, but never before everything durable ahead of it
        is on the disk. Jobs that say what they are about are `alike`; `bulk` may do several of them as one.
        """
        if self._closed or self.broken is not None:
            raise self.refusal()
        loop = asyncio.get_running_loop()
        # the first commit in a log that starts over is one that the disk is waited for with, whatever it says
        if not durable and light and self._pages and not self._away and not self._queue:
            with contextlib.suppress(StoreBusy):  # somebody else is writing: the thread has the patience
                result = self.at_once(job, durable=False)
                self._owed = True
                self._owe(loop)
                told: asyncio.Future[T] = loop.create_future()
                told.set_result(result)
                return told
        future: asyncio.Future[T] = loop.create_future()
        self._queue.append((job, future, urgent, light, durable, alike))
        self._call(loop)
        return future

    async def close(self) -> None:
        self._closed = True
        if self.broken is None and not self._ended:  # whoever was cancelled here may come again
            with contextlib.suppress(StoreError):
                # whatever is queued goes before it
                await self._enqueue_nothing(asyncio.get_running_loop())
        if not self._ended:
            self._ended = True
            self._loads.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _enqueue_nothing(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A commit of nothing, which comes behind everything that is queued."""
        future: asyncio.Future[None] = loop.create_future()
        self._queue.append((_nothing, future, False, False, True, None))
        self._call(loop)
        return future

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the queue written, once everybody who is ready now has had the chance to join it."""
        if self._away and self._from is not loop:
            # it left from another loop, which may have ended without hearing that it is back
            if not self._idle:
                loop.call_later(ELSEWHERE_SECONDS, self._call, loop)
                return
            self._away = False
        if not self._away and self._called is not loop:
            self._called = loop
            loop.call_soon(self._flush, loop)

    def _owe(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that the disk gets what it was not waited for with, though nobody may have anything more to say."""
        if self._due is not loop:
            self._due = loop
            loop.call_later(LAG_SECONDS, self._pay, loop)

    def _pay(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = None
        if self._owed and not self._closed and self.broken is None:
            self._enqueue_nothing(loop).cancel()  # nobody waits for it

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._called = None
        if self._away or not self._queue:
            return
        batch, self._queue = self._queue[:BATCH], self._queue[BATCH:]
        if self.broken is not None or self._ended:
            _resolve(self._refused(batch), loop)
            if self._queue:
                self._call(loop)
            return
        results: list[Any] | None = None
        if all(map(_is_light, batch)):
            try:
                results = self._together(batch)
            except apsw.BusyError:
                pass  # somebody else is writing: the thread has the patience
            except apsw.Error as error:
                self.fail(error)
        # what was erased leaves the log before anybody hears of a later commit: that is for the thread
        if results is not None and self._nobody_else() and not self.scrub:
            self._spent += 1
            try:
                outcomes = self._commit(batch, results)
            except BaseException:  # whatever it was, nobody may wait for ever
                self._stop()
                _resolve(self._refused(batch), loop)
                raise
            _resolve(outcomes, loop)
            if self._owed:
                self._owe(loop)
            if not self.long:
                if self._queue:
                    self._call(loop)
                return
            batch, results = [], None  # there is only something to be tidied up
        self._away, self._idle, self._from = True, False, loop
        if batch:
            self._left, self._spent = self.clocks.computed_seconds(), 0
        self._loads.put((batch, results, loop))

    def _nobody_else(self) -> bool:
        """Whether the disk is quick, and nobody here would make use of the wait for it."""
        return self._unused >= IDLE and self._pace < QUICK_SECONDS and self._spent < LOOK_AGAIN

    def _together(self, batch: list[_Queued]) -> list[Any] | None:
        """Run all jobs in one transaction that is left open, since hardly ever one fails; None, and nothing done, if
        one does."""
        self.sync(durable=_any_durable(batch))
        ways: tuple[Callable[[apsw.Cursor, list[_Queued]], list[Any]], ...] = (_one_by_one,)
        if self.bulk is not None and len(batch) - [*map(_about, batch)].count(None) > 1:
            ways = (self._in_bulk, _one_by_one)
        for run in ways:
            self.cursor.execute("begin immediate")
            try:
                return run(self.cursor, batch)
            except BaseException as error:
                self.reached = None
                if isinstance(error, apsw.Error) and ends_transaction(error):
                    raise
                self.cursor.execute("rollback")
                if not isinstance(error, Exception):
                    raise
        return None  # whatever a job raises is its caller's alone: they all go again, each by itself

    def _in_bulk(self, cursor: apsw.Cursor, batch: list[_Queued]) -> list[Any]:
        """In the order they came; those next to each other that are alike as one."""
        assert self.bulk is not None
        results: list[Any] = []
        alike: list[Any] = []
        for job, _, _, _, _, about in batch:
            if about is not None:
                alike.append(about)
                continue
            if alike:
                results += self.bulk(cursor, alike)
                alike = []
            results.append(job(cursor))
        if alike:
            results += self.bulk(cursor, alike)
        return results

    def _returned(self, outcomes: list[_Outcome], loop: asyncio.AbstractEventLoop, *, back: bool) -> None:
        """A batch was committed; and, unless the thread has more to do, the connection is here again."""
        if outcomes:
            used = self.clocks.computed_seconds() - self._left
            self._unused = self._unused + 1 if used < IDLE_SECONDS else 0
            _resolve(outcomes, loop)
            if self._owed:
                self._owe(loop)
        if back and self._from is loop:
            self._away = False
            if self._queue:
                self._call(loop)

    # -- on the thread

    def _work(self) -> None:
        try:
            while (load := self._loads.get()) is not None:
                self._load = load
                batch, results, loop = load
                outcomes = self._commit(batch, results)
                if self.scrub:
                    self._scrub()
                if self.long:
                    self._load = ([], None, loop)
                    self._tell(outcomes, loop, back=False)
                    self.tidy()
                    outcomes = []
                self._load = None
                self._tell(outcomes, loop)
        finally:
            self._leave()

    def _leave(self) -> None:
        """Whatever ended this thread, nobody may wait for it for ever."""
        if not self._closed:
            self._stop()
        if self._load is not None:
            batch, _, loop = self._load
            self._tell(self._refused(batch), loop)
        if self._mark is not None:
            self._mark.close()
        if self._log is not None:
            os.close(self._log)
        self.db.close()

    def _commit(self, batch: list[_Queued], results: list[Any] | None) -> list[_Outcome]:
        if self.broken is not None:
            return self._refused(batch)
        self.wrote = False
        began = self.clocks.elapsed_seconds()
        try:
            if results is None:
                outcomes = self._apart(batch)
            else:
                self.cursor.execute("commit")
                outcomes = [
                    (future, urgent, result, None)
                    for (_, future, urgent, _, _, _), result in zip(batch, results, strict=True)
                ]
            if not _any_durable(batch):
                self._owed = self._owed or self.wrote
            else:
                self._witness()
        except apsw.Error as error:
            fault = self.fail(error)
            return [
                (future, urgent, None, type(fault)(fault.message, remedy=fault.remedy))
                for _, future, urgent, _, _, _ in batch
            ]
        self._pace += (self.clocks.elapsed_seconds() - began - self._pace) / 8
        self.batches += 1
        self.jobs += len(batch)
        return outcomes

    def _apart(self, batch: list[_Queued]) -> list[_Outcome]:
        """All jobs in one transaction, each in a savepoint: one job's failure leaves its neighbours alone."""
        cursor = self.cursor
        execute = cursor.execute
        outcomes: list[_Outcome] = []
        self.sync(durable=_any_durable(batch))
        self.db.set_busy_timeout(self._patience)
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
                    if ends_transaction(error):
                        raise
                    error = translate(error, self.path)
                execute("rollback to job")
                self.reached = None
                outcomes.append((future, urgent, None, error))
            execute("release job")
        execute("commit")
        return outcomes

    def _scrub(self) -> None:
        """Empty the write-ahead log, which takes a moment when nobody reads in it. Who reads for long is not waited for
        twice: everybody else's commits would wait, too."""
        self.db.set_busy_timeout(0 if self._waited else self._patience)
        try:
            self.tidy()
        finally:
            self.db.set_busy_timeout(0)
        self._waited = self.scrub

    def _witness(self) -> None:
        """What was committed is on the disk, and all ahead of it: SQLite syncs nothing for a commit of nothing."""
        if self._owed and not self.wrote:
            self._catch_up()
        self._owed = False
        if self._mark is not None:
            if self.reached is None:
                self.reached = self.cursor.execute("select max(pos) from entries").get or 0
            self._mark.move(self.reached)

    def _catch_up(self) -> None:
        if self._durable <= NORMAL:
            return  # nobody wants to wait for the disk
        if self._log is None:
            try:
                self._log = os.open(f"{self.path}-wal", os.O_RDWR)
            except FileNotFoundError:
                return
            except OSError as error:  # nothing is lost: what is owed stays owed
                raise apsw.CantOpenError(f"the write-ahead log could not be opened: {error}") from error
        try:
            os.fsync(self._log)
        except OSError as error:
            raise apsw.IOError(f"the write-ahead log could not be synced: {error}") from error

    def _stop(self) -> None:
        if self.broken is None:
            self.broken = StoreError(f"the writer of {self.path} has stopped", remedy="start everhold again")

    def _refused(self, batch: list[_Queued]) -> list[_Outcome]:
        return [(future, urgent, None, self.refusal()) for _, future, urgent, _, _, _ in batch]

    def _tell(self, outcomes: list[_Outcome], loop: asyncio.AbstractEventLoop, *, back: bool = True) -> None:
        self._idle = back
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(functools.partial(self._returned, outcomes, loop, back=back))


def _nothing(_: apsw.Cursor) -> None: ...


def _one_by_one(cursor: apsw.Cursor, batch: list[_Queued]) -> list[Any]:
    return [job(cursor) for job, _, _, _, _, _ in batch]


def _any_durable(batch: list[_Queued]) -> bool:
    return any(map(_is_durable, batch))


def _resolve(outcomes: list[_Outcome], loop: asyncio.AbstractEventLoop) -> None:
    """Tell those in a hurry at once, and the others a few with each round of the loop, in the order they came."""
    if len(outcomes) <= AT_ONCE or all(map(_is_urgent, outcomes)):
        _settle(outcomes)
    else:
        _settle([outcome for outcome in outcomes if outcome[1]])
        _resolve_some([outcome for outcome in outcomes if not outcome[1]], loop)


def _resolve_some(outcomes: list[_Outcome], loop: asyncio.AbstractEventLoop) -> None:
    _settle(outcomes[:AT_ONCE])
    if len(outcomes) > AT_ONCE:
        loop.call_soon(_resolve_some, outcomes[AT_ONCE:], loop)


def _settle(outcomes: list[_Outcome]) -> None:
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
