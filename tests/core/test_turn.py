"""Rules 6 to 8 without I/O: a turn continues at the end of its record, and repeats no call that must not be repeated.

A world plays a turn through `step` and may die at every gate: before or after a commit, before or after a tool has
run. The repeated calls are compared with the record and with the calls that really ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Literal, TypeAlias

import pytest
from hypothesis import example, given, settings, strategies as st
from msgspec import Struct, structs

from everhold.core.entries import (
    BODY_VERSION,
    Began,
    Called,
    Ended,
    Entry,
    EntryBody,
    ModelUsage,
    Noted,
    Notified,
    Returned,
    Said,
    Thought,
    Took,
    ToolCall,
    get_body_kind,
)
from everhold.core.turn import (
    MAX_ROUNDS,
    MAX_TURN_ATTEMPTS,
    NOT_RUN_TEXT,
    UNKNOWN_OUTCOME_TEXT,
    AskModel,
    BodiesRecorded,
    FinishTurn,
    ModelAnswered,
    ModelUnreachable,
    RecordBodies,
    RequestTooLong,
    RunTool,
    ShrinkContext,
    ToolFinished,
    TurnAction,
    TurnBroken,
    TurnCutShort,
    TurnEvent,
    TurnOpened,
    TurnState,
    WaitForModel,
    advance_turn,
    rebuild_turn,
)
from everhold.ports.tool import ToolEffect
from tests.core.planted_bugs import find_first_failing

Step: TypeAlias = Callable[[TurnState, TurnEvent, Mapping[str, ToolEffect]], tuple[TurnState, TurnAction]]
Fate: TypeAlias = Literal["ok", "dies", "cut", "down", "breaks", "long", "steered"]

TOOLS = ("pure", "keyed", "probe", "once", "moody", "unknown")
"""Each tool is named by its effect; `moody` has another effect after each restart, `unknown` has none."""
TROUBLES: tuple[Fate, ...] = ("cut", "down", "breaks", "long", "steered")
IDS = ("", "", "a", "b", "call-0-0", "call-0-1", "call-1-0")


class TurnScript(Struct, frozen=True, kw_only=True):
    """What a model asks for, what happens to the worker, and the effect of `moody` after each restart."""

    answers: tuple[tuple[tuple[str, str], ...], ...] = ()
    fates: tuple[Fate, ...] = ()
    moods: tuple[ToolEffect, ...] = (ToolEffect.ONCE,)


STORY = st.builds(
    TurnScript,
    answers=st.lists(
        st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from(TOOLS)), max_size=3).map(tuple), max_size=4
    ).map(tuple),
    fates=st.lists(st.sampled_from(("ok", "ok", "ok", "dies", "dies", *TROUBLES)), max_size=30).map(tuple),
    moods=st.lists(st.sampled_from(ToolEffect), min_size=1, max_size=3).map(tuple),
)


def make_random_script(seed: int) -> TurnScript:
    """A story by chance: long enough to get somewhere, and in some worlds people die young."""
    chance = Random(seed)
    answers = tuple(
        tuple((chance.choice(IDS), chance.choice(TOOLS)) for _ in range(chance.choice((1, 1, 2, 3))))
        for _ in range(chance.choice((1, 2, 3)))
    )
    deaths, trouble = chance.choice((0.02, 0.1, 0.4)), chance.choice((0.0, 0.02, 0.1))
    fates = tuple(
        "dies" if chance.random() < deaths else chance.choice(TROUBLES) if chance.random() < trouble else "ok"
        for _ in range(60)
    )
    return TurnScript(answers=answers, fates=fates, moods=tuple(chance.choice(list(ToolEffect)) for _ in range(3)))


class ProcessDied(Exception):
    """kill -9."""


class TurnWorld:
    """Performs a turn's effects, keeps the record, and counts the calls that really ran."""

    def __init__(self, story: TurnScript, step_: Step = advance_turn) -> None:
        self.story = story
        self.step = step_
        self.fates = iter(story.fates)
        self.answers = iter(story.answers)
        self.log: list[Entry] = []
        self.ran: list[tuple[int, str, str, ToolEffect]] = []
        """(seq of the thought, call id, key, what the tool was taken for)"""
        self.keys: dict[tuple[int, str], str] = {}
        self.lives = 0
        self.attempts = 0
        self.append(Began(type="turn", takes=(1, 2)))

    def append(self, *bodies: EntryBody) -> None:
        for body in bodies:
            seq = len(self.log) + 3
            self.log.append(
                Entry(
                    session="s",
                    seq=seq,
                    pos=seq,
                    kind=get_body_kind(body),
                    op=3,
                    author="agent:main",
                    at=0.0,
                    version=BODY_VERSION,
                    body=body,
                    digest=b"",
                )
            )

    def fate(self, *possible: Fate) -> Fate:
        fate = next(self.fates, "ok")
        return fate if fate in possible else "ok"

    def gate(self) -> None:
        if self.fate("dies") == "dies":
            raise ProcessDied

    @property
    def effects(self) -> dict[str, ToolEffect]:
        mood = self.story.moods[(self.lives - 1) % len(self.story.moods)]
        return {
            "pure": ToolEffect.PURE,
            "keyed": ToolEffect.KEYED,
            "probe": ToolEffect.PROBE,
            "once": ToolEffect.ONCE,
            "moody": mood,
        }

    # -- what is recorded

    def thoughts(self) -> Iterator[tuple[int, Thought, list[EntryBody]]]:
        """Every thought with what follows it, up to the next."""
        for index, entry in enumerate(self.log):
            if isinstance(entry.body, Thought):
                after: list[EntryBody] = []
                for later in self.log[index + 1 :]:
                    if isinstance(later.body, Thought):
                        break
                    assert later.body is not None
                    after.append(later.body)
                yield entry.seq, entry.body, after

    # -- execution

    def play(self) -> None:
        """Live, die and live again until the turn is over."""
        paused = False
        while not (self.log and isinstance(self.log[-1].body, Ended)):
            self.lives += 1
            self.attempts += not paused
            try:
                paused = self.run_until_done_or_waiting()
            except ProcessDied:
                paused = False

    def run_until_done_or_waiting(self) -> bool:
        """Work until the turn is over, or must wait; whether it waits."""
        turn = rebuild_turn(self.log, session="s", op=3, attempts=self.attempts, left_over=self.lives > 1)
        event: TurnEvent = TurnOpened()
        while True:
            turn, task = self.step(turn, event, self.effects)
            assert turn.rounds <= MAX_ROUNDS
            assert self.attempts <= MAX_TURN_ATTEMPTS or isinstance(task, FinishTurn), "it never gives up"
            match task:
                case AskModel():
                    event = self.ask()
                case RecordBodies(bodies):
                    event = self.record(bodies)
                case RunTool():
                    event = self.run(task)
                case ShrinkContext():
                    event = TurnOpened() if self.fate("breaks") == "ok" else TurnBroken(reason="it does not fit")
                case WaitForModel(release=release):
                    if release:
                        assert not list(self.thoughts()), (
                            "something was thought already: its cost and calls would be lost"
                        )
                        self.append(Ended(outcome="released"))
                    return not release
                case FinishTurn(bodies=bodies, ended=ended):
                    self.gate()
                    self.append(*bodies, ended)
                    self.gate()
                    return False

    def ask(self) -> TurnEvent:
        self.gate()
        calls_open = [call for _, thought, after in self.thoughts() for call in self.unanswered(thought, after)]
        assert not calls_open, "the model is asked while a call has no result"
        match self.fate("cut", "down", "breaks", "long", "steered"):
            case "cut":
                return TurnCutShort("stopped")
            case "down":
                return ModelUnreachable(reason="down", retry_after=5.0)
            case "breaks":
                return TurnBroken(reason="refused")
            case "long":
                return RequestTooLong(reason="too long")
            case "steered":
                return self.record((Took(takes=(len(self.log) + 100,)),))
        calls = tuple(ToolCall(id=id, tool=tool) for id, tool in next(self.answers, ()))
        self.gate()
        return ModelAnswered(
            Thought(text="" if calls else "the answer", calls=calls, usage=ModelUsage(input=3, output=1))
        )

    def record(self, bodies: tuple[EntryBody, ...]) -> TurnEvent:
        self.gate()
        self.append(*bodies)
        self.gate()
        return BodiesRecorded(bodies)

    def run(self, task: RunTool) -> TurnEvent:
        thoughts = list(self.thoughts())
        assert thoughts, "a tool runs before its thought is recorded"
        seq, thought, after = thoughts[-1]
        assert task.call in self.unanswered(thought, after), "no call waits for this result"
        started = [body for body in after if isinstance(body, Called) and body.call == task.call.id]
        assert len(started) <= 1, "started twice"
        if started:
            assert started[0].key == task.key, "the key changed since it was started"
            effect = ToolEffect(started[0].effect)
        else:
            effect = self.effects.get(task.call.tool, ToolEffect.ONCE)
            assert effect is ToolEffect.PURE, "it runs without a record that it does"
        assert self.keys.setdefault((seq, task.call.id), task.key) == task.key, "the same call under another key"
        assert len(set(self.keys.values())) == len(self.keys), "two calls under one key"
        self.gate()
        if not (task.how == "probe" and any(key == task.key for _, _, key, _ in self.ran)):
            self.ran.append((seq, task.call.id, task.key, effect))
        times = Counter(ran[:2] for ran in self.ran if ran[3] in (ToolEffect.ONCE, ToolEffect.PROBE))
        assert all(count == 1 for count in times.values()), "something that must not be done twice was done twice"
        self.gate()
        if self.fate("cut") == "cut":
            return TurnCutShort("interrupted")
        return ToolFinished(Returned(call=task.call.id, text="done"))

    @staticmethod
    def unanswered(thought: Thought, after: Sequence[EntryBody]) -> list[ToolCall]:
        answered = {body.call for body in after if isinstance(body, Returned)}
        return [call for call in thought.calls if call.id not in answered]


def check_script(story: TurnScript, step_: Step = advance_turn) -> TurnWorld:
    """Run a turn to its end and check its record."""
    world = TurnWorld(story, step_)
    world.play()
    bodies = [entry.body for entry in world.log]
    ended = [body for body in bodies if isinstance(body, Ended)]
    assert len(ended) == 1
    assert bodies[-1] is ended[0]
    for _, thought, after in world.thoughts():
        ids = [call.id for call in thought.calls]
        assert len(set(ids)) == len(ids), "two calls have the same id"
        assert all(ids)
        results = [body.call for body in after if isinstance(body, Returned)]
        assert sorted(results) == sorted(ids), "calls and results parted"
    cost = [body.usage for body in bodies if isinstance(body, Thought)]
    assert ended[0].usage == sum(cost, ModelUsage())
    return world


@settings(max_examples=300, deadline=None)
@given(STORY)
@example(TurnScript(answers=((("", "once"), ("call-0-0", "once")),)))
@example(TurnScript(answers=((("call-0-1", "once"), ("", "once")),)))
@example(TurnScript(answers=((("a", "once"), ("a", "once")), (("a", "once"),))))
@example(
    TurnScript(answers=((("a", "moody"),),), fates=("ok",) * 5 + ("dies",), moods=(ToolEffect.ONCE, ToolEffect.PURE))
)
@example(TurnScript(answers=((("a", "probe"), ("b", "keyed")),), fates=("ok",) * 5 + ("dies",) * 5))
def test_a_turn_with_any_faults_ends_and_repeats_no_effect(story: TurnScript) -> None:
    check_script(story)


def test_a_thousand_random_turns_end_and_repeat_no_effect() -> None:
    ends: Counter[str] = Counter()
    for seed in range(1_000):
        world = check_script(make_random_script(seed))
        ended = world.log[-1].body
        assert isinstance(ended, Ended)
        ends[ended.outcome] += 1
    assert set(ends) == {"done", "failed", "stopped", "interrupted", "released"}, "every outcome occurs"


# -- planted bugs ------------------------------------------------------------------------------------------------------


def reruns_once(turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]) -> tuple[TurnState, TurnAction]:
    turn, task = advance_turn(turn, event, effects)
    match task:
        case RecordBodies((Returned(unknown=True),)):
            call = turn.open_calls[0]
            return turn, RunTool(call=call, key=turn.started_calls[call.id].key, how="again")
    return turn, task


def forgets_that_it_was_left(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    return advance_turn(structs.replace(turn, resumed=False), event, effects)


def never_probes(turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]) -> tuple[TurnState, TurnAction]:
    turn, task = advance_turn(turn, event, effects)
    return turn, structs.replace(task, how="again") if isinstance(task, RunTool) else task


def starts_before_it_says_so(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    turn, task = advance_turn(turn, event, effects)
    match task:
        case RecordBodies((Called(key=key),)):
            return turn, RunTool(call=turn.open_calls[0], key=key)
    return turn, task


def runs_before_the_thought_is_kept(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    if isinstance(event, ModelAnswered) and event.thought.calls:
        return turn, RunTool(call=event.thought.calls[0], key="k")
    return advance_turn(turn, event, effects)


def asks_again_too_early(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    turn, task = advance_turn(turn, event, effects)
    return (turn, AskModel()) if isinstance(event, BodiesRecorded) and isinstance(task, RecordBodies) else (turn, task)


def a_key_for_every_attempt(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    turn, task = advance_turn(turn, event, effects)
    return turn, structs.replace(task, key=f"{task.key}:{turn.attempts}") if isinstance(task, RunTool) else task


def one_key_for_all(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    turn, task = advance_turn(turn, event, effects)
    match task:
        case RunTool():
            return turn, structs.replace(task, key="k")
        case RecordBodies(bodies):
            keyed = tuple(structs.replace(body, key="k") if isinstance(body, Called) else body for body in bodies)
            return turn, RecordBodies(keyed)
    return turn, task


def leaves_calls_open(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    turn, task = advance_turn(turn, event, effects)
    drop = isinstance(task, FinishTurn) and not isinstance(event, ModelAnswered)
    return turn, structs.replace(task, bodies=()) if drop else task


def takes_ids_as_they_come(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    if isinstance(event, ModelAnswered) and event.thought.calls:
        return turn, RecordBodies((event.thought,))
    return advance_turn(turn, event, effects)


def believes_what_a_tool_is_now(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    turn, task = advance_turn(turn, event, effects)
    if (
        isinstance(event, TurnOpened | BodiesRecorded)
        and turn.open_calls
        and effects.get(turn.open_calls[0].tool) is ToolEffect.PURE
    ):
        return turn, RunTool(call=turn.open_calls[0], key=f"s:3:{turn.rounds}:{turn.open_calls[0].id}")
    return turn, task


def never_gives_up(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    return advance_turn(structs.replace(turn, attempts=1), event, effects)


def releases_what_was_begun(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    turn, task = advance_turn(turn, event, effects)
    return turn, structs.replace(task, release=True) if isinstance(task, WaitForModel) else task


def forgets_what_it_cost(
    turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]
) -> tuple[TurnState, TurnAction]:
    turn, task = advance_turn(turn, event, effects)
    if isinstance(task, FinishTurn) and isinstance(event, ModelAnswered):
        return turn, structs.replace(task, ended=structs.replace(task.ended, usage=event.thought.usage))
    return turn, task


@pytest.mark.parametrize(
    "bug",
    [
        reruns_once,
        forgets_that_it_was_left,
        never_probes,
        starts_before_it_says_so,
        runs_before_the_thought_is_kept,
        asks_again_too_early,
        a_key_for_every_attempt,
        one_key_for_all,
        leaves_calls_open,
        takes_ids_as_they_come,
        believes_what_a_tool_is_now,
        never_gives_up,
        releases_what_was_begun,
        forgets_what_it_cost,
    ],
)
def test_the_check_finds_a_turn_that_breaks_a_promise(bug: Step) -> None:
    def prop(story: TurnScript) -> None:
        check_script(story, bug)

    find_first_failing(map(make_random_script, range(2_000)), prop)


# -- every place where a record can end --------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(STORY)
def test_a_turn_resumed_at_any_entry_continues_and_never_goes_back(story: TurnScript) -> None:
    """At every prefix of the record, not only where this run crashed."""
    world = check_script(story)
    effects = world.effects
    for length in range(1, len(world.log)):
        prefix = world.log[:length]
        turn = rebuild_turn(prefix, session="s", op=3, left_over=True)
        again, task = advance_turn(turn, TurnOpened(), effects)
        assert (again, task) == advance_turn(
            rebuild_turn(prefix, session="s", op=3, left_over=True), TurnOpened(), effects
        )
        assert turn.takes[:2] == (1, 2)
        bodies = [entry.body for entry in prefix]
        last = max((i for i, body in enumerate(bodies) if isinstance(body, Thought)), default=0)
        started = {body.call: body for body in bodies[last:] if isinstance(body, Called)}
        answered = [body.call for body in bodies[last:] if isinstance(body, Returned)]
        match task:
            case RunTool(call=call, key=key, how=how):
                assert call.id not in answered
                if call.id in started:
                    assert key == started[call.id].key
                    assert how == {"keyed": "again", "probe": "probe"}[started[call.id].effect]
                else:
                    assert how == "first"
                    assert effects[call.tool] is ToolEffect.PURE
            case RecordBodies((Returned(call=call_id, unknown=unknown),)):
                assert unknown
                assert started[call_id].effect == "once"
                assert call_id not in answered
            case RecordBodies((Called(call=call_id),)):
                assert call_id not in started
            case AskModel():
                thought = bodies[last]
                wanted = [call.id for call in thought.calls] if isinstance(thought, Thought) else []
                assert sorted(answered) == sorted(wanted)
            case _:
                raise AssertionError(f"nothing recorded calls for {task}")


@settings(max_examples=60, deadline=None)
@given(STORY)
def test_a_replayed_state_equals_the_stepped_state(story: TurnScript) -> None:
    """The state of a worker is the same as the one that the next worker reads from the log."""
    seen: list[TurnState] = []

    def watched(turn: TurnState, event: TurnEvent, effects: Mapping[str, ToolEffect]) -> tuple[TurnState, TurnAction]:
        turn, task = advance_turn(turn, event, effects)
        read = rebuild_turn(world.log, session="s", op=3, attempts=turn.attempts, left_over=turn.resumed)
        assert read == turn
        seen.append(turn)
        return turn, task

    world = TurnWorld(story, watched)
    world.play()
    assert seen


# -- single promises ---------------------------------------------------------------------------------------------------

START = (Began(type="turn", takes=(1,)),)


def make_turn(*bodies: EntryBody, attempts: int = 1, left_over: bool = False) -> TurnState:
    world = TurnWorld(TurnScript())
    world.log.clear()
    world.append(*START, *bodies)
    return rebuild_turn(world.log, session="s", op=3, attempts=attempts, left_over=left_over)


def first(turn: TurnState, event: TurnEvent, **effects: ToolEffect) -> TurnAction:
    return advance_turn(turn, event, effects)[1]


def test_a_plain_answer_ends_the_turn_at_once() -> None:
    thought = Thought(text="hello", usage=ModelUsage(input=2))
    task = first(make_turn(), ModelAnswered(thought))
    assert task == FinishTurn(ended=Ended(usage=ModelUsage(input=2)), bodies=(thought,), reply="hello")


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_answer_fails_the_turn_with_a_notice(text: str) -> None:
    task = first(make_turn(), ModelAnswered(Thought(text=text)))
    assert isinstance(task, FinishTurn)
    assert task.ended.outcome == "failed"
    assert not task.reply
    assert "/retry" in task.notice


def test_text_with_tool_calls_is_kept_and_is_not_the_reply() -> None:
    thought = Thought(text="let me look", calls=(ToolCall(id="a", tool="pure"),))
    assert first(make_turn(), ModelAnswered(thought), pure=ToolEffect.PURE) == RecordBodies((thought,))


def test_a_model_that_repeats_itself_is_stopped() -> None:
    rounds: list[EntryBody] = []
    for n in range(MAX_ROUNDS):
        rounds += [Thought(calls=(ToolCall(id=f"c{n}", tool="pure"),)), Returned(call=f"c{n}")]
    assert first(make_turn(*rounds[:-2]), TurnOpened()) == AskModel()
    task = first(make_turn(*rounds), TurnOpened())
    assert isinstance(task, FinishTurn)
    assert task.ended.outcome == "failed"
    assert str(MAX_ROUNDS) in task.ended.reason


@pytest.mark.parametrize("attempts", [1, MAX_TURN_ATTEMPTS, MAX_TURN_ATTEMPTS + 1, MAX_TURN_ATTEMPTS + 50])
def test_a_turn_that_crashes_repeatedly_is_ended_with_its_calls_answered(attempts: int) -> None:
    calls = (ToolCall(id="a", tool="once"), ToolCall(id="b", tool="once"))
    start = Called(call="a", tool="once", effect="once", key="k")
    task = first(make_turn(Thought(calls=calls), start, attempts=attempts, left_over=True), TurnOpened())
    if attempts <= MAX_TURN_ATTEMPTS:
        assert isinstance(task, RecordBodies)
        return
    assert isinstance(task, FinishTurn)
    assert task.ended.outcome == "failed"
    assert task.bodies == (
        Returned(call="a", text=UNKNOWN_OUTCOME_TEXT, error=True, unknown=True),
        Returned(call="b", text=NOT_RUN_TEXT, error=True),
    )


def test_an_interrupted_call_is_unknown_and_an_unstarted_call_is_not_run() -> None:
    calls = (ToolCall(id="a", tool="once"), ToolCall(id="b", tool="once"), ToolCall(id="c", tool="once"))
    start = Called(call="b", tool="once", effect="once", key="k")
    task = first(make_turn(Thought(calls=calls), Returned(call="a"), start), TurnCutShort("stopped"))
    assert isinstance(task, FinishTurn)
    assert [(body.call, body.unknown) for body in task.bodies if isinstance(body, Returned)] == [
        ("b", True),
        ("c", False),
    ]
    assert not task.reply
    assert not task.notice


@pytest.mark.parametrize("now", [*ToolEffect, None])
@pytest.mark.parametrize("then", list(ToolEffect)[1:])
def test_a_tool_keeps_the_effect_it_had_when_it_started(then: ToolEffect, now: ToolEffect | None) -> None:
    start = Called(call="a", tool="t", effect=then, key="the key")
    turn = make_turn(Thought(calls=(ToolCall(id="a", tool="t"),)), start, left_over=True)
    task = advance_turn(turn, TurnOpened(), {} if now is None else {"t": now})[1]
    match then:
        case ToolEffect.KEYED:
            assert task == RunTool(call=ToolCall(id="a", tool="t"), key="the key", how="again")
        case ToolEffect.PROBE:
            assert task == RunTool(call=ToolCall(id="a", tool="t"), key="the key", how="probe")
        case _:
            assert task == RecordBodies((Returned(call="a", text=UNKNOWN_OUTCOME_TEXT, error=True, unknown=True),))


def test_a_call_with_an_unknown_effect_is_never_repeated() -> None:
    start = Called(call="a", tool="t", effect="quantum", key="k")
    task = first(
        make_turn(Thought(calls=(ToolCall(id="a", tool="t"),)), start, left_over=True), TurnOpened(), t=ToolEffect.KEYED
    )
    assert isinstance(task, RecordBodies)


def test_only_calls_left_by_a_crash_are_in_doubt() -> None:
    calls = (ToolCall(id="a", tool="t"), ToolCall(id="b", tool="t"))
    turn = make_turn(Thought(calls=calls), Called(call="a", tool="t", effect="once", key="k"), left_over=True)
    turn, task = advance_turn(turn, TurnOpened(), {})
    assert isinstance(task, RecordBodies)
    turn, task = advance_turn(turn, BodiesRecorded(task.bodies), {})
    assert isinstance(task, RecordBodies)
    assert isinstance(task.bodies[0], Called)
    turn, task = advance_turn(turn, BodiesRecorded(task.bodies), {})
    assert task == RunTool(call=calls[1], key=f"s:3:1:{calls[1].id}")


@pytest.mark.parametrize("thought", [False, True])
def test_without_a_model_messages_are_returned_only_before_the_first_thought(thought: bool) -> None:
    done: tuple[EntryBody, ...] = (Thought(calls=(ToolCall(id="a", tool="t"),)), Returned(call="a")) if thought else ()
    task = first(make_turn(*done), ModelUnreachable(reason="down", retry_after=7.5))
    assert task == WaitForModel(release=not thought, reason="down", retry_after=7.5)


def test_notes_replies_and_notices_do_not_advance_a_turn() -> None:
    spoken: tuple[EntryBody, ...] = (
        Noted(text="n"),
        Said(text="s", to=None),  # type: ignore[arg-type]  # nobody looks at it
        Notified(text="t", about="model"),
    )
    thought = Thought(calls=(ToolCall(id="a", tool="t"),))
    assert make_turn(thought, *spoken, Returned(call="a"), *spoken) == make_turn(thought, Returned(call="a"))


def test_an_ended_turn_accepts_no_more_events() -> None:
    with pytest.raises(AssertionError):
        advance_turn(make_turn(Ended()), TurnOpened(), {})


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(IDS), max_size=6), st.integers(0, 2))
def test_call_ids_become_unique_and_unique_ids_are_kept(ids: list[str], rounds: int) -> None:
    done: list[EntryBody] = []
    for _ in range(rounds):
        done += [Thought(calls=(ToolCall(id="x", tool="pure"),)), Returned(call="x")]
    calls = tuple(ToolCall(id=id, tool="pure", arguments={"n": n}) for n, id in enumerate(ids))
    task = first(make_turn(*done), ModelAnswered(Thought(text="t", calls=calls)), pure=ToolEffect.PURE)
    recorded = task.bodies[0] if isinstance(task, RecordBodies | FinishTurn) else None
    assert isinstance(recorded, Thought)
    made = [call.id for call in recorded.calls]
    assert len(set(made)) == len(made) == len(ids)
    assert all(made)
    assert [call.arguments for call in recorded.calls] == [call.arguments for call in calls], "in the order they came"
    for position, id in enumerate(ids):
        if id and id not in ids[:position]:
            assert made[position] == id
