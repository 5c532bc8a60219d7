"""Bodies of requests whose sender is known only when the whole body is here, such as webhooks.

Anybody can send one. If there are too many, the oldest makes room for the newest, because a service sends its body at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class ArrivingBodies:
    """The bodies that have not arrived yet."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._limits: dict[asyncio.Timeout, None] = {}

    def __len__(self) -> int:
        return len(self._limits)

    @contextlib.asynccontextmanager
    async def read(self, seconds: float) -> AsyncIterator[None]:
        """Count one body while it is read inside. Raises TimeoutError after this time, or if it had to make room."""
        async with asyncio.timeout(seconds) as limit:
            self._add(limit)
            try:
                yield
            finally:
                self._limits.pop(limit, None)

    def _add(self, limit: asyncio.Timeout) -> None:
        if len(self._limits) >= self.most:
            oldest = next(iter(self._limits))
            del self._limits[oldest]
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())
        self._limits[limit] = None
