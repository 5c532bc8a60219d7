"""The `schedule` tool: an agent makes, lists, cancels and pauses scheduled messages of its conversation.

A scheduled message is sent to the agent at its time, in the name of the person who asked, and the agent answers it. It
is never a command. The record is written in the commit of the call's result, so a call that is run again before that
makes no second schedule.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import structs

from everhold.core.ids import make_session_id
from everhold.core.policy import ToolReach
from everhold.core.roles import ChatPlace, PersonRole, ToolAccess
from everhold.core.schedule import (
    MAX_SCHEDULES,
    Schedule,
    find_next_tick,
    format_local_time,
    parse_rule,
    pause_schedule,
    resume_schedule,
)
from everhold.errors import InvalidRequest, NotFound
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.model import ToolSpec
from everhold.ports.store import StateNamespace, StateRecord, StateWrite, Store
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult

MAX_TEXT_CHARS: Final = 4_000
WHEN_HELP: Final = (
    "in 20m; at 18:00; tomorrow 9:00; at 2027-01-31 09:00; every 2h; daily 08:30; mon,fri 18:00; or five fields of "
    "cron, with names of months and weekdays and L for the last day: 30 8 L * *"
)


class ScheduleTool:
    """A repeated run before the commit has no effect, so the tool is pure."""

    effect = ToolEffect.PURE
    access = ToolAccess.ACT
    deadline = 10.0
    spec = ToolSpec(
        name="schedule",
        description=(
            "Scheduled messages of this conversation, for reminders and regular tasks. At its time, `text` is sent to "
            f"you as a message, and you answer it here. `when` is one of: {WHEN_HELP}."
        ),
        parameters={
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["create", "list", "cancel", "pause", "resume"]},
                "when": {"type": "string", "description": "For create."},
                "text": {"type": "string", "maxLength": MAX_TEXT_CHARS, "description": "For create."},
                "id": {"type": "string", "description": "For cancel, pause and resume."},
            },
            "required": ["action"],
            "additionalProperties": False,
        },
    )

    def __init__(self, store: Store, clock: Clock, chance: RandomSource, zone: Callable[[], datetime.tzinfo]) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._zone = zone

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return ToolReach.OWN

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if context.origin is None or not context.stamp.address:
            raise InvalidRequest("there is no conversation here to schedule messages in", remedy="say so to the person")
        own = await self._list_own(context)
        action = arguments.get("action")
        if action == "list":
            lines = [self._describe(schedule) for _, schedule in own]
            return ToolResult(text="\n".join(lines) or "Nothing is scheduled in this conversation.")
        _require_right(context)
        if action == "create":
            return self._create(arguments, context, count=len(own))
        if action not in ("cancel", "pause", "resume"):
            raise InvalidRequest(
                "`action` must be create, list, cancel, pause or resume", remedy="call it again with one of them"
            )
        wanted = arguments.get("id")
        found = next(((record, schedule) for record, schedule in own if schedule.id == wanted), None)
        if found is None:
            raise NotFound("this conversation has no schedule of this id", remedy="action: list shows the ids")
        return self._change(action, *found)

    def _create(self, arguments: dict[str, Any], context: ToolContext, *, count: int) -> ToolResult:
        when, text = arguments.get("when"), arguments.get("text")
        if not isinstance(when, str) or not isinstance(text, str) or not text.strip():
            raise InvalidRequest("`when` and `text` are missing", remedy="call it again with both")
        if len(text) > MAX_TEXT_CHARS:
            raise InvalidRequest(
                f"the text has {len(text):,} characters, and may have {MAX_TEXT_CHARS:,}", remedy="shorten it"
            )
        if count >= MAX_SCHEDULES:
            raise InvalidRequest(
                f"this conversation has {MAX_SCHEDULES} schedules already", remedy="cancel one of them first"
            )
        found = parse_rule(when.strip())
        if found is None or found[2]:
            raise InvalidRequest(f"{when[:100]!r} is no time", remedy=f"write one of: {WHEN_HELP}")
        now, zone, rule = self._clock.now(), self._zone(), found[0]
        tick = find_next_tick(rule, after=now, made=now, zone=zone)
        if tick is None:
            raise InvalidRequest(f"{when[:100]!r} never comes", remedy="choose a later time")
        stamp, origin = context.stamp, context.origin
        assert origin is not None
        schedule = Schedule(
            id=make_session_id(now, self._chance.bytes(10))[-6:],
            rule=rule,
            words=found[1],
            text=text,
            place=structs.replace(origin, message=""),
            sender=stamp.person.partition(":")[2],
            kind=stamp.address.split(":")[3],
            made=now,
            agent=context.agent,
            address=stamp.address,
        )
        write = StateWrite(
            namespace=StateNamespace.SCHEDULE,
            key=schedule.id,
            value=msgspec.json.encode(schedule).decode(),
            version=0,
        )
        return ToolResult(text=f"Scheduled: {self._describe(schedule)}", state_writes=(write,))

    def _change(self, action: str, record: StateRecord, schedule: Schedule) -> ToolResult:
        if action == "cancel":
            return ToolResult(text=f"Cancelled {schedule.id}.", state_writes=(record.replace_with(None),))
        now = self._clock.now()
        changed = pause_schedule(schedule) if action == "pause" else resume_schedule(schedule, now=now)
        write = record.replace_with(msgspec.json.encode(changed).decode())
        return ToolResult(text=f"Changed: {self._describe(changed)}", state_writes=(write,))

    def _describe(self, schedule: Schedule) -> str:
        now, zone = self._clock.now(), self._zone()
        tick = find_next_tick(schedule.rule, after=max(now, schedule.last), made=schedule.made, zone=zone)
        when = "paused" if schedule.off else format_local_time(tick, zone) if tick is not None else "never"
        return f"{schedule.id} · {schedule.words} · next: {when} · {schedule.text}"

    async def _list_own(self, context: ToolContext) -> list[tuple[StateRecord, Schedule]]:
        found = await self._store.list_state_records(StateNamespace.SCHEDULE)
        every = [(record, msgspec.json.decode(record.value, type=Schedule)) for record in found]
        return [(record, it) for record, it in every if it.address == context.stamp.address]


def _require_right(context: ToolContext) -> None:
    """Refuse changes that no person asks for now, and in groups those of everybody except owners."""
    if not context.is_asked:
        raise InvalidRequest(
            "a schedule or another agent may not change schedules", remedy="ask the person to write to you"
        )
    if context.place is not ChatPlace.DIRECT and context.role < PersonRole.OWNER:
        raise InvalidRequest("in a group only an owner may change schedules", remedy="ask an owner to do it")
