"""The host processes of one provider: one per home, only so many at once. Idle ones are closed.

A closed host loses nothing: the log is the queue, and the plug-in shuts down in its own way.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from everhold.hermes.memory.host import HermesHostProcess

MAX_HOSTS: Final = 8
"""Host processes of one provider. Each needs 25 to 70 MB."""
IDLE_SECONDS: Final = 600.0
"""After so long without a call a host is closed."""
MAX_STOPPED_HOSTS: Final = 64
"""Hosts that are kept after their process ended, because a host that crashed is not restarted at once."""


class PooledHost:
    """A host, and by how many callers it is used."""

    def __init__(self, host: HermesHostProcess) -> None:
        self.host = host
        self.users = 0
        self.uses = 0
        """Number of calls so far."""

    @property
    def is_alive(self) -> bool:
        return self.users > 0 or self.host.is_running


class HostPool:
    def __init__(
        self,
        create: Callable[[Path], HermesHostProcess],
        *,
        max_hosts: int = MAX_HOSTS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._create = create
        self._max_hosts = max_hosts
        self._idle_seconds = idle_seconds
        self._hosts: OrderedDict[Path, PooledHost] = OrderedDict()
        """In the order of their last use."""
        self._closing: dict[Path, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        """Set when a host becomes free or is closed, and then replaced."""

    @property
    def alive_count(self) -> int:
        return len(self._closing) + sum(pooled.is_alive for pooled in self._hosts.values())

    @property
    def latest(self) -> HermesHostProcess | None:
        """The host that was used last."""
        return next(reversed(self._hosts.values())).host if self._hosts else None

    def list_hosts(self) -> list[HermesHostProcess]:
        return [pooled.host for pooled in self._hosts.values()]

    def is_running(self, home: Path) -> bool:
        return home in self._hosts and self._hosts[home].host.is_running

    @asynccontextmanager
    async def borrow(self, home: Path) -> AsyncIterator[HermesHostProcess]:
        """Use the host of a home. It is not closed meanwhile. Waits while as many hosts as allowed are in use."""
        pooled = await self._admit(home)
        try:
            yield pooled.host
        finally:
            pooled.users -= 1
            asyncio.get_running_loop().call_later(self._idle_seconds, self._close_idle, home, pooled, pooled.uses)
            self._notify()

    async def close_home(self, home: Path) -> None:
        """Close the host of a home, after the calls that are running."""
        while home in self._hosts and self._hosts[home].users:
            await self._changed.wait()
        self._start_closing(home)
        while home in self._closing:
            await self._changed.wait()

    async def close(self) -> None:
        """Close all hosts, also those that are in use."""
        for home in list(self._hosts):
            self._start_closing(home)
        await asyncio.gather(*self._closing.values(), return_exceptions=True)

    # -- internals -----------------------------------------------------------------------------------------------------

    async def _admit(self, home: Path) -> PooledHost:
        while True:
            # two processes must not use one home at the same time
            if home not in self._closing:
                pooled = self._hosts.get(home)
                if (pooled is not None and pooled.is_alive) or self.alive_count < self._max_hosts:
                    return self._take(home)
                self._close_least_used()
            await self._changed.wait()

    def _take(self, home: Path) -> PooledHost:
        if home not in self._hosts:
            self._drop_stopped()
            self._hosts[home] = PooledHost(self._create(home))
        pooled = self._hosts[home]
        self._hosts.move_to_end(home)
        pooled.users += 1
        pooled.uses += 1
        return pooled

    def _close_least_used(self) -> None:
        """Close the host whose last use is longest ago, if one is not in use. One without open calls is preferred."""
        idle = [home for home, pooled in self._hosts.items() if pooled.is_alive and not pooled.users]
        if idle:
            self._start_closing(min(idle, key=lambda home: self._hosts[home].host.has_open_calls))

    def _close_idle(self, home: Path, pooled: PooledHost, uses: int) -> None:
        if self._hosts.get(home) is pooled and not pooled.users and pooled.uses == uses and pooled.host.is_running:
            self._start_closing(home)

    def _start_closing(self, home: Path) -> None:
        pooled = self._hosts.pop(home, None)
        if pooled is not None:
            self._closing[home] = asyncio.get_running_loop().create_task(self._close_host(home, pooled.host))

    async def _close_host(self, home: Path, host: HermesHostProcess) -> None:
        try:
            await host.close()
        finally:
            self._closing.pop(home, None)
            self._notify()

    def _drop_stopped(self) -> None:
        stopped = [home for home, pooled in self._hosts.items() if not pooled.is_alive and not pooled.host.is_waiting]
        for home in stopped[: max(0, len(stopped) - MAX_STOPPED_HOSTS + 1)]:
            del self._hosts[home]

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
