"""Processes that end again and again, and the turns they leave: nothing is given up for good, and one bad turn does not
hold the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from everhold.admin.status import collect_status
from everhold.core.entries import Ended, Notified, ToolCall
from everhold.core.turn import MAX_TURN_ATTEMPTS, compute_stable_seconds
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.store import Change, CommitResult, Operation, Step
from everhold.ports.tool import ToolEffect
from everhold.testing.fakes import FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway

CHATS = 10
KILL_SECONDS = 20.0


class SlowModel(FakeModel):
    """Takes `seconds` for an answer, and records how many calls of the living process run at once."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.asked: list[str] = []
        self.running: set[str] = set()
        self.most_at_once = 0
        self.on_ask: Callable[[str], None] = lambda text: None

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        text = request.messages[-1].text
        self.asked.append(text)
        self.running.add(text)
        self.most_at_once = max(self.most_at_once, len(self.running))
        self.on_ask(text)
        await asyncio.sleep(self.seconds)
        self.running.discard(text)
        return await super().answer(request, on_text=on_text)


def kill_and_start(gateway: InProcessGateway, model: SlowModel) -> None:
    gateway.crash()
    model.running.clear()
    model.most_at_once = 0
    gateway.start()


def list_turns(gateway: InProcessGateway, sessions: list[str]) -> list[Operation]:
    return [turn for it in sessions for turn in gateway.run(gateway.store.list_operations(it, types=("turn",)))]


def test_a_host_that_is_killed_for_an_hour_answers_everything_afterwards(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = model = SlowModel(60.0)
    sessions = [gateway.send_message(f"m{n}", chat=f"chat-{n}", rest=False).session for n in range(CHATS)]
    for _ in range(int(3_600 / KILL_SECONDS)):
        gateway.pass_time(KILL_SECONDS)
        kill_and_start(gateway, model)
    status = gateway.run(collect_status(gateway.process.gates, gateway.runtimes))  # type: ignore[union-attr]
    assert status["given_up"], "status shows what waits for a stable host"
    starts = [turn.attempts for turn in list_turns(gateway, sessions)]
    assert max(starts) <= MAX_TURN_ATTEMPTS + 1, "what is given up is not tried while the host is unstable"
    gateway.pass_time(compute_stable_seconds(max(starts)) + 61 * CHATS)
    gateway.run_until_idle(10)
    assert sorted(gateway.list_shown_texts()) == sorted(f"You said: m{n}" for n in range(CHATS))
    for session in sessions:
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["done"]
        assert gateway.read_bodies(session, Notified) == []
    status = gateway.run(collect_status(gateway.process.gates, gateway.runtimes))  # type: ignore[union-attr]
    assert status["given_up"] == []
    gateway.assert_sound()


def test_turns_that_met_two_ends_are_tried_one_at_a_time(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = model = SlowModel(60.0)
    sessions = [gateway.send_message(f"m{n}", chat=f"chat-{n}", rest=False).session for n in range(4)]
    gateway.pass_time(1)
    kill_and_start(gateway, model)
    gateway.pass_time(1)
    assert model.most_at_once == 4, "one end says nothing about any of them"
    kill_and_start(gateway, model)
    gateway.pass_time(10)
    assert (model.most_at_once, len(model.running)) == (1, 1)
    assert sorted(turn.attempts for turn in list_turns(gateway, sessions)) == [2, 2, 2, 3]
    gateway.send_message("new", chat="another", rest=False)
    gateway.pass_time(1)
    assert "new" in model.running, "others do not wait for it"
    gateway.run_until_idle(400)
    assert len(gateway.list_shown_texts()) == 5
    gateway.assert_sound()


def test_the_least_tried_turn_is_tried_first(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = model = SlowModel(60.0)
    sessions = [gateway.send_message(f"m{n}", chat=f"chat-{n}", rest=False).session for n in range(4)]
    gateway.pass_time(1)
    for _ in range(5):  # the first start tries all, each later one tries one
        kill_and_start(gateway, model)
        gateway.pass_time(1)
    starts = [turn.attempts for turn in list_turns(gateway, sessions)]
    assert starts == [3] * 4, "no turn is tried twice before the others"


def test_a_turn_that_ends_the_process_does_not_hold_the_others(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = model = SlowModel(5.0)
    deaths: list[str] = []

    def die(text: str) -> None:
        if text == "poison" and gateway.process is not None:
            deaths.append(text)
            gateway.process.die()

    model.on_ask = die
    poison = gateway.send_message("poison", chat="poison", rest=False).session
    others = []
    for n in range(5):
        kill_and_start(gateway, model)
        others.append(gateway.send_message(f"m{n}", chat=f"chat-{n}", rest=False).session)
        gateway.pass_time(0.5)
    for _ in range(12):
        kill_and_start(gateway, model)
        gateway.pass_time(40)
    assert sorted(gateway.list_shown_texts()) == [f"You said: m{n}" for n in range(5)]
    (turn,) = list_turns(gateway, [poison])
    assert turn.attempts == MAX_TURN_ATTEMPTS + 1, "it is not tried again before the process has run for a while"
    before = len(deaths)
    gateway.pass_time(60)
    assert len(deaths) == before + 1, "it is tried again by itself"
    model.on_ask = lambda text: None
    kill_and_start(gateway, model)
    for session in others:
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["done"]
    gateway.pass_time(compute_stable_seconds(turn.attempts + 1) - 1)
    assert len(gateway.list_shown_texts()) == 5
    gateway.run_until_idle(20)
    assert gateway.list_shown_texts()[-1] == "You said: poison"
    gateway.assert_sound()


def test_a_turn_that_fails_in_one_process_again_and_again_ends_with_a_notice(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = FakeModel(lambda request: ModelResponse(calls=(ToolCall(id="c1", tool="pure"),)))
    gateway.runtimes.tools = {"pure": FakeTool("pure", ToolEffect.PURE)}
    assert gateway.process is not None
    disk = gateway.process.disk
    real = disk.commit

    async def commit(change: Change) -> CommitResult:
        if change.step is Step.RETURN:
            raise RuntimeError("a bug")
        return await real(change)

    disk.commit = commit  # type: ignore[method-assign]  # there is no known bug to use
    session = gateway.send_message("hello", rest=False).session
    gateway.pass_time(3_600)
    assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["failed"]
    assert "never ended" in gateway.read_bodies(session, Notified)[0].text


def test_a_stop_is_no_attempt(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = SlowModel(60.0)
    session = gateway.send_message("hello", rest=False).session
    for _ in range(8):
        gateway.pass_time(5)
        assert gateway.process is not None
        gateway.run(gateway.process.supervisor.drain(1.0))
        gateway.crash()
        gateway.start()
    gateway.pass_time(1)
    (turn,) = list_turns(gateway, [session])
    assert turn.attempts == 1
    gateway.run_until_idle(70)
    assert gateway.list_shown_texts() == ["You said: hello"]


@pytest.mark.parametrize(
    "starts, seconds",
    [(1, 0), (MAX_TURN_ATTEMPTS, 0), (MAX_TURN_ATTEMPTS + 1, 60), (MAX_TURN_ATTEMPTS + 3, 240), (1_000, 3_600)],
)
def test_a_process_must_run_longer_before_each_further_start(starts: int, seconds: float) -> None:
    assert compute_stable_seconds(starts) == seconds
