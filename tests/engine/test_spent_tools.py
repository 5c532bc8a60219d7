"""A turn that an unlink or an erasure takes back is answered again, but a `once` tool does not run again."""

from __future__ import annotations

from typing import Any

import pytest

from everhold.core.entries import Began, Called, Entry, EntryBody, EntryKind, Heard, Returned, ToolCall
from everhold.core.turn import list_spent_tools
from everhold.engine.state_updates import update_people
from everhold.engine.turn import execution
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.tool import ToolEffect
from everhold.testing.fakes import FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway

from .test_people import DISCORD, TELEGRAM, PeopleScenario

HOW = ["unlinked", "erased"]


class TakenBackTurn:
    """A turn pays, and is taken back while it pays, or while the model reads the result."""

    def __init__(self, gateway: InProcessGateway, how: str, *, effect: ToolEffect = ToolEffect.ONCE) -> None:
        self.gateway = gateway
        self.how = how
        self.was_taken_back = False
        self.requests: list[ModelRequest] = []
        scenario = PeopleScenario(gateway)
        scenario.link(TELEGRAM, DISCORD)
        self.session = gateway.send_message("an old word", who=DISCORD, chat="d").session
        self.tool = FakeTool("pay", effect)
        gateway.runtimes.tools["pay"] = self.tool
        gateway.runtimes.model = FakeModel(self._answer)

    def _answer(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        if request.messages[-1].role == "tool":
            return ModelResponse(text=f"told: {request.messages[-1].text}")
        # another wording in each attempt, as models do
        return ModelResponse(calls=(ToolCall(id="1", tool="pay", arguments={"text": str(len(self.requests))}),))

    async def take_back(self) -> None:
        if self.was_taken_back:
            return
        self.was_taken_back = True
        gateway = self.gateway
        if self.how == "erased":
            log = await gateway.store.list_entries(self.session)
            await gateway.control.erase_entries(self.session, [next(e.seq for e in log if isinstance(e.body, Heard))])
            return
        await update_people(
            gateway.store,
            chance=gateway.control.gates.chance,
            at=gateway.clock.now(),
            by="operator",
            plan=lambda it: it.unlink_identity(DISCORD),
        )

    def take_back_during_the_call(self) -> None:
        real = self.tool.run

        async def run(arguments: dict[str, Any], context: Any) -> Any:
            done = await real(arguments, context)
            await self.take_back()
            return done

        self.tool.run = run  # type: ignore[method-assign]

    def take_back_after_the_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = execution.TurnExecution._ask_model

        async def ask(turn: execution.TurnExecution) -> Any:
            if turn.state.rounds:
                await self.take_back()
            return await real(turn)

        monkeypatch.setattr(execution.TurnExecution, "_ask_model", ask)

    def send(self) -> str:
        self.gateway.send_message("pay the bill", who=DISCORD, chat="d")
        assert self.was_taken_back
        self.gateway.assert_sound()
        return self.gateway.list_shown_texts()[-1]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("during", [True, False], ids=["during", "after"])
def test_a_started_call_is_never_repeated(
    gateway: InProcessGateway, how: str, during: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = TakenBackTurn(gateway, how)
    if during:
        turn.take_back_during_the_call()
    else:
        turn.take_back_after_the_call(monkeypatch)
    shown = turn.send()
    assert sum(turn.tool.started.values()) == 1
    assert "already called pay" in shown
    assert shown.startswith("told: ")


@pytest.mark.parametrize("how", HOW)
def test_a_later_request_may_call_it(gateway: InProcessGateway, how: str) -> None:
    turn = TakenBackTurn(gateway, how)
    turn.take_back_during_the_call()
    turn.send()
    gateway.send_message("pay the next bill", who=DISCORD, chat="d")
    assert sum(turn.tool.started.values()) == 2


def test_a_tool_that_may_be_repeated_runs_again(gateway: InProcessGateway) -> None:
    turn = TakenBackTurn(gateway, "erased", effect=ToolEffect.PURE)
    turn.take_back_during_the_call()
    turn.send()
    assert sum(turn.tool.started.values()) == 2


def make_entry(seq: int, kind: EntryKind, body: EntryBody | None) -> Entry:
    return Entry(
        session="s", seq=seq, pos=seq, kind=kind, body=body, op=2, author="agent:main", at=1.0, version=1, digest=b""
    )


def test_if_the_call_was_erased_it_may_have_been_any() -> None:
    began = make_entry(2, EntryKind.BEGAN, Began(type="turn", takes=(1,)))
    called = make_entry(3, EntryKind.CALLED, Called(call="1", tool="pay", effect="once", key="k"))
    returned = make_entry(4, EntryKind.RETURNED, Returned(call="1", text="paid"))
    erased = make_entry(3, EntryKind.CALLED, None)
    assert "returned a result" in list_spent_tools([began, called, returned], {1}, {"pay", "tell"})["pay"]
    assert "unknown" in list_spent_tools([began, called], {1}, {"pay"})["pay"]
    assert list_spent_tools([began, called], {1}, {"tell"}) == {}
    assert list_spent_tools([began, called], {9}, {"pay"}) == {}, "it was for other messages"
    assert set(list_spent_tools([began, erased], {1}, {"pay", "tell"})) == {"pay", "tell"}
