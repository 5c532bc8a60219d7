"""Rules 6 to 8: operations and fences, tools and their effects, and the single commit that ends a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from everhold.core.entries import (
    OUTAGE_NOTICE,
    Called,
    Ended,
    EntryDraft,
    Heard,
    Noted,
    Notified,
    Returned,
    Said,
    Thought,
    ToolCall,
)
from everhold.core.turn import MAX_TURN_ATTEMPTS, compute_stable_seconds
from everhold.errors import LeaseLost, Overloaded, Refused, StoreBusy, StoreError, StoreFull
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.store import Change, CommitResult, Operation, Step, Wakeup
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult
from everhold.testing.fakes import FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway

from .conftest import FailingStore, HeldModel


def calling(tool: str) -> Callable[[ModelRequest], ModelResponse]:
    """A model that calls `tool` once and then answers with the result."""

    def answer(request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        if last.role == "tool":
            return ModelResponse(text=f"it says: {last.text}")
        return ModelResponse(calls=(ToolCall(id="c1", tool=tool),))

    return answer


def in_turn(*tools: str) -> Callable[[ModelRequest], ModelResponse]:
    """A model that calls one tool after the other and then says so."""

    def answer(request: ModelRequest) -> ModelResponse:
        done = sum(message.role == "tool" for message in request.messages)
        return (
            ModelResponse(calls=(ToolCall(id=f"c{done}", tool=tools[done]),))
            if done < len(tools)
            else ModelResponse(text="done")
        )

    return answer


class SlowTool(FakeTool):
    """A tool that takes its time."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        await asyncio.sleep(10)
        return await super().run(arguments, context)


class SlowBusyModel(FakeModel):
    """A model that refuses its first request when it is told to, and asks to wait."""

    def __init__(self, *, retry_after: float) -> None:
        super().__init__()
        self.refuses = asyncio.Event()
        self.faults.fail_next(Overloaded("slow down", retry_after=retry_after))
        self.is_asked = False

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        self.is_asked = True
        await self.refuses.wait()
        return await super().answer(request, on_text=on_text)


def wake_dispatcher(gateway: InProcessGateway) -> None:
    """Make the dispatcher look for due cursors now."""
    assert gateway.process is not None
    gateway.process.wakeups.work_available.set()
    gateway.pass_time(0.1)


def delay_commit_result(gateway: InProcessGateway, step: Step, *, seconds: float) -> None:
    """Delay the result of the next commit of `step`."""
    assert gateway.process is not None
    disk = gateway.process.disk
    real, left = disk.commit, [step]

    async def commit(change: Change) -> CommitResult:
        done = await real(change)
        if change.step in left:
            left.clear()
            await asyncio.sleep(seconds)
        return done

    disk.commit = commit  # type: ignore[method-assign]  # the worst moment is between two lines


def crash_at_step(gateway: InProcessGateway, step: Step, *, after: bool) -> None:
    """Kill the process the next time it comes to a commit: just before it, or just after."""
    assert gateway.process is not None
    process, real = gateway.process, gateway.process.disk.commit

    async def commit(change: Change) -> Any:
        if change.step is step:
            if after:
                await real(change)
            process.die()
            await asyncio.get_running_loop().create_future()
        return await real(change)

    process.disk.commit = commit  # type: ignore[method-assign]  # death strikes below every seam


class TestRule6Fences:
    def test_a_worker_that_lost_its_lease_cannot_write(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = held = HeldModel()
        session = gateway.send_message("hello", rest=False).session
        gateway.pass_time()
        assert gateway.process is not None
        stalled = gateway.process
        claim = next(iter(stalled.supervisor.tasks.values()))
        gateway.start()
        gateway.pass_time()
        late = Change(
            step=Step.END,
            session=session,
            at=0.0,
            claim=claim,
            op=2,
            entries=(EntryDraft(body=Ended(), author="agent:main", op=2),),
        )
        with pytest.raises(LeaseLost):
            gateway.run(stalled.store.commit(late))
        held.free = True
        gateway.run_until_idle(10)
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["done"]
        assert len(gateway.list_shown_texts()) == 1
        gateway.assert_sound()

    def test_an_operation_whose_processes_end_is_tried_again_when_one_has_run_for_a_while(
        self, gateway: InProcessGateway
    ) -> None:
        gateway.runtimes.model = FakeModel(calling("pure"))
        gateway.runtimes.tools = {"pure": FakeTool("pure", ToolEffect.PURE)}
        session = gateway.send_message("this kills you", rest=False).session
        for _ in range(MAX_TURN_ATTEMPTS + 1):
            crash_at_step(gateway, Step.RETURN, after=False)
            gateway.pass_time(5)
            gateway.start()
        gateway.pass_time(compute_stable_seconds(MAX_TURN_ATTEMPTS + 1) - 1)
        assert gateway.read_bodies(session, Ended) == []
        gateway.run_until_idle(10)
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["done"]
        assert [text.partition(" did ")[0] for text in gateway.list_shown_texts()] == ["it says: pure"]
        gateway.assert_sound()

    def test_a_turn_continues_after_a_long_absence_of_its_agent(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = FakeModel(calling("pure"))
        gateway.runtimes.tools = {"pure": FakeTool("pure", ToolEffect.PURE)}
        session = gateway.send_message("wait for me", rest=False).session
        crash_at_step(gateway, Step.RETURN, after=False)
        gateway.pass_time(5)
        gateway.runtimes.unknown_agents.add("main")
        gateway.start()
        gateway.pass_time(3_600)
        assert gateway.read_bodies(session, Ended) == []
        gateway.runtimes.unknown_agents.clear()
        gateway.pass_time(3_600)
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["done"]
        assert len(gateway.list_shown_texts()) == 1
        gateway.assert_sound()

    def test_waiting_for_a_model_is_not_an_attempt_and_is_announced_once(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model.faults.fail_next(Overloaded("down"), times=40)
        session = gateway.send_message("are you there?", rest=False).session
        gateway.pass_time(3_600)
        gateway.send_message("hello?", rest=False)
        gateway.pass_time(3_600 * 8)
        assert {body.outcome for body in gateway.read_bodies(session, Ended)} == {"released", "done"}
        assert [body.about for body in gateway.read_bodies(session, Notified)] == [OUTAGE_NOTICE]
        assert gateway.list_shown_texts()[1:] == ["You said: hello?"]
        assert [body.outcome for body in gateway.read_bodies(session, Ended)].count("done") == 1
        gateway.assert_sound()

    def test_a_retry_delay_is_kept_although_the_turn_was_ended(self, gateway: InProcessGateway) -> None:
        session = gateway.send_message("a secret").session
        assert gateway.process is not None
        disk, control, model = gateway.process.disk, gateway.control, gateway.runtimes.model
        real, secret = disk.commit, [entry.seq for entry in gateway.read_log(session) if isinstance(entry.body, Heard)]

        async def commit(change: Change) -> CommitResult:
            if change.step is Step.END and secret:
                await control.erase_entries(
                    session, [secret.pop()]
                )  # an entry that this turn has read is erased, which ends the turn
            return await real(change)

        disk.commit = commit  # type: ignore[method-assign]  # the worst moment is between two lines
        model.faults.fail_next(Overloaded("slow down", retry_after=600.0))
        gateway.send_message("are you there?", rest=False)
        gateway.pass_time(590)
        assert len(model.requests) == 2
        gateway.pass_time(20)
        assert gateway.list_shown_texts()[-1] == "You said: are you there?"
        gateway.assert_sound()

    def test_a_retry_delay_is_kept_although_the_turn_was_ended_while_the_inbox_was_read(
        self, gateway: InProcessGateway
    ) -> None:
        session = gateway.send_message("a secret").session
        assert gateway.process is not None
        disk, control = gateway.process.disk, gateway.control
        model = gateway.runtimes.model = SlowBusyModel(retry_after=600.0)
        real, secret = (
            disk.list_operations,
            [entry.seq for entry in gateway.read_log(session) if isinstance(entry.body, Heard)],
        )

        async def list_operations(*args: Any, **options: Any) -> list[Operation]:
            if model.is_asked and secret:
                await control.erase_entries(session, [secret.pop()])  # this ends the turn
                model.refuses.set()
                await asyncio.sleep(0.01)  # the answer of the model arrives before the result of this read
            return await real(*args, **options)

        disk.list_operations = list_operations  # type: ignore[method-assign]  # the worst moment is inside a read
        gateway.send_message("are you there?", rest=False)
        gateway.pass_time(590)
        assert len(model.requests) == 1
        gateway.pass_time(20)
        assert gateway.list_shown_texts()[-1] == "You said: are you there?"
        gateway.assert_sound()

    def test_a_fallback_answers_when_the_first_model_fails(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model.faults.fail_next(Overloaded("down"))
        gateway.runtimes.fallbacks = (FakeModel([ModelResponse(text="I can", model="second")]),)
        session = gateway.send_message("anybody?").session
        assert gateway.list_shown_texts() == ["I can"]
        assert gateway.read_bodies(session, Thought)[0].model == "second"

    @pytest.mark.parametrize("retry_after", [None, 60.0])
    @pytest.mark.parametrize("first", ["the model", "the fallback"])
    def test_a_refused_message_is_kept_while_another_model_is_only_unavailable(
        self, gateway: InProcessGateway, first: str, retry_after: float | None
    ) -> None:
        away, refuses = gateway.runtimes.model, FakeModel(name="second")
        away.faults.fail_next(Overloaded("down", retry_after=retry_after), times=2)
        refuses.faults.fail_next(Refused("no credit"), times=9)
        if first == "the fallback":
            gateway.runtimes.model = refuses
        gateway.runtimes.fallbacks = (away if first == "the fallback" else refuses,)
        session = gateway.send_message("anybody?", rest=False).session
        gateway.pass_time(200)
        assert gateway.list_shown_texts()[1:] == ["You said: anybody?"]
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["released", "released", "done"]
        gateway.assert_sound()

    def test_a_message_that_every_model_refuses_fails_at_once(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.fallbacks = (FakeModel(name="second"),)
        for model in (gateway.runtimes.model, *gateway.runtimes.fallbacks):
            model.faults.fail_next(Refused("no credit"))
        session = gateway.send_message("anybody?").session
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["failed"]

    def test_an_answer_that_was_cut_off_is_delivered_and_marked(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = FakeModel(
            [ModelResponse(text="Once upon a", finish="length"), ModelResponse(text="time")]
        )
        session = gateway.send_message("tell me a story").session
        assert gateway.list_shown_texts()[0] == "Once upon a"
        assert "cut off at the model's length limit" in gateway.list_shown_texts()[1]
        gateway.send_message("go on")
        assert gateway.list_shown_texts()[2:] == ["time"]
        assert [body.finish for body in gateway.read_bodies(session, Thought)] == ["length", ""]
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["done", "done"]
        gateway.assert_sound()

    def test_a_model_outage_during_a_turn_keeps_finished_tool_calls(self, gateway: InProcessGateway) -> None:
        tool = FakeTool("once", ToolEffect.ONCE)
        gateway.runtimes.model = FakeModel(calling("once"))
        gateway.runtimes.model.faults.succeed_next()
        gateway.runtimes.model.faults.fail_next(Overloaded("down"), times=20)
        gateway.runtimes.tools = {"once": tool}
        session = gateway.send_message("do it", rest=False).session
        gateway.pass_time(3_600 * 3)
        assert sum(tool.started.values()) == 1
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["done"]
        assert len(gateway.list_shown_texts()) == 2


class TestRule7Tools:
    def test_the_thought_and_the_call_are_recorded_before_a_tool_runs(self, gateway: InProcessGateway) -> None:
        seen: list[list[str]] = []

        def act(arguments: dict[str, Any], context: Any) -> ToolResult:
            assert gateway.process is not None
            rows = gateway.process.disk._fetch_rows("select kind from entries order by seq", ())
            seen.append([row[0] for row in rows])
            return ToolResult(text="done")

        gateway.runtimes.tools = {"once": FakeTool("once", ToolEffect.ONCE, act=act)}
        gateway.runtimes.model = FakeModel(calling("once"))
        gateway.send_message("go")
        assert seen == [["heard", "began", "thought", "called"]]

    @pytest.mark.parametrize(
        "effect, runs, changes",
        [(ToolEffect.PURE, 2, 2), (ToolEffect.KEYED, 2, 1), (ToolEffect.PROBE, 1, 1), (ToolEffect.ONCE, 1, 1)],
    )
    def test_after_a_crash_each_call_is_resumed_by_its_effect(
        self, gateway: InProcessGateway, effect: ToolEffect, runs: int, changes: int
    ) -> None:
        tool = FakeTool("tool", effect)
        gateway.runtimes.tools = {"tool": tool}
        gateway.runtimes.model = FakeModel(calling("tool"))
        crash_at_step(gateway, Step.RETURN, after=False)
        session = gateway.send_message("go", rest=False).session
        gateway.pass_time(5)
        gateway.start()
        gateway.run_until_idle(10)
        assert sum(tool.started.values()) == runs
        assert sum(tool.done.values()) == changes
        assert len(tool.done) == 1, "the same call has the same key"
        returned = gateway.read_bodies(session, Returned)
        assert [body.unknown for body in returned] == [effect is ToolEffect.ONCE]
        assert len(gateway.list_shown_texts()) == 1
        gateway.assert_sound()

    @pytest.mark.parametrize("jump", [3_600.0, -10.0, -0.5, 315_360_000.0, -315_360_000.0])
    def test_a_clock_change_does_not_affect_a_running_tool(self, gateway: InProcessGateway, jump: float) -> None:
        tool = SlowTool("pay", ToolEffect.ONCE)
        gateway.runtimes.tools = {"pay": tool}
        gateway.runtimes.model = FakeModel(calling("pay"))
        session = gateway.send_message("go", rest=False).session
        gateway.pass_time(0.2)
        gateway.clock.skew += jump
        gateway.send_message("and I?", chat="another", rest=False)  # a wakeup makes the dispatcher search
        gateway.pass_time(0.2)
        wake_dispatcher(gateway)
        gateway.run_until_idle(60)
        assert sum(tool.done.values()) == 2
        assert [body.unknown for body in gateway.read_bodies(session, Returned)] == [False]
        assert gateway.logger.find_events("lease.lost") == []
        gateway.assert_sound()

    def test_a_clock_change_during_a_claim_does_not_affect_a_running_tool(self, gateway: InProcessGateway) -> None:
        assert gateway.process is not None
        tool, disk = SlowTool("pay", ToolEffect.ONCE), gateway.process.disk
        gateway.runtimes.tools = {"pay": tool}
        gateway.runtimes.model = FakeModel(calling("pay"))
        session = gateway.send_message("go", rest=False).session
        gateway.pass_time(0.2)
        real = disk.claim_cursors
        found: list[int] = []

        async def claim(**options: Any) -> Any:
            gateway.clock.skew += 3_600
            claims = await real(**options)
            found.append(len(claims))
            return claims

        disk.claim_cursors = claim  # type: ignore[method-assign]  # the worst moment is between two lines
        gateway.run(
            disk.commit(
                Change(step=Step.CURSOR_SETTLE, session=session, at=0.0, wakeups=(Wakeup(consumer="compression"),))
            )
        )
        wake_dispatcher(gateway)
        gateway.run_until_idle(60)
        assert found[0] == 1, "the one that was due, and nothing else"
        assert [body.unknown for body in gateway.read_bodies(session, Returned)] == [False]
        assert gateway.logger.find_events("lease.lost") == []

    @pytest.mark.parametrize("error", [StoreFull("no room"), StoreBusy("locked")])
    @pytest.mark.parametrize("step", [Step.THINK, Step.RETURN, Step.END])
    def test_a_tool_result_is_recorded_once_the_disk_has_space(
        self, gateway: InProcessGateway, step: Step, error: StoreError
    ) -> None:
        tool = FakeTool("once", ToolEffect.ONCE)
        gateway.runtimes.tools = {"pure": FakeTool("pure", ToolEffect.PURE), "once": tool}
        gateway.runtimes.model = model = FakeModel(in_turn("pure", "once"))
        trouble = FailingStore(gateway, error).with_commits(step)
        session = gateway.send_message("do it", rest=False).session
        gateway.pass_time(600)
        assert trouble.met > 1
        assert gateway.list_shown_texts() == []
        trouble.over = True
        gateway.pass_time(5)
        assert gateway.list_shown_texts() == ["done"]
        assert sum(tool.started.values()) == 1
        assert [body.unknown for body in gateway.read_bodies(session, Returned)] == [False, False]
        assert len(model.requests) == 3, "nothing that was answered is asked again"
        assert len(gateway.logger.find_events("store.retrying")) == 1, "announced once, not at every attempt"
        gateway.assert_sound()

    def test_an_unreadable_cursor_is_claimed_again_soon(self, gateway: InProcessGateway) -> None:
        trouble = FailingStore(gateway, StoreError("the disk hiccups")).with_all("get_session_snapshot")
        gateway.send_message("hello", rest=False)
        gateway.pass_time()
        trouble.over = True
        gateway.pass_time(5)
        assert gateway.list_shown_texts() == ["You said: hello"]

    def test_an_unknown_tool_has_the_effect_once(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = FakeModel(calling("mystery"))
        session = gateway.send_message("go").session
        assert gateway.read_bodies(session, Called)[0].effect == ToolEffect.ONCE
        assert gateway.read_bodies(session, Returned)[0].error

    def test_the_error_of_a_tool_reaches_the_model(self, gateway: InProcessGateway) -> None:
        tool = FakeTool("tool", ToolEffect.PURE)
        tool.faults.fail_next(RuntimeError("broken pipe"))
        gateway.runtimes.tools = {"tool": tool}
        gateway.runtimes.model = FakeModel(calling("tool"))
        gateway.send_message("go")
        assert "broken pipe" in gateway.list_shown_texts()[0]

    def test_after_a_takeover_a_tool_is_probed_only_after_its_deadline(self, gateway: InProcessGateway) -> None:
        """Until then a stalled worker may still complete it."""

        class Late(FakeTool):
            async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
                loop = asyncio.get_running_loop()
                loop.call_later(self.deadline - 1, lambda: loop.create_task(FakeTool.run(self, arguments, context)))
                await asyncio.sleep(self.deadline)
                return ToolResult(text="")

        tool = Late("tool", ToolEffect.PROBE)
        gateway.runtimes.tools = {"tool": tool}
        gateway.runtimes.model = FakeModel(calling("tool"))
        gateway.send_message("go", rest=False)
        gateway.pass_time(0.5)
        gateway.crash()
        gateway.start()
        gateway.run_until_idle(3 * tool.deadline)
        assert list(tool.done.values()) == [1]
        assert gateway.list_shown_texts()[0].startswith("it says: tool did ")
        gateway.assert_sound()

    def test_a_stalled_worker_does_not_repeat_a_call_of_its_successor(self, gateway: InProcessGateway) -> None:
        tool = FakeTool("tool", ToolEffect.PROBE)
        gateway.runtimes.tools = {"tool": tool}
        gateway.runtimes.model = FakeModel(calling("tool"))
        delay_commit_result(gateway, Step.THINK, seconds=5 * tool.deadline)
        gateway.send_message("go", rest=False)
        gateway.pass_time(0.5)
        gateway.start()  # the first process is stalled, not dead
        gateway.pass_time(10 * tool.deadline)
        assert list(tool.done.values()) == [1]
        assert len(gateway.list_shown_texts()) == 1
        gateway.assert_sound()

    def test_invalid_text_from_a_tool_or_a_model_is_kept(self, gateway: InProcessGateway) -> None:
        tool = FakeTool("tool", ToolEffect.PURE, act=lambda _arguments, _context: ToolResult(text="half \ud83d"))
        gateway.runtimes.tools = {"tool": tool}
        gateway.runtimes.model = FakeModel(
            lambda request: structs.replace(calling("tool")(request), reasoning="\udc00 again")
        )
        session = gateway.send_message("go").session
        assert gateway.list_shown_texts() == ["it says: half \ufffd\ufffd\ufffd"]
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["done"]
        gateway.assert_sound()


class TestRule8OneEnd:
    @pytest.mark.parametrize("after", [False, True])
    def test_a_turn_ends_completely_or_not_at_all(self, gateway: InProcessGateway, after: bool) -> None:
        crash_at_step(gateway, Step.END, after=after)
        session = gateway.send_message("hello", rest=False).session
        gateway.pass_time(5)
        gateway.start()
        gateway.run_until_idle(10)
        assert len(gateway.read_bodies(session, Said)) == len(gateway.read_bodies(session, Ended)) == 1
        assert gateway.list_shown_texts() == ["You said: hello"]
        gateway.assert_sound()

    def test_a_tools_notes_commit_with_its_result(self, gateway: InProcessGateway) -> None:
        def act(arguments: dict[str, Any], context: Any) -> ToolResult:
            return ToolResult(text="noted", notes=[Noted(text="Ada likes tea")])

        gateway.runtimes.tools = {"note": FakeTool("note", ToolEffect.KEYED, act=act)}
        gateway.runtimes.model = FakeModel(calling("note"))
        crash_at_step(gateway, Step.RETURN, after=False)
        session = gateway.send_message("remember", rest=False).session
        gateway.pass_time(5)
        assert gateway.process is not None
        assert not [e for e in gateway.run(gateway.process.disk.list_entries(session)) if e.kind == "noted"]
        gateway.start()
        gateway.run_until_idle(10)
        notes = gateway.read_bodies(session, Noted)
        assert [note.text for note in notes] == ["Ada likes tea"]
        assert notes[0].stamp.person == "ada"
        order = [str(entry.kind) for entry in gateway.read_log(session)]
        assert order[order.index("returned") + 1] == "noted"
