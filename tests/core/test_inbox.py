"""E4: what arrives while something runs is kept in order and treated as it asked to be. Nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Struct, structs

from everhold.core.entries import BODY_VERSION, ChatCommand, ChatLocation, Entry, EntryKind, Heard
from everhold.core.inbox import (
    BeginTurn,
    BusyPolicy,
    ContinueTurn,
    CutTurn,
    InboxDecision,
    PendingMessage,
    RunningTurn,
    StayIdle,
    SteerTurn,
    decide_next_step,
    list_pending_messages,
)
from tests.core.planted_bugs import find_first_failing

Decide = Callable[..., InboxDecision]
MANNERS: tuple[BusyPolicy, ...] = get_args(BusyPolicy)


class InboxState(Struct, frozen=True, kw_only=True):
    """All that a decision is made from."""

    messages: tuple[PendingMessage, ...]
    running: RunningTurn | None = None
    compressing: bool = False
    busy: BusyPolicy = "queue"
    most: int = 500

    def decide(self, decide_: Decide = decide_next_step) -> InboxDecision:
        return decide_(
            self.messages, running=self.running, compressing=self.compressing, busy=self.busy, most=self.most
        )


def compute_expected_decision(state: InboxState) -> InboxDecision:
    """The rules of E4, message by message."""
    waiting = [message for message in state.messages if message.command is None]
    asking = [message for message in waiting if message.asks]
    if state.running is None:
        if state.compressing or not asking:
            return StayIdle()
        taken: list[int] = []
        answers = False
        for message in waiting:
            if len(taken) >= state.most and answers:
                break
            taken.append(message.seq)
            answers = answers or message.asks
        return BeginTurn(tuple(taken))
    if state.running.stop_requested:
        return CutTurn("stopped")
    wishes = {message.seq: message.busy or state.busy for message in asking}
    if "interrupt" in wishes.values():
        return CutTurn("interrupted")
    if state.running.at_boundary and "steer" in wishes.values():
        taken = []
        for message in waiting:
            if wishes.get(message.seq) == "queue" or len(taken) == state.most:
                break
            taken.append(message.seq)
        return SteerTurn(tuple(taken)) if taken else ContinueTurn()
    return ContinueTurn()


def check_invariants(state: InboxState, decide_: Decide = decide_next_step) -> None:
    """Check what must hold for every decision."""
    decision = state.decide(decide_)
    assert decision == state.decide(decide_), "the same mail, another decision"
    by_seq = {message.seq: message for message in state.messages}
    if isinstance(decision, BeginTurn | SteerTurn):
        taken = decision.takes
        order = [message.seq for message in state.messages]
        assert taken, "an operation over nothing"
        assert len(set(taken)) == len(taken), "taken twice"
        assert [seq for seq in order if seq in taken] == list(taken), "out of order"
        assert not any(by_seq[seq].command for seq in taken), "a turn takes no command"
        left = [message for message in state.messages if message.seq not in taken and message.command is None]
        assert all(message.seq > taken[-1] for message in left), "the order of messages changed"
    match decision:
        case BeginTurn(takes):
            assert state.running is None, "two turns at once"
            assert not state.compressing, "a turn beside a blocking compression"
            assert any(message.asks for message in state.messages if message.seq in takes), (
                "a turn without a message that asks"
            )
            chatter = next((n for n, seq in enumerate(takes) if by_seq[seq].asks), 0)
            assert len(takes) <= max(state.most, chatter + 1)
        case SteerTurn(takes):
            assert state.running is not None
            assert state.running.at_boundary, "steered between two gears"
            assert len(takes) <= state.most
            wishes = {message.seq: message.busy or state.busy for message in state.messages if message.asks}
            assert all(wishes.get(seq, "steer") == "steer" for seq in takes), "it wanted to wait its turn"
        case CutTurn() | ContinueTurn():
            assert state.running is not None
        case StayIdle():
            assert state.running is None
    assert decision == compute_expected_decision(state)


def make_random_state(seed: int) -> InboxState:
    chance = Random(seed)
    messages = []
    for seq in sorted(chance.sample(range(1, 40), chance.randrange(8))):
        kind = chance.choice(("asks", "asks", "asks", "chatter", "command"))
        command = ChatCommand(name="status") if kind == "command" else None
        wish = chance.choice(("", "", *MANNERS[:2], "interrupt" if chance.random() < 0.2 else ""))
        messages.append(PendingMessage(seq=seq, asks=kind != "chatter", command=command, busy=wish))
    running = RunningTurn(op=9, at_boundary=chance.random() < 0.6, stop_requested=chance.random() < 0.1)
    return InboxState(
        messages=tuple(messages),
        running=chance.choice((None, running)),
        compressing=chance.random() < 0.15,
        busy=chance.choice(MANNERS),
        most=chance.choice((1, 2, 3, 500)),
    )


def test_two_thousand_inboxes_follow_the_rules() -> None:
    kinds = set()
    for seed in range(2_000):
        state = make_random_state(seed)
        check_invariants(state)
        kinds.add(type(state.decide()))
    assert kinds == {BeginTurn, SteerTurn, CutTurn, ContinueTurn, StayIdle}


# -- planted bugs ------------------------------------------------------------------------------------------------------


def takes_commands(messages: tuple[PendingMessage, ...], **rest: Any) -> InboxDecision:
    return decide_next_step(tuple(structs.replace(message, command=None) for message in messages), **rest)


def answers_chatter(messages: tuple[PendingMessage, ...], **rest: Any) -> InboxDecision:
    return decide_next_step(tuple(structs.replace(message, asks=True) for message in messages), **rest)


def drops_chatter(messages: tuple[PendingMessage, ...], **rest: Any) -> InboxDecision:
    return decide_next_step(tuple(message for message in messages if message.asks), **rest)


def newest_first(messages: tuple[PendingMessage, ...], **rest: Any) -> InboxDecision:
    return decide_next_step(tuple(reversed(messages)), **rest)


def deaf_to_wishes(messages: tuple[PendingMessage, ...], **rest: Any) -> InboxDecision:
    return decide_next_step(tuple(structs.replace(message, busy="") for message in messages), **rest)


def ignores_compressions(messages: tuple[PendingMessage, ...], **rest: Any) -> InboxDecision:
    return decide_next_step(messages, **{**rest, "compressing": False})


def steers_anywhere(messages: tuple[PendingMessage, ...], *, running: RunningTurn | None, **rest: Any) -> InboxDecision:
    return decide_next_step(messages, running=structs.replace(running, at_boundary=True) if running else None, **rest)


def steers_past_the_queue(messages: tuple[PendingMessage, ...], *, busy: BusyPolicy, **rest: Any) -> InboxDecision:
    decision = decide_next_step(messages, busy=busy, **rest)
    if isinstance(decision, SteerTurn):
        return SteerTurn(tuple(m.seq for m in messages if m.command is None and (m.busy or busy) == "steer"))
    return decision


def cuts_by_count(messages: tuple[PendingMessage, ...], *, most: int, **rest: Any) -> InboxDecision:
    decision = decide_next_step(messages, most=500, **rest)
    return BeginTurn(decision.takes[:most]) if isinstance(decision, BeginTurn) else decision


def takes_all(messages: tuple[PendingMessage, ...], *, most: int, **rest: Any) -> InboxDecision:
    return decide_next_step(messages, most=500, **rest)


def will_not_stop(messages: tuple[PendingMessage, ...], *, running: RunningTurn | None, **rest: Any) -> InboxDecision:
    return decide_next_step(
        messages, running=structs.replace(running, stop_requested=False) if running else None, **rest
    )


@pytest.mark.parametrize(
    "bug",
    [
        takes_commands,
        answers_chatter,
        drops_chatter,
        newest_first,
        deaf_to_wishes,
        ignores_compressions,
        steers_anywhere,
        steers_past_the_queue,
        cuts_by_count,
        takes_all,
        will_not_stop,
    ],
)
def test_the_check_finds_an_inbox_that_breaks_a_rule(bug: Decide) -> None:
    find_first_failing(map(make_random_state, range(2_000)), lambda state: check_invariants(state, bug))


# -- a whole conversation ----------------------------------------------------------------------------------------------


class InboxMachine(RuleBasedStateMachine):
    """People write, turns run, compressions come between: in the end every message was taken once, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[PendingMessage] = []
        self.seq = 0
        self.op: int | None = None
        self.stop = False
        self.compressing = False
        self.mine: list[int] = []
        """What the running turn has taken."""
        self.taken: list[int] = []
        self.written: list[PendingMessage] = []
        self.busy: BusyPolicy = "queue"
        self.most = 500

    @initialize(busy=st.sampled_from(MANNERS), most=st.sampled_from((1, 2, 5, 500)))
    def configure(self, busy: BusyPolicy, most: int) -> None:
        self.busy, self.most = busy, most

    @rule(asks=st.booleans(), busy=st.sampled_from(("", "", *MANNERS)), command=st.sampled_from((False, False, True)))
    def write(self, asks: bool, busy: str, command: bool) -> None:
        self.seq += 1
        wanted = ChatCommand(name="status") if command else None
        message = PendingMessage(seq=self.seq, asks=asks or command, busy=busy, command=wanted)
        self.pending.append(message)
        self.written.append(message)

    @rule(boundary=st.booleans())
    def look(self, boundary: bool) -> None:
        running = None if self.op is None else RunningTurn(op=self.op, at_boundary=boundary, stop_requested=self.stop)
        state = InboxState(
            messages=tuple(self.pending), running=running, compressing=self.compressing, busy=self.busy, most=self.most
        )
        check_invariants(state)
        match state.decide():
            case BeginTurn(takes):
                self.seq += 1
                self.op, self.stop = self.seq, False
                self._take(takes)
            case SteerTurn(takes):
                before = len(self.pending)
                self._take(takes)
                assert len(self.pending) < before, "steering does not end"
            case CutTurn():
                self._end()

    def _take(self, takes: tuple[int, ...]) -> None:
        self.pending = [message for message in self.pending if message.seq not in takes]
        self.mine += takes

    def _end(self) -> None:
        self.taken += self.mine
        self.op, self.stop, self.mine = None, False, []

    @precondition(lambda self: self.op is not None)
    @rule()
    def answer(self) -> None:
        self._end()

    @precondition(lambda self: self.op is not None)
    @rule()
    def release(self) -> None:
        """No model can be asked, so the messages are pending again, in their order."""
        back = [message for message in self.written if message.seq in self.mine]
        self.pending = sorted(self.pending + back, key=lambda message: message.seq)
        self.op, self.stop, self.mine = None, False, []

    @precondition(lambda self: self.op is not None)
    @rule()
    def say_stop(self) -> None:
        self.stop = True

    @precondition(lambda self: self.op is None)
    @rule()
    def run_compression(self) -> None:
        self.compressing = not self.compressing

    @rule()
    def take_command(self) -> None:
        """The command worker takes a command from between the messages; the inbox is not affected."""
        command = next((message for message in self.pending if message.command), None)
        if command:
            self.pending.remove(command)
            self.written.remove(command)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        where = sorted([*self.taken, *self.mine, *(message.seq for message in self.pending)])
        assert where == [message.seq for message in self.written]

    @invariant()
    def what_was_said_first_is_taken_first(self) -> None:
        assert self.taken + self.mine == sorted(self.taken + self.mine)

    def teardown(self) -> None:
        """Left alone, everything that asks is taken."""
        self.compressing = False
        for _ in range(4 * len(self.written) + 4):
            if not any(message.asks and not message.command for message in self.pending):
                break
            self.look(True)
            if self.op is not None:
                self._end()
        assert not [message for message in self.pending if message.asks and not message.command], (
            "a message is never answered"
        )
        self.nothing_is_lost_or_doubled()
        self.what_was_said_first_is_taken_first()


InboxMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestAConversation = InboxMachine.TestCase


# -- single promises ---------------------------------------------------------------------------------------------------


def test_by_default_the_next_turn_takes_all_that_is_pending() -> None:
    messages = tuple(PendingMessage(seq=seq) for seq in range(1, 401))
    assert decide_next_step(messages) == BeginTurn(tuple(range(1, 401)))
    assert decide_next_step(messages, running=RunningTurn(op=500, at_boundary=True)) == ContinueTurn()


def test_a_turn_takes_at_most_its_limit_and_the_rest_stays_pending() -> None:
    messages = tuple(PendingMessage(seq=seq) for seq in range(1, 1_201))
    assert decide_next_step(messages) == BeginTurn(tuple(range(1, 501)))
    assert decide_next_step(messages[500:]) == BeginTurn(tuple(range(501, 1_001)))


def test_a_question_after_much_chatter_is_in_the_turn_it_starts() -> None:
    messages = (*(PendingMessage(seq=seq, asks=False) for seq in range(1, 1_001)), PendingMessage(seq=1_001))
    assert decide_next_step(messages) == BeginTurn(tuple(range(1, 1_002)))


def test_a_command_neither_starts_a_turn_nor_interrupts_one() -> None:
    command = PendingMessage(seq=1, command=ChatCommand(name="status"), busy="interrupt")
    assert decide_next_step((command,)) == StayIdle()
    assert decide_next_step((command,), running=RunningTurn(op=2, at_boundary=True), busy="interrupt") == ContinueTurn()


def test_chatter_never_interrupts() -> None:
    assert (
        decide_next_step(
            (PendingMessage(seq=1, asks=False, busy="interrupt"),), running=RunningTurn(op=2), busy="interrupt"
        )
        == ContinueTurn()
    )


def test_an_erased_pending_message_starts_nothing() -> None:
    def entry(seq: int, body: Heard | None) -> Entry:
        return Entry(
            session="s",
            seq=seq,
            pos=seq,
            kind=EntryKind.HEARD,
            op=None,
            author="person:ada",
            at=0.0,
            version=BODY_VERSION,
            body=body,
            digest=b"",
        )

    spoken = Heard(origin=ChatLocation(platform="p"), text="x", busy="steer", command=ChatCommand(name="stop"))
    assert list_pending_messages([entry(1, None), entry(2, spoken)]) == (
        PendingMessage(seq=1, author="person:ada", asks=False),
        PendingMessage(seq=2, author="person:ada", busy="steer", command=ChatCommand(name="stop")),
    )
    assert decide_next_step(list_pending_messages([entry(1, None)])) == StayIdle()
