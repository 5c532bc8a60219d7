"""When something is due again: words -> a rule, a rule -> the next tick. The zone is an argument, the time is, too."""

from __future__ import annotations

import datetime
import re
from typing import Final, TypeAlias

from msgspec import Struct

from everhold.core.entries import Place

SHORTEST_SECONDS: Final = 60.0
MOST_DAYS: Final = 366 * 8
"""How far ahead a rule is looked through: the 29th of February comes around in this time."""
HELP: Final = (
    "/schedule in 20m TEXT, /schedule at 18:00 TEXT, /schedule tomorrow 9:00 TEXT, /schedule at 2027-01-31 09:00 TEXT, "
    "/schedule every 2h TEXT, /schedule daily 08:30 TEXT, /schedule mon,fri 18:00 TEXT, /schedule 30 8 * * 1-5 TEXT; "
    "/schedule lists, /schedule remove ID"
)

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WORDS: Final = {
    "daily": range(7), "day": range(7), "weekdays": range(5), "weekday": range(5), "weekends": range(5, 7)
}  # fmt: skip
_UNITS: Final = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN: Final = r"\s+(\d{1,4})\s*(m(?:in(?:ute)?s?)?|h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?)\b\s*"
_EVERY: Final = re.compile("every" + _SPAN, re.IGNORECASE)
_IN: Final = re.compile("in" + _SPAN, re.IGNORECASE)
_SOON: Final = re.compile(r"(?:at|(tomorrow)(?:\s+at)?)\s+(\d\d?):(\d\d)\b\s*", re.IGNORECASE)
_AT: Final = re.compile(r"at\s+(\d{4}-\d\d-\d\d)[ T](\d\d?):(\d\d)\b\s*", re.IGNORECASE)
_NAMED: Final = re.compile(r"(?:every\s+)?([a-z,]+)\s+(?:at\s+)?(\d\d?):(\d\d)\b\s*", re.IGNORECASE)
_CRON: Final = re.compile(r"((?:[\d*/,-]+\s+){4}[\d*/,-]+)(?:\s+|$)")
_RANGES: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


class Every(Struct, frozen=True, tag="every"):
    """Again and again after so many seconds, counted from when it was made."""

    seconds: float


class Once(Struct, frozen=True, tag="once"):
    """At one local time: (year, month, day, hour, minute)."""

    at: tuple[int, int, int, int, int]


class After(Struct, frozen=True, tag="after"):
    """So many seconds after it was made."""

    seconds: float


class Soon(Struct, frozen=True, tag="soon"):
    """At the next such local time after it was made, or at that of the next day."""

    at: tuple[int, int]
    tomorrow: bool = False


class Cron(Struct, frozen=True, tag="cron"):
    """At these minutes of these hours of these days. With both kinds of days given, either will do, as cron has it."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...] = ()
    """Of the month; empty: any."""
    months: tuple[int, ...] = ()
    weekdays: tuple[int, ...] = ()
    """Monday is 0; empty: any."""


When: TypeAlias = Every | Once | After | Soon | Cron


class Schedule(Struct, frozen=True, omit_defaults=True):
    """Something to be said again and again, on whose behalf, and where."""

    id: str
    rule: When
    words: str
    """The rule as it was given."""
    text: str
    place: Place
    sender: str
    kind: str
    made: float
    last: float = 0.0
    """The tick that was said last."""
    agent: str = ""
    off: bool = False
    address: str = ""
    """The conversation it was made in."""


def parse(text: str) -> tuple[When, str, str] | None:
    """(rule, its words, what follows them), or None if it does not begin with a rule."""
    for shape, read in ((_EVERY, _every), (_IN, _in), (_AT, _at), (_SOON, _soon), (_NAMED, _named), (_CRON, _cron)):
        found = shape.match(text)
        if found is not None and (rule := read(found)) is not None:
            return rule, found[0].strip(), text[found.end() :].strip()
    return None


def next_tick(rule: When, *, after: float, made: float, zone: datetime.tzinfo) -> float | None:
    """The first time behind `after` that a rule names, or None if there is none any more."""
    match rule:
        case Every(seconds=seconds):
            passed = max(0.0, after - made)
            return made + (passed // seconds + 1) * seconds
        case Once(at=at):
            moment = datetime.datetime(*at, tzinfo=zone).timestamp()
            return moment if moment > after else None
        case After(seconds=seconds):
            return made + seconds if made + seconds > after else None
        case Soon(at=at, tomorrow=tomorrow):
            tick = _next_of(Cron(minutes=at[1:], hours=at[:1]), _midnight(made, zone) if tomorrow else made, zone)
            return tick if tick is not None and tick > after else None
        case Cron():
            return _next_of(rule, after, zone)


def local(at: float, zone: datetime.tzinfo) -> str:
    """A moment as people read it, in the zone that schedules are meant in."""
    return datetime.datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M %Z")


def due(schedule: Schedule, *, now: float, zone: datetime.tzinfo) -> float | None:
    """The latest tick that should have been said by now and was not: what was missed is made up for once."""
    rule, since = schedule.rule, max(schedule.last, schedule.made)
    match rule:
        case Every(seconds=seconds):
            tick: float | None = schedule.made + (now - schedule.made) // seconds * seconds
        case Cron():
            tick = _last_of(rule, since, now, zone)
        case _:  # these come once
            tick = next_tick(rule, after=since, made=schedule.made, zone=zone)
    return tick if tick is not None and since < tick <= now else None


def _every(found: re.Match[str]) -> When | None:
    seconds = _seconds(found)
    return Every(seconds) if seconds >= SHORTEST_SECONDS else None


def _in(found: re.Match[str]) -> When | None:
    seconds = _seconds(found)
    return After(seconds) if seconds >= SHORTEST_SECONDS else None


def _seconds(found: re.Match[str]) -> float:
    return int(found[1]) * _UNITS[found[2][0].lower()]


def _soon(found: re.Match[str]) -> When | None:
    hour, minute = int(found[2]), int(found[3])
    return Soon((hour, minute), tomorrow=bool(found[1])) if hour < 24 and minute < 60 else None


def _at(found: re.Match[str]) -> When | None:
    try:
        day = datetime.date.fromisoformat(found[1])
    except ValueError:
        return None
    hour, minute = int(found[2]), int(found[3])
    return Once((day.year, day.month, day.day, hour, minute)) if hour < 24 and minute < 60 else None


def _named(found: re.Match[str]) -> When | None:
    hour, minute = int(found[2]), int(found[3])
    if hour > 23 or minute > 59:
        return None
    days: set[int] = set()
    for word in found[1].lower().split(","):
        if word in _WORDS:
            days |= set(_WORDS[word])
        elif word[:3] in _DAYS and "monday tuesday wednesday thursday friday saturday sunday".find(word) >= 0:
            days.add(_DAYS.index(word[:3]))
        else:
            return None
    weekdays = () if len(days) == 7 else tuple(sorted(days))
    return Cron(minutes=(minute,), hours=(hour,), weekdays=weekdays)


def _cron(found: re.Match[str]) -> When | None:
    fields = found[1].split()
    sets = [_field(field, *span) for field, span in zip(fields, _RANGES, strict=True)]
    if any(it is None for it in sets):
        return None
    minutes, hours, days, months, weekdays = (it or () for it in sets)
    return Cron(
        minutes=minutes,
        hours=hours,
        days=() if fields[2] == "*" else days,
        months=() if fields[3] == "*" else months,
        # cron's Sunday is 0, and 7; ours is 6
        weekdays=() if fields[4] == "*" else tuple(sorted({(day - 1) % 7 for day in weekdays})),
    )


def _field(text: str, low: int, high: int) -> tuple[int, ...] | None:
    found: set[int] = set()
    for part in text.split(","):
        shape = re.fullmatch(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?", part)
        if shape is None:
            return None
        first = int(shape[1]) if shape[1] else low
        last = int(shape[2]) if shape[2] else first if shape[1] and not shape[3] else high
        step = int(shape[3] or 1)
        if not (low <= first <= last <= high) or step < 1:
            return None
        found |= set(range(first, last + 1, step))
    return tuple(sorted(found))


def _next_of(rule: Cron, after: float, zone: datetime.tzinfo) -> float | None:
    day = datetime.datetime.fromtimestamp(after, zone).date()
    for _ in range(MOST_DAYS):
        if _is_on(rule, day):
            ticks = sorted(_ticks(rule, day, zone))
            if (tick := next((tick for tick in ticks if tick > after), None)) is not None:
                return tick
        day += datetime.timedelta(days=1)
    return None


def _last_of(rule: Cron, since: float, now: float, zone: datetime.tzinfo) -> float | None:
    """The last tick by `now`, looked for from there on back: a long absence costs no more than a short one."""
    first = datetime.datetime.fromtimestamp(since, zone).date()
    # a day later: where clocks go back over midnight, tomorrow has begun before
    day = datetime.datetime.fromtimestamp(now, zone).date() + datetime.timedelta(days=1)
    for _ in range(MOST_DAYS):
        if day < first:
            break
        ticks = _ticks(rule, day, zone) if _is_on(rule, day) else ()
        if (tick := max((tick for tick in ticks if tick <= now), default=None)) is not None:
            return tick
        day -= datetime.timedelta(days=1)
    return None


def _midnight(at: float, zone: datetime.tzinfo) -> float:
    """The last moment of a time's local day."""
    following = datetime.datetime.fromtimestamp(at, zone).date() + datetime.timedelta(days=1)
    return datetime.datetime.combine(following, datetime.time(), tzinfo=zone).timestamp() - 1.0


def _is_on(rule: Cron, day: datetime.date) -> bool:
    if rule.months and day.month not in rule.months:
        return False
    by_month, by_week = day.day in rule.days, day.weekday() in rule.weekdays
    if rule.days and rule.weekdays:
        return by_month or by_week
    return (not rule.days or by_month) and (not rule.weekdays or by_week)


def _ticks(rule: Cron, day: datetime.date, zone: datetime.tzinfo) -> set[float]:
    """A day's ticks. An hour that comes twice counts once, unless every hour is meant; one left out is made up for."""
    folds = (0, 1) if len(rule.hours) == 24 else (0,)
    return {
        datetime.datetime(day.year, day.month, day.day, hour, minute, fold=fold, tzinfo=zone).timestamp()
        for hour in rule.hours
        for minute in rule.minutes
        for fold in folds
    }
