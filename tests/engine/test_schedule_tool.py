"""The tool `schedule`: one schedule per call whatever crashes, and only for those who ask themselves."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everhold.core.entries import Returned, ToolCall
from everhold.core.roles import ChatPlace, PersonRole
from everhold.core.schedule import MAX_SCHEDULES, MissedRuns, Schedule
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.platform import SCHEDULED_EVENT
from everhold.ports.store import Change, StateNamespace, Step
from everhold.testing.fakes import FakeModel
from everhold.tools.schedule import ScheduleTool
from tests.engine.roles_scenario import RolesScenario
from tests.engine.test_operations import crash_at_step

STRANGER, KNOWN, MEMBER, OWNER = PersonRole
DIRECT, OWN_SESSION, SHARED = ChatPlace
ZONE = datetime.UTC


class ScheduleScenario(RolesScenario):
    """An agent with the tool `schedule`, whose model calls it with what a test says."""

    send_to: tuple[str, ...] = ()

    def use_tool(self) -> None:
        gateway = self.gateway
        tool = ScheduleTool(gateway.store, gateway.clock, gateway.chance, lambda: ZONE, self.send_to)
        gateway.runtimes.settings["send_to"] = self.send_to
        gateway.runtimes.tools = {"schedule": tool}

    def call(self, role: PersonRole = OWNER, place: ChatPlace = DIRECT, **arguments: Any) -> str:
        """Let the model call the tool once; return the reply, which is the tool's result."""
        self.use_tool()
        self.gateway.runtimes.model = make_model(arguments)
        return self.ask("please", role, place)

    def list_schedules(self) -> list[Schedule]:
        records = self.gateway.run(self.gateway.store.list_state_records(StateNamespace.SCHEDULE))
        return [msgspec.json.decode(record.value, type=Schedule) for record in records]


def make_model(arguments: dict[str, Any]) -> FakeModel:
    def answer(request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        if last.role == "tool":
            return ModelResponse(text=last.text)
        return ModelResponse(calls=(ToolCall(id="c", tool="schedule", arguments=arguments),))

    return FakeModel(answer)


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[ScheduleScenario]:
    scenario = ScheduleScenario(tmp_path)
    with scenario.gateway.run_started():
        yield scenario


def test_a_schedule_is_made_listed_paused_resumed_and_cancelled(scenario: ScheduleScenario) -> None:
    assert scenario.call(action="list") == "Nothing is scheduled in this conversation."
    made = scenario.call(action="create", when="in 20m", text="call mum")
    (schedule,) = scenario.list_schedules()
    assert made.startswith(f"Scheduled: {schedule.id} · in 20m · next: 2023-11-14 ")
    assert (schedule.text, schedule.sender, schedule.kind, schedule.agent) == ("call mum", "1", "dm", "main")
    assert "call mum" in scenario.call(action="list")
    assert "paused" in scenario.call(action="pause", id=schedule.id)
    assert scenario.list_schedules()[0].off
    scenario.gateway.pass_time(60)
    assert "paused" not in scenario.call(action="resume", id=schedule.id)
    resumed = scenario.list_schedules()[0]
    assert not resumed.off
    assert resumed.last >= schedule.made + 60, "what was missed is not made up for"
    assert scenario.call(action="cancel", id=schedule.id) == f"Cancelled {schedule.id}."
    assert scenario.list_schedules() == []
    scenario.gateway.assert_sound()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [Step.THINK, Step.RETURN, Step.END])
def test_a_crash_at_any_step_leaves_one_schedule(scenario: ScheduleScenario, step: Step, after: bool) -> None:
    scenario.use_tool()
    gateway = scenario.gateway
    gateway.runtimes.model = make_model({"action": "create", "when": "every 1h", "text": "look"})
    crash_at_step(gateway, step, after=after)
    scenario.send("please", OWNER, DIRECT, rest=False)
    gateway.pass_time(1.0)
    gateway.crash()
    scenario.restart()
    scenario.use_tool()
    gateway.run_until_idle(120.0)
    assert [schedule.text for schedule in scenario.list_schedules()] == ["look"]
    gateway.assert_sound()


def test_a_schedule_that_changes_at_this_moment_is_not_overwritten(scenario: ScheduleScenario) -> None:
    scenario.call(action="create", when="every 1h", text="look")
    (schedule,) = scenario.list_schedules()
    gateway = scenario.gateway
    assert gateway.process is not None
    real = gateway.process.disk.commit

    async def remove_first(change: Change) -> Any:
        if change.state_writes and change.step is Step.RETURN:
            (record,) = await gateway.process.disk.list_state_records(StateNamespace.SCHEDULE)  # type: ignore[union-attr]
            gateway.process.disk.commit = real  # type: ignore[union-attr, method-assign]
            write = record.replace_with(None)
            await real(Change(step=Step.STATE, session="", at=change.at, state_writes=(write,)))
        return await real(change)

    gateway.process.disk.commit = remove_first  # type: ignore[method-assign]
    assert "it changed at this moment" in scenario.call(action="pause", id=schedule.id)
    assert scenario.list_schedules() == []
    gateway.assert_sound()


@pytest.mark.parametrize("role", [STRANGER, KNOWN, MEMBER])
@pytest.mark.parametrize("place", [OWN_SESSION, SHARED])
def test_in_a_group_only_an_owner_changes_schedules(
    scenario: ScheduleScenario, role: PersonRole, place: ChatPlace
) -> None:
    reply = scenario.call(role, place, action="create", when="in 20m", text="look")
    assert "only an owner" in reply or "needs the role" in reply
    assert scenario.list_schedules() == []
    scenario.call(OWNER, place, action="create", when="in 20m", text="look")
    assert len(scenario.list_schedules()) == 1


def test_a_tick_and_a_bot_change_no_schedule(scenario: ScheduleScenario) -> None:
    scenario.use_tool()
    gateway = scenario.gateway
    gateway.runtimes.model = make_model({"action": "create", "when": "in 20m", "text": "again"})
    scenario.send("tick", OWNER, DIRECT, event=SCHEDULED_EVENT)
    scenario.send("from a bot", OWNER, DIRECT, bot=True)
    assert scenario.list_schedules() == []
    results = [entry.body.text for entry in gateway.run(gateway.store.read_feed()) if isinstance(entry.body, Returned)]
    assert len(results) == 2
    assert all("may not change schedules" in text for text in results)


WRONG = [
    {"action": "create"},
    {"action": "create", "when": "in 20m"},
    {"action": "create", "when": "in 20m", "text": " "},
    {"action": "create", "when": "whenever", "text": "x"},
    {"action": "create", "when": "in 20m now", "text": "x"},
    {"action": "create", "when": "at 2001-01-01 09:00", "text": "x"},
    {"action": "create", "when": "every 1m", "text": "x" * 4_001},
    {"action": "cancel", "id": "other"},
    {"action": "pause"},
    {"action": "explode"},
    {},
]


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_arguments_get_an_answer_with_a_remedy(scenario: ScheduleScenario, arguments: dict[str, Any]) -> None:
    reply = scenario.call(**arguments)
    assert reply
    assert "Error" not in reply
    assert scenario.list_schedules() == []


def test_a_conversation_has_a_limited_number_and_sees_only_its_own(scenario: ScheduleScenario) -> None:
    for _ in range(MAX_SCHEDULES):
        scenario.call(action="create", when="every 1h", text="look")
    assert f"has {MAX_SCHEDULES} schedules" in scenario.call(action="create", when="every 1h", text="look")
    assert len(scenario.list_schedules()) == MAX_SCHEDULES
    other = scenario.call(MEMBER, DIRECT, action="list")
    assert other == "Nothing is scheduled in this conversation."
    id = scenario.list_schedules()[0].id
    assert "no schedule of this id" in scenario.call(MEMBER, DIRECT, action="cancel", id=id)


def test_people_pause_and_resume_by_command(scenario: ScheduleScenario) -> None:
    scenario.ask("/schedule every 1h look", OWNER, DIRECT)
    (schedule,) = scenario.list_schedules()
    assert scenario.ask(f"/schedule pause {schedule.id}", OWNER, DIRECT) == "Paused."
    assert "paused" in scenario.ask("/schedule", OWNER, DIRECT)
    assert scenario.ask(f"/schedule resume {schedule.id}", OWNER, DIRECT) == "It fires again."
    assert scenario.ask("/schedule pause nothing", OWNER, DIRECT).startswith("This chat has no such schedule")


def test_a_run_is_asked_for_by_tool_and_command_and_fires_when_the_runner_looks(scenario: ScheduleScenario) -> None:
    scenario.call(action="create", when="every weekday at 8:30", text="look", missed="skip")
    (schedule,) = scenario.list_schedules()
    assert schedule.missed is MissedRuns.SKIP
    assert "next: now" in scenario.call(action="run", id=schedule.id)
    assert scenario.list_schedules()[0].asked
    assert scenario.ask(f"/schedule run {schedule.id}", OWNER, DIRECT) == "It fires now."
    assert "must be latest or skip" in scenario.call(action="create", when="hourly", text="x", missed="never")


def test_a_command_takes_natural_phrases_and_options(scenario: ScheduleScenario) -> None:
    scenario.ask("/schedule every monday at 9am stand up --skip-missed", OWNER, DIRECT)
    (schedule,) = scenario.list_schedules()
    assert (schedule.text, schedule.missed) == ("stand up", MissedRuns.SKIP)
    assert "next 20" in scenario.ask("/schedule", OWNER, DIRECT)
    refused = scenario.ask("/schedule hourly look --to agent:main:fake:group:g", OWNER, DIRECT)
    assert "is not among send_to" in refused
    assert len(scenario.list_schedules()) == 1


@pytest.mark.parametrize("by_command", [False, True])
def test_a_schedule_delivers_elsewhere_only_where_send_to_and_the_person_allow(
    scenario: ScheduleScenario, by_command: bool
) -> None:
    here, elsewhere = "agent:main:other:group:team", "agent:main:fake:group:team"
    scenario.send_to = (here, elsewhere, "agent:coder", "agent:coder:fake:group:team")
    scenario.use_tool()

    def make(to: str) -> str:
        if by_command:
            return scenario.ask(f"/schedule hourly look --to {to}", OWNER, DIRECT)
        return scenario.call(action="create", when="hourly", text="look", to=to)

    assert "is not among send_to" in make("agent:main:fake:group:secret")
    assert "conversation of another agent" in make("agent:coder:fake:group:team")
    assert "is not known on other" in make(here)
    assert scenario.list_schedules() == []
    make(elsewhere)
    (schedule,) = scenario.list_schedules()
    assert (schedule.place.platform, schedule.place.chat, schedule.kind) == ("fake", "team", "group")
    assert schedule.address.endswith(":dm:1"), "it is listed where it was made"
