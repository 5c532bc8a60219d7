"""The schedule runner: fires each schedule in the conversation it was made in, once per tick, even after a downtime.

A tick is a message like any other. It is accepted under its own dedup key, and the schedule's record is written in the
same commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable
from typing import Any, Final

import msgspec

from everhold.core.schedule import Schedule, find_due_tick, find_next_tick, format_local_time, is_skipped
from everhold.engine.commands.schedule import SCHEDULE_PREFIX
from everhold.engine.state_updates import update_state_record
from everhold.errors import Conflict, InDoubt, NotFound, Refused, Transient
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.platform import SCHEDULED_EVENT, AcceptMessage, IncomingMessage
from everhold.ports.store import Change, StateNamespace, StateRecord, Step, Store

POLL_SECONDS: Final = 5.0
"""The longest time between two checks, because clocks jump and schedules are added."""


class ScheduleRunner:
    """Runs all schedules of a home."""

    def __init__(
        self,
        store: Store,
        *,
        accept: AcceptMessage,
        clock: Clock,
        zone: Callable[[], datetime.tzinfo],
        log: EventLogger,
    ) -> None:
        self._store = store
        self._accept = accept
        self._clock = clock
        self._zone = zone
        self._log = log
        self._late: dict[str, float] = {}
        """Delayed ticks that were already logged."""

    async def run(self) -> None:
        """Fire due schedules until the gateway stops."""
        while True:
            wait = await self.fire_due()
            await asyncio.sleep(wait)

    async def fire_due(self) -> float:
        """Fire the due schedules; return the seconds until the next check."""
        # Hosts fire the same schedules, and their clocks differ. The store's clock is the same for all.
        now = self._clock.now() if self._store.is_exclusive else await self._store.get_time()
        zone = self._zone()
        wait = POLL_SECONDS
        for kept, schedule in await self._load_records():
            tick = schedule.asked or (None if schedule.off else find_due_tick(schedule, now=now, zone=zone))
            if tick is not None:
                try:
                    if schedule.asked or not is_skipped(schedule, tick, now=now):
                        schedule = await self._fire(kept, schedule, tick)
                    else:
                        schedule = await self._skip(kept, schedule, tick)
                except (Transient, InDoubt, Refused) as error:  # the recipient is unknown now, so the tick stays due
                    if self._late.get(schedule.id) != tick:
                        self._log.warning("schedule.retrying", schedule=schedule.id, error=error)
                    self._late[schedule.id] = tick
                    continue
                except Conflict:  # it was removed at this moment, or fired by another process
                    continue
                self._late.pop(schedule.id, None)
            if schedule.off:
                continue
            coming = find_next_tick(schedule.rule, after=max(now, schedule.last), made=schedule.made, zone=zone)
            if coming is not None:
                wait = min(wait, max(0.05, coming - now))
        return wait

    async def _fire(self, kept: StateRecord, schedule: Schedule, tick: float) -> Schedule:
        """Accept the message of a tick, and record the tick in the same commit."""
        if schedule.asked:  # the rule's own ticks stay as they are
            said, over = msgspec.structs.replace(schedule, asked=0.0), False
        else:
            said, over = self._pass_tick(schedule, tick)
        # A schedule without further ticks is deleted, otherwise it would count against the limit.
        value = None if over else msgspec.json.encode(said).decode()
        name = f"{schedule.id}@{tick:.3f}/run" if schedule.asked else f"{schedule.id}@{tick:.0f}"
        place = msgspec.structs.replace(schedule.place, message=f"{SCHEDULE_PREFIX}{name}")
        verdict = await self._accept(
            IncomingMessage(
                origin=place,
                text=schedule.text,
                sender=schedule.sender,
                kind=schedule.kind,
                event=SCHEDULED_EVENT,
                agent=schedule.agent,
                state_write=kept.replace_with(value),
            )
        )
        if verdict.outcome == "denied":
            self._log.warning("schedule.denied", schedule=schedule.id, reason=verdict.reason, gone=over)
        else:
            self._log.info("schedule.fired", schedule=schedule.id, outcome=verdict.outcome)
        return said

    async def _skip(self, kept: StateRecord, schedule: Schedule, tick: float) -> Schedule:
        """Record a tick that a downtime missed, without a message."""
        passed, over = self._pass_tick(schedule, tick)
        write = kept.replace_with(None if over else msgspec.json.encode(passed).decode())
        change = Change(step=Step.STATE, session="", at=self._clock.now(), state_writes=(write,))
        await self._store.commit(change)
        self._log.info("schedule.skipped", schedule=schedule.id, tick=tick, gone=over)
        return passed

    def _pass_tick(self, schedule: Schedule, tick: float) -> tuple[Schedule, bool]:
        """Return the schedule after a tick, and whether it has no further one."""
        passed = msgspec.structs.replace(schedule, last=tick)
        return passed, find_next_tick(passed.rule, after=tick, made=passed.made, zone=self._zone()) is None

    # -- for operators -----------------------------------------------------------------------------------------------

    async def list_schedules(self) -> list[Schedule]:
        return [schedule for _, schedule in await self._load_records()]

    async def _load_records(self) -> list[tuple[StateRecord, Schedule]]:
        found = []
        for record in await self._store.list_state_records(StateNamespace.SCHEDULE):
            with contextlib.suppress(msgspec.DecodeError):
                found.append((record, msgspec.json.decode(record.value, type=Schedule)))
        return found

    async def describe_schedules(self) -> list[dict[str, Any]]:
        now, zone = self._clock.now(), self._zone()
        found = []
        for it in await self.list_schedules():
            tick = find_next_tick(it.rule, after=max(now, it.last), made=it.made, zone=zone)
            found.append(
                {
                    "id": it.id,
                    "when": it.words,
                    "text": it.text,
                    "platform": it.place.platform,
                    "chat": it.place.chat,
                    "agent": it.agent,
                    "last": it.last,
                    "paused": it.off,
                    "missed": it.missed.value,
                    "next": tick,
                    "next_local": "paused"
                    if it.off
                    else format_local_time(tick, zone)
                    if tick is not None
                    else "never",
                }
            )
        return found

    async def remove(self, id: str) -> None:
        if id not in {schedule.id for schedule in await self.list_schedules()}:
            raise NotFound(f"there is no schedule {id!r}", remedy="see `everhold schedules list`")
        # It is deleted even if it was fired, and so rewritten, at this moment.
        await update_state_record(self._store, StateNamespace.SCHEDULE, id, at=self._clock.now(), decide=lambda _: None)
