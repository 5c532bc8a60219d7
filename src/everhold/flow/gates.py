"""The gates everything that moves goes through: commit (the store), call (the world), sleep. They are the crash points.

Whoever wants to see everhold crash, stall or lose an answer puts other gates in: flow knows nothing else of the world.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from everhold.errors import InDoubt, StoreBusy, StoreFull
from everhold.limit import Limit
from everhold.ports.clock import Chance, Clock
from everhold.ports.log import Log
from everhold.ports.store import Change, Claim, Committed, Store, Wakeup

T = TypeVar("T")

ROOM_SECONDS: Final = 1.0
"""How soon it is looked again whether the store has room, or is ours to write to."""


class Gates:
    """The real gates. `store` is the commit gate: each of its writing methods is one commit."""

    def __init__(self, *, store: Store, clock: Clock, chance: Chance, log: Log, owner: str) -> None:
        self.store = store
        self.clock = clock
        self.chance = chance
        self.log = log
        self.owner = owner

    async def commit(self, change: Change) -> Committed:
        """Commit for somebody who works on a lane, however long the store cannot take it.

        Whoever has run a tool or sent a message has no other way to say so: let go of, it would be in doubt. Who can be
        told that it did not work (a platform at the door, a person in charge) asks the store itself.
        """
        return await self.patiently(lambda: self.store.commit(change))

    async def patiently(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write again and again while there is no room, or somebody else has the lock: nothing was written then."""
        told = False
        while True:
            try:
                return await write()
            except (StoreFull, StoreBusy) as error:
                if not told:
                    self.log.warning("store.waits", error=str(error))
                told = True
            await self.sleep(ROOM_SECONDS)

    async def call(self, what: str, work: Callable[[], Awaitable[T]], *, deadline: float) -> T:
        """Do something in the world, within `deadline` seconds. After that nobody knows whether it was done."""
        try:
            with Limit(asyncio.get_running_loop().time() + deadline):
                return await work()
        except TimeoutError as error:
            raise InDoubt(f"{what} gave no answer within {deadline:g} s") from error

    async def sleep(self, seconds: float, *, bell: asyncio.Event | None = None) -> None:
        """Let time pass, or until `bell` rings."""
        if bell is None:
            await asyncio.sleep(seconds)
            return
        if bell.is_set():
            return
        # whoever waits for a bell looks around afterwards, however it came to ring
        alarm = asyncio.get_running_loop().call_later(seconds, bell.set)
        try:
            await bell.wait()
        finally:
            alarm.cancel()


class Hands(Protocol):
    """Whoever works on lanes in this process."""

    def offer(self, wake: Wakeup) -> Wakeup:
        """The same, to be taken at once if there is a hand free for it, which is kept free until `take`."""

    def take(self, wakes: tuple[Wakeup, ...], claims: tuple[Claim, ...]) -> None:
        """What was offered for these is over: begin to work on the lanes that were claimed."""


class Bells:
    """Hints within one process that something was committed. Losing one costs time, never work: lanes are polled."""

    def __init__(self) -> None:
        self.work = asyncio.Event()
        self.hands: Hands | None = None
        """Saves those who wake a lane the way round through the store."""
        self._sessions: dict[str, list[asyncio.Event]] = {}

    def offer(self, wakes: tuple[Wakeup, ...]) -> tuple[Wakeup, ...]:
        return wakes if self.hands is None else tuple(map(self.hands.offer, wakes))

    def hand_over(self, wakes: tuple[Wakeup, ...], claims: tuple[Claim, ...] = ()) -> None:
        """However the commit ended that these wakes were offered for: without claims nobody needs the hands."""
        assert self.hands is not None or not claims, "only hands that were offered have claims"
        if self.hands is not None:
            self.hands.take(wakes, claims)

    def ring(self, session: str, *, work: bool = True) -> None:
        """`work`: and there may be a lane for somebody to take."""
        if work:
            self.work.set()
        for bell in self._sessions.get(session, ()):
            bell.set()

    def listening(self, session: str) -> Listening:
        """A bell that rings whenever something is committed to `session`."""
        return Listening(self._sessions, session)


class Listening:
    """As long as the block lasts, its bell is among those of a session."""

    def __init__(self, sessions: dict[str, list[asyncio.Event]], session: str) -> None:
        self._sessions = sessions
        self._session = session
        self._bell = asyncio.Event()

    def __enter__(self) -> asyncio.Event:
        self._sessions.setdefault(self._session, []).append(self._bell)
        return self._bell

    def __exit__(self, *_: object) -> None:
        bells = self._sessions[self._session]
        bells.remove(self._bell)
        if not bells:
            del self._sessions[self._session]
