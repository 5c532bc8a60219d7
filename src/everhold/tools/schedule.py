"""The `schedule` tool: an agent makes, lists, cancels and pauses scheduled messages of its conversation.

A scheduled message is sent to the agent at its time, in the name of the person who asked, and the agent answers it. It
is never a command. The record is written in the commit of the call's result, so a call that is run again before that
makes no second schedule.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from everhold.core.ids import make_session_id
from everhold.core.policy import ToolReach
from everhold.core.roles import ChatPlace, PersonRole, ToolAccess
from everhold.core.schedule import (
    MAX_SCHEDULES,
    MissedRuns,
    Schedule,
    find_next_tick,
    format_local_time,
    parse_rule,
    pause_schedule,
    request_run,
    resume_schedule,
)
from everhold.core.schedule_target import ScheduleTarget, find_schedule_target
from everhold.errors import InvalidRequest, NotFound
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.model import ToolSpec
from everhold.ports.store import StateNamespace, StateRecord, StateWrite, Store
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult

MAX_TEXT_CHARS: Final = 4_000
WHEN_HELP: Final = (
    "in 20m; in half an hour; tomorrow at 9am; tonight at 8; on friday at 18:00; at 2027-01-31 09:00; every 2h; "
    "hourly; every weekday at 8:30; monday and thursday at noon; monthly on the last day at 18:00; or five fields of "
    "cron, with names of months and weekdays and L for the last day: 30 8 L * *"
)
CHANGES: Final = ("cancel", "pause", "resume", "run")


class ScheduleTool:
    """A repeated run before the commit has no effect, so the tool is pure."""

    effect = ToolEffect.PURE
    access = ToolAccess.ACT
    deadline = 10.0

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: RandomSource,
        zone: Callable[[], datetime.tzinfo],
        send_to: Sequence[str] = (),
    ) -> None:
        """`send_to` are the addresses where schedules may deliver besides their conversation."""
        self.spec = _build_spec(tuple(send_to))
        self._send_to = tuple(send_to)
        self._store = store
        self._clock = clock
        self._chance = chance
        self._zone = zone

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return ToolReach.OUTSIDE if arguments.get("to") else ToolReach.OWN

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
            return await self._create(arguments, context, count=len(own))
        if action not in CHANGES:
            raise InvalidRequest(
                f"`action` must be create, list, {', '.join(CHANGES)}", remedy="call it again with one of them"
            )
        wanted = arguments.get("id")
        found = next(((record, schedule) for record, schedule in own if schedule.id == wanted), None)
        if found is None:
            raise NotFound("this conversation has no schedule of this id", remedy="action: list shows the ids")
        return self._change(action, *found)

    async def _create(self, arguments: dict[str, Any], context: ToolContext, *, count: int) -> ToolResult:
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
        stamp = context.stamp
        target = await self._find_target(arguments.get("to"), context)
        schedule = Schedule(
            id=make_session_id(now, self._chance.bytes(10))[-6:],
            rule=rule,
            words=found[1],
            text=text,
            place=target.place,
            sender=target.sender,
            kind=target.kind,
            missed=_parse_missed(arguments.get("missed")),
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

    async def _find_target(self, to: Any, context: ToolContext) -> ScheduleTarget:
        """Return where a schedule delivers: in this conversation, or at an address of `send_to`."""
        stamp, origin = context.stamp, context.origin
        assert origin is not None
        if to is None:
            sender, kind = stamp.person.partition(":")[2], stamp.address.split(":")[3]
            return ScheduleTarget(place=structs.replace(origin, message=""), kind=kind, sender=sender)
        if not isinstance(to, str):
            raise InvalidRequest("`to` must be an address", remedy="call it again with one of send_to")
        people = await self._store.get_people()
        return find_schedule_target(to, allowed=self._send_to, agent=context.agent, person=stamp.person, people=people)

    def _change(self, action: str, record: StateRecord, schedule: Schedule) -> ToolResult:
        if action == "cancel":
            return ToolResult(text=f"Cancelled {schedule.id}.", state_writes=(record.replace_with(None),))
        now = self._clock.now()
        match action:
            case "pause":
                changed = pause_schedule(schedule)
            case "run":
                changed = request_run(schedule, now=now)
            case _:
                changed = resume_schedule(schedule, now=now)
        write = record.replace_with(msgspec.json.encode(changed).decode())
        return ToolResult(text=f"Changed: {self._describe(changed)}", state_writes=(write,))

    def _describe(self, schedule: Schedule) -> str:
        now, zone = self._clock.now(), self._zone()
        tick = find_next_tick(schedule.rule, after=max(now, schedule.last), made=schedule.made, zone=zone)
        when = "paused" if schedule.off else format_local_time(tick, zone) if tick is not None else "never"
        notes = [f"next: {'now' if schedule.asked else when}"]
        notes += ["missed runs are left out"] if schedule.missed is MissedRuns.SKIP else []
        return f"{schedule.id} · {schedule.words} · {' · '.join(notes)} · {schedule.text}"

    async def _list_own(self, context: ToolContext) -> list[tuple[StateRecord, Schedule]]:
        found = await self._store.list_state_records(StateNamespace.SCHEDULE)
        every = [(record, msgspec.json.decode(record.value, type=Schedule)) for record in found]
        return [(record, it) for record, it in every if it.address == context.stamp.address]


def _build_spec(send_to: tuple[str, ...]) -> ToolSpec:
    properties: dict[str, Any] = {
        "action": {"type": "string", "enum": ["create", "list", *CHANGES]},
        "when": {"type": "string", "description": "For create."},
        "text": {"type": "string", "maxLength": MAX_TEXT_CHARS, "description": "For create."},
        "missed": {
            "type": "string",
            "enum": [it.value for it in MissedRuns],
            "description": "For create: what to do with runs that a downtime missed; latest if not given.",
        },
        "id": {"type": "string", "description": "For cancel, pause, resume and run, which fires it now."},
    }
    if send_to:
        description = "For create: another chat in which it is heard and answered."
        properties["to"] = {"type": "string", "enum": list(send_to), "description": description}
    return ToolSpec(
        name="schedule",
        description=(
            "Scheduled messages of this conversation, for reminders and regular tasks. At its time, `text` is sent to "
            f"you as a message, and you answer it here. `when` is one of: {WHEN_HELP}."
        ),
        parameters={
            "type": "object",
            "properties": properties,
            "required": ["action"],
            "additionalProperties": False,
        },
    )


def _parse_missed(value: Any) -> MissedRuns:
    try:
        return MissedRuns.LATEST if value is None else MissedRuns(value)
    except ValueError:
        raise InvalidRequest("`missed` must be latest or skip", remedy="call it again with one of them") from None


def _require_right(context: ToolContext) -> None:
    """Refuse changes that no person asks for now, and in groups those of everybody except owners."""
    if not context.is_asked:
        raise InvalidRequest(
            "a schedule or another agent may not change schedules", remedy="ask the person to write to you"
        )
    if context.place is not ChatPlace.DIRECT and context.role < PersonRole.OWNER:
        raise InvalidRequest("in a group only an owner may change schedules", remedy="ask an owner to do it")
