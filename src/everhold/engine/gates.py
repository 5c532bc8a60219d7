"""The gates: commit (the store), call (the outside) and sleep, the engine's only ways out. They are the crash points.

A test replaces the gates to make the engine crash, stall or lose an answer, because the engine has no other access to
the outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from everhold.errors import EverholdError, InDoubt, OutcomeUnknown, StoreBusy, StoreFull
from everhold.infra.deadline import TaskDeadline
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.hosts import CommitHint
from everhold.ports.log import EventLogger
from everhold.ports.store import Change, Claim, CommitResult, Step, Store, Wakeup
from everhold.telemetry.metric_registry import MetricRegistry
from everhold.telemetry.metrics import COMMIT_SECONDS

T = TypeVar("T")

STORE_RETRY_SECONDS: Final = 1.0
"""How soon a write is tried again if the store is full or busy."""


class Gates:
    """The real gates. `store` is the commit gate: each of its writing methods is one commit."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        chance: RandomSource,
        log: EventLogger,
        owner: str,
        redact: Callable[[str], str] = str,
    ) -> None:
        self.store = store
        self.clock = clock
        self.chance = chance
        self.log = log
        self.owner = owner
        self.redact = redact
        """Hides every secret of the configuration in a text."""
        self.metrics = MetricRegistry(clock)

    async def commit(self, change: Change) -> CommitResult:
        """Commit for a worker, and retry as long as the store is full or busy.

        A worker that ran a tool or sent a message must record it, otherwise it would be in doubt. Callers that can
        report a failure (a platform, an operator) use the store directly.
        """
        try:
            since = self.clock.monotonic()
            try:
                done = await self.store.commit(change)
            except (StoreFull, StoreBusy) as error:
                done = await self.retry_write(lambda: self.store.commit(change), failed=error)
            self.metrics.observe(COMMIT_SECONDS, self.clock.monotonic() - since)
            return done
        except OutcomeUnknown as error:
            if change.cursor is not None and change.cursor.wait is not None and change.cursor.wait.mandatory:
                error.requested_wait = change.cursor.wait.seconds
            raise

    async def retry_write(self, write: Callable[[], Awaitable[T]], *, failed: StoreFull | StoreBusy | None = None) -> T:
        """Write, and retry while the disk is full or another program holds the lock. In both cases nothing was written.
        `failed`: an attempt has just failed so."""
        was_logged = False
        while True:
            if failed is not None:
                if not was_logged:
                    self.log.warning("store.retrying", error=str(failed))
                was_logged = True
                await self.sleep(STORE_RETRY_SECONDS)
            try:
                return await write()
            except (StoreFull, StoreBusy) as error:
                failed = error

    async def call(self, what: str, work: Callable[[], Awaitable[T]], *, deadline: float) -> T:
        """Do something outside, within `deadline` seconds. After the deadline it is unknown whether it was done.

        The text of an error comes from outside and is stored, so the secrets in it are hidden here.
        """
        try:
            with TaskDeadline(asyncio.get_running_loop().time() + deadline):
                return await work()
        except EverholdError as error:
            error.message, error.remedy = self.redact(error.message), self.redact(error.remedy)
            raise
        except TimeoutError as error:
            raise InDoubt(f"{what} gave no answer within {deadline:g} s") from error

    async def sleep(self, seconds: float, *, wakeup: asyncio.Event | None = None) -> None:
        """Sleep, or until `wakeup` is set."""
        if wakeup is None:
            await asyncio.sleep(seconds)
            return
        if wakeup.is_set():
            return
        # The caller checks the state after a wakeup, so the timer may set the same event.
        alarm = asyncio.get_running_loop().call_later(seconds, wakeup.set)
        try:
            await wakeup.wait()
        finally:
            alarm.cancel()


class WorkerPool(Protocol):
    """The pool of workers of this process."""

    def reserve_worker(self, session: str, wakeup: Wakeup) -> Wakeup:
        """Return the wakeup with a claim request, if a worker is free. The worker is reserved until
        `start_reserved`.
        """

    def start_reserved(self, session: str, wakeups: tuple[Wakeup, ...], claims: tuple[Claim, ...]) -> None:
        """End the reservations of these wakeups, and start workers for the claims."""

    def expect_strays(self) -> None:
        """Look for cursors that this process holds without a worker, after a commit of unknown outcome."""


class Wakeups:
    """Hints within one process that something was committed. A lost hint costs time, never work, because cursors are
    polled.
    """

    def __init__(self) -> None:
        self.work_available = asyncio.Event()
        self.rebuild_ordered = asyncio.Event()
        """Set when a memory's session has to be stored anew."""
        self.worker_pool: WorkerPool | None = None
        """Lets a commit start workers directly, without polling the store."""
        self._events_by_session: dict[str, list[asyncio.Event]] = {}

    def reserve_workers(self, session: str, wakeups: tuple[Wakeup, ...]) -> tuple[Wakeup, ...]:
        pool = self.worker_pool
        if pool is None or not wakeups:
            return wakeups
        return tuple([pool.reserve_worker(session, wakeup) for wakeup in wakeups])

    def start_reserved(self, session: str, wakeups: tuple[Wakeup, ...], claims: tuple[Claim, ...] = ()) -> None:
        """End the reservations of these wakeups, whether the commit succeeded or not. Without claims the workers are
        free again.
        """
        assert self.worker_pool is not None or not claims, "claims need reserved workers"
        if self.worker_pool is not None:
            self.worker_pool.start_reserved(session, wakeups, claims)

    def expect_strays(self) -> None:
        """Look for cursors without a worker, because a commit that claims some had an unknown outcome."""
        if self.worker_pool is not None:
            self.worker_pool.expect_strays()
            self.work_available.set()

    def notify(self, session: str, *, work: bool = True) -> None:
        """Notify the waiting tasks of a session. `work`: a cursor may also be due."""
        if work:
            self.work_available.set()
        for event in self._events_by_session.get(session, ()):
            event.set()

    def on_commit(self, hint: CommitHint) -> None:
        """Notify the waiting tasks of a commit that may concern them, wherever it was made."""
        # A command may stop a running turn. Workers of this process notify of their other commits themselves.
        if hint.is_remote or hint.step == Step.COMMAND:
            self.notify(hint.session, work=hint.is_work_due or not hint.is_remote)

    def subscribe(self, session: str) -> WakeupSubscription:
        """Return an event that is set whenever something is committed to `session`."""
        return WakeupSubscription(self._events_by_session, session)


class WakeupSubscription:
    """A subscription to a session's commits, for the length of a block."""

    def __init__(self, sessions: dict[str, list[asyncio.Event]], session: str) -> None:
        self._events_by_session = sessions
        self._session = session
        self._event = asyncio.Event()

    def __enter__(self) -> asyncio.Event:
        self._events_by_session.setdefault(self._session, []).append(self._event)
        return self._event

    def __exit__(self, *_: object) -> None:
        wakeups = self._events_by_session[self._session]
        wakeups.remove(self._event)
        if not wakeups:
            del self._events_by_session[self._session]
