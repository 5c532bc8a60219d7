"""How long models are left alone, and whether that still concerns anybody. What a model asks for is never shortened,
but whoever is going to ask another one by now need not wait for it.
"""

from __future__ import annotations

from typing import Final

from everhold.core.consumers import REVIEW, TASKS, TURN
from everhold.core.retry import MAX_DELAY_SECONDS, retry_delay_seconds
from everhold.engine.agent_runtime import AgentRuntimes
from everhold.engine.gates import Gates, Wakeups
from everhold.errors import NotFound
from everhold.ports.clock import RandomSource
from everhold.ports.store import Change, Claim, ConsumerCursor, RetryDelay, Step, Wakeup

MODEL_CONSUMERS: Final = (TURN, TASKS, REVIEW)
"""The consumers that ask an agent's models."""


def build_model_delay(retry_after: float | None, attempts: int, *, chance: RandomSource, waits_for: str) -> RetryDelay:
    """As long as the models asked for, or else longer with every attempt; for these models only."""
    if retry_after is not None:
        return RetryDelay(seconds=retry_after, mandatory=True, waits_for=waits_for)
    seconds = retry_delay_seconds(attempts, jitter=chance.random())
    return RetryDelay(seconds=MAX_DELAY_SECONDS if seconds is None else seconds, waits_for=waits_for)


async def recheck_all_waits(gates: Gates, runtimes: AgentRuntimes, wakeups: Wakeups) -> None:
    """Another configuration is in force, or this process has just begun: look at everything that waits for a model."""
    for consumer in MODEL_CONSUMERS:
        for cursor in await gates.store.list_cursors(consumer=consumer, waiting=True):
            await _end_wait_if_model_changed(gates, runtimes, wakeups, cursor)


async def recheck_wait(gates: Gates, runtimes: AgentRuntimes, wakeups: Wakeups, claim: Claim) -> None:
    """Somebody has begun to wait: perhaps for a model that was exchanged while it was being asked."""
    cursor = await gates.store.get_cursor(claim.consumer, claim.session)
    if cursor is not None:
        await _end_wait_if_model_changed(gates, runtimes, wakeups, cursor)


async def _end_wait_if_model_changed(
    gates: Gates, runtimes: AgentRuntimes, wakeups: Wakeups, cursor: ConsumerCursor
) -> None:
    """End a lane's wait if whom it waits for is not whom it would ask."""
    if not cursor.waits_for or cursor.since is None:
        return
    session = await gates.store.get_session(cursor.session)
    try:
        waits_for = runtimes.get_runtime(session.agent, session.choices).waits_for
    except NotFound:
        return  # there is no such agent any more
    if waits_for in ("", cursor.waits_for):
        return
    change = Change(
        step=Step.CURSOR_SETTLE,
        session=session.id,
        at=gates.clock.now(),
        wakeups=(Wakeup(consumer=cursor.consumer, waits_for=waits_for),),
    )
    await gates.store.commit(change)
    gates.log.info("wait.ended", session=session.id, reader=cursor.consumer)
    wakeups.notify(session.id)
