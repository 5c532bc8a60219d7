"""What is said at its time: each schedule speaks in the conversation it was made in, once per tick, whoever was down.

A tick is a message like any other: it goes through the door under a key of its own, and that it was said commits with
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable
from typing import Any, Final

import msgspec

from everhold.core.schedule import Schedule, due, local, next_tick
from everhold.errors import InDoubt, NotFound, Refused, Transient
from everhold.flow.plan import PLATFORM, PREFIX
from everhold.ports.clock import Clock
from everhold.ports.log import Log
from everhold.ports.platform import SCHEDULED, Accept, Incoming
from everhold.ports.store import Change, Position, Step, Store

LOOK_SECONDS: Final = 20.0
"""How long at most nobody looks: clocks jump, and schedules are made meanwhile."""


class Schedules:
    """Every schedule of a home, and who says them."""

    def __init__(
        self, store: Store, *, accept: Accept, clock: Clock, zone: Callable[[], datetime.tzinfo], log: Log
    ) -> None:
        self._store = store
        self._accept = accept
        self._clock = clock
        self._zone = zone
        self._log = log

    async def run(self) -> None:
        """Say what is due, for ever."""
        while True:
            wait = await self.say_due()
            await asyncio.sleep(wait)

    async def say_due(self) -> float:
        """Say what is due now; seconds until it makes sense to look again."""
        now, zone = self._clock.now(), self._zone()
        wait = LOOK_SECONDS
        for schedule in await self.all():
            if schedule.off:
                continue
            tick = due(schedule, now=now, zone=zone)
            if tick is not None:
                try:
                    schedule = await self._say(schedule, tick)
                except (Transient, InDoubt, Refused) as error:  # nobody knows who would hear it: it stays due
                    self._log.warning("schedule.later", schedule=schedule.id, error=error)
                    continue
            coming = next_tick(schedule.rule, after=max(now, schedule.last), made=schedule.made, zone=zone)
            if coming is not None:
                wait = min(wait, max(0.05, coming - now))
        return wait

    async def _say(self, schedule: Schedule, tick: float) -> Schedule:
        said = msgspec.structs.replace(schedule, last=tick)
        place = msgspec.structs.replace(schedule.place, message=f"{PREFIX}{schedule.id}@{tick:.0f}")
        verdict = await self._accept(
            Incoming(
                origin=place,
                text=schedule.text,
                sender=schedule.sender,
                kind=schedule.kind,
                event=SCHEDULED,
                agent=schedule.agent,
                position=_position(
                    said, over=next_tick(said.rule, after=tick, made=said.made, zone=self._zone()) is None
                ),
            )
        )
        self._log.info("schedule.said", schedule=schedule.id, outcome=verdict.outcome, reason=verdict.reason)
        return said

    # -- for whoever is in charge ------------------------------------------------------------------------------------

    async def all(self) -> list[Schedule]:
        found = []
        for position in await self._store.positions(prefix=PREFIX, platform=PLATFORM):
            with contextlib.suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(position.value, type=Schedule))
        return found

    async def listed(self) -> list[dict[str, Any]]:
        now, zone = self._clock.now(), self._zone()
        found = []
        for it in await self.all():
            tick = next_tick(it.rule, after=max(now, it.last), made=it.made, zone=zone)
            found.append(
                {
                    "id": it.id,
                    "when": it.words,
                    "text": it.text,
                    "platform": it.place.platform,
                    "chat": it.place.chat,
                    "agent": it.agent,
                    "last": it.last,
                    "next": tick,
                    "next_local": local(tick, zone) if tick is not None else "never",
                }
            )
        return found

    async def remove(self, id: str) -> None:
        if id not in {schedule.id for schedule in await self.all()}:
            raise NotFound(f"there is no schedule {id!r}", remedy="everhold schedules list")
        position = Position(platform=PLATFORM, account="", name=PREFIX + id, value="")
        await self._store.commit(Change(step=Step.POSITION, session="", at=self._clock.now(), position=position))


def _position(schedule: Schedule, *, over: bool) -> Position:
    """What is kept of a schedule; nothing of one that never comes again, or it would count as one for ever."""
    value = "" if over else msgspec.json.encode(schedule).decode()
    return Position(platform=PLATFORM, account="", name=PREFIX + schedule.id, value=value)
