"""A schedule fires in its conversation, once per tick, also after a downtime, and only for people who may speak."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from everhold.config import parse_settings
from everhold.core.entries import ChatLocation, Heard
from everhold.core.schedule import MissedRuns, Schedule, parse_rule, request_run
from everhold.engine.budgets import BudgetLimit
from everhold.errors import NotFound, Transient
from everhold.ingress.schedules import ScheduleRunner
from everhold.ports.platform import SCHEDULED_EVENT, AcceptResult, IncomingMessage
from everhold.ports.store import Change, StateNamespace, StateWrite, Step
from everhold.testing.contracts.platform_harness import ProcessKilled
from everhold.testing.fakes import FakePlatform
from everhold.testing.gateway import InProcessGateway
from tests.engine.group_scenario import admit_owners
from tests.ingress.harness import CONFIG, IngressHarness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngressHarness]:
    harness = IngressHarness(tmp_path)
    yield harness
    await harness.store.close()


def schedules(harness: IngressHarness, accept: object = None, zone: datetime.tzinfo = datetime.UTC) -> ScheduleRunner:
    return ScheduleRunner(
        harness.store,
        accept=accept or harness.accept,  # type: ignore[arg-type]
        clock=harness.clock,
        zone=lambda: zone,
        log=harness.log,
    )


async def keep(
    harness: IngressHarness, words: str, *, sender: str = "1001", id: str = "s1", chat: str = "", **more: Any
) -> None:
    found = parse_rule(f"{words} good morning")
    assert found is not None
    place = ChatLocation(platform="fake", account="main", chat=chat or sender)
    it = Schedule(
        id=id,
        rule=found[0],
        words=found[1],
        text=found[2],
        place=place,
        sender=sender,
        kind="dm",
        made=harness.clock.at,
        agent="main",
        **more,
    )
    value = msgspec.json.encode(it).decode()
    write = StateWrite(namespace=StateNamespace.SCHEDULE, key=id, value=value, version=0)
    await harness.store.commit(Change(step=Step.STATE, session="", at=harness.clock.at, state_writes=(write,)))


async def heard(harness: IngressHarness) -> list[str]:
    return [entry.body.text for entry in await harness.store.read_feed() if isinstance(entry.body, Heard)]


async def test_a_tick_fires_once_with_two_processes(harness: IngressHarness) -> None:
    await harness.send_and_read("hello")
    await keep(harness, "every 1h")
    assert await schedules(harness).fire_due() == pytest.approx(5.0)
    assert await heard(harness) == ["hello"]
    harness.clock.at += 3600
    for _ in range(3):
        await schedules(harness).fire_due()
    assert await heard(harness) == ["hello", "good morning"]
    harness.clock.at += 7 * 3600
    await schedules(harness).fire_due()
    assert await heard(harness) == ["hello", "good morning", "good morning"]
    assert len(await harness.store.list_sessions()) == 1, "it speaks in the conversation it was made in"


async def test_a_crash_before_or_after_the_commit_loses_no_tick_and_doubles_none(harness: IngressHarness) -> None:
    await keep(harness, "every 1h")
    harness.clock.at += 3600

    async def dies_before(incoming: IncomingMessage) -> AcceptResult:
        raise ProcessKilled

    async def dies_after(incoming: IncomingMessage) -> AcceptResult:
        await harness.accept(incoming)
        raise ProcessKilled

    for dies in (dies_before, dies_after):
        with pytest.raises(ProcessKilled):
            await schedules(harness, dies).fire_due()
    await schedules(harness).fire_due()
    assert await heard(harness) == ["good morning"]


async def test_a_schedule_of_a_denied_person_does_not_fire_and_is_given_up(
    harness: IngressHarness,
) -> None:
    await keep(harness, "every 1h", sender="666")
    harness.clock.at += 3600
    await schedules(harness).fire_due()
    assert await heard(harness) == []
    (it,) = await schedules(harness).list_schedules()
    assert it.last == harness.clock.at
    assert harness.log.find_events("schedule.denied")


async def test_a_schedule_deleted_while_it_fires_stays_deleted(harness: IngressHarness) -> None:
    for id in ("s1", "s2"):
        await keep(harness, "every 1h", id=id)
    harness.clock.at += 3600
    there = schedules(harness)

    async def meanwhile(incoming: IncomingMessage) -> AcceptResult:
        for schedule in await there.list_schedules():
            await there.remove(schedule.id)
        return await harness.accept(incoming)

    await schedules(harness, meanwhile).fire_due()
    assert await there.list_schedules() == []
    assert await heard(harness) == [], "the schedule does not fire any more"


@pytest.mark.parametrize("away", ["agents: {main: {}}", CONFIG.replace("{main: {}, coder: {}}", "{coder: {}}")])
@pytest.mark.parametrize("words", ["in 20m", "every 20m"])
async def test_a_due_schedule_waits_for_its_missing_account_or_agent(
    harness: IngressHarness, words: str, away: str
) -> None:
    await keep(harness, words)
    there, harness.settings = harness.settings, parse_settings(away)
    harness.clock.at += 1300
    saying = schedules(harness)
    for _ in range(3):
        await saying.fire_due()
    assert len(harness.log.find_events("schedule.retrying")) == 1
    harness.settings = there
    for _ in range(2):
        await saying.fire_due()
    assert await heard(harness) == ["good morning"]


async def test_a_one_time_schedule_is_deleted_after_it_fired(harness: IngressHarness) -> None:
    await keep(harness, "in 5m")
    harness.clock.at += 301
    for _ in range(3):
        await schedules(harness).fire_due()
    assert await heard(harness) == ["good morning"]
    assert await schedules(harness).describe_schedules() == []


async def test_fire_due_returns_the_seconds_until_the_next_tick(harness: IngressHarness) -> None:
    await keep(harness, "every 1m")
    harness.clock.at += 57
    assert await schedules(harness).fire_due() == pytest.approx(3.0)


async def test_a_schedule_can_be_listed_and_deleted(harness: IngressHarness) -> None:
    await keep(harness, "every 1h")
    (listed,) = await schedules(harness).describe_schedules()
    assert (listed["when"], listed["next"]) == ("every 1h", harness.clock.at + 3600)
    assert listed["next_local"] == "2023-11-14 23:13 UTC"
    there = schedules(harness, zone=ZoneInfo("Asia/Kolkata"))
    assert (await there.describe_schedules())[0]["next_local"] == "2023-11-15 04:43 IST", (
        "in the zone that they are meant in"
    )
    await schedules(harness).remove("s1")
    assert await schedules(harness).describe_schedules() == []
    with pytest.raises(NotFound):
        await schedules(harness).remove("s1")


def test_people_create_list_and_delete_schedules_in_their_chat(tmp_path: Path) -> None:
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        for text in ("/schedule", "/schedule tomorrow x", "/schedule every 2h", "/schedule every 2h drink water"):
            gateway.send_message(text)
        replies = gateway.list_shown_texts()
        assert replies[0].startswith("Nothing is scheduled here")
        assert replies[1].startswith(replies[2][:20])
        assert "First at 2023-11-1" in replies[3]
        id = replies[3].partition("(")[2].partition(")")[0]
        gateway.send_message("/schedule list")
        assert gateway.list_shown_texts()[-1].startswith(f"{id} · every 2h · next ")
        gateway.send_message("/schedule remove nonsense")
        assert "no such schedule" in gateway.list_shown_texts()[-1]
        gateway.send_message(f"/schedule remove {id}")
        gateway.send_message("/schedule")
        assert gateway.list_shown_texts()[-1].startswith("Nothing is scheduled here")
        gateway.assert_sound()


class MembershipPlatform(FakePlatform):
    """A platform that reports the members of a chat."""

    members: frozenset[str] = frozenset()
    away = False

    async def is_alone_with(self, to: ChatLocation, sender: str) -> bool:
        if self.away:
            raise Transient("nobody answers")
        return self.members <= {sender}


async def test_a_schedule_of_a_direct_chat_does_not_fire_for_another_person(harness: IngressHarness) -> None:
    harness.fake = roomy = MembershipPlatform()
    harness.admission = harness.open_admission()
    await harness.send_message("hello", can_change_owner=True)
    await keep(harness, "every 1h")
    for there, count in (({"1001"}, 1), ({"1001", "7"}, 1), ({"7"}, 1), ({"1001"}, 2)):
        roomy.members = frozenset(there)
        harness.clock.at += 3600
        await schedules(harness).fire_due()
        assert (await heard(harness)).count("good morning") == count, there


async def test_a_schedule_of_a_direct_chat_waits_until_the_chat_s_owner_is_known(harness: IngressHarness) -> None:
    harness.fake = roomy = MembershipPlatform()
    harness.admission = harness.open_admission()
    await harness.send_message("hello", can_change_owner=True)
    await keep(harness, "every 1h")
    await keep(harness, "every 1h", sender="2002", id="s2")
    harness.clock.at += 3600
    roomy.away = True
    await schedules(harness).fire_due()
    assert (await heard(harness)).count("good morning") == 0
    roomy.away, roomy.members = False, frozenset({"1001"})
    harness.clock.at += 60
    for _ in range(2):
        await schedules(harness).fire_due()
    assert (await heard(harness)).count("good morning") == 1, "once, for the only member"


async def test_a_schedule_in_a_chat_of_another_owner_fires_in_its_creator_s_session(harness: IngressHarness) -> None:
    """A due schedule does not arrive through the platform, but it fires in the creator's own session."""
    first = await harness.send_message("hello", chat="!room", kind="dm", can_change_owner=True)
    second = await harness.send_message("hello", chat="!room", kind="dm", can_change_owner=True, sender="7")
    await keep(harness, "every 1h", sender="7", chat="!room")
    harness.admission = harness.open_admission()
    harness.clock.at += 3600
    await schedules(harness).fire_due()
    found = [e.session for e in await harness.store.read_feed() if isinstance(e.body, Heard) and e.body.scheduled]
    assert found == [second.session]
    assert first.session != second.session


def test_schedules_of_other_people_in_the_same_chat_are_hidden(tmp_path: Path) -> None:
    gateway = InProcessGateway(tmp_path)
    admit_owners(gateway)
    with gateway.run_started():
        gateway.send_message("/schedule every 2h take my pills", chat="!room", who="ada")
        assert "Scheduled" in gateway.list_shown_texts()[-1]
        id = gateway.list_shown_texts()[-1].partition("(")[2].partition(")")[0]
        gateway.send_message("/schedule", chat="!room", who="eve", kind="group")
        assert gateway.list_shown_texts()[-1].startswith("Nothing is scheduled here")
        gateway.send_message(f"/schedule remove {id}", chat="!room", who="eve", kind="group")
        assert "no such schedule" in gateway.list_shown_texts()[-1]
        gateway.send_message("/schedule", chat="!room", who="ada")
        assert "take my pills" in gateway.list_shown_texts()[-1]


def test_a_schedule_is_charged_to_its_person_and_the_background_budget(tmp_path: Path) -> None:
    gateway = InProcessGateway(tmp_path)
    gateway.runtimes.settings["limits"] = lambda stamp, _role: [
        BudgetLimit(budget=f"person:{stamp.person}", tokens=100_000)
    ]
    gateway.runtimes.settings["job_limits"] = lambda: [BudgetLimit(budget="background:main", tokens=5_000)]

    def spent(budget: str) -> int:
        return gateway.run(gateway.store.get_spend(budget, "")).tokens

    with gateway.run_started():
        gateway.send_message("good morning", event=SCHEDULED_EVENT, id="schedule/s1@1")
        assert (spent("background:main"), spent("agent:main"), spent("person:ada")) == (15, 15, 15)
        gateway.send_message("hello", id="schedule/s1@2")
        assert (spent("background:main"), spent("person:ada")) == (15, 30), (
            "the id alone does not make a message scheduled"
        )
        gateway.runtimes.settings["job_limits"] = lambda: [BudgetLimit(budget="background:main", tokens=20)]
        gateway.send_message("good morning", event=SCHEDULED_EVENT, id="schedule/s1@3")
        assert "budget" in gateway.list_shown_texts()[-1]
        gateway.send_message("are you there?")
        assert gateway.list_shown_texts()[-1] == "You said: are you there?", "a person's messages have another budget"
        gateway.assert_sound()


async def test_missed_runs_are_left_out_if_the_schedule_says_so(harness: IngressHarness) -> None:
    await harness.send_and_read("hello")
    await keep(harness, "every 1h", missed=MissedRuns.SKIP)
    harness.clock.at += 7 * 3600 + 1_800
    await schedules(harness).fire_due()
    assert await heard(harness) == ["hello"]
    assert harness.log.find_events("schedule.skipped")
    harness.clock.at += 1_800 + 60
    await schedules(harness).fire_due()
    assert await heard(harness) == ["hello", "good morning"], "the next one in time fires"


async def test_a_one_time_schedule_that_was_missed_and_left_out_is_deleted(harness: IngressHarness) -> None:
    await harness.send_and_read("hello")
    await keep(harness, "in 1h", missed=MissedRuns.SKIP)
    harness.clock.at += 7_200
    await schedules(harness).fire_due()
    assert await heard(harness) == ["hello"]
    assert await schedules(harness).list_schedules() == []


async def ask_for_run(harness: IngressHarness) -> None:
    (record,) = await harness.store.list_state_records(StateNamespace.SCHEDULE)
    it = request_run(msgspec.json.decode(record.value, type=Schedule), now=harness.clock.at)
    write = record.replace_with(msgspec.json.encode(it).decode())
    await harness.store.commit(Change(step=Step.STATE, session="", at=harness.clock.at, state_writes=(write,)))


@pytest.mark.parametrize("off", [False, True])
async def test_a_run_that_is_asked_for_fires_once_and_moves_nothing(harness: IngressHarness, off: bool) -> None:
    await harness.send_and_read("hello")
    await keep(harness, "every 1h", off=off)
    for expected in (1, 2):
        await ask_for_run(harness)
        for _ in range(2):
            await schedules(harness).fire_due()
        assert (await heard(harness)).count("good morning") == expected
        harness.clock.at += 10
    (kept,) = await schedules(harness).list_schedules()
    assert (kept.asked, kept.last, kept.off) == (0.0, 0.0, off)


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_around_a_run_that_is_asked_for_leaves_one(harness: IngressHarness, after: bool) -> None:
    await harness.send_and_read("hello")
    await keep(harness, "every 1h")
    await ask_for_run(harness)

    async def crash(incoming: IncomingMessage) -> AcceptResult:
        if after:
            await harness.accept(incoming)
        raise ProcessKilled

    with pytest.raises(ProcessKilled):
        await schedules(harness, crash).fire_due()
    await schedules(harness).fire_due()
    await schedules(harness).fire_due()
    assert (await heard(harness)).count("good morning") == 1
