"""Converts the cron jobs of hermes-agent into paused schedules.

There a job speaks in a fresh session. Here it speaks in the conversation of its chat, so a person resumes it.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from everhold.core.entries import ChatLocation
from everhold.core.schedule import Schedule, parse_rule
from everhold.hermes.importer.conversations import ImportedConversation
from everhold.hermes.importer.people import is_unknown
from everhold.hermes.reader.files import HermesProfile
from everhold.infra.safe_yaml import replace_surrogate_escapes
from everhold.ports.store import Change, StateNamespace, StateWrite, Step, Store

FILE: Final = "cron/jobs.json"
MAX_JOBS: Final = 1_000
MAX_TEXT_CHARS: Final = 20_000
MAX_NAME_CHARS: Final = 60
_LOST_KEYS: Final = {
    "script": "its script", "monitor": "its monitor", "workdir": "its folder",
    "context_from": "the results of other jobs",
    "model": "its model", "provider": "its model", "skills": "its skills", "skill": "its skill",
    "enabled_toolsets": "its tools",
}  # fmt: skip
"""Keys of a job that have no place here -> what it runs without."""

_UNITS: Final = ((1440, "d"), (60, "h"), (1, "m"))
"""Minutes -> the largest unit that a rule can be written in, because its number has four digits."""


@dataclass
class JobImport:
    """What was or would be made, and what was left behind and why."""

    made: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


async def import_jobs(
    store: Store,
    profile: HermesProfile,
    conversations: Iterable[ImportedConversation],
    *,
    at: float,
    zone: datetime.tzinfo,
) -> JobImport:
    """Make a paused schedule of each job that speaks in an imported chat. A repeated import makes none twice."""
    done = JobImport()
    chats = {_name_chat(it.location): it for it in conversations if not it.branch_of}
    for job in _read_jobs(profile, done)[:MAX_JOBS]:
        name = str(job.get("name") or job.get("id") or "unnamed")[:MAX_NAME_CHARS]
        schedule = _build_schedule(profile.name, job, chats, at=at, zone=zone)
        if isinstance(schedule, str):
            done.left.append(f"{FILE}: {name}: {schedule}")
            continue
        known = await store.get_state_record(StateNamespace.SCHEDULE, schedule.id)
        if lost := _list_lost(job):
            done.left.append(f"{FILE}: {name}: {', '.join(lost)}; the schedule {schedule.id} runs without")
        if known is not None:
            continue
        write = StateWrite(
            namespace=StateNamespace.SCHEDULE,
            key=schedule.id,
            value=msgspec.json.encode(schedule).decode(),
            version=0,
        )
        await store.commit(Change(step=Step.STATE, session="", at=at, state_writes=(write,)))
        done.made.append(f"{profile.name}: {name}: {schedule.words} ({schedule.id}, paused)")
    return done


def _read_jobs(profile: HermesProfile, done: JobImport) -> list[dict[str, Any]]:
    text = profile.files.read_text(FILE)
    try:
        given: Any = json.loads(replace_surrogate_escapes(text or "null"))
    except (ValueError, RecursionError):
        done.left.append(f"{FILE}: is not valid JSON")
        return []
    jobs = given.get("jobs") if isinstance(given, dict) else given
    if not isinstance(jobs, list | None):
        done.left.append(f"{FILE}: has no list of jobs")
        return []
    found = [job for job in jobs or () if isinstance(job, dict)]
    if len(found) > MAX_JOBS:
        done.left.append(f"{FILE}: {len(found) - MAX_JOBS} jobs more than {MAX_JOBS}")
    return found


def _build_schedule(
    agent: str,
    job: Mapping[str, Any],
    chats: Mapping[tuple[str, str, str], ImportedConversation],
    *,
    at: float,
    zone: datetime.tzinfo,
) -> Schedule | str:
    """Return the schedule of a job, or why there is none."""
    text = job.get("prompt")
    if not isinstance(text, str) or not text.strip() or job.get("no_agent"):
        return "it only runs a program, which everhold does not do"
    words = _build_words(job.get("schedule"), at=at, zone=zone)
    parsed = parse_rule(f"{words} x") if words else None
    if parsed is None:
        return "its time is over, or is not known to the import"
    place = _find_place(job)
    chat = chats.get(place) if place is not None else None
    if chat is None:
        return "it delivers to no chat that is imported; make it there with /schedule"
    platform, _, sender = chat.identity.partition(":")
    if platform != chat.address.platform or is_unknown(chat.identity):
        return "it is unknown who would ask there; make it there with /schedule"
    return Schedule(
        id=_build_id(agent, job),
        rule=parsed[0],
        words=parsed[1],
        text=text.strip()[:MAX_TEXT_CHARS],
        place=ChatLocation(
            platform=platform, account=chat.address.account or agent, chat=chat.address.chat, thread=chat.address.thread
        ),
        sender=sender,
        kind=chat.address.kind,
        made=at,
        agent=agent,
        off=True,
        address=str(chat.address),
    )


def _build_id(agent: str, job: Mapping[str, Any]) -> str:
    """Return an id that is the same in every import."""
    name = f"{agent}\0{job.get('id') or job.get('name')}"
    return base64.b32encode(hashlib.sha256(name.encode("utf-8", "replace")).digest()).decode().lower()[:6]


def _build_words(given: Any, *, at: float, zone: datetime.tzinfo) -> str:
    """Return the rule of a job as /schedule writes it; empty if there is none, or its time is over."""
    match given:
        case {"kind": "interval", "minutes": int(minutes)} if minutes > 0:
            count, unit = next((minutes // size, unit) for size, unit in _UNITS if minutes % size == 0)
            return f"every {count}{unit}"
        case {"kind": "cron", "expr": str(expression)}:
            return " ".join(expression.split())
        case {"kind": "once", "run_at": str(moment)}:
            try:
                when = datetime.datetime.fromisoformat(moment)
                when = when if when.tzinfo is not None else when.replace(tzinfo=zone)
                return f"at {when.astimezone(zone):%Y-%m-%d %H:%M}" if when.timestamp() > at else ""
            except (ValueError, OverflowError):  # also the ends of the calendar in another zone
                return ""
        case _:
            return ""


def _find_place(job: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return platform, chat and thread of the chat that a job delivers to."""
    deliver, origin = job.get("deliver"), job.get("origin")
    if deliver in (None, "", "origin"):
        if not isinstance(origin, dict):
            return None
        parts = (origin.get(key) for key in ("platform", "chat_id", "thread_id"))
        platform, chat, thread = (str(part) if isinstance(part, str | int) else "" for part in parts)
        return platform, chat, thread
    if isinstance(deliver, str) and 1 <= deliver.count(":") <= 2 and "," not in deliver:
        platform, chat, *rest = deliver.split(":")
        return platform, chat, rest[0] if rest else ""
    return None


def _name_chat(place: ChatLocation) -> tuple[str, str, str]:
    return place.platform, place.chat, place.thread


def _list_lost(job: Mapping[str, Any]) -> list[str]:
    lost = [
        what for key, what in _LOST_KEYS.items() if any(job[it] for it in job if it == key or it.startswith(f"{key}_"))
    ]
    repeat = job.get("repeat")
    if isinstance(repeat, dict) and repeat.get("times"):
        lost.append("the number of its runs")
    if len(str(job.get("prompt", "")).strip()) > MAX_TEXT_CHARS:
        lost.append(f"what comes after {MAX_TEXT_CHARS:,} characters of its text")
    return list(dict.fromkeys(lost))
