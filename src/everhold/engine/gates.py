"""The gates everything that moves goes through: commit (the store), call (the world), sleep. They are the crash points.

Whoever wants to see everhold crash, stall or lose an answer puts other gates in: flow knows nothing else of the world.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from everhold.errors import InDoubt, StoreBusy, StoreFull
from everhold.infra.deadline import TaskDeadline
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.log import EventLogger
from everhold.ports.store import Change, Claim, CommitResult, Store, Wakeup

T = TypeVar("T")

STORE_RETRY_SECONDS: Final = 1.0
"""How soon it is looked again whether the store has room, or is ours to write to."""


class Gates:
    """The real gates. `store` is the commit gate: each of its writing methods is one commit."""

    def __init__(self, *, store: Store, clock: Clock, chance: RandomSource, log: EventLogger, owner: str) -> None:
        self.store = store
        self.clock = clock
        self.chance = chance
        self.log = log
        self.owner = owner

    async def commit(self, change: Change) -> CommitResult:
        """Commit for somebody who works on a lane, however long the store cannot take it.

        Whoever has run a tool or sent a message has no other way to say so: let go of, it would be in doubt. Who can be
        told that it did not work (a platform at the door, a person in charge) asks the store itself.
        """
        return await self.retry_write(lambda: self.store.commit(change))

    async def retry_write(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write again and again while there is no room, or somebody else has the lock: nothing was written then."""
        told = False
        while True:
            try:
                return await write()
            except (StoreFull, StoreBusy) as error:
                if not told:
                    self.log.warning("store.retrying", error=str(error))
                told = True
            await self.sleep(STORE_RETRY_SECONDS)

    async def call(self, what: str, work: Callable[[], Awaitable[T]], *, deadline: float) -> T:
        """Do something in the world, within `deadline` seconds. After that nobody knows whether it was done."""
        try:
            with TaskDeadline(asyncio.get_running_loop().time() + deadline):
                return await work()
        except TimeoutError as error:
            raise InDoubt(f"{what} gave no answer within {deadline:g} s") from error

    async def sleep(self, seconds: float, *, wakeup: asyncio.Event | None = None) -> None:
        """Let time pass, or until `bell` rings."""
        if wakeup is None:
            await asyncio.sleep(seconds)
            return
        if wakeup.is_set():
            return
        # whoever waits for a bell looks around afterwards, however it came to ring
        alarm = asyncio.get_running_loop().call_later(seconds, wakeup.set)
        try:
            await wakeup.wait()
        finally:
            alarm.cancel()


class WorkerPool(Protocol):
    """Whoever works on lanes in this process."""

    def reserve_worker(self, wakeup: Wakeup) -> Wakeup:
        """The same, to be taken at once if there is a hand free for it, which is kept free until `take`."""

    def start_reserved(self, wakeups: tuple[Wakeup, ...], claims: tuple[Claim, ...]) -> None:
        """What was offered for these is over: begin to work on the lanes that were claimed."""


class Wakeups:
    """Hints within one process that something was committed. Losing one costs time, never work: lanes are polled."""

    def __init__(self) -> None:
        self.work_available = asyncio.Event()
        self.worker_pool: WorkerPool | None = None
        """Saves those who wake a lane the way round through the store."""
        self._events_by_session: dict[str, list[asyncio.Event]] = {}

    def reserve_workers(self, wakeups: tuple[Wakeup, ...]) -> tuple[Wakeup, ...]:
        return wakeups if self.worker_pool is None else tuple(map(self.worker_pool.reserve_worker, wakeups))

    def start_reserved(self, wakeups: tuple[Wakeup, ...], claims: tuple[Claim, ...] = ()) -> None:
        """However the commit ended that these wakes were offered for: without claims nobody needs the hands."""
        assert self.worker_pool is not None or not claims, "only hands that were offered have claims"
        if self.worker_pool is not None:
            self.worker_pool.start_reserved(wakeups, claims)

    def notify(self, session: str, *, work: bool = True) -> None:
        """`work`: and there may be a lane for somebody to take."""
        if work:
            self.work_available.set()
        for event in self._events_by_session.get(session, ()):
            event.set()

    def subscribe(self, session: str) -> WakeupSubscription:
        """A bell that rings whenever something is committed to `session`."""
        return WakeupSubscription(self._events_by_session, session)


class WakeupSubscription:
    """As long as the block lasts, its bell is among those of a session."""

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
