"""Wait in tests for an action of another thread or process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

LIMIT_SECONDS: Final = 100.0
"""A wait fails after this time. It is a safety net for a condition that never holds: no test may depend on it, not even
beside ten busy processes (`make busy`)."""
LOOK_SECONDS: Final = 0.01


async def wait_until(condition: Callable[[], object | Awaitable[object]], *, seconds: float = LIMIT_SECONDS) -> None:
    """Poll until the condition holds."""
    async with asyncio.timeout(seconds):
        while True:
            seen = condition()
            if (await seen) if isinstance(seen, Awaitable) else seen:
                return
            await asyncio.sleep(LOOK_SECONDS)


def block_until(condition: Callable[[], object], *, seconds: float = LIMIT_SECONDS) -> None:
    """Poll until the condition holds, in a test without an event loop."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"this did not happen within {seconds:g} s"
        time.sleep(LOOK_SECONDS)
