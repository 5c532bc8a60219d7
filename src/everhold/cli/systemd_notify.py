"""Tells whoever looks after this process how it is: systemd's notify protocol. Says nothing where nobody listens.

A beat is sent only after the event loop has had its turn and the writer of the log has committed something, so that a
process which is there but does nothing any more is ended and started anew.
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
"""Beats within the time after which we are taken for dead: one may be late, and one lost."""


@dataclass(frozen=True)
class ServiceNotifier:
    """Where news go, and how often a sign of life is wanted (0: never)."""

    address: str = ""
    watchdog_seconds: float = 0.0

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> ServiceNotifier:
        """What the environment says, taken out of it: children of ours must not speak for us."""
        address = environ.pop("NOTIFY_SOCKET", "")
        micros, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        meant = whose in ("", str(os.getpid()))
        return cls(
            address=address if address[:1] in ("/", "@") else "",
            watchdog_seconds=int(micros) / 1e6 if meant and micros.isdecimal() else 0.0,
        )

    def send(self, **news: str) -> None:
        """Send news such as READY="1". A lost one is not our trouble: whoever wanted it takes its own measures."""
        if not self.address or not hasattr(socket, "AF_UNIX"):
            return
        text = "\n".join(f"{name}={' '.join(value.split())}" for name, value in news.items())
        # a leading @ stands for the zero byte of an abstract name
        where = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(text.encode(), where)

    async def send_heartbeats(self, pulse: Callable[[], Awaitable[None]]) -> None:
        """Give signs of life for as long as `pulse` comes back. Ends when the store is broken or closed."""
        if not self.watchdog_seconds:
            return
        while True:
            try:
                await pulse()
            except (StoreBusy, StoreFull):
                pass  # no room, or somebody else's lock: the writer is well and says so; starting anew would not help
            except StoreError:
                return
            self.send(WATCHDOG="1")
            await asyncio.sleep(self.watchdog_seconds / BEATS_PER_WATCHDOG)
