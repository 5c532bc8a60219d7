"""How long models are left alone, and whether that still concerns anybody. What a model asks for is never shortened,
but whoever is going to ask another one by now need not wait for it.
"""

from __future__ import annotations

from typing import Final

from everhold.core.consumers import REVIEW, TASKS, TURN
from everhold.core.retry import LONGEST_WAIT_SECONDS, wait_seconds
from everhold.errors import NotFound
from everhold.flow.gates import Bells, Gates
from everhold.flow.runtime import Runtimes
from everhold.ports.clock import Chance
from everhold.ports.store import Change, Claim, ConsumerCursor, RetryDelay, Step, Wakeup

READERS: Final = (TURN, TASKS, REVIEW)
"""The consumers that ask an agent's models."""


def for_models(retry_after: float | None, attempts: int, *, chance: Chance, whom: str) -> RetryDelay:
    """As long as the models asked for, or else longer with every attempt; for these models only."""
    if retry_after is not None:
        return RetryDelay(seconds=retry_after, mandatory=True, waits_for=whom)
    seconds = wait_seconds(attempts, jitter=chance.random())
    return RetryDelay(seconds=LONGEST_WAIT_SECONDS if seconds is None else seconds, waits_for=whom)


async def look_through(gates: Gates, runtimes: Runtimes, bells: Bells) -> None:
    """Another configuration is in force, or this process has just begun: look at everything that waits for a model."""
    for reader in READERS:
        for lane in await gates.store.list_cursors(consumer=reader, waiting=True):
            await _end_if_vain(gates, runtimes, bells, lane)


async def look_at(gates: Gates, runtimes: Runtimes, bells: Bells, claim: Claim) -> None:
    """Somebody has begun to wait: perhaps for a model that was exchanged while it was being asked."""
    lane = await gates.store.get_cursor(claim.consumer, claim.session)
    if lane is not None:
        await _end_if_vain(gates, runtimes, bells, lane)


async def _end_if_vain(gates: Gates, runtimes: Runtimes, bells: Bells, lane: ConsumerCursor) -> None:
    """End a lane's wait if whom it waits for is not whom it would ask."""
    if not lane.waits_for or lane.since is None:
        return
    session = await gates.store.get_session(lane.session)
    try:
        whom = runtimes.runtime(session.agent, session.choices).whom
    except NotFound:
        return  # there is no such agent any more
    if whom in ("", lane.waits_for):
        return
    wakes = (Wakeup(consumer=lane.consumer, waits_for=whom),)
    await gates.store.commit(Change(step=Step.CURSOR_SETTLE, session=session.id, at=gates.clock.now(), wakeups=wakes))
    gates.log.info("wait.ended", session=session.id, reader=lane.consumer)
    bells.ring(session.id)
