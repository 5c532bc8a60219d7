"""A gateway with the real admission and roles, whose model calls a tool that needs a person's permission."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everhold.core.approvals import ApprovalTerms
from everhold.core.entries import (
    ApprovalDecided,
    ApprovalRequested,
    Called,
    Entry,
    Heard,
    Returned,
    ToolCall,
)
from everhold.core.policy import PolicyOutcome, PolicyRule, ToolPolicy, ToolReach
from everhold.core.roles import ChatPlace, PersonRole, ToolAccess
from everhold.errors import InvalidRequest
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.tool import ToolContext, ToolEffect
from everhold.testing.fakes import FakeModel, FakeTool
from tests.engine.roles_scenario import RolesScenario


class AskingTool(FakeTool):
    """A tool that acts outside. The table of roles lets everybody use it."""

    access = ToolAccess.READ

    def __init__(self, effect: ToolEffect = ToolEffect.ONCE, name: str = "lamp", reach: str = "outside") -> None:
        super().__init__(name, effect)
        self.reach = reach

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return ToolReach(self.reach)


class BoundTool(AskingTool):
    """A tool whose calls depend on something beside their arguments."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__(name="bound")
        self.content = "echo"
        self.fails = fails

    async def bind(self, arguments: dict[str, Any], context: ToolContext) -> str:
        if self.fails:
            raise InvalidRequest("it has no workspace")
        return self.content


def call_once_for(tool: str, arguments: dict[str, Any] | None = None) -> FakeModel:
    """A model that calls a tool when a person asks, and otherwise says what it read last."""

    def answer(request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        if last.role == "user" and last.name != "everhold":
            return ModelResponse(calls=(ToolCall(id="c", tool=tool, arguments=arguments or {"to": "on"}),))
        pieces = " ".join(piece.text for piece in last.pieces)
        return ModelResponse(text=f"I read: {last.text} {pieces}".strip())

    return FakeModel(answer)


class ApprovalScenario(RolesScenario):
    """Ada is an owner, and `fake:2` a member."""

    def __init__(self, path: Path, tool: FakeTool | None = None, config: str | None = None) -> None:
        super().__init__(path) if config is None else super().__init__(path, config)
        self.tool = tool or AskingTool()
        self.policy = ToolPolicy()
        runtimes = self.gateway.runtimes
        runtimes.settings["get_policy"] = lambda: self.policy
        self.use_tool(self.tool)

    def use_tool(self, tool: FakeTool) -> None:
        self.tool = tool
        self.gateway.runtimes.tools = {tool.spec.name: tool}
        self.gateway.runtimes.model = call_once_for(tool.spec.name)

    def check_audit(self) -> None:
        audit = self.gateway.run(self.gateway.store.audit())
        assert not audit.contradictions
        assert not [it for it in audit.findings if it.level == "broken"]

    def set_policy(self, *rules: PolicyRule, after_foreign: PolicyOutcome = PolicyOutcome.ASK, **terms: Any) -> None:
        self.policy = ToolPolicy(rules=rules, after_foreign=after_foreign, approvals=ApprovalTerms(**terms))

    def request(self, text: str = "do it", role: PersonRole = PersonRole.OWNER, **more: Any) -> ApprovalRequested:
        """Let somebody ask for a call that needs permission; return the request."""
        self.ask(text, role, more.pop("place", ChatPlace.DIRECT), **more)
        request = self.list_bodies(ApprovalRequested)[-1]
        assert isinstance(request, ApprovalRequested)
        return request

    def read_everything(self) -> list[Entry]:
        return list(self.gateway.run(self.gateway.store.read_feed()))

    def list_bodies(self, kind: Any) -> list[Any]:
        return [entry.body for entry in self.read_everything() if isinstance(entry.body, kind)]

    def list_reports(self) -> list[Heard]:
        return [body for body in self.list_bodies(Heard) if body.approval is not None]

    def list_outcomes(self) -> list[str]:
        return [body.outcome for body in self.list_bodies(ApprovalDecided)]

    def count_runs(self) -> int:
        return sum(self.tool.done.values())

    def list_starts(self) -> list[str]:
        return [body.because for body in self.list_bodies(Called)]

    def list_results(self) -> list[Returned]:
        return self.list_bodies(Returned)

    def list_records(self) -> Iterator[str]:
        yield from (
            it.value for it in self.gateway.run(self.gateway.store.list_state_records()) if "appro" in it.namespace
        )
