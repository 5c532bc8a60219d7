"""Rules 6 to 8: operations under their fence, tools and their effects, the one commit that ends a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from everhold.core.entries import OUTAGE, Call, Called, Draft, Ended, Heard, Noted, Notified, Returned, Said, Thought
from everhold.core.turn import MOST_ATTEMPTS
from everhold.errors import LeaseLost, Overloaded, Refused, StoreBusy, StoreError, StoreFull
from everhold.ports.model import Answer, Request
from everhold.ports.store import Change, Committed, Step, Wakeup
from everhold.ports.tool import Effect, Result, ToolContext
from everhold.testing.fakes import FakeTool, ScriptedModel
from everhold.testing.house import House

from .conftest import HeldModel, Trouble


def calling(tool: str) -> Callable[[Request], Answer]:
    """A model that calls `tool` once and then says what came back."""

    def answer(request: Request) -> Answer:
        last = request.messages[-1]
        if last.role == "tool":
            return Answer(text=f"it says: {last.text}")
        return Answer(calls=(Call(id="c1", tool=tool),))

    return answer


def in_turn(*tools: str) -> Callable[[Request], Answer]:
    """A model that calls one tool after the other and then says so."""

    def answer(request: Request) -> Answer:
        done = sum(message.role == "tool" for message in request.messages)
        return Answer(calls=(Call(id=f"c{done}", tool=tools[done]),)) if done < len(tools) else Answer(text="done")

    return answer


class Slow(FakeTool):
    """A tool that takes its time."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        await asyncio.sleep(10)
        return await super().run(arguments, context)


def looking(house: House) -> None:
    """Have somebody look for lanes that are due, now."""
    assert house.process is not None
    house.process.bells.work.set()
    house.tick(0.1)


def stand_still(house: House, step: Step, *, seconds: float) -> None:
    """Let whoever is there hear only so much later that the next `step` was committed."""
    assert house.process is not None
    disk = house.process.disk
    real, left = disk.commit, [step]

    async def commit(change: Change) -> Committed:
        done = await real(change)
        if change.step in left:
            left.clear()
            await asyncio.sleep(seconds)
        return done

    disk.commit = commit  # type: ignore[method-assign]  # the worst moment is between two lines


def die_at(house: House, step: Step, *, after: bool) -> None:
    """Kill the process the next time it comes to a commit: just before it, or just after."""
    assert house.process is not None
    process, real = house.process, house.process.disk.commit

    async def commit(change: Change) -> Any:
        if change.step is step:
            if after:
                await real(change)
            process.die()
            await asyncio.get_running_loop().create_future()
        return await real(change)

    process.disk.commit = commit  # type: ignore[method-assign]  # death strikes below every seam


class TestRule6Fences:
    def test_a_replaced_owner_can_write_nothing(self, house: House) -> None:
        house.furniture.model = held = HeldModel()
        session = house.say("hello", rest=False).session
        house.tick()
        assert house.process is not None
        stalled = house.process
        claim = next(iter(stalled.supervisor.tasks.values()))
        house.start()
        house.tick()
        late = Change(
            step=Step.END,
            session=session,
            at=0.0,
            claim=claim,
            op=2,
            entries=(Draft(body=Ended(), author="agent:main", op=2),),
        )
        with pytest.raises(LeaseLost):
            house.run(stalled.store.commit(late))
        held.free = True
        house.rest(10)
        assert [body.outcome for body in house.bodies(session, Ended)] == ["done"]
        assert len(house.heard_back()) == 1
        house.sound()

    def test_an_operation_that_keeps_falling_ends_failed_and_says_so(self, house: House) -> None:
        house.furniture.model = ScriptedModel(calling("pure"))
        house.furniture.tools = {"pure": FakeTool("pure", Effect.PURE)}
        session = house.say("this kills you", rest=False).session
        for _ in range(MOST_ATTEMPTS + 1):
            die_at(house, Step.RETURN, after=False)
            house.tick(5)
            house.start()
        house.rest(10)
        ended = house.bodies(session, Ended)
        assert [body.outcome for body in ended] == ["failed"]
        assert house.bodies(session, Notified)[0].text in house.heard_back()
        house.furniture.model = ScriptedModel()
        house.say("/retry")
        assert house.heard_back()[-1] == "You said: this kills you"
        house.sound()

    def test_an_agent_that_is_away_for_long_goes_on_with_its_turn(self, house: House) -> None:
        house.furniture.model = ScriptedModel(calling("pure"))
        house.furniture.tools = {"pure": FakeTool("pure", Effect.PURE)}
        session = house.say("wait for me", rest=False).session
        die_at(house, Step.RETURN, after=False)
        house.tick(5)
        house.furniture.away.add("main")
        house.start()
        house.tick(3_600)
        assert house.bodies(session, Ended) == []
        house.furniture.away.clear()
        house.tick(3_600)
        assert [body.outcome for body in house.bodies(session, Ended)] == ["done"]
        assert len(house.heard_back()) == 1
        house.sound()

    def test_waiting_for_a_model_is_no_attempt_and_is_said_once(self, house: House) -> None:
        house.furniture.model.faults.fail(Overloaded("down"), times=40)
        session = house.say("are you there?", rest=False).session
        house.tick(3_600)
        house.say("hello?", rest=False)
        house.tick(3_600 * 8)
        assert {body.outcome for body in house.bodies(session, Ended)} == {"released", "done"}
        assert [body.about for body in house.bodies(session, Notified)] == [OUTAGE]
        assert house.heard_back()[1:] == ["You said: hello?"]
        assert [body.outcome for body in house.bodies(session, Ended)].count("done") == 1
        house.sound()

    def test_what_a_model_asks_for_is_kept_though_somebody_else_ended_the_turn(self, house: House) -> None:
        session = house.say("a secret").session
        assert house.process is not None
        disk, control, model = house.process.disk, house.control, house.furniture.model
        real, secret = disk.commit, [entry.seq for entry in house.log(session) if isinstance(entry.body, Heard)]

        async def commit(change: Change) -> Committed:
            if change.step is Step.END and secret:
                await control.erase(session, [secret.pop()])  # what this turn has read goes, and the turn with it
            return await real(change)

        disk.commit = commit  # type: ignore[method-assign]  # the worst moment is between two lines
        model.faults.fail(Overloaded("slow down", retry_after=600.0))
        house.say("are you there?", rest=False)
        house.tick(590)
        assert len(model.asked) == 2
        house.tick(20)
        assert house.heard_back()[-1] == "You said: are you there?"
        house.sound()

    def test_a_fallback_answers_when_the_first_model_cannot(self, house: House) -> None:
        house.furniture.model.faults.fail(Overloaded("down"))
        house.furniture.fallbacks = (ScriptedModel([Answer(text="I can", model="second")]),)
        session = house.say("anybody?").session
        assert house.heard_back() == ["I can"]
        assert house.bodies(session, Thought)[0].model == "second"

    @pytest.mark.parametrize("retry_after", [None, 60.0])
    @pytest.mark.parametrize("first", ["the model", "the fallback"])
    def test_while_one_model_is_only_away_what_another_refuses_is_kept(
        self, house: House, first: str, retry_after: float | None
    ) -> None:
        away, refuses = house.furniture.model, ScriptedModel(name="second")
        away.faults.fail(Overloaded("down", retry_after=retry_after), times=2)
        refuses.faults.fail(Refused("no credit"), times=9)
        if first == "the fallback":
            house.furniture.model = refuses
        house.furniture.fallbacks = (away if first == "the fallback" else refuses,)
        session = house.say("anybody?", rest=False).session
        house.tick(200)
        assert house.heard_back()[1:] == ["You said: anybody?"]
        assert [body.outcome for body in house.bodies(session, Ended)] == ["released", "released", "done"]
        house.sound()

    def test_what_every_model_refuses_is_said_at_once(self, house: House) -> None:
        house.furniture.fallbacks = (ScriptedModel(name="second"),)
        for model in (house.furniture.model, *house.furniture.fallbacks):
            model.faults.fail(Refused("no credit"))
        session = house.say("anybody?").session
        assert [body.outcome for body in house.bodies(session, Ended)] == ["failed"]

    def test_an_answer_that_was_cut_off_is_delivered_and_marked(self, house: House) -> None:
        house.furniture.model = ScriptedModel([Answer(text="Once upon a", finish="length"), Answer(text="time")])
        session = house.say("tell me a story").session
        assert house.heard_back()[0] == "Once upon a"
        assert "cut off at the model's length limit" in house.heard_back()[1]
        house.say("go on")
        assert house.heard_back()[2:] == ["time"]
        assert [body.finish for body in house.bodies(session, Thought)] == ["length", ""]
        assert [body.outcome for body in house.bodies(session, Ended)] == ["done", "done"]
        house.sound()

    def test_a_model_lost_in_the_middle_of_a_turn_keeps_what_was_done(self, house: House) -> None:
        tool = FakeTool("once", Effect.ONCE)
        house.furniture.model = ScriptedModel(calling("once"))
        house.furniture.model.faults.work()
        house.furniture.model.faults.fail(Overloaded("down"), times=20)
        house.furniture.tools = {"once": tool}
        session = house.say("do it", rest=False).session
        house.tick(3_600 * 3)
        assert sum(tool.started.values()) == 1
        assert [body.outcome for body in house.bodies(session, Ended)] == ["done"]
        assert len(house.heard_back()) == 2


class TestRule7Tools:
    def test_the_thought_and_the_start_are_recorded_before_a_tool_runs(self, house: House) -> None:
        seen: list[list[str]] = []

        def act(arguments: dict[str, Any], context: Any) -> Result:
            assert house.process is not None
            rows = house.process.disk._rows("select kind from entries order by seq", ())
            seen.append([row[0] for row in rows])
            return Result(text="done")

        house.furniture.tools = {"once": FakeTool("once", Effect.ONCE, act=act)}
        house.furniture.model = ScriptedModel(calling("once"))
        house.say("go")
        assert seen == [["heard", "began", "thought", "called"]]

    @pytest.mark.parametrize(
        "effect, runs, changes",
        [(Effect.PURE, 2, 2), (Effect.KEYED, 2, 1), (Effect.PROBE, 1, 1), (Effect.ONCE, 1, 1)],
    )
    def test_after_a_crash_each_effect_is_resumed_as_it_can_be(
        self, house: House, effect: Effect, runs: int, changes: int
    ) -> None:
        tool = FakeTool("tool", effect)
        house.furniture.tools = {"tool": tool}
        house.furniture.model = ScriptedModel(calling("tool"))
        die_at(house, Step.RETURN, after=False)
        session = house.say("go", rest=False).session
        house.tick(5)
        house.start()
        house.rest(10)
        assert sum(tool.started.values()) == runs
        assert sum(tool.done.values()) == changes
        assert len(tool.done) == 1, "the same call has the same key"
        returned = house.bodies(session, Returned)
        assert [body.unknown for body in returned] == [effect is Effect.ONCE]
        assert len(house.heard_back()) == 1
        house.sound()

    @pytest.mark.parametrize("jump", [3_600.0, -10.0, -0.5, 315_360_000.0, -315_360_000.0])
    def test_a_clock_that_is_set_leaves_a_tool_that_runs_alone(self, house: House, jump: float) -> None:
        tool = Slow("pay", Effect.ONCE)
        house.furniture.tools = {"pay": tool}
        house.furniture.model = ScriptedModel(calling("pay"))
        session = house.say("go", rest=False).session
        house.tick(0.2)
        house.clock.skew += jump
        house.say("and I?", chat="another", rest=False)  # there is a reason to look for work
        house.tick(0.2)
        looking(house)
        house.rest(60)
        assert sum(tool.done.values()) == 2
        assert [body.unknown for body in house.bodies(session, Returned)] == [False]
        assert house.diary.of("lane.lost") == []
        house.sound()

    def test_a_clock_that_is_set_while_somebody_claims_leaves_a_tool_that_runs_alone(self, house: House) -> None:
        assert house.process is not None
        tool, disk = Slow("pay", Effect.ONCE), house.process.disk
        house.furniture.tools = {"pay": tool}
        house.furniture.model = ScriptedModel(calling("pay"))
        session = house.say("go", rest=False).session
        house.tick(0.2)
        real = disk.claim_cursors
        found: list[int] = []

        async def claim(**options: Any) -> Any:
            house.clock.skew += 3_600
            claims = await real(**options)
            found.append(len(claims))
            return claims

        disk.claim_cursors = claim  # type: ignore[method-assign]  # the worst moment is between two lines
        house.run(
            disk.commit(
                Change(step=Step.CURSOR_SETTLE, session=session, at=0.0, wakeups=(Wakeup(consumer="compression"),))
            )
        )
        looking(house)
        house.rest(60)
        assert found[0] == 1, "the one that was due, and nothing else"
        assert [body.unknown for body in house.bodies(session, Returned)] == [False]
        assert house.diary.of("lane.lost") == []

    @pytest.mark.parametrize("error", [StoreFull("no room"), StoreBusy("locked")])
    @pytest.mark.parametrize("step", [Step.THINK, Step.RETURN, Step.END])
    def test_what_was_done_is_written_down_as_soon_as_there_is_room(
        self, house: House, step: Step, error: StoreError
    ) -> None:
        tool = FakeTool("once", Effect.ONCE)
        house.furniture.tools = {"pure": FakeTool("pure", Effect.PURE), "once": tool}
        house.furniture.model = model = ScriptedModel(in_turn("pure", "once"))
        trouble = Trouble(house, error).with_commits(step)
        session = house.say("do it", rest=False).session
        house.tick(600)
        assert trouble.met > 1
        assert house.heard_back() == []
        trouble.over = True
        house.tick(5)
        assert house.heard_back() == ["done"]
        assert sum(tool.started.values()) == 1
        assert [body.unknown for body in house.bodies(session, Returned)] == [False, False]
        assert len(model.asked) == 3, "nothing that was answered is asked again"
        assert len(house.diary.of("store.waits")) == 1, "said once, not with every try"
        house.sound()

    def test_a_lane_that_could_not_be_read_is_soon_taken_up_again(self, house: House) -> None:
        trouble = Trouble(house, StoreError("the disk hiccups")).with_all("get_session_snapshot")
        house.say("hello", rest=False)
        house.tick()
        trouble.over = True
        house.tick(5)
        assert house.heard_back() == ["You said: hello"]

    def test_a_tool_nobody_knows_is_treated_as_once(self, house: House) -> None:
        house.furniture.model = ScriptedModel(calling("mystery"))
        session = house.say("go").session
        assert house.bodies(session, Called)[0].effect == Effect.ONCE
        assert house.bodies(session, Returned)[0].error

    def test_what_a_tool_raises_reaches_the_model(self, house: House) -> None:
        tool = FakeTool("tool", Effect.PURE)
        tool.faults.fail(RuntimeError("broken pipe"))
        house.furniture.tools = {"tool": tool}
        house.furniture.model = ScriptedModel(calling("tool"))
        house.say("go")
        assert "broken pipe" in house.heard_back()[0]

    def test_whoever_takes_over_asks_what_a_tool_did_only_after_its_deadline(self, house: House) -> None:
        """Until then it may be done yet, by somebody who is stalled and not dead."""

        class Late(FakeTool):
            async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
                loop = asyncio.get_running_loop()
                loop.call_later(self.deadline - 1, lambda: loop.create_task(FakeTool.run(self, arguments, context)))
                await asyncio.sleep(self.deadline)
                return Result(text="")

        tool = Late("tool", Effect.PROBE)
        house.furniture.tools = {"tool": tool}
        house.furniture.model = ScriptedModel(calling("tool"))
        house.say("go", rest=False)
        house.tick(0.5)
        house.crash()
        house.start()
        house.rest(3 * tool.deadline)
        assert list(tool.done.values()) == [1]
        assert house.heard_back()[0].startswith("it says: tool did ")
        house.sound()

    def test_whoever_stood_still_does_not_run_what_a_successor_has_run(self, house: House) -> None:
        tool = FakeTool("tool", Effect.PROBE)
        house.furniture.tools = {"tool": tool}
        house.furniture.model = ScriptedModel(calling("tool"))
        stand_still(house, Step.THINK, seconds=5 * tool.deadline)
        house.say("go", rest=False)
        house.tick(0.5)
        house.start()  # the first process is stalled, not dead
        house.tick(10 * tool.deadline)
        assert list(tool.done.values()) == [1]
        assert len(house.heard_back()) == 1
        house.sound()

    def test_what_a_tool_or_a_model_says_is_kept_though_it_is_no_text(self, house: House) -> None:
        tool = FakeTool("tool", Effect.PURE, act=lambda _arguments, _context: Result(text="half \ud83d"))
        house.furniture.tools = {"tool": tool}
        house.furniture.model = ScriptedModel(
            lambda request: structs.replace(calling("tool")(request), reasoning="\udc00 again")
        )
        session = house.say("go").session
        assert house.heard_back() == ["it says: half \ufffd\ufffd\ufffd"]
        assert [body.outcome for body in house.bodies(session, Ended)] == ["done"]
        house.sound()


class TestRule8OneEnd:
    @pytest.mark.parametrize("after", [False, True])
    def test_a_turn_ends_wholly_or_not_at_all(self, house: House, after: bool) -> None:
        die_at(house, Step.END, after=after)
        session = house.say("hello", rest=False).session
        house.tick(5)
        house.start()
        house.rest(10)
        assert len(house.bodies(session, Said)) == len(house.bodies(session, Ended)) == 1
        assert house.heard_back() == ["You said: hello"]
        house.sound()

    def test_a_tools_notes_commit_with_its_result(self, house: House) -> None:
        def act(arguments: dict[str, Any], context: Any) -> Result:
            return Result(text="noted", notes=[Noted(text="Ada likes tea")])

        house.furniture.tools = {"note": FakeTool("note", Effect.KEYED, act=act)}
        house.furniture.model = ScriptedModel(calling("note"))
        die_at(house, Step.RETURN, after=False)
        session = house.say("remember", rest=False).session
        house.tick(5)
        assert house.process is not None
        assert not [e for e in house.run(house.process.disk.list_entries(session)) if e.kind == "noted"]
        house.start()
        house.rest(10)
        notes = house.bodies(session, Noted)
        assert [note.text for note in notes] == ["Ada likes tea"]
        assert notes[0].stamp.person == "ada"
        order = [str(entry.kind) for entry in house.log(session)]
        assert order[order.index("returned") + 1] == "noted"
