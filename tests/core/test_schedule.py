"""When a schedule is due: natural and cron rules, time zones, and clock changes."""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest
from cronsim import CronSim, CronSimError
from hypothesis import assume, given, settings, strategies as st

from everhold.core.entries import ChatLocation
from everhold.core.schedule import (
    CronRule,
    DateRule,
    DelayRule,
    IntervalRule,
    MissedRuns,
    NextTimeRule,
    Schedule,
    find_due_tick,
    find_next_tick,
    format_local_time,
    is_skipped,
    parse_rule,
    request_run,
)

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: datetime.tzinfo = BERLIN, fold: int = 0) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def ticks(words: str, after: str, count: int, zone: datetime.tzinfo = BERLIN) -> list[str]:
    found = parse_rule(f"{words} something")
    assert found is not None
    now, seen = at(after, zone), []
    for _ in range(count):
        tick = find_next_tick(found[0], after=now, made=at(after, zone), zone=zone)
        if tick is None:
            break
        seen.append(datetime.datetime.fromtimestamp(tick, zone).strftime("%m-%d %H:%M"))
        now = tick
    return seen


@pytest.mark.parametrize(
    "text, rule, rest",
    [
        ("every 2h look", IntervalRule(7200.0), "look"),
        ("in 20m tea", DelayRule(1200.0), "tea"),
        ("in 2 hours go home", DelayRule(7200.0), "go home"),
        ("in 1 day x", DelayRule(86_400.0), "x"),
        ("at 18:00 go", NextTimeRule((18, 0)), "go"),
        ("tomorrow 9:00 wake me", NextTimeRule((9, 0), tomorrow=True), "wake me"),
        ("tomorrow at 9:00 wake me", NextTimeRule((9, 0), tomorrow=True), "wake me"),
        ("every 2 hours look", IntervalRule(7200.0), "look"),
        ("every 15 min look at 8", IntervalRule(900.0), "look at 8"),
        ("daily 08:30 say: good morning", CronRule(minutes=(30,), hours=(8,)), "say: good morning"),
        ("weekdays 8:30 go", CronRule(minutes=(30,), hours=(8,), weekdays=(0, 1, 2, 3, 4)), "go"),
        ("mon,friday 18:00 go", CronRule(minutes=(0,), hours=(18,), weekdays=(0, 4)), "go"),
        ("at 2027-01-31 09:00 go", DateRule((2027, 1, 31, 9, 0)), "go"),
        ("on 2027-01-31 at 9pm go", DateRule((2027, 1, 31, 21, 0)), "go"),
        ("tomorrow at 9am wake me", NextTimeRule((9, 0), tomorrow=True), "wake me"),
        ("tomorrow at 9:00 pm wake me", NextTimeRule((21, 0), tomorrow=True), "wake me"),
        ("tonight at 8 film", NextTimeRule((20, 0)), "film"),
        ("at noon eat", NextTimeRule((12, 0)), "eat"),
        ("at 12am sleep", NextTimeRule((0, 0)), "sleep"),
        ("on friday at 18:00 go", NextTimeRule((18, 0), weekday=4), "go"),
        ("next tue at 7 go", NextTimeRule((7, 0), weekday=1), "go"),
        ("in an hour go", DelayRule(3600.0), "go"),
        ("in half an hour go", DelayRule(1800.0), "go"),
        ("every hour look", IntervalRule(3600.0), "look"),
        ("hourly look", IntervalRule(3600.0), "look"),
        ("every half hour look", IntervalRule(1800.0), "look"),
        ("every week look", IntervalRule(604_800.0), "look"),
        ("every day at 9 stand up", CronRule(minutes=(0,), hours=(9,)), "stand up"),
        ("daily at 7pm stand up", CronRule(minutes=(0,), hours=(19,)), "stand up"),
        ("every weekday at 8:30 go", CronRule(minutes=(30,), hours=(8,), weekdays=(0, 1, 2, 3, 4)), "go"),
        ("every weekend at noon rest", CronRule(minutes=(0,), hours=(12,), weekdays=(5, 6)), "rest"),
        ("monday and thursday at noon go", CronRule(minutes=(0,), hours=(12,), weekdays=(0, 3)), "go"),
        ("mondays, fridays at 9am go", CronRule(minutes=(0,), hours=(9,), weekdays=(0, 4)), "go"),
        ("monthly on the last day at 18:00 pay", CronRule(minutes=(0,), hours=(18,), days=(32,)), "pay"),
        ("every month on the 1st at 9 pay", CronRule(minutes=(0,), hours=(9,), days=(1,)), "pay"),
        ("*/30 8-9 1 1,7 * go", CronRule(minutes=(0, 30), hours=(8, 9), days=(1,), months=(1, 7)), "go"),
        ("0 9 * * 0 go", CronRule(minutes=(0,), hours=(9,), weekdays=(6,)), "go"),
        ("0 9 * * 7 go", CronRule(minutes=(0,), hours=(9,), weekdays=(6,)), "go"),
        ("every day at 9:00 say hi", CronRule(minutes=(0,), hours=(9,)), "say hi"),
        ("every monday 9:00 at 10:00", CronRule(minutes=(0,), hours=(9,), weekdays=(0,)), "at 10:00"),
        ("daily at 08:30 go", CronRule(minutes=(30,), hours=(8,)), "go"),
        ("every 2d at 9:00 look", IntervalRule(172_800.0), "at 9:00 look"),
        ("DAILY 08:30", CronRule(minutes=(30,), hours=(8,)), ""),
    ],
)
def test_a_rule_is_parsed_and_the_rest_is_kept_as_text(text: str, rule: object, rest: str) -> None:
    found = parse_rule(text)
    assert found is not None
    assert (found[0], found[2]) == (rule, rest)
    assert text.startswith(found[1])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "every 30s x",
        "in 0m x",
        "in 5 x",
        "in 5 moons x",
        "at 24:00 x",
        "tomorrow 9:60 x",
        "tomorrow x",
        "8:30 x",
        "every x",
        "daily 25:00 x",
        "daily 8:61 x",
        "someday 8:00 x",
        "mo 8:00 x",
        "at 2027-02-30 08:00 x",
        "60 8 * * * x",
        "* 24 * * * x",
        "* * 0 * * x",
        "* * * 13 * x",
        "* * * * 8 x",
        "*/0 * * * * x",
        "5-1 * * * * x",
        "1 2 3 4 x",
        "tomorrow 9 apples",
        "at 13pm x",
        "on someday at 9 x",
        "every half minute x",
        "monthly on the 32nd at 9 x",
        "monday and pizza at 9 x",
        "in a moment x",
    ],
)
def test_a_text_without_a_rule_gives_no_schedule(text: str) -> None:
    assert parse_rule(text) is None


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0123456789*/,- abcdefgh:tomnwkiy", max_size=30))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    found = parse_rule(text)
    if found is not None:
        find_next_tick(found[0], after=0.0, made=0.0, zone=datetime.UTC)


def test_a_daily_rule_keeps_its_local_time_across_clock_changes() -> None:
    assert ticks("daily 08:30", "2027-03-26 12:00", 4) == ["03-27 08:30", "03-28 08:30", "03-29 08:30", "03-30 08:30"]


def test_a_skipped_hour_fires_late_and_a_repeated_hour_fires_once() -> None:
    assert ticks("daily 02:30", "2027-03-27 12:00", 2) == ["03-28 03:30", "03-29 02:30"]
    assert ticks("daily 02:30", "2026-10-24 12:00", 2) == ["10-25 02:30", "10-26 02:30"]


def test_an_hourly_rule_fires_in_both_repeated_hours() -> None:
    found = parse_rule("30 * * * * x")
    assert found is not None
    now, gaps = at("2026-10-25 00:00"), set()
    for _ in range(6):
        tick = find_next_tick(found[0], after=now, made=now, zone=BERLIN)
        assert tick is not None
        gaps.add(tick - now)
        now = tick
    assert gaps == {1800.0, 3600.0}


def test_the_same_rule_gives_another_time_in_another_zone() -> None:
    found = parse_rule("daily 08:30 x")
    assert found is not None
    berlin, tokyo = (
        find_next_tick(found[0], after=at("2026-12-01 00:00", datetime.UTC), made=0.0, zone=zone)
        for zone in (BERLIN, ZoneInfo("Asia/Tokyo"))
    )
    assert berlin is not None
    assert tokyo is not None
    assert berlin - tokyo == pytest.approx(8 * 3600 - 86_400)


def test_days_of_month_and_of_week_are_alternatives_as_in_cron() -> None:
    assert ticks("0 9 13 * 5", "2026-11-01 00:00", 4) == ["11-06 09:00", "11-13 09:00", "11-20 09:00", "11-27 09:00"]
    assert ticks("0 9 29 2 *", "2027-01-01 00:00", 1) == ["02-29 09:00"], "a leap day is found"
    assert ticks("0 9 31 2 *", "2027-01-01 00:00", 1) == [], "31 February is never found"


def test_a_one_time_rule_fires_once() -> None:
    assert ticks("at 2027-01-31 09:00", "2027-01-30 00:00", 3) == ["01-31 09:00"]


@pytest.mark.parametrize(
    "words, made, when",
    [
        ("in 90m", "2027-01-30 23:00", ["01-31 00:30"]),
        ("at 18:00", "2027-01-30 17:59", ["01-30 18:00"]),
        ("at 18:00", "2027-01-30 18:00", ["01-31 18:00"]),
        ("tomorrow 9:00", "2027-01-30 08:00", ["01-31 09:00"]),
        ("tomorrow 9:00", "2027-01-30 23:59", ["01-31 09:00"]),
        ("tomorrow 0:00", "2027-01-30 00:00", ["01-31 00:00"]),
        ("tomorrow 3:00", "2027-03-27 12:00", ["03-28 03:00"]),  # the hour before it is skipped
    ],
)
def test_a_relative_time_starts_when_it_is_said(words: str, made: str, when: list[str]) -> None:
    assert ticks(words, made, 3) == when


def schedule(words: str, made: str, last: float = 0.0) -> Schedule:
    found = parse_rule(f"{words} x")
    assert found is not None
    place = ChatLocation(platform="p")
    return Schedule(
        id="1", rule=found[0], words=words, text="x", place=place, sender="a", kind="dm", made=at(made), last=last
    )


MISSED = ["daily 08:30", "mon 09:00", "weekdays 08:30", "0 9 1 * *", "every 2h", "*/5 * * * *", "at 2026-11-02 09:00"]


@pytest.mark.parametrize("words", MISSED)
def test_missed_times_fire_once(words: str) -> None:
    it = schedule(words, "2026-11-01 12:00")
    now = at("2026-12-24 12:01")
    tick = find_due_tick(it, now=now, zone=BERLIN)
    assert tick is not None
    assert tick <= now
    said = schedule(words, "2026-11-01 12:00", last=tick)
    assert find_due_tick(said, now=now, zone=BERLIN) is None, "and then there is no further time"
    following = find_next_tick(said.rule, after=tick, made=said.made, zone=BERLIN)
    assert following is None or following > now, "it was the latest of them"


class Counting(datetime.tzinfo):
    """A zone that counts how often it is asked."""

    asked = 0

    def utcoffset(self, when: datetime.datetime | None) -> datetime.timedelta:
        self.asked += 1
        return datetime.timedelta()

    dst = utcoffset

    def tzname(self, when: datetime.datetime | None) -> str:
        return "counting"


@pytest.mark.parametrize("last", ["2026-11-24 11:00", "2026-11-22 12:00", "2026-11-01 12:00", "2019-11-01 12:00"])
def test_a_long_absence_costs_no_more_work_than_a_day(last: str) -> None:
    zone = Counting()
    it = schedule("* * * * *", "2018-01-01 12:00", last=at(last, datetime.UTC))
    now = at("2026-11-24 12:00:30", datetime.UTC)
    assert find_due_tick(it, now=now, zone=zone) == at("2026-11-24 12:00", datetime.UTC)
    assert zone.asked < 3 * 2 * 24 * 60


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["30 * * * *", "15,45 0-3 * * *", "daily 02:30", "daily 00:00", "mon,sun 02:30", "0 3 25 10 *"]),
    st.sampled_from(["Europe/Berlin", "America/St_Johns", "America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Apia"]),
    st.sampled_from(["1999-10-30", "2006-10-28", "2006-10-31", "2008-10-18", "2010-03-27", "2011-12-29", "2026-10-24"]),
    st.floats(0, 3 * 1440),
    st.floats(0, 3 * 1440),
)
def test_the_latest_due_time_equals_a_step_by_step_search(
    words: str, name: str, day: str, first: float, more: float
) -> None:
    zone = ZoneInfo(name)
    since = at(day, zone) + first * 60
    now = since + more * 60
    it = msgspec.structs.replace(schedule(words, "1990-01-01"), last=since)
    walked, after = None, since
    while (tick := find_next_tick(it.rule, after=after, made=it.made, zone=zone)) is not None and tick <= now:
        walked = after = tick
    assert find_due_tick(it, now=now, zone=zone) == walked


def test_a_clock_that_goes_back_fires_nothing_twice() -> None:
    it = schedule("every 1h", "2026-11-01 12:00", last=at("2026-11-01 14:00"))
    assert find_due_tick(it, now=at("2026-11-01 13:30"), zone=BERLIN) is None
    assert find_due_tick(it, now=at("2026-11-01 14:00"), zone=BERLIN) is None
    assert find_due_tick(it, now=at("2026-11-01 15:00"), zone=BERLIN) == at("2026-11-01 15:00")


@pytest.mark.parametrize(
    "written, plain",
    [
        ("30 8 * * mon-fri", "30 8 * * 1-5"),
        ("30 8 * * SUN", "30 8 * * 0"),
        ("0 9 1 jan,jul *", "0 9 1 1,7 *"),
        ("0 9 * Mar-May sat", "0 9 * 3-5 6"),
    ],
)
def test_cron_knows_the_names_of_months_and_weekdays(written: str, plain: str) -> None:
    named, numbered = parse_rule(f"{written} say hello"), parse_rule(f"{plain} say hello")
    assert named is not None
    assert numbered is not None
    assert named[0] == numbered[0]
    assert (named[1], named[2]) == (written, "say hello")


def test_l_is_the_last_day_of_every_month() -> None:
    found = parse_rule("0 9 L * * close the books")
    assert found is not None
    at = datetime.datetime(2028, 1, 15, tzinfo=datetime.UTC).timestamp()
    days = []
    for _ in range(4):
        tick = find_next_tick(found[0], after=at, made=at, zone=datetime.UTC)
        assert tick is not None
        days.append(datetime.datetime.fromtimestamp(tick, datetime.UTC).strftime("%m-%d %H"))
        at = tick
    assert days == ["01-31 09", "02-29 09", "03-31 09", "04-30 09"]


@pytest.mark.parametrize("text", ["30 8 * * monkey", "30 8 * foo *", "30 8 LL * *", "30 8 * * mon mon,"])
def test_other_words_are_no_names(text: str) -> None:
    found = parse_rule(text)
    assert found is None or found[2], "the rest is the message"


CRON_FIELDS = st.tuples(
    st.sampled_from(["*", "0", "30", "*/15", "5,40", "10-20/5"]),
    st.sampled_from(["*", "8", "0", "*/6", "9-17", "2,14"]),
    st.sampled_from(["*", "1", "31", "L", "1,15", "*/10"]),
    st.sampled_from(["*", "2", "JAN", "4,11", "jun-aug"]),
    st.sampled_from(["*", "0", "7", "MON", "1-5", "sat,sun"]),
)


@settings(max_examples=150, deadline=None)
@given(CRON_FIELDS, st.integers(min_value=1_600_000_000, max_value=1_900_000_000))
def test_cron_agrees_with_another_program(fields: tuple[str, ...], after: int) -> None:
    """Another project's reading of cron is the oracle, in a zone without clock changes."""
    words = " ".join(fields)
    # There a field that begins with * is unrestricted for the rule of days; here only * itself is.
    assume(not (fields[2].startswith("*/") and fields[4] != "*"))
    found = parse_rule(f"{words} x")
    assert found is not None
    now = float(after)
    try:
        oracle = CronSim(words, datetime.datetime.fromtimestamp(after, datetime.UTC))
    except CronSimError:  # a day that no such month has
        assert fields[2] == "31"
        assert fields[4] != "*" or find_next_tick(found[0], after=now, made=now, zone=datetime.UTC) is None
        return
    for _ in range(5):
        tick = find_next_tick(found[0], after=now, made=now, zone=datetime.UTC)
        assert tick == next(oracle).timestamp()
        now = tick


def test_a_run_that_is_asked_for_leaves_the_rule_and_a_pause_as_they_are() -> None:
    found = parse_rule("every 1h x")
    assert found is not None
    place = ChatLocation(platform="fake", account="main", chat="1")
    it = Schedule(id="a", rule=found[0], words="", text="x", place=place, sender="1", kind="dm", made=0.0, off=True)
    asked = request_run(it, now=5.0)
    assert (asked.asked, asked.off, asked.last) == (5.0, True, 0.0)


@pytest.mark.parametrize(
    "missed, late, left_out",
    [("latest", 90_000.0, False), ("skip", 60.0, False), ("skip", 600.0, False), ("skip", 601.0, True)],
)
def test_only_a_run_that_is_really_late_is_left_out(missed: str, late: float, left_out: bool) -> None:
    found = parse_rule("every 1h x")
    assert found is not None
    place = ChatLocation(platform="fake", account="main", chat="1")
    it = Schedule(
        id="a",
        rule=found[0],
        words="",
        text="x",
        place=place,
        sender="1",
        kind="dm",
        made=0.0,
        missed=MissedRuns(missed),
    )
    assert is_skipped(it, 1_000.0, now=1_000.0 + late) is left_out


@pytest.mark.parametrize("date", ["at 9999-12-31 23:59", "on 9999-12-31 at 23:59", "at 0001-01-01 00:00"])
def test_a_date_that_not_every_time_zone_can_show_is_no_rule(date: str) -> None:
    assert parse_rule(f"{date} call ada") is None


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("rule", ["at 9998-12-31 23:59", "every 9999w", "in 9999 weeks"])
def test_the_furthest_rules_can_be_shown_in_every_time_zone(rule: str, zone: str) -> None:
    found = parse_rule(f"{rule} call ada")
    assert found is not None
    there = ZoneInfo(zone)
    tick = find_next_tick(found[0], after=2e9, made=2e9, zone=there)
    assert tick is not None
    assert format_local_time(tick, there)[:4] >= "2224"
