"""E4: what arrives while something runs is kept in order and treated as it asked to be. Nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Struct, structs

from everhold.core.entries import VERSION, Command, Entry, Heard, Kind, Place
from everhold.core.mailbox import Begin, Busy, Cut, Decision, Letter, Rest, Running, Stay, Steer, decide, letters
from tests.core.planted import found

Decide = Callable[..., Decision]
MANNERS: tuple[Busy, ...] = get_args(Busy)


class Scene(Struct, frozen=True, kw_only=True):
    """All that a decision is made from."""

    mail: tuple[Letter, ...]
    running: Running | None = None
    folding: bool = False
    busy: Busy = "queue"
    most: int = 500

    def decide(self, decide_: Decide = decide) -> Decision:
        return decide_(self.mail, running=self.running, folding=self.folding, busy=self.busy, most=self.most)


def ought(scene: Scene) -> Decision:
    """The rules of E4 as one would tell them, letter by letter."""
    waiting = [letter for letter in scene.mail if letter.command is None]
    asking = [letter for letter in waiting if letter.asks]
    if scene.running is None:
        if scene.folding or not asking:
            return Rest()
        taken: list[int] = []
        answers = False
        for letter in waiting:
            if len(taken) >= scene.most and answers:
                break
            taken.append(letter.seq)
            answers = answers or letter.asks
        return Begin(tuple(taken))
    if scene.running.stop:
        return Cut("stopped")
    wishes = {letter.seq: letter.busy or scene.busy for letter in asking}
    if "interrupt" in wishes.values():
        return Cut("interrupted")
    if scene.running.boundary and "steer" in wishes.values():
        taken = []
        for letter in waiting:
            if wishes.get(letter.seq) == "queue" or len(taken) == scene.most:
                break
            taken.append(letter.seq)
        return Steer(tuple(taken)) if taken else Stay()
    return Stay()


def keeps_faith(scene: Scene, decide_: Decide = decide) -> None:
    """What holds of any decision, whatever the rules are."""
    decision = scene.decide(decide_)
    assert decision == scene.decide(decide_), "the same mail, another decision"
    by_seq = {letter.seq: letter for letter in scene.mail}
    if isinstance(decision, Begin | Steer):
        taken = decision.takes
        order = [letter.seq for letter in scene.mail]
        assert taken, "an operation over nothing"
        assert len(set(taken)) == len(taken), "taken twice"
        assert [seq for seq in order if seq in taken] == list(taken), "out of order"
        assert not any(by_seq[seq].command for seq in taken), "a command is not for the mind"
        left = [letter for letter in scene.mail if letter.seq not in taken and letter.command is None]
        assert all(letter.seq > taken[-1] for letter in left), "somebody was overtaken"
    match decision:
        case Begin(takes):
            assert scene.running is None, "two turns at once"
            assert not scene.folding, "a turn beside a blocking fold"
            assert any(letter.asks for letter in scene.mail if letter.seq in takes), "a turn that nobody asked for"
            chatter = next((n for n, seq in enumerate(takes) if by_seq[seq].asks), 0)
            assert len(takes) <= max(scene.most, chatter + 1)
        case Steer(takes):
            assert scene.running is not None
            assert scene.running.boundary, "steered between two gears"
            assert len(takes) <= scene.most
            wishes = {letter.seq: letter.busy or scene.busy for letter in scene.mail if letter.asks}
            assert all(wishes.get(seq, "steer") == "steer" for seq in takes), "it wanted to wait its turn"
        case Cut() | Stay():
            assert scene.running is not None
        case Rest():
            assert scene.running is None
    assert decision == ought(scene)


def scene_of(seed: int) -> Scene:
    chance = Random(seed)
    mail = []
    for seq in sorted(chance.sample(range(1, 40), chance.randrange(8))):
        kind = chance.choice(("asks", "asks", "asks", "chatter", "command"))
        command = Command(name="status") if kind == "command" else None
        wish = chance.choice(("", "", *MANNERS[:2], "interrupt" if chance.random() < 0.2 else ""))
        mail.append(Letter(seq=seq, asks=kind != "chatter", command=command, busy=wish))
    running = Running(op=9, boundary=chance.random() < 0.6, stop=chance.random() < 0.1)
    return Scene(
        mail=tuple(mail),
        running=chance.choice((None, running)),
        folding=chance.random() < 0.15,
        busy=chance.choice(MANNERS),
        most=chance.choice((1, 2, 3, 500)),
    )


def test_two_thousand_mailboxes_are_treated_as_the_rules_say() -> None:
    kinds = set()
    for seed in range(2_000):
        scene = scene_of(seed)
        keeps_faith(scene)
        kinds.add(type(scene.decide()))
    assert kinds == {Begin, Steer, Cut, Stay, Rest}


# -- planted bugs ------------------------------------------------------------------------------------------------------


def takes_commands(mail: tuple[Letter, ...], **rest: Any) -> Decision:
    return decide(tuple(structs.replace(letter, command=None) for letter in mail), **rest)


def answers_chatter(mail: tuple[Letter, ...], **rest: Any) -> Decision:
    return decide(tuple(structs.replace(letter, asks=True) for letter in mail), **rest)


def drops_chatter(mail: tuple[Letter, ...], **rest: Any) -> Decision:
    return decide(tuple(letter for letter in mail if letter.asks), **rest)


def newest_first(mail: tuple[Letter, ...], **rest: Any) -> Decision:
    return decide(tuple(reversed(mail)), **rest)


def deaf_to_wishes(mail: tuple[Letter, ...], **rest: Any) -> Decision:
    return decide(tuple(structs.replace(letter, busy="") for letter in mail), **rest)


def blind_to_folds(mail: tuple[Letter, ...], **rest: Any) -> Decision:
    return decide(mail, **{**rest, "folding": False})


def steers_anywhere(mail: tuple[Letter, ...], *, running: Running | None, **rest: Any) -> Decision:
    return decide(mail, running=structs.replace(running, boundary=True) if running else None, **rest)


def steers_past_the_queue(mail: tuple[Letter, ...], *, busy: Busy, **rest: Any) -> Decision:
    decision = decide(mail, busy=busy, **rest)
    if isinstance(decision, Steer):
        return Steer(tuple(m.seq for m in mail if m.command is None and (m.busy or busy) == "steer"))
    return decision


def cuts_by_count(mail: tuple[Letter, ...], *, most: int, **rest: Any) -> Decision:
    decision = decide(mail, most=500, **rest)
    return Begin(decision.takes[:most]) if isinstance(decision, Begin) else decision


def takes_all(mail: tuple[Letter, ...], *, most: int, **rest: Any) -> Decision:
    return decide(mail, most=500, **rest)


def will_not_stop(mail: tuple[Letter, ...], *, running: Running | None, **rest: Any) -> Decision:
    return decide(mail, running=structs.replace(running, stop=False) if running else None, **rest)


@pytest.mark.parametrize(
    "bug",
    [
        takes_commands,
        answers_chatter,
        drops_chatter,
        newest_first,
        deaf_to_wishes,
        blind_to_folds,
        steers_anywhere,
        steers_past_the_queue,
        cuts_by_count,
        takes_all,
        will_not_stop,
    ],
)
def test_a_mailbox_that_breaks_a_rule_is_found(bug: Decide) -> None:
    found(map(scene_of, range(2_000)), lambda scene: keeps_faith(scene, bug))


# -- a whole conversation ----------------------------------------------------------------------------------------------


class Post(RuleBasedStateMachine):
    """People write, turns run, folds come between: in the end every letter was taken once, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Letter] = []
        self.seq = 0
        self.op: int | None = None
        self.stop = False
        self.folding = False
        self.mine: list[int] = []
        """What the running turn has taken."""
        self.taken: list[int] = []
        self.written: list[Letter] = []
        self.busy: Busy = "queue"
        self.most = 500

    @initialize(busy=st.sampled_from(MANNERS), most=st.sampled_from((1, 2, 5, 500)))
    def configure(self, busy: Busy, most: int) -> None:
        self.busy, self.most = busy, most

    @rule(asks=st.booleans(), busy=st.sampled_from(("", "", *MANNERS)), command=st.sampled_from((False, False, True)))
    def write(self, asks: bool, busy: str, command: bool) -> None:
        self.seq += 1
        wanted = Command(name="status") if command else None
        letter = Letter(seq=self.seq, asks=asks or command, busy=busy, command=wanted)
        self.pending.append(letter)
        self.written.append(letter)

    @rule(boundary=st.booleans())
    def look(self, boundary: bool) -> None:
        running = None if self.op is None else Running(op=self.op, boundary=boundary, stop=self.stop)
        scene = Scene(mail=tuple(self.pending), running=running, folding=self.folding, busy=self.busy, most=self.most)
        keeps_faith(scene)
        match scene.decide():
            case Begin(takes):
                self.seq += 1
                self.op, self.stop = self.seq, False
                self._take(takes)
            case Steer(takes):
                before = len(self.pending)
                self._take(takes)
                assert len(self.pending) < before, "steering that never comes to an end"
            case Cut():
                self._end()

    def _take(self, takes: tuple[int, ...]) -> None:
        self.pending = [letter for letter in self.pending if letter.seq not in takes]
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
        """Nobody to ask: the messages are pending again, where they stood."""
        back = [letter for letter in self.written if letter.seq in self.mine]
        self.pending = sorted(self.pending + back, key=lambda letter: letter.seq)
        self.op, self.stop, self.mine = None, False, []

    @precondition(lambda self: self.op is not None)
    @rule()
    def say_stop(self) -> None:
        self.stop = True

    @precondition(lambda self: self.op is None)
    @rule()
    def fold(self) -> None:
        self.folding = not self.folding

    @rule()
    def obey(self) -> None:
        """The desk takes a command from between the letters; nobody at the mailbox notices."""
        command = next((letter for letter in self.pending if letter.command), None)
        if command:
            self.pending.remove(command)
            self.written.remove(command)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        where = sorted([*self.taken, *self.mine, *(letter.seq for letter in self.pending)])
        assert where == [letter.seq for letter in self.written]

    @invariant()
    def what_was_said_first_is_taken_first(self) -> None:
        assert self.taken + self.mine == sorted(self.taken + self.mine)

    def teardown(self) -> None:
        """Left alone, everything that asks is taken."""
        self.folding = False
        for _ in range(4 * len(self.written) + 4):
            if not any(letter.asks and not letter.command for letter in self.pending):
                break
            self.look(True)
            if self.op is not None:
                self._end()
        assert not [letter for letter in self.pending if letter.asks and not letter.command], "somebody waits for ever"
        self.nothing_is_lost_or_doubled()
        self.what_was_said_first_is_taken_first()


Post.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestAConversation = Post.TestCase


# -- single promises ---------------------------------------------------------------------------------------------------


def test_by_default_the_next_turn_takes_all_that_is_pending() -> None:
    mail = tuple(Letter(seq=seq) for seq in range(1, 401))
    assert decide(mail) == Begin(tuple(range(1, 401)))
    assert decide(mail, running=Running(op=500, boundary=True)) == Stay()


def test_a_turn_takes_no_more_than_it_may_and_the_rest_stays_for_the_next() -> None:
    mail = tuple(Letter(seq=seq) for seq in range(1, 1_201))
    assert decide(mail) == Begin(tuple(range(1, 501)))
    assert decide(mail[500:]) == Begin(tuple(range(501, 1_001)))


def test_however_much_chatter_comes_before_it_a_question_is_in_the_turn_it_starts() -> None:
    mail = (*(Letter(seq=seq, asks=False) for seq in range(1, 1_001)), Letter(seq=1_001))
    assert decide(mail) == Begin(tuple(range(1, 1_002)))


def test_a_command_neither_starts_a_turn_nor_interrupts_one() -> None:
    command = Letter(seq=1, command=Command(name="status"), busy="interrupt")
    assert decide((command,)) == Rest()
    assert decide((command,), running=Running(op=2, boundary=True), busy="interrupt") == Stay()


def test_chatter_never_interrupts() -> None:
    assert decide((Letter(seq=1, asks=False, busy="interrupt"),), running=Running(op=2), busy="interrupt") == Stay()


def test_what_was_erased_while_it_waited_is_there_and_asks_for_nothing() -> None:
    def entry(seq: int, body: Heard | None) -> Entry:
        return Entry(
            session="s",
            seq=seq,
            pos=seq,
            kind=Kind.HEARD,
            op=None,
            author="person:ada",
            at=0.0,
            version=VERSION,
            body=body,
            digest=b"",
        )

    spoken = Heard(origin=Place(platform="p"), text="x", busy="steer", command=Command(name="stop"))
    assert letters([entry(1, None), entry(2, spoken)]) == (
        Letter(seq=1, asks=False),
        Letter(seq=2, asks=True, busy="steer", command=Command(name="stop")),
    )
    assert decide(letters([entry(1, None)])) == Rest()
