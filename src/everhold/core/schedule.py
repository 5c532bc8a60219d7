"""Parse schedule rules from text, and compute the next tick of a rule. Zone and time are arguments."""

from __future__ import annotations

import datetime
import enum
import re
from typing import Final, TypeAlias

from msgspec import Struct, structs

from everhold.core.entries import ChatLocation

MIN_INTERVAL_SECONDS: Final = 60.0
MAX_SCHEDULES: Final = 20
"""How many schedules one conversation may have."""
MAX_LOOKAHEAD_DAYS: Final = 366 * 8
"""How far ahead ticks are searched. A 29th of February occurs in this time."""
SCHEDULE_HELP: Final = (
    "/schedule in 20m TEXT, /schedule tomorrow at 9am TEXT, /schedule on friday at 18:00 TEXT, "
    "/schedule at 2027-01-31 09:00 TEXT, /schedule every 2h TEXT, /schedule every weekday at 8:30 TEXT, "
    "/schedule monthly on the last day at noon TEXT, /schedule 30 8 * * 1-5 TEXT; /schedule lists, /schedule run ID, "
    "/schedule pause ID, /schedule resume ID, /schedule remove ID. After TEXT: --to ADDRESS delivers elsewhere, "
    "--skip-missed leaves out what a downtime missed"
)
MISSED_GRACE_SECONDS: Final = 600.0
"""A schedule that leaves out missed runs still fires if it is this late at most."""

_DAY_NAMES: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_GROUPS: Final = {
    "daily": range(7), "day": range(7), "weekdays": range(5), "weekday": range(5), "weekends": range(5, 7)
}  # fmt: skip
_UNIT_SECONDS: Final = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN_PATTERN: Final = r"\s+(\d{1,4})\s*(m(?:in(?:ute)?s?)?|h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?)\b\s*"
_EVERY_PATTERN: Final = re.compile("every" + _SPAN_PATTERN, re.IGNORECASE)
_IN_PATTERN: Final = re.compile("in" + _SPAN_PATTERN, re.IGNORECASE)
_NEXT_TIME_PATTERN: Final = re.compile(r"(?:at|(tomorrow)(?:\s+at)?)\s+(\d\d?):(\d\d)\b\s*", re.IGNORECASE)
_DATE_PATTERN: Final = re.compile(r"at\s+(\d{4}-\d\d-\d\d)[ T](\d\d?):(\d\d)\b\s*", re.IGNORECASE)
_NAMED_DAYS_PATTERN: Final = re.compile(r"(?:every\s+)?([a-z,]+)\s+(?:at\s+)?(\d\d?):(\d\d)\b\s*", re.IGNORECASE)
_MONTH_NAMES: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# The repetitions are possessive, because a field has many readings but one end.
_NUMBERS: Final = r"[\d*/,-]++"
_MONTH_FIELD: Final = rf"(?:(?:\d++|{'|'.join(_MONTH_NAMES)}|\*)[-/,]?)++"
_WEEKDAY_FIELD: Final = rf"(?:(?:\d++|{'|'.join(_DAY_NAMES)}|\*)[-/,]?)++"
_CRON_PATTERN: Final = re.compile(
    rf"({_NUMBERS}\s++{_NUMBERS}\s++(?:L|{_NUMBERS})\s++{_MONTH_FIELD}\s++{_WEEKDAY_FIELD})(?:\s+|$)",
    re.IGNORECASE,
)
# What people say. A time of day is 9:30, 9am, 9:30 pm, noon, midnight or, after "at", 9.
_CLOCK: Final = r"(noon|midnight|\d{1,2}(?::\d\d)?(?: ?[ap]m)?)(?:\s+|$)"
_ONE_SPAN_PATTERN: Final = re.compile(
    r"(?:(in|every|each)\s+(?:(half\s+an?|half)\s+)?(?:an?\s+|one\s+)?(minute|hour|day|week)|(hourly))(?:\s+|$)",
    re.IGNORECASE,
)
_MOMENT_PATTERN: Final = re.compile(
    rf"(?:(today|tonight|tomorrow)\s+(at\s+)?|(?:on|next)\s+(?:([a-z]{{3,9}})|(\d{{4}}-\d\d-\d\d))\s+(at\s+)?|(at\s+)){_CLOCK}",
    re.IGNORECASE,
)
_REPEATED_PATTERN: Final = re.compile(
    rf"(?:(?:every|each)\s+)?([a-z]{{3,9}}(?:(?:,\s?|\s+and\s+)[a-z]{{3,9}}){{0,6}})\s+(at\s+)?{_CLOCK}", re.IGNORECASE
)
_MONTHLY_PATTERN: Final = re.compile(
    rf"(?:every month|monthly)\s+on\s+the\s+(?:(last)\s+day|(\d{{1,2}})(?:st|nd|rd|th)?)\s+(at\s+)?{_CLOCK}",
    re.IGNORECASE,
)
LAST_DAY: Final = 32
"""In the days of a rule: the last day of the month, which cron writes as L."""
_CRON_RANGES: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


class IntervalRule(Struct, frozen=True, tag="every"):
    """Repeats after so many seconds, counted from when it was made."""

    seconds: float


class DateRule(Struct, frozen=True, tag="once"):
    """At one local time: (year, month, day, hour, minute)."""

    at: tuple[int, int, int, int, int]


class DelayRule(Struct, frozen=True, tag="after"):
    """Once, so many seconds after it was made."""

    seconds: float


class NextTimeRule(Struct, frozen=True, tag="soon"):
    """Once, at the next such local time after it was made, or on the next day."""

    at: tuple[int, int]
    tomorrow: bool = False
    weekday: int | None = None
    """Monday is 0; None: the next day that fits."""


class CronRule(Struct, frozen=True, tag="cron"):
    """At these minutes of these hours of these days. If days of both kinds are given, either matches, as in cron."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...] = ()
    """Of the month; empty: any."""
    months: tuple[int, ...] = ()
    weekdays: tuple[int, ...] = ()
    """Monday is 0; empty: any."""


class MissedRuns(enum.StrEnum):
    """What happens to runs that a downtime missed."""

    LATEST = "latest"
    """The latest one is made up for."""
    SKIP = "skip"
    """None is, unless it is only a few minutes late."""


ScheduleRule: TypeAlias = IntervalRule | DateRule | DelayRule | NextTimeRule | CronRule


class Schedule(Struct, frozen=True, omit_defaults=True):
    """A message that is sent at the times of a rule, for one sender, to one chat."""

    id: str
    rule: ScheduleRule
    words: str
    """The text of the rule, as the person wrote it."""
    text: str
    place: ChatLocation
    sender: str
    kind: str
    made: float
    last: float = 0.0
    """The last tick that was fired."""
    agent: str = ""
    off: bool = False
    address: str = ""
    """The conversation in which it was made."""
    missed: MissedRuns = MissedRuns.LATEST
    asked: float = 0.0
    """When a person asked for a run besides those of the rule; 0 if that run was fired."""


def parse_rule(text: str) -> tuple[ScheduleRule, str, str] | None:
    """Return (rule, its text, the text after it), or None if the text does not begin with a rule."""
    for match_rule, read in (
        (_EVERY_PATTERN.match, _parse_interval),
        (_IN_PATTERN.match, _parse_delay),
        (_DATE_PATTERN.match, _parse_date),
        (_MOMENT_PATTERN.match, _parse_moment),
        (_REPEATED_PATTERN.match, _parse_repeated),
        (_NEXT_TIME_PATTERN.match, _parse_next_time),
        (_NAMED_DAYS_PATTERN.match, _parse_named_days),
        (_CRON_PATTERN.match, _parse_cron),
        (_ONE_SPAN_PATTERN.match, _parse_one_span),
        (_MONTHLY_PATTERN.match, _parse_monthly),
    ):
        found = match_rule(text)
        if found is not None and (rule := read(found)) is not None:
            return rule, found[0].strip(), text[found.end() :].strip()
    return None


def find_next_tick(rule: ScheduleRule, *, after: float, made: float, zone: datetime.tzinfo) -> float | None:
    """Return the first tick of a rule after `after`, or None if there is none."""
    match rule:
        case IntervalRule(seconds=seconds):
            passed = max(0.0, after - made)
            return made + (passed // seconds + 1) * seconds
        case DateRule(at=at):
            moment = datetime.datetime(*at, tzinfo=zone).timestamp()
            return moment if moment > after else None
        case DelayRule(seconds=seconds):
            return made + seconds if made + seconds > after else None
        case NextTimeRule(at=at, tomorrow=tomorrow, weekday=weekday):
            weekdays = () if weekday is None else (weekday,)
            tick = _find_next_of(
                CronRule(minutes=at[1:], hours=at[:1], weekdays=weekdays),
                _find_end_of_day(made, zone) if tomorrow else made,
                zone,
            )
            return tick if tick is not None and tick > after else None
        case CronRule():
            return _find_next_of(rule, after, zone)


def format_local_time(at: float, zone: datetime.tzinfo) -> str:
    """Format a time in the zone of the schedules."""
    return datetime.datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M %Z")


def pause_schedule(schedule: Schedule) -> Schedule:
    return structs.replace(schedule, off=True)


def resume_schedule(schedule: Schedule, *, now: float) -> Schedule:
    """Return a schedule that fires again. What it missed while it was paused is not made up for."""
    return structs.replace(schedule, off=False, last=max(schedule.last, now))


def request_run(schedule: Schedule, *, now: float) -> Schedule:
    """Return a schedule that fires once more, now. Its rule and a pause stay as they are."""
    return structs.replace(schedule, asked=now)


def is_skipped(schedule: Schedule, tick: float, *, now: float) -> bool:
    """Return whether a due tick is left out because a downtime missed it."""
    return schedule.missed is MissedRuns.SKIP and now - tick > MISSED_GRACE_SECONDS


def find_due_tick(schedule: Schedule, *, now: float, zone: datetime.tzinfo) -> float | None:
    """Return the latest tick that is due and was not fired. Several missed ticks are made up for once."""
    rule, since = schedule.rule, max(schedule.last, schedule.made)
    match rule:
        case IntervalRule(seconds=seconds):
            tick: float | None = schedule.made + (now - schedule.made) // seconds * seconds
        case CronRule():
            tick = _find_last_of(rule, since, now, zone)
        case _:  # these occur once
            tick = find_next_tick(rule, after=since, made=schedule.made, zone=zone)
    return tick if tick is not None and since < tick <= now else None


def _parse_interval(found: re.Match[str]) -> ScheduleRule | None:
    seconds = _parse_seconds(found)
    return IntervalRule(seconds) if seconds >= MIN_INTERVAL_SECONDS else None


def _parse_delay(found: re.Match[str]) -> ScheduleRule | None:
    seconds = _parse_seconds(found)
    return DelayRule(seconds) if seconds >= MIN_INTERVAL_SECONDS else None


def _parse_seconds(found: re.Match[str]) -> float:
    return int(found[1]) * _UNIT_SECONDS[found[2][0].lower()]


def _parse_next_time(found: re.Match[str]) -> ScheduleRule | None:
    hour, minute = int(found[2]), int(found[3])
    return NextTimeRule((hour, minute), tomorrow=bool(found[1])) if hour < 24 and minute < 60 else None


def _parse_date(found: re.Match[str]) -> ScheduleRule | None:
    hour, minute = int(found[2]), int(found[3])
    return _build_date_rule(found[1], (hour, minute)) if hour < 24 and minute < 60 else None


def _build_date_rule(date: str, clock: tuple[int, int]) -> DateRule | None:
    """Return the rule of a day and a time; None if there is no such day. In the first and the last year of the calendar
    there are moments that other time zones cannot show.
    """
    try:
        day = datetime.date.fromisoformat(date)
    except ValueError:
        return None
    return DateRule((day.year, day.month, day.day, *clock)) if datetime.MINYEAR < day.year < datetime.MAXYEAR else None


def _parse_named_days(found: re.Match[str]) -> ScheduleRule | None:
    hour, minute = int(found[2]), int(found[3])
    if hour > 23 or minute > 59:
        return None
    days: set[int] = set()
    for word in found[1].lower().split(","):
        if word in _DAY_GROUPS:
            days |= set(_DAY_GROUPS[word])
        elif word[:3] in _DAY_NAMES and "monday tuesday wednesday thursday friday saturday sunday".find(word) >= 0:
            days.add(_DAY_NAMES.index(word[:3]))
        else:
            return None
    weekdays = () if len(days) == 7 else tuple(sorted(days))
    return CronRule(minutes=(minute,), hours=(hour,), weekdays=weekdays)


def _parse_cron(found: re.Match[str]) -> ScheduleRule | None:
    fields = found[1].lower().split()
    fields[3] = _replace_names(fields[3], _MONTH_NAMES)
    fields[4] = _replace_names(fields[4], _CRON_DAY_NAMES, first=0)
    is_last_day, fields[2] = fields[2] == "l", fields[2].replace("l", "*")
    sets = [_parse_cron_field(field, *span) for field, span in zip(fields, _CRON_RANGES, strict=True)]
    if any(it is None for it in sets):
        return None
    minutes, hours, days, months, weekdays = (it or () for it in sets)
    return CronRule(
        minutes=minutes,
        hours=hours,
        days=(LAST_DAY,) if is_last_day else () if fields[2] == "*" else days,
        months=() if fields[3] == "*" else months,
        # In cron, Sunday is 0 or 7; here it is 6.
        weekdays=() if fields[4] == "*" else tuple(sorted({(day - 1) % 7 for day in weekdays})),
    )


def _parse_one_span(found: re.Match[str]) -> ScheduleRule | None:
    word, half, unit, is_hourly = found[1], found[2], found[3], found[4]
    seconds = (
        3600.0 if is_hourly else {"minute": 60.0, "hour": 3600.0, "day": 86_400.0, "week": 604_800.0}[unit.lower()]
    )
    seconds = seconds / 2 if half else seconds
    if seconds < MIN_INTERVAL_SECONDS:
        return None
    return DelayRule(seconds) if word and word.lower() == "in" else IntervalRule(seconds)


def _parse_clock(text: str, *, is_after_at: bool) -> tuple[int, int] | None:
    """Return the hour and minute of a time of day. A bare number counts only after "at"."""
    text = text.lower().replace(" ", "")
    if text in ("noon", "midnight"):
        return (12, 0) if text == "noon" else (0, 0)
    half = text[-2:] if text.endswith(("am", "pm")) else ""
    hour_text, colon, minute_text = text.removesuffix(half).partition(":")
    hour, minute = int(hour_text), int(minute_text or 0)
    if not (colon or half or is_after_at) or minute > 59:
        return None
    if half:
        return (hour % 12 + (12 if half == "pm" else 0), minute) if 1 <= hour <= 12 else None
    return (hour, minute) if hour < 24 else None


def _parse_moment(found: re.Match[str]) -> ScheduleRule | None:
    day_word, weekday, date = (found[1] or "").lower(), found[3], found[4]
    clock = _parse_clock(found[7], is_after_at=bool(found[2] or found[5] or found[6]))
    if clock is None:
        return None
    if day_word == "tonight" and clock[0] < 12 and "am" not in found[7].lower():
        clock = (clock[0] + 12, clock[1])
    if date:
        return _build_date_rule(date, clock)
    if weekday:
        number = _find_weekday(weekday.lower())
        return None if number is None else NextTimeRule(clock, weekday=number)
    return NextTimeRule(clock, tomorrow=day_word == "tomorrow")


def _parse_repeated(found: re.Match[str]) -> ScheduleRule | None:
    clock = _parse_clock(found[3], is_after_at=bool(found[2]))
    if clock is None:
        return None
    days: set[int] = set()
    for word in found[1].lower().replace(",", " ").split():
        if word == "and":
            continue
        number = _find_weekday(word.removesuffix("s") if word.endswith("days") else word)
        if number is not None:
            days.add(number)
        elif word in _DAY_GROUPS or f"{word}s" in _DAY_GROUPS:
            days |= set(_DAY_GROUPS.get(word) or _DAY_GROUPS[f"{word}s"])
        else:
            return None
    return CronRule(minutes=clock[1:], hours=clock[:1], weekdays=() if len(days) == 7 else tuple(sorted(days)))


def _parse_monthly(found: re.Match[str]) -> ScheduleRule | None:
    clock, day = _parse_clock(found[4], is_after_at=bool(found[3])), LAST_DAY if found[1] else int(found[2])
    if clock is None or not (1 <= day <= 31 or found[1]):
        return None
    return CronRule(minutes=clock[1:], hours=clock[:1], days=(day,))


_FULL_DAY_NAMES: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def _find_weekday(word: str) -> int | None:
    """Return the number of a weekday by its name or a beginning of three or more letters."""
    fitting = [number for number, name in enumerate(_FULL_DAY_NAMES) if len(word) >= 3 and name.startswith(word)]
    return fitting[0] if fitting else None


_CRON_DAY_NAMES: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def _replace_names(field: str, names: tuple[str, ...], *, first: int = 1) -> str:
    """Return a field of cron with numbers for the names of months or weekdays."""
    for number, name in enumerate(names, start=first):
        field = field.replace(name, str(number))
    return field


def _parse_cron_field(text: str, low: int, high: int) -> tuple[int, ...] | None:
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


def _find_next_of(rule: CronRule, after: float, zone: datetime.tzinfo) -> float | None:
    day = datetime.datetime.fromtimestamp(after, zone).date()
    for _ in range(MAX_LOOKAHEAD_DAYS):
        if _is_on_day(rule, day):
            ticks = sorted(_list_ticks(rule, day, zone))
            if (tick := next((tick for tick in ticks if tick > after), None)) is not None:
                return tick
        day += datetime.timedelta(days=1)
    return None


def _find_last_of(rule: CronRule, since: float, now: float, zone: datetime.tzinfo) -> float | None:
    """Return the last tick up to `now`. The search goes backwards, so a long absence costs no more than a short one."""
    first = datetime.datetime.fromtimestamp(since, zone).date()
    # Start one day later: where clocks go back over midnight, tomorrow may have begun already.
    day = datetime.datetime.fromtimestamp(now, zone).date() + datetime.timedelta(days=1)
    for _ in range(MAX_LOOKAHEAD_DAYS):
        if day < first:
            break
        ticks = _list_ticks(rule, day, zone) if _is_on_day(rule, day) else ()
        if (tick := max((tick for tick in ticks if tick <= now), default=None)) is not None:
            return tick
        day -= datetime.timedelta(days=1)
    return None


def _find_end_of_day(at: float, zone: datetime.tzinfo) -> float:
    """Return the last moment of a time's local day."""
    following = datetime.datetime.fromtimestamp(at, zone).date() + datetime.timedelta(days=1)
    return datetime.datetime.combine(following, datetime.time(), tzinfo=zone).timestamp() - 1.0


def _is_on_day(rule: CronRule, day: datetime.date) -> bool:
    if rule.months and day.month not in rule.months:
        return False
    is_last = LAST_DAY in rule.days and (day + datetime.timedelta(days=1)).month != day.month
    by_month, by_week = day.day in rule.days or is_last, day.weekday() in rule.weekdays
    if rule.days and rule.weekdays:
        return by_month or by_week
    return (not rule.days or by_month) and (not rule.weekdays or by_week)


def _list_ticks(rule: CronRule, day: datetime.date, zone: datetime.tzinfo) -> set[float]:
    """Return a day's ticks. An hour that occurs twice counts once, unless the rule names every hour; a skipped hour is
    made up for.
    """
    occurrences = (0, 1) if len(rule.hours) == 24 else (0,)
    return {
        datetime.datetime(day.year, day.month, day.day, hour, minute, fold=occurrence, tzinfo=zone).timestamp()
        for hour in rule.hours
        for minute in rule.minutes
        for occurrence in occurrences
    }
