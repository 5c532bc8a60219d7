"""Whether the disk has room. From the first commit that found none until the ballast is aboard again, it has not."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from everhold.errors import StoreFull
from everhold.ports.log import Log
from everhold.stores.sqlite.ballast import Ballast
from everhold.stores.sqlite.store import SqliteStore

P = ParamSpec("P")
T = TypeVar("T")

LOOK_SECONDS: Final = 1.0
"""How often a full disk is looked at for room."""


class Room:
    """Room on a home's disk. What the ballast frees is for work that was begun, never for more of it."""

    def __init__(self, ballast: Ballast, *, log: Log) -> None:
        self.ballast = ballast
        self._log = log
        self._gone = asyncio.Event()
        self._there = asyncio.Event()
        self._there.set()

    @property
    def full(self) -> bool:
        return self._gone.is_set()

    def demand(self) -> None:
        """Let nobody pass while the disk is full: a message that just fits would take the place of a last word."""
        if self.full:
            raise StoreFull(f"the disk of {self.ballast.path.parent} is full", remedy=self._remedy)

    def ran_out(self) -> None:
        """A commit found no room."""
        if not self.full:
            self._gone.set()
            self._there.clear()
            self.ballast.release()
            self._log.error("store.full", remedy=self._remedy)

    async def wait(self) -> None:
        await self._there.wait()

    async def keep_looking(self) -> None:
        """Find room by itself, within a second or two of its being there."""
        while True:
            await self._gone.wait()
            await asyncio.sleep(LOOK_SECONDS)
            if self.ballast.take_aboard():
                self._gone.clear()
                self._there.set()
                self._log.info("store.room")

    @property
    def _remedy(self) -> str:
        return f"free space on the disk of {self.ballast.path.parent}"


def _tells(
    write: Callable[Concatenate[RoomyStore, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RoomyStore, P], Coroutine[Any, Any, T]]:
    @functools.wraps(write)
    async def told(self: RoomyStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await write(self, *args, **kwargs)
        except StoreFull:
            self.on_full()
            raise

    return told


class RoomyStore(SqliteStore):
    """The store, and a word to the house whenever one of its commits finds no room, whoever made it."""

    on_full: Callable[[], None] = staticmethod(lambda: None)

    commit = _tells(SqliteStore.commit)
    claim_cursors = _tells(SqliteStore.claim_cursors)
    renew_leases = _tells(SqliteStore.renew_leases)
    revoke_leases = _tells(SqliteStore.revoke_leases)
    retry_now = _tells(SqliteStore.retry_now)
    replay_dead_letters = _tells(SqliteStore.replay_dead_letters)
    link_identity = _tells(SqliteStore.link_identity)
