"""`/schedule`: what a command makes of the schedules of its conversation. Commits nothing by itself."""

from __future__ import annotations

import datetime
from typing import Final

import msgspec
from msgspec import Struct

from everhold.core.entries import Entry, Heard
from everhold.core.ids import session_id
from everhold.core.schedule import HELP, Schedule, local, next_tick, parse
from everhold.flow.gates import Gates
from everhold.ports.store import Session, StateNamespace, StateRecord, StateWrite

PREFIX: Final = "schedule/"
"""The beginning of the message ids of scheduled messages."""
MOST: Final = 20
"""How many schedules one conversation may have."""


class Plan(Struct, frozen=True, kw_only=True):
    """What to answer, and what to keep with the answer."""

    say: str
    state_write: StateWrite | None = None


async def plan(gates: Gates, session: Session, entry: Entry, argument: str, *, zone: datetime.tzinfo) -> Plan:
    assert isinstance(entry.body, Heard)
    mine = await _mine(gates, entry.body)
    word, _, rest = argument.partition(" ")
    now = gates.clock.now()
    match word:
        case "" | "list":
            lines = [f"{it.id} · {it.words} · {it.text}" for _, it in mine]
            return Plan(say="\n".join(lines) or f"Nothing is scheduled here. {HELP}")
        case "remove" | "delete":
            kept = next((record for record, it in mine if it.id == rest.strip()), None)
            if kept is None:
                return Plan(say="There is no such schedule here. /schedule lists them.")
            return Plan(say="Removed.", state_write=kept.replace_with(None))
    found = parse(argument)
    if found is None or not found[2]:
        return Plan(say=f"Say when, and what: {HELP}")
    if len(mine) >= MOST:
        return Plan(say=f"There are {MOST} schedules here already. /schedule remove ID makes room.")
    rule, words, text = found
    tick = next_tick(rule, after=now, made=now, zone=zone)
    if tick is None:
        return Plan(say="That time never comes.")
    body = entry.body
    schedule = Schedule(
        id=session_id(now, gates.chance.bytes(10))[-6:],
        rule=rule,
        words=words,
        text=text,
        place=msgspec.structs.replace(body.origin, message=""),
        sender=_sender(body),
        kind=_kind(body),
        made=now,
        agent=session.agent,
        address=body.stamp.address,
    )
    value = msgspec.json.encode(schedule).decode()
    write = StateWrite(namespace=StateNamespace.SCHEDULE, key=schedule.id, value=value, version=0)
    once = next_tick(rule, after=tick, made=now, zone=zone) is None
    word = "At" if once else "First at"
    return Plan(say=f"Scheduled ({schedule.id}). {word} {local(tick, zone)}.", state_write=write)


async def _mine(gates: Gates, body: Heard) -> list[tuple[StateRecord, Schedule]]:
    """The schedules of this very conversation."""
    place = msgspec.structs.replace(body.origin, message="")
    found = await gates.store.list_state_records(StateNamespace.SCHEDULE)
    every = [(record, msgspec.json.decode(record.value, type=Schedule)) for record in found]
    # one that does not say where it was made is older than that
    return [
        (record, it) for record, it in every if (it.address == body.stamp.address if it.address else it.place == place)
    ]


def _sender(body: Heard) -> str:
    return body.speaker or body.stamp.person


def _kind(body: Heard) -> str:
    return body.stamp.address.split(":")[3] if body.stamp.address else "dm"
