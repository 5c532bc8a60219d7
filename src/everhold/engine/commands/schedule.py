"""`/schedule`: list, add and remove the schedules of a conversation. Nothing here commits."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Struct

from everhold.core.entries import Entry, Heard
from everhold.core.ids import make_session_id
from everhold.core.schedule import (
    MAX_SCHEDULES,
    SCHEDULE_HELP,
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
from everhold.engine.gates import Gates
from everhold.errors import InvalidRequest
from everhold.ports.store import Session, StateNamespace, StateRecord, StateWrite

SCHEDULE_PREFIX: Final = "schedule/"
"""The beginning of the message ids of scheduled messages."""


class ScheduleReply(Struct, frozen=True, kw_only=True):
    """The reply, and the state record to write with it."""

    reply: str
    state_write: StateWrite | None = None


async def run_schedule_command(
    gates: Gates,
    session: Session,
    entry: Entry,
    argument: str,
    *,
    zone: datetime.tzinfo,
    send_to: Collection[str] = (),
) -> ScheduleReply:
    """`send_to` are the addresses where the agent's schedules may deliver besides their conversation."""
    assert isinstance(entry.body, Heard)
    own_schedules = await _list_own_schedules(gates, entry.body)
    word, _, rest = argument.partition(" ")
    now = gates.clock.now()
    match word:
        case "" | "list":
            lines = [_describe(it, now=now, zone=zone) for _, it in own_schedules]
            return ScheduleReply(reply="\n".join(lines) or f"Nothing is scheduled here. {SCHEDULE_HELP}")
        case "remove" | "delete":
            kept = next((record for record, it in own_schedules if it.id == rest.strip()), None)
            if kept is None:
                return ScheduleReply(reply="This chat has no such schedule. /schedule lists its schedules.")
            return ScheduleReply(reply="Removed.", state_write=kept.replace_with(None))
        case "pause" | "resume" | "run":
            found_one = next(((record, it) for record, it in own_schedules if it.id == rest.strip()), None)
            if found_one is None:
                return ScheduleReply(reply="This chat has no such schedule. /schedule lists its schedules.")
            record, it = found_one
            changed, reply = _change(word, it, now=now)
            write = record.replace_with(msgspec.json.encode(changed).decode())
            return ScheduleReply(reply=reply, state_write=write)
    argument, to, missed = parse_schedule_options(argument)
    found = parse_rule(argument)
    if found is None or not found[2]:
        return ScheduleReply(reply=f"Add a time and a text: {SCHEDULE_HELP}")
    if len(own_schedules) >= MAX_SCHEDULES:
        return ScheduleReply(
            reply=f"This chat already has {MAX_SCHEDULES} schedules. Remove one first: /schedule remove ID."
        )
    rule, words, text = found
    tick = find_next_tick(rule, after=now, made=now, zone=zone)
    if tick is None:
        return ScheduleReply(reply="That time never occurs.")
    body = entry.body
    target = ScheduleTarget(
        place=msgspec.structs.replace(body.origin, message=""), kind=_get_chat_kind(body), sender=_get_sender(body)
    )
    if to:
        people = await gates.store.get_people()
        try:
            target = find_schedule_target(
                to, allowed=send_to, agent=session.agent, person=body.stamp.person, people=people
            )
        except InvalidRequest as error:
            return ScheduleReply(reply=f"Nothing was scheduled: {error}.")
    schedule = Schedule(
        id=make_session_id(now, gates.chance.bytes(10))[-6:],
        rule=rule,
        words=words,
        text=text,
        place=target.place,
        sender=target.sender,
        kind=target.kind,
        missed=missed,
        made=now,
        agent=session.agent,
        address=body.stamp.address,
    )
    value = msgspec.json.encode(schedule).decode()
    write = StateWrite(namespace=StateNamespace.SCHEDULE, key=schedule.id, value=value, version=0)
    once = find_next_tick(rule, after=tick, made=now, zone=zone) is None
    word = "At" if once else "First at"
    return ScheduleReply(reply=f"Scheduled ({schedule.id}). {word} {format_local_time(tick, zone)}.", state_write=write)


def _describe(schedule: Schedule, *, now: float, zone: datetime.tzinfo) -> str:
    tick = find_next_tick(schedule.rule, after=max(now, schedule.last), made=schedule.made, zone=zone)
    when = "paused" if schedule.off else "never" if tick is None else f"next {format_local_time(tick, zone)}"
    return f"{schedule.id} · {schedule.words} · {when} · {schedule.text}"


def _change(word: str, schedule: Schedule, *, now: float) -> tuple[Schedule, str]:
    match word:
        case "pause":
            return pause_schedule(schedule), "Paused."
        case "run":
            return request_run(schedule, now=now), "It fires now."
        case _:
            return resume_schedule(schedule, now=now), "It fires again."


def parse_schedule_options(text: str) -> tuple[str, str, MissedRuns]:
    """Return the text without the options at its end, the address after `--to`, and what `--skip-missed` says. Each
    option counts once, because looking for more would copy a long text for each of them.
    """
    to, missed = "", MissedRuns.LATEST
    for _ in range(2):
        rest, _, last = text.rstrip().rpartition(" ")
        before, _, option = rest.rstrip().rpartition(" ")
        if last == "--skip-missed" and missed is MissedRuns.LATEST:
            text, missed = rest, MissedRuns.SKIP
        elif option == "--to" and not to:
            text, to = before, last
    return text, to, missed


async def _list_own_schedules(gates: Gates, body: Heard) -> list[tuple[StateRecord, Schedule]]:
    """Return the schedules of this conversation."""
    place = msgspec.structs.replace(body.origin, message="")
    found = await gates.store.list_state_records(StateNamespace.SCHEDULE)
    every = [(record, msgspec.json.decode(record.value, type=Schedule)) for record in found]
    # A schedule without an address was made by an older version.
    return [
        (record, it) for record, it in every if (it.address == body.stamp.address if it.address else it.place == place)
    ]


def _get_sender(body: Heard) -> str:
    return body.speaker or body.stamp.person.partition(":")[2]


def _get_chat_kind(body: Heard) -> str:
    return body.stamp.address.split(":")[3] if body.stamp.address else "dm"
