"""Reports the state of this process to systemd with its notify protocol. Does nothing if systemd did not start it.

A heartbeat is sent only after the event loop has run and the store's writer has answered, so systemd restarts a process
that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Final

from everhold.errors import StoreBusy, StoreError, StoreFull

BEATS_PER_WATCHDOG: Final = 3
"""Heartbeats per watchdog interval: one may be late, and one lost."""


@dataclass(frozen=True)
class ServiceNotifier:
    """The socket for notifications, and the watchdog interval (0: no watchdog)."""

    address: str = ""
    watchdog_seconds: float = 0.0

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> ServiceNotifier:
        """Return the notifier of the environment, and remove its variables, so that child processes do not use them."""
        address = environ.pop("NOTIFY_SOCKET", "")
        micros, watchdog_pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        meant = watchdog_pid in ("", str(os.getpid()))
        return cls(
            address=address if address[:1] in ("/", "@") else "",
            watchdog_seconds=int(micros) / 1e6 if meant and micros.isdecimal() else 0.0,
        )

    def send(self, **news: str) -> None:
        """Send a notification such as READY="1". Errors are ignored, because systemd has its own timeouts."""
        if not self.address or not hasattr(socket, "AF_UNIX"):
            return
        text = "\n".join(f"{name}={' '.join(value.split())}" for name, value in news.items())
        # a leading @ stands for the zero byte of an abstract name
        where = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(text.encode(), where)

    async def send_heartbeats(self, pulse: Callable[[], Awaitable[None]]) -> None:
        """Send heartbeats as long as `pulse` returns. Ends when the store is broken or closed."""
        if not self.watchdog_seconds:
            return
        while True:
            try:
                await pulse()
            except (StoreBusy, StoreFull):
                pass  # the disk is full, or another process holds a lock: the writer works, so a restart is no help
            except StoreError:
                return
            self.send(WATCHDOG="1")
            await asyncio.sleep(self.watchdog_seconds / BEATS_PER_WATCHDOG)
