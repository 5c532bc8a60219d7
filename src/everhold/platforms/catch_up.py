"""Reading what was missed, from a platform that may be away: asked again until it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from everhold.core.retry import retry_delay_seconds
from everhold.errors import EverholdError, Refused, Transient
from everhold.ports.log import EventLogger
from everhold.ports.plugin import AccountContext

T = TypeVar("T")

LONGEST_WAIT_SECONDS: Final = 300.0


async def read_until_answered(station: AccountContext, log: EventLogger, ask: Callable[[], Awaitable[T]]) -> T:
    """The answer to `ask`. The account's status says that it waits. Raises Refused, which waiting does not mend."""
    failures = 0
    while True:
        try:
            found = await ask()
        except Refused:
            raise
        except EverholdError as error:
            failures += 1
            station.report(f"what was missed cannot be read: {error.message}", "it is tried again by itself")
            asked = error.retry_after if isinstance(error, Transient) else None
            wait = asked if asked is not None else retry_delay_seconds(failures, jitter=station.chance.random())
            log.info("history.retrying", error=error, seconds=wait)
            await station.sleep(wait or LONGEST_WAIT_SECONDS)
            continue
        if failures:
            station.report()
        return found
