"""The gates everything that moves goes through: commit (the store), call (the world), sleep. They are the crash points.

Whoever wants to see everhold crash, stall or lose an answer puts other gates in: flow knows nothing else of the world.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from everhold.errors import InDoubt
from everhold.ports.clock import Chance, Clock
from everhold.ports.log import Log
from everhold.ports.store import Store

T = TypeVar("T")


class Gates:
    """The real gates. `store` is the commit gate: each of its writing methods is one commit."""

    def __init__(self, *, store: Store, clock: Clock, chance: Chance, log: Log, owner: str) -> None:
        self.store = store
        self.clock = clock
        self.chance = chance
        self.log = log
        self.owner = owner

    async def call(self, what: str, work: Callable[[], Awaitable[T]], *, deadline: float) -> T:
        """Do something in the world, within `deadline` seconds. After that nobody knows whether it was done."""
        try:
            async with asyncio.timeout(deadline):
                return await work()
        except TimeoutError as error:
            raise InDoubt(f"{what} gave no answer within {deadline:g} s") from error

    async def sleep(self, seconds: float, *, bell: asyncio.Event | None = None) -> None:
        """Let time pass, or until `bell` rings."""
        if bell is None:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await bell.wait()


class Bells:
    """Hints within one process that something was committed. Losing one costs time, never work: lanes are polled."""

    def __init__(self) -> None:
        self.work = asyncio.Event()
        self._sessions: dict[str, list[asyncio.Event]] = {}

    def ring(self, session: str) -> None:
        self.work.set()
        for bell in self._sessions.get(session, ()):
            bell.set()

    @contextlib.contextmanager
    def listening(self, session: str) -> Iterator[asyncio.Event]:
        """A bell that rings whenever something is committed to `session`."""
        bell = asyncio.Event()
        bells = self._sessions.setdefault(session, [])
        bells.append(bell)
        try:
            yield bell
        finally:
            bells.remove(bell)
            if not bells:
                self._sessions.pop(session, None)
