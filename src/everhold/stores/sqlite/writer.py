"""The one hand that writes: takes whatever is queued, commits it as one transaction, then tells everybody at once.

It knows nothing of entries or lanes; a job is a function of a cursor. Nobody is told that a job succeeded before the
transaction it was part of is on disk. `InlineWriter` is the same promise without a thread, for simulated worlds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import apsw

from everhold.errors import StoreDamaged, StoreError
from everhold.stores.sqlite.faults import ends_transaction, is_fatal, translate
from everhold.stores.sqlite.mark import Mark

BATCH: Final = 256
AT_ONCE: Final = 4
"""How many of those who are not in a hurry are told at a time: what each does next keeps everybody else waiting."""
CHECKPOINT_PAGES: Final = 1000
"""The write-ahead log is copied into the database once it is this long."""

T = TypeVar("T")
Job: TypeAlias = Callable[[apsw.Cursor], T]


# Plain tuples: two of each are made for every commit there is.
_Queued: TypeAlias = tuple[Job[Any], asyncio.Future[Any], asyncio.AbstractEventLoop, bool]
_Outcome: TypeAlias = tuple[asyncio.Future[Any], asyncio.AbstractEventLoop, bool, Any, Exception | None]


class Writer(Protocol):
    broken: StoreError | None
    """Why nothing can be written any more, until the process has started anew."""
    scrub: bool
    """Set by a job that removed something for good: it must not live on in the write-ahead log."""

    async def write(self, job: Job[T], *, urgent: bool = False) -> T:
        """What `job` returned, once it is durable. Whoever is `urgent` is told first."""

    async def close(self) -> None: ...


class _Hand:
    """What both writers share: the connection, and what is done around a commit."""

    def __init__(self, db: apsw.Connection, path: Path) -> None:
        self.db = db
        self.cursor = db.cursor()
        self.path = path
        self.broken: StoreError | None = None
        self.scrub = False
        self.batches = 0
        self.jobs = 0
        self._pages = 0
        db.set_wal_hook(self._committed)

    def _committed(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def fail(self, error: apsw.Error) -> StoreError:
        """Undo what was begun, and remember the error if nothing after it can be trusted."""
        fault = translate(error, self.path)
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

    def tidy(self, *, pages: int = CHECKPOINT_PAGES) -> None:
        """Copy a long write-ahead log into the database, and empty it after something was removed for good."""
        if not self.scrub and self._pages < pages:
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

    async def write(self, job: Job[T], *, urgent: bool = False) -> T:
        if self.broken is not None:
            raise self.refusal()
        execute = self.cursor.execute
        try:
            execute("begin immediate")
            try:
                result = job(self.cursor)
            except BaseException as error:
                if not isinstance(error, apsw.Error):
                    execute("rollback")
                raise
            execute("commit")
        except apsw.Error as error:
            raise self.fail(error) from error
        self.batches += 1
        self.jobs += 1
        self.tidy()
        return result

    async def close(self) -> None:
        self.db.close()


class ThreadWriter(_Hand):
    """Runs jobs on a thread of its own that alone uses the connection."""

    def __init__(self, db: apsw.Connection, path: Path, mark: Mark | None) -> None:
        super().__init__(db, path)
        self._mark = mark
        self._queue: SimpleQueue[_Queued | None] = SimpleQueue()
        self._batch: list[_Queued] = []
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="everhold-writer", daemon=True)
        self._thread.start()

    async def write(self, job: Job[T], *, urgent: bool = False) -> T:
        if self._closed or self.broken is not None:
            raise self.refusal()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put((job, future, loop, urgent))
        return await future

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _work(self) -> None:
        try:
            self._serve()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Whatever ended this thread, nobody may wait for it for ever."""
        if self.broken is None and not self._closed:
            self.broken = StoreError(f"the writer of {self.path} has stopped", remedy="start everhold again")
        left = self._batch
        while not self._queue.empty():
            if (queued := self._queue.get()) is not None:
                left.append(queued)
        _tell([(future, loop, True, None, self.refusal()) for _, future, loop, _ in left])
        if self._mark is not None:
            self._mark.close()
        self.db.close()

    def _serve(self) -> None:
        queue = self._queue
        going = True
        while going:
            first = queue.get()
            if first is None:
                break
            self._batch = batch = [first]
            while len(batch) < BATCH and not queue.empty():
                following = queue.get()
                if following is None:
                    going = False
                    break
                batch.append(following)
            outcomes = self._commit(batch)
            self._witness()
            if self.scrub:
                self.tidy()
            _tell(outcomes)
            self._batch = []
            self.tidy()

    def _commit(self, batch: list[_Queued]) -> list[_Outcome]:
        if self.broken is not None:
            return [(future, loop, urgent, None, self.refusal()) for _, future, loop, urgent in batch]
        try:
            outcomes = self._together(batch)
            if outcomes is None:
                outcomes = self._apart(batch)
        except apsw.Error as error:
            fault = self.fail(error)
            return [
                (future, loop, urgent, None, type(fault)(fault.message, remedy=fault.remedy))
                for _, future, loop, urgent in batch
            ]
        self.batches += 1
        self.jobs += len(batch)
        return outcomes

    def _together(self, batch: list[_Queued]) -> list[_Outcome] | None:
        """All jobs in one transaction, since hardly ever one fails; None, and nothing done, if one does."""
        cursor = self.cursor
        cursor.execute("begin immediate")
        try:
            outcomes: list[_Outcome] = [
                (future, loop, urgent, job(cursor), None) for job, future, loop, urgent in batch
            ]
        # Whatever a job raises is its caller's alone: they all go again, each by itself.
        except Exception as error:
            if isinstance(error, apsw.Error) and ends_transaction(error):
                raise
            cursor.execute("rollback")
            return None
        cursor.execute("commit")
        return outcomes

    def _apart(self, batch: list[_Queued]) -> list[_Outcome]:
        """All jobs in one transaction, each in a savepoint: one job's failure leaves its neighbours alone."""
        cursor = self.cursor
        execute = cursor.execute
        outcomes: list[_Outcome] = []
        execute("begin immediate")
        for job, future, loop, urgent in batch:
            execute("savepoint job")
            try:
                outcomes.append((future, loop, urgent, job(cursor), None))
            # One job's failure is its caller's alone, whatever it is; the neighbours in the batch go on.
            except Exception as error:
                if isinstance(error, apsw.Error):
                    if ends_transaction(error):
                        raise
                    error = translate(error, self.path)
                execute("rollback to job")
                outcomes.append((future, loop, urgent, None, error))
            execute("release job")
        execute("commit")
        return outcomes

    def _witness(self) -> None:
        if self._mark is None:
            return
        try:
            self._mark.move(self.cursor.execute("select max(pos) from entries").get or 0)
        except apsw.Error as error:
            self.fail(error)


def _tell(outcomes: list[_Outcome]) -> None:
    """Resolve the futures on their own loops, one call for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[1], []).append(outcome)
    for loop, its in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, its)
        except RuntimeError:
            continue  # that loop is closed: nobody waits there any more


def _resolve(outcomes: list[_Outcome]) -> None:
    """Tell those in a hurry at once, and the others a few with each round of the loop, in the order they came."""
    if len(outcomes) > AT_ONCE:
        _settle([outcome for outcome in outcomes if outcome[2]])
        _resolve_some([outcome for outcome in outcomes if not outcome[2]])
    else:
        _settle(outcomes)


def _resolve_some(outcomes: list[_Outcome]) -> None:
    _settle(outcomes[:AT_ONCE])
    if len(outcomes) > AT_ONCE:
        outcomes[0][1].call_soon(_resolve_some, outcomes[AT_ONCE:])


def _settle(outcomes: list[_Outcome]) -> None:
    for future, _, _, result, error in outcomes:
        if future.done():
            continue  # its caller gave up waiting; what was committed stands
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
