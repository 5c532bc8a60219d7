"""P8: every finding can be made, each from a log damaged in just that way; and a healthy log is never doubted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from everhold.core.audit import PROMISES, Count, Finding, audit
from everhold.core.entries import (
    VERSION,
    Began,
    Body,
    BranchedFrom,
    Call,
    Called,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    Erased,
    Heard,
    Noted,
    OperationsUndone,
    Place,
    Returned,
    Said,
    SessionTitled,
    Stamp,
    Thought,
    Took,
    kind_of,
)
from tests.core.chronicle import Chronicle, story_of

PLACE = Place(platform="fake", chat="1")
STAMP = Stamp(person="ada", audience=("person:ada",))
HELLO = Heard(origin=PLACE, text="hello", stamp=STAMP)
REPLY = Said(text="hi", to=PLACE, stamp=STAMP)
ASKED = Thought(calls=(Call(id="a", tool="t"), Call(id="b", tool="t")))
STARTED = Called(call="a", tool="t", effect="once", key="k")


class Pen:
    """Writes a log line by line, whether it makes sense or not."""

    def __init__(self) -> None:
        self.log: list[Entry] = []

    def write(self, *bodies: Body, op: int | None = None) -> int:
        """Append; the seq of the last. A `began` belongs to itself."""
        for body in bodies:
            seq = len(self.log) + 1
            self.log.append(
                Entry(
                    session="s",
                    seq=seq,
                    pos=seq,
                    kind=kind_of(body),
                    op=seq if isinstance(body, Began) else op,
                    author="person:ada",
                    at=0.0,
                    version=VERSION,
                    body=body,
                    digest=b"",
                )
            )
        return len(self.log)

    def turn(self, *steps: Body, outcome: str = "done") -> int:
        """A message and a whole turn about it; its operation."""
        heard = self.write(HELLO)
        op = self.write(Began(type="turn", takes=(heard,)))
        self.write(*steps, Thought(text="hi"), REPLY, Ended(outcome=outcome), op=op)  # type: ignore[arg-type]
        return op

    def fold(self, covers: int, generation: int) -> int:
        op = self.write(Began(type="compression", generation=generation))
        self.write(Compressed(summary="so far", covers=covers, generation=generation), Ended(), op=op)
        return op

    def erase(self, *seqs: int, folds: tuple[int, ...] = ()) -> None:
        for seq in seqs:
            self.log[seq - 1] = structs.replace(self.log[seq - 1], body=None)
        self.write(Erased(seqs=seqs, compressions=folds))

    def find(self) -> list[Finding]:
        return audit("s", self.log)[0]


# -- one damaged log for each finding ----------------------------------------------------------------------------------


def a_line_is_missing(pen: Pen) -> None:
    pen.turn()
    del pen.log[2]


def a_line_of_another_session(pen: Pen) -> None:
    pen.turn()
    pen.log[2] = structs.replace(pen.log[2], session="other")


def born_of_a_job(pen: Pen) -> None:
    op = pen.write(Began(type="job"))
    pen.write(Ended(), op=op)


def a_step_of_nothing(pen: Pen) -> None:
    pen.turn()
    pen.write(Thought(text="boo"), op=99)


def a_step_after_the_end(pen: Pen) -> None:
    pen.write(Thought(text="too late"), op=pen.turn())


def ended_twice(pen: Pen) -> None:
    pen.write(Ended(), op=pen.turn())


def nobody_spoke(pen: Pen) -> None:
    pen.write(structs.replace(HELLO, asks=False, stamp=Stamp(audience=("person:ada",))))


def nobody_was_there(pen: Pen) -> None:
    pen.write(structs.replace(HELLO, asks=False, stamp=Stamp(person="ada")))


def said_to_nobody(pen: Pen) -> None:
    pen.turn(structs.replace(REPLY, stamp=Stamp()))


def noted_for_nobody(pen: Pen) -> None:
    pen.turn(Noted(text="x", stamp=Stamp(person="ada")))


def two_turns_at_once(pen: Pen) -> None:
    pen.write(HELLO, HELLO)
    for seq in (1, 2):
        pen.write(Began(type="turn", takes=(seq,)))


def a_turn_beside_a_blocking_fold(pen: Pen) -> None:
    pen.turn()
    pen.write(Began(type="compression", blocking=True))
    pen.write(Began(type="turn"))


def a_blocking_fold_beside_a_turn(pen: Pen) -> None:
    pen.write(HELLO)
    pen.write(Began(type="turn", takes=(1,)))
    pen.write(Began(type="compression", blocking=True))


def two_folds_at_once(pen: Pen) -> None:
    pen.turn()
    pen.write(Began(type="compression"), Began(type="compression"))


def taken_twice(pen: Pen) -> None:
    op = pen.turn()
    other = pen.write(Began(type="turn", takes=(op - 1,)))
    pen.write(Ended(), op=other)


def taken_twice_by_steering(pen: Pen) -> None:
    pen.turn(Took(takes=(1,)))


def taken_before_it_was_heard(pen: Pen) -> None:
    pen.turn(Took(takes=(99,)))


def taken_although_it_is_no_message(pen: Pen) -> None:
    pen.turn(Took(takes=(2,)))


def a_thought_over_open_calls(pen: Pen) -> None:
    pen.turn(ASKED, Returned(call="a"), Thought(text="never mind"))


def a_result_of_nothing(pen: Pen) -> None:
    pen.turn(Returned(call="zz"))


def two_results_of_one_call(pen: Pen) -> None:
    pen.turn(ASKED, Returned(call="a"), Returned(call="b"), Returned(call="a"))


def ended_over_open_calls(pen: Pen) -> None:
    heard = pen.write(HELLO)
    op = pen.write(Began(type="turn", takes=(heard,)))
    pen.write(ASKED, Returned(call="a"), Ended(), op=op)


def started_twice(pen: Pen) -> None:
    pen.turn(ASKED, STARTED, STARTED, Returned(call="a"), Returned(call="b"))


def started_for_nobody(pen: Pen) -> None:
    pen.turn(ASKED, Returned(call="a"), Returned(call="b"), STARTED)


def a_fold_of_another_view(pen: Pen) -> None:
    op = pen.turn()
    pen.write(Changed(change=ContextReset()))
    pen.fold(op, generation=0)


def a_fold_of_a_view_to_come(pen: Pen) -> None:
    pen.fold(pen.turn(), generation=1)


def a_fold_of_a_view_before_an_erasure(pen: Pen) -> None:
    op = pen.turn()
    pen.erase(1)
    pen.fold(op, generation=0)


def a_branchs_fold_of_an_earlier_view(pen: Pen) -> None:
    pen.write(Changed(change=BranchedFrom(parent="p", at=3)))
    op = pen.turn()
    pen.write(Changed(change=ContextReset()))
    pen.fold(op, generation=0)


def a_fold_over_a_running_turn(pen: Pen) -> None:
    pen.write(HELLO)
    op = pen.write(Began(type="turn", takes=(1,)))
    pen.fold(op, generation=0)


def undone_what_never_was(pen: Pen) -> None:
    pen.turn()
    pen.write(Changed(change=OperationsUndone(ops=(99,))))


def undone_while_it_ran(pen: Pen) -> None:
    pen.write(HELLO)
    op = pen.write(Began(type="turn", takes=(1,)))
    pen.write(Changed(change=OperationsUndone(ops=(op,))))


DAMAGE = [
    (a_line_is_missing, "P8", "entry 3 is missing"),
    (a_line_of_another_session, "P1", "belongs to session other"),
    (born_of_a_job, "P6", "begins with began"),
    (a_step_of_nothing, "P3", "which never began"),
    (a_step_after_the_end, "P3", "which had ended"),
    (ended_twice, "P3", "which had ended"),
    (nobody_spoke, "P5", "without a person"),
    (nobody_was_there, "P5", "without a person or an audience"),
    (said_to_nobody, "P5", "said without an audience"),
    (noted_for_nobody, "P5", "noted without an audience"),
    (two_turns_at_once, "P3", "began while"),
    (a_turn_beside_a_blocking_fold, "P3", "began while"),
    (a_blocking_fold_beside_a_turn, "P3", "began while"),
    (two_folds_at_once, "P3", "began while fold"),
    (taken_twice, "P2", "was taken by"),
    (taken_twice_by_steering, "P2", "was taken by"),
    (taken_before_it_was_heard, "P2", "before it was heard"),
    (taken_although_it_is_no_message, "P2", "which is no message"),
    (a_thought_over_open_calls, "P2", "had no result"),
    (a_result_of_nothing, "P2", "that nobody made"),
    (two_results_of_one_call, "P2", "that nobody made"),
    (ended_over_open_calls, "P2", "ended with calls"),
    (started_twice, "P2", "was started twice"),
    (started_for_nobody, "P2", "that nobody waits for"),
    (a_fold_of_another_view, "P1", "another view"),
    (a_fold_of_a_view_to_come, "P1", "another view"),
    (a_fold_of_a_view_before_an_erasure, "P1", "another view"),
    (a_branchs_fold_of_an_earlier_view, "P1", "another view"),
    (a_fold_over_a_running_turn, "P3", "which was running"),
    (undone_what_never_was, "P8", "never began"),
    (undone_while_it_ran, "P3", "undone while it was running"),
]


@pytest.mark.parametrize("damage, promise, words", DAMAGE, ids=[damage.__name__ for damage, _, _ in DAMAGE])
def test_each_damage_is_found_and_nothing_else_is_claimed(
    damage: Callable[[Pen], None], promise: str, words: str
) -> None:
    pen = Pen()
    damage(pen)
    broken = [finding for finding in pen.find() if finding.level == "broken"]
    assert [(finding.promise, words in finding.text) for finding in broken] == [(promise, True)], broken
    assert broken[0].promise in PROMISES
    assert broken[0].session == "s"
    assert broken[0].seq > 0, "it says where to look"


ABOUT_THE_BEGINNING = (a_line_is_missing, born_of_a_job, a_branchs_fold_of_an_earlier_view)


@pytest.mark.parametrize("damage", [damage for damage, _, _ in DAMAGE if damage not in ABOUT_THE_BEGINNING])
def test_damage_is_found_behind_a_long_healthy_past(damage: Callable[[Pen], None]) -> None:
    """What is found does not depend on how much came before it."""
    alone, late = Pen(), Pen()
    damage(alone)
    past = Pen()
    for _ in range(5):
        past.turn(ASKED, STARTED, Returned(call="a"), Returned(call="b"))
    late.log = past.log
    shift = len(late.log)
    late.log += [_moved(entry, shift) for entry in alone.log]
    kinds = [(finding.promise, finding.level) for finding in alone.find()]
    assert [(finding.promise, finding.level) for finding in late.find()] == kinds


def _moved(entry: Entry, by: int) -> Entry:
    """An entry as it would stand `by` lines further down."""
    body = entry.body
    match body:
        case Began(takes=takes):
            body = structs.replace(body, takes=tuple(seq + by for seq in takes))
        case Took(takes=takes):
            body = structs.replace(body, takes=tuple(seq + by for seq in takes))
        case Compressed(covers=covers):
            body = structs.replace(body, covers=covers + by)
        case Erased(seqs=seqs):
            body = structs.replace(body, seqs=tuple(seq + by for seq in seqs))
        case Changed(change=OperationsUndone(ops=ops, again=again)):
            body = Changed(change=OperationsUndone(ops=tuple(op + by for op in ops), again=again))
        case _:
            pass
    op = entry.op + by if entry.op is not None else None
    return structs.replace(entry, seq=entry.seq + by, op=op, body=body)


# -- doubts: nothing broken, but somebody ought to know ----------------------------------------------------------------


def test_what_waits_for_an_answer_is_told_as_a_doubt() -> None:
    pen = Pen()
    pen.turn()
    pen.write(HELLO, structs.replace(HELLO, asks=False), HELLO)
    assert [(it.promise, it.level, it.text) for it in pen.find()] == [
        ("P2", "doubt", "2 messages without an answer yet")
    ]


def test_what_failed_visibly_is_told_as_a_doubt_until_it_is_retried() -> None:
    pen = Pen()
    heard = pen.write(HELLO)
    op = pen.write(Began(type="turn", takes=(heard,)))
    pen.write(Ended(outcome="failed", reason="no model"), op=op)
    assert [(it.level, it.text) for it in pen.find()] == [("doubt", f"turn {op} failed, visibly: no model")]
    pen.write(Changed(change=OperationsUndone(ops=(op,), again=True)))
    again = pen.write(Began(type="turn", takes=(heard,)))
    pen.write(Thought(text="hi"), REPLY, Ended(), op=again)
    assert pen.find() == []


# -- healthy logs ------------------------------------------------------------------------------------------------------


def test_a_thousand_healthy_histories_are_not_doubted() -> None:
    checked = Count()
    for seed in range(1_000):
        for chapter in Chronicle().tell(story_of(seed)).chapters.values():
            findings, count = audit(chapter.id, chapter.log)
            assert [finding for finding in findings if finding.level == "broken"] == [], seed
            assert count.entries == len(chapter.log)
            checked += count
    assert checked.folds > 100
    assert checked.turns > 1_000


def released_and_taken_again(pen: Pen) -> None:
    heard = pen.write(HELLO)
    op = pen.write(Began(type="turn", takes=(heard,)))
    pen.write(Ended(outcome="released"), op=op)
    again = pen.write(Began(type="turn", takes=(heard,)))
    pen.write(Thought(text="hi"), REPLY, Ended(), op=again)


def a_fold_beside_a_turn(pen: Pen) -> None:
    first = pen.turn()
    fold = pen.write(Began(type="compression"))
    pen.turn()
    pen.write(Compressed(summary="s", covers=first), Ended(), op=fold)


def erased_thought(pen: Pen) -> None:
    pen.turn(ASKED, STARTED, Returned(call="a"), Returned(call="b"))
    pen.erase(3)


def erased_result(pen: Pen) -> None:
    pen.turn(ASKED, STARTED, Returned(call="a"), Returned(call="b"))
    pen.erase(5)


def erased_result_before_another_round(pen: Pen) -> None:
    pen.turn(ASKED, Returned(call="a"), Returned(call="b"), ASKED, Returned(call="a"), Returned(call="b"))
    pen.erase(4)


def erased_fold_before_another(pen: Pen) -> None:
    first = pen.turn()
    op = pen.fold(first, generation=0)
    pen.erase(op + 1, folds=(op,))
    pen.fold(pen.turn(), generation=2)


def a_branch_whose_parent_was_erased(pen: Pen) -> None:
    """Its view, and so its generation, changed without a word in its own log."""
    pen.write(Changed(change=BranchedFrom(parent="p", at=3)))
    pen.fold(pen.turn(), generation=0)
    pen.turn()
    pen.fold(pen.turn(), generation=4)
    pen.fold(pen.turn(), generation=5)


def a_branch_that_begins_with_its_parents_name(pen: Pen) -> None:
    pen.write(Changed(change=BranchedFrom(parent="p", at=3)), Changed(change=SessionTitled(title="t")))
    pen.turn()


def cut_short_by_an_erasure(pen: Pen) -> None:
    pen.write(HELLO)
    op = pen.write(Began(type="turn", takes=(1,)))
    pen.write(ASKED, STARTED, op=op)
    pen.erase(1)
    pen.write(Ended(outcome="erased"), op=op)


@pytest.mark.parametrize(
    "healthy",
    [
        released_and_taken_again,
        a_fold_beside_a_turn,
        erased_thought,
        erased_result,
        erased_result_before_another_round,
        erased_fold_before_another,
        a_branch_whose_parent_was_erased,
        a_branch_that_begins_with_its_parents_name,
        cut_short_by_an_erasure,
    ],
)
def test_what_looks_odd_and_is_sound_is_not_doubted(healthy: Callable[[Pen], None]) -> None:
    pen = Pen()
    healthy(pen)
    assert pen.find() == []


def test_what_was_looked_at_is_counted() -> None:
    pen = Pen()
    pen.fold(pen.turn(), generation=0)
    assert audit("s", pen.log) == ([], Count(entries=len(pen.log), heard=1, turns=1, folds=1))
    assert audit("s", []) == ([], Count())
    assert Count(entries=1, heard=2) + Count(entries=3, folds=1) == Count(entries=4, heard=2, folds=1)


def test_every_promise_has_its_line() -> None:
    assert list(PROMISES) == [f"P{n}" for n in range(1, 9)]
    assert {promise for _, promise, _ in DAMAGE} == {"P1", "P2", "P3", "P5", "P6", "P8"}
