"""A running gateway judges every call by the policy in force and the roles of those whose words the turn takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Called, Entry, Returned, TextPiece, ToolCall
from everhold.core.policy import PolicyOutcome, PolicyRule, ToolPolicy, ToolReach
from everhold.core.roles import ChatPlace, PersonRole, ToolAccess
from everhold.engine import tool_policy
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.store import Step
from everhold.ports.tool import ToolEffect
from everhold.testing.fakes import FakeModel, FakeTool
from tests.engine.roles_scenario import RolesScenario
from tests.engine.test_operations import crash_at_step

STRANGER, KNOWN, MEMBER, OWNER = PersonRole
DIRECT, OWN_SESSION, SHARED = ChatPlace
ALLOW, ASK, DENY = PolicyOutcome


class ReachingTool(FakeTool):
    """A tool that says what it reaches. The table of roles lets everybody use it."""

    access = ToolAccess.READ

    def __init__(self, name: str, reach: str, effect: ToolEffect = ToolEffect.ONCE) -> None:
        super().__init__(name, effect)
        self.reach = reach

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return ToolReach(arguments.get("reach", self.reach))


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[RolesScenario]:
    scenario = RolesScenario(tmp_path)
    with scenario.gateway.run_started():
        yield scenario


class PolicyHolder:
    """The policy in force. A test changes it while a turn runs."""

    def __init__(self, scenario: RolesScenario, *rules: PolicyRule, after_foreign: PolicyOutcome = ASK) -> None:
        self.policy = ToolPolicy(rules=rules, after_foreign=after_foreign)
        scenario.gateway.runtimes.settings["get_policy"] = lambda: self.policy


def call_once(tool: str, arguments: dict[str, Any] | None = None) -> FakeModel:
    """A model that calls a tool once per turn, and answers with its result."""

    def answer(request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        if last.role == "tool":
            return ModelResponse(text=last.text)
        return ModelResponse(calls=(ToolCall(id="c", tool=tool, arguments=arguments or {}),))

    return FakeModel(answer)


def use_tool(scenario: RolesScenario, tool: FakeTool, arguments: dict[str, Any] | None = None) -> None:
    scenario.gateway.runtimes.tools = {tool.spec.name: tool}
    scenario.gateway.runtimes.model = call_once(tool.spec.name, arguments)


def read_everything(scenario: RolesScenario) -> list[Entry]:
    return list(scenario.gateway.run(scenario.gateway.store.read_feed()))


def list_called(scenario: RolesScenario) -> list[Called]:
    return [entry.body for entry in read_everything(scenario) if isinstance(entry.body, Called)]


CELLS = [
    (OWNER, DIRECT, "private", True),
    (OWNER, DIRECT, "change", True),
    (OWNER, DIRECT, "outside", False),
    (OWNER, SHARED, "private", False),
    (OWNER, SHARED, "public", True),
    (MEMBER, DIRECT, "public", True),
    (MEMBER, DIRECT, "private", False),
    (MEMBER, OWN_SESSION, "public", False),
    (MEMBER, OWN_SESSION, "own", True),
]


@pytest.mark.parametrize("role, place, reach, runs", CELLS)
def test_a_call_runs_or_is_refused_by_the_default_table(
    scenario: RolesScenario, role: PersonRole, place: ChatPlace, reach: str, runs: bool
) -> None:
    PolicyHolder(scenario)
    tool = ReachingTool("lamp", reach)
    use_tool(scenario, tool)
    reply = scenario.ask("do it", role, place)
    assert bool(tool.started) is runs, reply
    assert [called.because for called in list_called(scenario)] == (["default"] if runs else [])
    is_asked = role is OWNER and not runs
    assert ("asks to run lamp" in reply) is is_asked
    assert ("lamp was not run" in reply) is not (runs or is_asked)


@pytest.mark.parametrize("reach", ["nonsense", "outside"])
def test_a_tool_that_fails_to_say_its_reach_is_outside(scenario: RolesScenario, reach: str) -> None:
    PolicyHolder(scenario)
    tool = ReachingTool("lamp", reach)
    use_tool(scenario, tool)
    assert "(runs at most once, acts outside)" in scenario.ask("do it", OWNER, DIRECT)
    assert not tool.started


def test_the_arguments_decide_and_the_tool_stays_on_offer(scenario: RolesScenario) -> None:
    PolicyHolder(scenario)
    tool = ReachingTool("lamp", "own")
    use_tool(scenario, tool, {"reach": "outside"})
    assert "Not run yet" in scenario.ask("do it", OWNER, DIRECT)
    model = scenario.gateway.runtimes.model
    assert all([spec.name for spec in request.tools] == ["lamp"] for request in model.requests)
    assert len(model.requests) == 2
    scenario.gateway.runtimes.model = call_once("lamp", {"reach": "own"})
    scenario.ask("do it", OWNER, DIRECT)
    assert len(tool.started) == 1


def test_a_rule_is_named_in_the_log_and_a_change_of_the_policy_counts_at_once(scenario: RolesScenario) -> None:
    holder = PolicyHolder(scenario, PolicyRule(tool="lam*", do=ALLOW, who=(OWNER,)))
    tool = ReachingTool("lamp", "outside")
    use_tool(scenario, tool)
    scenario.ask("do it", OWNER, DIRECT)
    assert [called.because for called in list_called(scenario)] == ["config:1"]
    calls = 0

    def answer(request: ModelRequest) -> ModelResponse:
        nonlocal calls
        calls += 1
        if calls == 2:
            holder.policy = ToolPolicy(rules=(PolicyRule(tool="lamp", do=DENY),))
        if calls == 3:
            return ModelResponse(text=request.messages[-1].text)
        return ModelResponse(calls=(ToolCall(id=f"c{calls}", tool="lamp"),))

    holder.policy = ToolPolicy(rules=(PolicyRule(tool="lamp", do=ALLOW),), after_foreign=ALLOW)
    scenario.gateway.runtimes.model = FakeModel(answer)
    assert "rule 1 of policy.rules" in scenario.ask("do it twice", OWNER, DIRECT)
    assert len(tool.started) == 2, "the edit came between the two calls"


def test_a_message_of_a_stranger_lowers_the_turn_that_takes_it(scenario: RolesScenario) -> None:
    PolicyHolder(scenario)
    tool = ReachingTool("lamp", "public")
    use_tool(scenario, tool)
    gateway = scenario.gateway
    gateway.runtimes.settings["busy_policy"] = "steer"

    def answer(request: ModelRequest) -> ModelResponse:
        asked = [message for message in request.messages if message.role == "user"]
        if request.messages[-1].role == "tool" and len(asked) == 2:
            return ModelResponse(text=request.messages[-1].text)
        return ModelResponse(calls=(ToolCall(id=f"c{len(request.messages)}", tool="lamp"),))

    gateway.runtimes.model = FakeModel(answer)
    scenario.send("go on", OWNER, SHARED, rest=False)
    scenario.send("and this", STRANGER, SHARED)
    assert "was not run" in gateway.list_shown_texts()[-1]
    assert "stranger in a group" in gateway.list_shown_texts()[-1]


def test_a_result_of_another_tool_is_foreign_and_stays_so_in_later_turns(scenario: RolesScenario) -> None:
    PolicyHolder(scenario, PolicyRule(tool="*", do=ALLOW))
    tool = ReachingTool("lamp", "outside")
    use_tool(scenario, tool)
    scenario.ask("do it", OWNER, DIRECT)
    assert len(tool.started) == 1
    assert "I read words here that do not come from the person" in scenario.ask("do it again", OWNER, DIRECT)
    assert len(tool.started) == 1


def test_forwarded_words_make_a_call_ask_whatever_rule_allows_it(scenario: RolesScenario) -> None:
    PolicyHolder(scenario, PolicyRule(tool="*", do=ALLOW))
    tool = ReachingTool("lamp", "outside")
    use_tool(scenario, tool)
    pieces = (TextPiece(source="forwarded", by="fake:9", text="turn on the lamp"),)
    assert "Not run yet" in scenario.ask("what is this?", OWNER, DIRECT, pieces=pieces)
    assert not tool.started


def test_an_operator_is_an_owner_to_the_policy(scenario: RolesScenario) -> None:
    PolicyHolder(scenario)
    tool = ReachingTool("lamp", "private")
    use_tool(scenario, tool)
    scenario.gateway.runtimes.settings["is_operator"] = lambda identity: identity == "fake:2"
    scenario.ask("do it", MEMBER, DIRECT)
    assert len(tool.started) == 1
    assert tool_policy.find_policy_role(scenario.gateway.runtimes.get_runtime("main", {}), MEMBER, ()) is MEMBER


def test_a_call_that_was_started_is_not_judged_again_when_the_turn_resumes(scenario: RolesScenario) -> None:
    holder = PolicyHolder(scenario, PolicyRule(tool="lamp", do=ALLOW))
    tool = ReachingTool("lamp", "outside", ToolEffect.KEYED)
    use_tool(scenario, tool)
    gateway = scenario.gateway
    crash_at_step(gateway, Step.THINK, after=True)  # the thought is committed together with the start of its first call
    scenario.send("do it", OWNER, DIRECT, rest=False)
    gateway.pass_time()
    holder.policy = ToolPolicy(rules=(PolicyRule(tool="lamp", do=DENY),))
    gateway.crash()
    scenario.restart()
    gateway.run_until_idle(60.0)
    returned = [entry.body for entry in read_everything(scenario) if isinstance(entry.body, Returned)]
    assert [one.error for one in returned] == [False]
    assert sum(tool.done.values()) == 1
