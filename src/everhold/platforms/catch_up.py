"""Reads missed messages from a platform that may be unreachable. Retries until the platform answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from everhold.core.retry import retry_delay_seconds
from everhold.errors import EverholdError, Refused, Transient
from everhold.ports.log import EventLogger
from everhold.ports.plugin import AccountContext

T = TypeVar("T")

LONGEST_WAIT_SECONDS: Final = 300.0


async def read_until_answered(account_context: AccountContext, log: EventLogger, ask: Callable[[], Awaitable[T]]) -> T:
    """Return the answer to `ask`. The account's status reports the retries. Raises Refused, because retrying cannot
    help then."""
    failures = 0
    while True:
        try:
            found = await ask()
        except Refused:
            raise
        except EverholdError as error:
            failures += 1
            account_context.report(
                f"missed messages cannot be read: {error.message}", "no action needed: everhold tries again"
            )
            asked = error.retry_after if isinstance(error, Transient) else None
            wait = asked if asked is not None else retry_delay_seconds(failures, jitter=account_context.chance.random())
            log.info("history.retrying", error=error, seconds=wait)
            await account_context.sleep(wait or LONGEST_WAIT_SECONDS)
            continue
        if failures:
            account_context.report()
        return found
