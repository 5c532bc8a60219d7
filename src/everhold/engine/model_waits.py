"""Delays after failed model calls, and whether they still apply. A delay that a model asked for is never shortened, but
a session that uses another model now need not wait.
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
    """Return the delay that the models asked for, else one that grows with every attempt. It applies to these models
    only.
    """
    if retry_after is not None:
        return RetryDelay(seconds=retry_after, mandatory=True, waits_for=waits_for)
    seconds = retry_delay_seconds(attempts, jitter=chance.random())
    return RetryDelay(seconds=MAX_DELAY_SECONDS if seconds is None else seconds, waits_for=waits_for)


async def recheck_all_waits(gates: Gates, runtimes: AgentRuntimes, wakeups: Wakeups) -> None:
    """Check all cursors that wait for a model, after a change of the configuration or a start."""
    for consumer in MODEL_CONSUMERS:
        for cursor in await gates.store.list_cursors(consumer=consumer, waiting=True):
            await _end_wait_if_model_changed(gates, runtimes, wakeups, cursor)


async def recheck_wait(gates: Gates, runtimes: AgentRuntimes, wakeups: Wakeups, claim: Claim) -> None:
    """Check a cursor that has begun to wait, because its model may have been replaced during the call."""
    cursor = await gates.store.get_cursor(claim.consumer, claim.session)
    if cursor is not None:
        await _end_wait_if_model_changed(gates, runtimes, wakeups, cursor)


async def _end_wait_if_model_changed(
    gates: Gates, runtimes: AgentRuntimes, wakeups: Wakeups, cursor: ConsumerCursor
) -> None:
    """End a cursor's wait if it waits for other models than it would ask now."""
    if not cursor.waits_for or cursor.since is None:
        return
    session = await gates.store.get_session(cursor.session)
    try:
        waits_for = runtimes.get_runtime(session.agent, session.choices).waits_for
    except NotFound:
        return  # the agent was removed from the configuration
    if waits_for in ("", cursor.waits_for):
        return
    change = Change(
        step=Step.CURSOR_SETTLE,
        session=session.id,
        at=gates.clock.now(),
        wakeups=(Wakeup(consumer=cursor.consumer, waits_for=waits_for),),
    )
    await gates.store.commit(change)
    gates.log.info("wait.ended", session=session.id, consumer=cursor.consumer)
    wakeups.notify(session.id)
