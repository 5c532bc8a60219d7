"""Sub-agents: a turn gives a task away, its work is recorded in the same log, and its result is heard exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from everhold.core.entries import Began, Changed, Heard, ModelUsage, Returned, TaskRequested, ToolCall
from everhold.core.policy import PolicyOutcome, PolicyRule, ScopeOrigin
from everhold.core.roles import ChatPlace, PersonRole
from everhold.engine.agent_runtime import DelegateLimits
from everhold.engine.budgets import BudgetLimit
from everhold.errors import Overloaded
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.store import Change, Step, Store
from everhold.ports.tool import ToolEffect
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway
from everhold.tools.delegate import DelegateTool
from tests.engine.roles_scenario import RolesScenario
from tests.engine.test_tool_policy import PolicyHolder, ReachingTool

ASK, DENY, ALLOW = PolicyOutcome.ASK, PolicyOutcome.DENY, PolicyOutcome.ALLOW


class LiveDelegateTool(DelegateTool):
    """The tool on the store of the process that runs now."""

    def __init__(self, gateway: InProcessGateway) -> None:
        self._gateway = gateway

    @property
    def _store(self) -> Store:  # type: ignore[override]
        return self._gateway.store


def crash_at(gateway: InProcessGateway, step: Step, *, after: bool, count: int) -> None:
    """Kill the process at the count-th commit of a kind: just before it, or just after."""
    assert gateway.process is not None
    process, real = gateway.process, gateway.process.disk.commit
    left = count

    async def commit(change: Change) -> Any:
        nonlocal left
        left -= change.step is step
        if change.step is step and not left:
            if after:
                await real(change)
            process.die()
            await asyncio.get_running_loop().create_future()
        return await real(change)

    process.disk.commit = commit  # type: ignore[method-assign]


class Household:
    """A gateway whose model gives one task away per order `delegate N`, and a sub-agent that uses tools."""

    def __init__(self, gateway: InProcessGateway, *tools: FakeTool, calls: tuple[ToolCall, ...] = ()) -> None:
        self.gateway = gateway
        self.sub_requests: list[ModelRequest] = []
        self.main_requests: list[ModelRequest] = []
        self.calls = calls
        self.arguments: dict[str, object] = {}
        self.is_model_away = False
        gateway.runtimes.tools = {"delegate": LiveDelegateTool(gateway), **{tool.spec.name: tool for tool in tools}}
        gateway.runtimes.model = FakeModel(self.answer)

    def answer(self, request: ModelRequest) -> ModelResponse:
        if "You are a sub-agent" in request.system:
            return self._answer_sub_agent(request)
        self.main_requests.append(request)
        last = request.messages[-1]
        if last.role == "user" and last.text.startswith("delegate"):
            count = int(last.text.split()[1])
            return ModelResponse(
                calls=tuple(
                    ToolCall(id=f"d{n}", tool="delegate", arguments={"task": f"job {n}", **self.arguments})
                    for n in range(count)
                )
            )
        return ModelResponse(text=last.text)

    def _answer_sub_agent(self, request: ModelRequest) -> ModelResponse:
        if self.is_model_away:
            raise Overloaded("down")
        self.sub_requests.append(request)
        done = sum(message.role == "tool" for message in request.messages)
        if done < len(self.calls) and request.tools:
            return ModelResponse(calls=(self.calls[done],))
        results = [message.text for message in request.messages if message.role == "tool"]
        return ModelResponse(text=f"finished {request.messages[0].text.splitlines()[0]} with {results}")

    def list_reports(self, session: str) -> list[Heard]:
        return [body for body in self.gateway.read_bodies(session, Heard) if body.delegated]


def test_a_result_is_heard_and_answered_once(gateway: InProcessGateway) -> None:
    look = FakeTool("shell", ToolEffect.ONCE)
    home = Household(gateway, look, calls=(ToolCall(id="1", tool="shell"),))
    session = gateway.send_message("delegate 1").session
    (report,) = home.list_reports(session)
    assert "job 0" in report.text
    assert "finished" in report.text
    assert report.asks
    assert sum("finished" in text for text in gateway.list_shown_texts()) == 1, "the turn that hears it answers it"
    assert sum(look.started.values()) == 1
    assert [spec.name for spec in home.sub_requests[0].tools] == ["shell"], "no sub-agent has sub-agents"
    assert not any("delegate 1" in message.text for message in home.sub_requests[0].messages), "it sees the task only"
    assert len(gateway.run(gateway.store.list_sessions())) == 1
    assert [began.type for began in gateway.read_bodies(session, Began)].count("job") == 1
    gateway.assert_sound()


def test_a_memory_receives_the_answers_and_nothing_of_the_work(gateway: InProcessGateway) -> None:
    provider = FakeMemoryProvider()
    gateway.runtimes.memories = {"a": provider}
    secret = FakeTool("shell", ToolEffect.PURE)
    home = Household(gateway, secret, calls=(ToolCall(id="1", tool="shell"),))
    home.gateway.runtimes.model = FakeModel(
        lambda request: (
            ModelResponse(text="understood")
            if "You are a sub-agent" not in request.system and not request.messages[-1].text.startswith("delegate")
            else home.answer(request)
        )
    )
    session = gateway.send_message("delegate 1").session
    assert home.list_reports(session)
    kept = "\n".join(map(str, provider.kept[session]))
    assert "understood" in kept
    assert "Result of sub-agent" not in kept
    assert "finished" not in kept


def test_several_work_at_once_and_a_fifth_is_refused(gateway: InProcessGateway) -> None:
    home = Household(gateway)
    home.is_model_away = True
    session = gateway.send_message("delegate 5", rest=False).session
    gateway.pass_time(30)
    assert home.list_reports(session) == []
    home.is_model_away = False
    gateway.pass_time(600)
    assert sorted(report.text.splitlines()[0][-8:] for report in home.list_reports(session)) == [
        f"“job {n}”]" for n in range(4)
    ]
    results = [body.text for body in gateway.read_bodies(session, Returned)]
    assert sum("4 sub-agents work for this conversation already" in text for text in results) == 1
    gateway.send_message("delegate 1")
    assert len(home.list_reports(session)) == 5, "a slot is free again after its result"
    gateway.assert_sound()


STEPS = [Step.RETURN, Step.BEGIN, Step.THINK, Step.CALL, Step.JOB, Step.END]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("effect", [ToolEffect.ONCE, ToolEffect.KEYED, ToolEffect.PROBE])
def test_a_crash_anywhere_gives_one_result_and_repeats_no_call(
    gateway: InProcessGateway, step: Step, count: int, after: bool, effect: ToolEffect
) -> None:
    tool = FakeTool("shell", effect)
    home = Household(gateway, tool, calls=(ToolCall(id="1", tool="shell"),))
    crash_at(gateway, step, after=after, count=count)
    session = gateway.send_message("delegate 1", rest=False).session
    for _ in range(2):
        gateway.pass_time(5)
        gateway.start()
        gateway.pass_time(400)
    assert len(home.list_reports(session)) == 1
    assert len([it for it in gateway.read_bodies(session, Changed) if isinstance(it.change, TaskRequested)]) == 1
    assert len(tool.done) <= 1, "its effect happened at most once"
    if effect is not ToolEffect.ONCE:
        assert len(tool.done) == 1
    gateway.assert_sound()


def test_limits_end_the_work_with_what_there_is(gateway: InProcessGateway) -> None:
    tool = FakeTool("shell", ToolEffect.PURE)
    home = Household(gateway, tool, calls=tuple(ToolCall(id=f"{n}", tool="shell") for n in range(9)))
    gateway.runtimes.settings["delegate_limits"] = DelegateLimits(rounds=3)
    session = gateway.send_message("delegate 1").session
    assert sum(tool.started.values()) == 3
    assert "Your limit of 3 rounds is reached" in home.sub_requests[-1].messages[-1].text
    assert home.sub_requests[-1].tools == ()
    assert "finished" in home.list_reports(session)[0].text


@pytest.mark.parametrize("is_left", [True, False], ids=["budget", "no-budget"])
def test_whoever_asks_pays_for_the_sub_agents(gateway: InProcessGateway, is_left: bool) -> None:
    """Otherwise one turn within the limit of a person could give away any amount of work."""
    home, left = Household(gateway), 1_000_000

    def answer(request: ModelRequest) -> ModelResponse:
        nonlocal left
        made = home.answer(request)
        if made.calls and not is_left:
            left = 1  # another turn of the same person has spent it
        return structs.replace(made, usage=ModelUsage(input=30, output=10))

    gateway.runtimes.model = FakeModel(answer)
    gateway.runtimes.settings["limits"] = lambda stamp, role: [
        BudgetLimit(budget=f"person:{stamp.person}", tokens=left)
    ]
    session = gateway.send_message("delegate 2").session
    assert len(home.sub_requests) == (2 if is_left else 0)
    assert ["budget" in report.text for report in home.list_reports(session)] == [not is_left] * 2
    (heard, *_) = gateway.read_bodies(session, Heard)
    asked = len(home.sub_requests) + len(home.main_requests)
    assert gateway.run(gateway.store.get_spend(f"person:{heard.stamp.person}", "")).tokens == 40 * asked
    gateway.assert_sound()


def test_named_tools_are_the_only_ones(gateway: InProcessGateway) -> None:
    home = Household(gateway, *(FakeTool(name, ToolEffect.PURE) for name in ("shell", "file_read", "send", "memory")))
    home.arguments = {"tools": ["file_read", "send", "moon"]}
    gateway.send_message("delegate 1")
    assert [spec.name for spec in home.sub_requests[0].tools] == ["file_read"]
    assert "no sub-agent may use them: moon, send" in home.sub_requests[0].messages[0].text


def test_it_waits_for_a_model_that_is_away(gateway: InProcessGateway) -> None:
    home = Household(gateway)
    home.is_model_away = True
    session = gateway.send_message("delegate 1", rest=False).session
    gateway.pass_time(60)
    gateway.start()
    gateway.pass_time(60)
    assert home.list_reports(session) == []
    home.is_model_away = False
    gateway.pass_time(900)
    gateway.assert_sound()
    assert len(home.list_reports(session)) == 1


def test_an_erased_task_is_not_worked_on(gateway: InProcessGateway) -> None:
    home = Household(gateway)
    home.is_model_away = True
    session = gateway.send_message("delegate 1", rest=False).session
    gateway.pass_time(5)
    entries = gateway.run(gateway.store.list_entries(session))
    (task,) = [it for it in entries if isinstance(it.body, Changed) and isinstance(it.body.change, TaskRequested)]
    gateway.run(gateway.control.erase_entries(session, [task.seq], by="operator", why="asked"))
    home.is_model_away = False
    gateway.pass_time(400)
    assert home.list_reports(session) == []
    assert not home.sub_requests
    gateway.assert_sound()


def test_the_result_of_a_turn_that_was_undone_is_not_answered(gateway: InProcessGateway) -> None:
    home = Household(gateway)
    home.is_model_away = True
    session = gateway.send_message("delegate 1", rest=False).session
    gateway.pass_time(5)
    gateway.send_message("/undo", rest=False)
    gateway.pass_time(5)
    home.is_model_away = False
    gateway.pass_time(400)
    (report,) = home.list_reports(session)
    assert not report.asks


# -- rights ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[RolesScenario]:
    scenario = RolesScenario(tmp_path)
    with scenario.gateway.run_started():
        yield scenario


OWNER, DIRECT, SHARED = PersonRole.OWNER, ChatPlace.DIRECT, ChatPlace.SHARED


@pytest.mark.parametrize(
    "role, place, reach, rules, runs",
    [
        (OWNER, DIRECT, "change", (), True),
        (OWNER, SHARED, "change", (), False),
        (PersonRole.MEMBER, DIRECT, "change", (), False),
        (OWNER, DIRECT, "outside", (), False),
        (OWNER, DIRECT, "change", (PolicyRule(tool="shell", do=DENY, origins=(ScopeOrigin.DELEGATE,)),), False),
        (OWNER, DIRECT, "change", (PolicyRule(tool="shell", do=DENY, origins=(ScopeOrigin.CHAT,)),), False),
        (OWNER, DIRECT, "outside", (PolicyRule(tool="shell", do=ALLOW, origins=(ScopeOrigin.CHAT,)),), False),
        (OWNER, DIRECT, "outside", (PolicyRule(tool="shell", do=ALLOW, origins=(ScopeOrigin.DELEGATE,)),), True),
    ],
)
def test_a_sub_agent_has_the_rights_of_the_turn_that_gave_the_task(
    scenario: RolesScenario, role: PersonRole, place: ChatPlace, reach: str, rules: tuple[PolicyRule, ...], runs: bool
) -> None:
    PolicyHolder(scenario, *rules)
    tool = ReachingTool("shell", reach)
    home = Household(scenario.gateway, tool, calls=(ToolCall(id="1", tool="shell"),))
    shown = scenario.ask("delegate 1", role, place)
    assert bool(tool.started) is runs, shown
    assert len(home.sub_requests) == 2
    assert runs or "was not run" in shown


def test_words_of_others_that_the_turn_had_read_count_for_the_sub_agent(scenario: RolesScenario) -> None:
    PolicyHolder(scenario, PolicyRule(tool="shell", do=ALLOW))
    tool, page = ReachingTool("shell", "outside"), ReachingTool("page", "own", ToolEffect.PURE)
    home = Household(scenario.gateway, tool, page, calls=(ToolCall(id="1", tool="shell"),))
    scenario.ask("delegate 1", OWNER, DIRECT)
    assert tool.started
    tool.started.clear()
    scenario.gateway.runtimes.model = FakeModel(
        lambda request: (
            ModelResponse(calls=(ToolCall(id="p", tool="page"),))
            if request.messages[-1].text == "read"
            else home.answer(request)
        )
    )
    scenario.ask("read", OWNER, DIRECT)
    scenario.ask("delegate 1", OWNER, DIRECT)
    assert not tool.started


def test_somebody_who_lost_access_gets_nothing_done(scenario: RolesScenario) -> None:
    PolicyHolder(scenario)
    tool = ReachingTool("shell", "own")
    home = Household(scenario.gateway, tool, calls=(ToolCall(id="1", tool="shell"),))
    crash_at(scenario.gateway, Step.BEGIN, after=True, count=2)
    scenario.send("delegate 1", PersonRole.MEMBER, DIRECT, rest=False)
    scenario.restart()
    scenario.change_config('direct: [ada, "fake:2"]', "direct: [ada]")
    scenario.gateway.pass_time(400)
    assert not tool.started
    assert not home.sub_requests
