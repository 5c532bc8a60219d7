"""Ends waits that concern models nobody would ask any more. A wait that is still somebody's wish is never shortened."""

from __future__ import annotations

from typing import Final

from everhold.errors import NotFound
from everhold.flow import job
from everhold.flow.gates import Bells, Gates
from everhold.flow.runtime import Runtimes
from everhold.ports.store import Change, Lane, Step, Wake

READERS: Final = ("mind", job.READER, job.REVIEW)
"""Who asks an agent's models."""


async def look_through(gates: Gates, runtimes: Runtimes, bells: Bells) -> None:
    """Another configuration is in force, or this process has just begun: look at everything that waits for a model."""
    for reader in READERS:
        for lane in await gates.store.lanes(reader=reader, waiting=True):
            await _end_if_vain(gates, runtimes, bells, lane)


async def look_at(gates: Gates, runtimes: Runtimes, bells: Bells, *, reader: str, session: str) -> None:
    """Somebody has begun to wait: perhaps for a model that was exchanged while it was being asked."""
    lane = await gates.store.lane(reader, session)
    if lane is not None:
        await _end_if_vain(gates, runtimes, bells, lane)


async def _end_if_vain(gates: Gates, runtimes: Runtimes, bells: Bells, lane: Lane) -> None:
    """End a lane's wait if whom it waits for is not whom it would ask."""
    if not lane.whom or lane.since is None:
        return
    session = await gates.store.session(lane.session)
    try:
        whom = runtimes.runtime(session.agent, session.choices).whom
    except NotFound:
        return  # there is no such agent any more
    if whom in ("", lane.whom):
        return
    wakes = (Wake(reader=lane.reader, whom=whom),)
    await gates.store.commit(Change(step=Step.SETTLE, session=session.id, at=gates.clock.now(), wakes=wakes))
    gates.log.info("wait.ended", session=session.id, reader=lane.reader)
    bells.ring(session.id)
