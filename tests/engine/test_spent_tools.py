"""A turn that an unlink or an erasure takes back is answered again, but a tool that acted does not act again."""

from __future__ import annotations

from typing import Any

import pytest

from everhold.core.entries import (
    Began,
    Called,
    ChatLocation,
    Entry,
    EntryBody,
    EntryKind,
    Heard,
    Returned,
    Thought,
    ToolCall,
)
from everhold.core.turn import list_spent_tools
from everhold.engine.state_updates import update_people
from everhold.engine.turn import execution
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.tool import SendRequest, ToolContext, ToolEffect, ToolResult
from everhold.testing.fakes import FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway

from .test_people import DISCORD, TELEGRAM, PeopleScenario

HOW = ["unlinked", "erased"]
RECORDED_EFFECTS = [ToolEffect.ONCE, ToolEffect.KEYED, ToolEffect.PROBE]
"""The effects of tools whose calls are recorded before they start."""


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
@pytest.mark.parametrize("effect", RECORDED_EFFECTS)
@pytest.mark.parametrize("during", [True, False], ids=["during", "after"])
def test_a_started_call_is_never_repeated(
    gateway: InProcessGateway, how: str, effect: ToolEffect, during: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second turn's call has another key, so a key would not prevent the second effect."""
    turn = TakenBackTurn(gateway, how, effect=effect)
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


class MessengerTool(FakeTool):
    """Sends a message with its result, so its call is not recorded before it starts."""

    def __init__(self) -> None:
        super().__init__("pay", ToolEffect.PURE)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        await super().run(arguments, context)
        to = ChatLocation(platform="fake", account="main", chat="bank")
        return ToolResult(text="Sent to the bank.", send_requests=(SendRequest(text="pay the bill", to=to),))


@pytest.mark.parametrize("how", HOW)
def test_a_message_that_a_tool_sent_is_not_sent_again(
    gateway: InProcessGateway, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = TakenBackTurn(gateway, how)
    turn.tool = gateway.runtimes.tools["pay"] = MessengerTool()
    turn.take_back_after_the_call(monkeypatch)
    shown = turn.send()
    assert gateway.list_shown_texts().count("pay the bill") == 1
    assert "already called pay" in shown


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


def test_if_the_answer_was_erased_any_tool_may_have_sent_the_message() -> None:
    began = make_entry(2, EntryKind.BEGAN, Began(type="turn", takes=(1,)))
    thought = make_entry(3, EntryKind.THOUGHT, Thought(text="", calls=(ToolCall(id="1", tool="tell", arguments={}),)))
    returned = make_entry(4, EntryKind.RETURNED, Returned(call="1", text="sent"))
    erased_thought, erased_result = (make_entry(it.seq, it.kind, None) for it in (thought, returned))
    sent = make_entry(5, EntryKind.SAID, None)
    assert set(list_spent_tools([began, thought, returned, sent], {1}, {"pay", "tell"})) == {"tell"}
    assert list_spent_tools([began, thought, returned], {1}, {"pay", "tell"}) == {}, "nothing was sent"
    for erased in ([erased_thought, returned], [thought, erased_result]):
        assert set(list_spent_tools([began, *erased, sent], {1}, {"pay", "tell"})) == {"pay", "tell"}
