"""Whether the disk has room. From the first commit that found none until the ballast is aboard again, it has not."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from everhold.errors import StoreFull
from everhold.ports.log import EventLogger
from everhold.stores.sqlite.disk_reserve import DiskReserve
from everhold.stores.sqlite.store import SqliteStore

P = ParamSpec("P")
T = TypeVar("T")

SPACE_POLL_SECONDS: Final = 1.0
"""How often a full disk is looked at for room."""


class DiskGuard:
    """Room on a home's disk. What the ballast frees is for work that was begun, never for more of it."""

    def __init__(self, reserve: DiskReserve, *, log: EventLogger) -> None:
        self.reserve = reserve
        self._log = log
        self._full_event = asyncio.Event()
        self._space_event = asyncio.Event()
        self._space_event.set()

    @property
    def is_full(self) -> bool:
        return self._full_event.is_set()

    def require_space(self) -> None:
        """Let nobody pass while the disk is full: a message that just fits would take the place of a last word."""
        if self.is_full:
            raise StoreFull(f"the disk of {self.reserve.path.parent} is full", remedy=self._remedy)

    def report_full(self) -> None:
        """A commit found no room."""
        if not self.is_full:
            self._full_event.set()
            self._space_event.clear()
            self.reserve.release()
            self._log.error("store.full", remedy=self._remedy)

    async def wait_for_space(self) -> None:
        await self._space_event.wait()

    async def watch_space(self) -> None:
        """Find room by itself, within a second or two of its being there."""
        while True:
            await self._full_event.wait()
            await asyncio.sleep(SPACE_POLL_SECONDS)
            if self.reserve.allocate():
                self._full_event.clear()
                self._space_event.set()
                self._log.info("store.space_recovered")

    @property
    def _remedy(self) -> str:
        return f"free space on the disk of {self.reserve.path.parent}"


def _report_full_disk(
    write: Callable[Concatenate[DiskGuardedStore, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[DiskGuardedStore, P], Coroutine[Any, Any, T]]:
    @functools.wraps(write)
    async def told(self: DiskGuardedStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await write(self, *args, **kwargs)
        except StoreFull:
            self.on_full()
            raise

    return told


class DiskGuardedStore(SqliteStore):
    """The store, and a word to the house whenever one of its commits finds no room, whoever made it."""

    on_full: Callable[[], None] = staticmethod(lambda: None)

    commit = _report_full_disk(SqliteStore.commit)
    claim_cursors = _report_full_disk(SqliteStore.claim_cursors)
    renew_leases = _report_full_disk(SqliteStore.renew_leases)
    revoke_leases = _report_full_disk(SqliteStore.revoke_leases)
    retry_now = _report_full_disk(SqliteStore.retry_now)
    replay_dead_letters = _report_full_disk(SqliteStore.replay_dead_letters)
    link_identity = _report_full_disk(SqliteStore.link_identity)
