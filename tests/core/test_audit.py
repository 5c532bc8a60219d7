"""P8: every finding can be made, each from a log damaged in just that way; and a healthy log is never doubted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from everhold.core.audit import PROMISES, AuditCounts, AuditFinding, audit_session
from everhold.core.entries import (
    BODY_VERSION,
    Began,
    BranchedFrom,
    Called,
    Changed,
    ChatLocation,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    EntryBody,
    Erased,
    Heard,
    Noted,
    OperationsUndone,
    Returned,
    Said,
    SessionTitled,
    Stamp,
    Thought,
    Took,
    ToolCall,
    get_body_kind,
)
from tests.core.random_log import RandomLog, make_random_actions

PLACE = ChatLocation(platform="fake", chat="1")
STAMP = Stamp(person="ada", audience=("person:ada",))
HELLO = Heard(origin=PLACE, text="hello", stamp=STAMP)
REPLY = Said(text="hi", to=PLACE, stamp=STAMP)
ASKED = Thought(calls=(ToolCall(id="a", tool="t"), ToolCall(id="b", tool="t")))
STARTED = Called(call="a", tool="t", effect="once", key="k")


class LogWriter:
    """Writes a log line by line, whether it makes sense or not."""

    def __init__(self) -> None:
        self.log: list[Entry] = []

    def write(self, *bodies: EntryBody, op: int | None = None) -> int:
        """Append; the seq of the last. A `began` belongs to itself."""
        for body in bodies:
            seq = len(self.log) + 1
            self.log.append(
                Entry(
                    session="s",
                    seq=seq,
                    pos=seq,
                    kind=get_body_kind(body),
                    op=seq if isinstance(body, Began) else op,
                    author="person:ada",
                    at=0.0,
                    version=BODY_VERSION,
                    body=body,
                    digest=b"",
                )
            )
        return len(self.log)

    def write_turn(self, *steps: EntryBody, outcome: str = "done") -> int:
        """A message and a whole turn about it; its operation."""
        heard = self.write(HELLO)
        op = self.write(Began(type="turn", takes=(heard,)))
        self.write(*steps, Thought(text="hi"), REPLY, Ended(outcome=outcome), op=op)  # type: ignore[arg-type]
        return op

    def write_compression(self, covers: int, generation: int) -> int:
        op = self.write(Began(type="compression", generation=generation))
        self.write(Compressed(summary="so far", covers=covers, generation=generation), Ended(), op=op)
        return op

    def write_erasure(self, *seqs: int, compressions: tuple[int, ...] = ()) -> None:
        for seq in seqs:
            self.log[seq - 1] = structs.replace(self.log[seq - 1], body=None)
        self.write(Erased(seqs=seqs, compressions=compressions))

    def find_problems(self) -> list[AuditFinding]:
        return audit_session("s", self.log)[0]


# -- one damaged log for each finding ----------------------------------------------------------------------------------


def a_line_is_missing(pen: LogWriter) -> None:
    pen.write_turn()
    del pen.log[2]


def a_line_of_another_session(pen: LogWriter) -> None:
    pen.write_turn()
    pen.log[2] = structs.replace(pen.log[2], session="other")


def born_of_a_job(pen: LogWriter) -> None:
    op = pen.write(Began(type="job"))
    pen.write(Ended(), op=op)


def a_step_of_nothing(pen: LogWriter) -> None:
    pen.write_turn()
    pen.write(Thought(text="boo"), op=99)


def a_step_after_the_end(pen: LogWriter) -> None:
    pen.write(Thought(text="too late"), op=pen.write_turn())


def ended_twice(pen: LogWriter) -> None:
    pen.write(Ended(), op=pen.write_turn())


def nobody_spoke(pen: LogWriter) -> None:
    pen.write(structs.replace(HELLO, asks=False, stamp=Stamp(audience=("person:ada",))))


def nobody_was_there(pen: LogWriter) -> None:
    pen.write(structs.replace(HELLO, asks=False, stamp=Stamp(person="ada")))


def said_to_nobody(pen: LogWriter) -> None:
    pen.write_turn(structs.replace(REPLY, stamp=Stamp()))


def noted_for_nobody(pen: LogWriter) -> None:
    pen.write_turn(Noted(text="x", stamp=Stamp(person="ada")))


def two_turns_at_once(pen: LogWriter) -> None:
    pen.write(HELLO, HELLO)
    for seq in (1, 2):
        pen.write(Began(type="turn", takes=(seq,)))


def a_turn_during_a_blocking_compression(pen: LogWriter) -> None:
    pen.write_turn()
    pen.write(Began(type="compression", blocking=True))
    pen.write(Began(type="turn"))


def a_blocking_compression_during_a_turn(pen: LogWriter) -> None:
    pen.write(HELLO)
    pen.write(Began(type="turn", takes=(1,)))
    pen.write(Began(type="compression", blocking=True))


def two_compressions_at_once(pen: LogWriter) -> None:
    pen.write_turn()
    pen.write(Began(type="compression"), Began(type="compression"))


def taken_twice(pen: LogWriter) -> None:
    op = pen.write_turn()
    other = pen.write(Began(type="turn", takes=(op - 1,)))
    pen.write(Ended(), op=other)


def taken_twice_by_steering(pen: LogWriter) -> None:
    pen.write_turn(Took(takes=(1,)))


def taken_before_it_was_heard(pen: LogWriter) -> None:
    pen.write_turn(Took(takes=(99,)))


def taken_although_it_is_no_message(pen: LogWriter) -> None:
    pen.write_turn(Took(takes=(2,)))


def a_thought_over_open_calls(pen: LogWriter) -> None:
    pen.write_turn(ASKED, Returned(call="a"), Thought(text="never mind"))


def a_result_of_nothing(pen: LogWriter) -> None:
    pen.write_turn(Returned(call="zz"))


def two_results_of_one_call(pen: LogWriter) -> None:
    pen.write_turn(ASKED, Returned(call="a"), Returned(call="b"), Returned(call="a"))


def ended_over_open_calls(pen: LogWriter) -> None:
    heard = pen.write(HELLO)
    op = pen.write(Began(type="turn", takes=(heard,)))
    pen.write(ASKED, Returned(call="a"), Ended(), op=op)


def started_twice(pen: LogWriter) -> None:
    pen.write_turn(ASKED, STARTED, STARTED, Returned(call="a"), Returned(call="b"))


def started_for_nobody(pen: LogWriter) -> None:
    pen.write_turn(ASKED, Returned(call="a"), Returned(call="b"), STARTED)


def a_compression_of_another_context(pen: LogWriter) -> None:
    op = pen.write_turn()
    pen.write(Changed(change=ContextReset()))
    pen.write_compression(op, generation=0)


def a_compression_of_a_future_context(pen: LogWriter) -> None:
    pen.write_compression(pen.write_turn(), generation=1)


def a_compression_of_a_context_before_an_erasure(pen: LogWriter) -> None:
    op = pen.write_turn()
    pen.write_erasure(1)
    pen.write_compression(op, generation=0)


def a_branchs_compression_of_an_earlier_context(pen: LogWriter) -> None:
    pen.write(Changed(change=BranchedFrom(parent="p", at=3)))
    op = pen.write_turn()
    pen.write(Changed(change=ContextReset()))
    pen.write_compression(op, generation=0)


def a_compression_over_a_running_turn(pen: LogWriter) -> None:
    pen.write(HELLO)
    op = pen.write(Began(type="turn", takes=(1,)))
    pen.write_compression(op, generation=0)


def undone_what_never_was(pen: LogWriter) -> None:
    pen.write_turn()
    pen.write(Changed(change=OperationsUndone(ops=(99,))))


def undone_while_it_ran(pen: LogWriter) -> None:
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
    (a_turn_during_a_blocking_compression, "P3", "began while"),
    (a_blocking_compression_during_a_turn, "P3", "began while"),
    (two_compressions_at_once, "P3", "began while compression"),
    (taken_twice, "P2", "was taken by"),
    (taken_twice_by_steering, "P2", "was taken by"),
    (taken_before_it_was_heard, "P2", "before it was heard"),
    (taken_although_it_is_no_message, "P2", "which is not a message"),
    (a_thought_over_open_calls, "P2", "had no result"),
    (a_result_of_nothing, "P2", "which no thought asked for"),
    (two_results_of_one_call, "P2", "which no thought asked for"),
    (ended_over_open_calls, "P2", "ended with calls"),
    (started_twice, "P2", "was started twice"),
    (started_for_nobody, "P2", "no thought asked for it"),
    (a_compression_of_another_context, "P1", "another context"),
    (a_compression_of_a_future_context, "P1", "another context"),
    (a_compression_of_a_context_before_an_erasure, "P1", "another context"),
    (a_branchs_compression_of_an_earlier_context, "P1", "another context"),
    (a_compression_over_a_running_turn, "P3", "which was running"),
    (undone_what_never_was, "P8", "never began"),
    (undone_while_it_ran, "P3", "undone while it was running"),
]


@pytest.mark.parametrize("damage, promise, words", DAMAGE, ids=[damage.__name__ for damage, _, _ in DAMAGE])
def test_each_kind_of_damage_gives_exactly_its_finding(
    damage: Callable[[LogWriter], None], promise: str, words: str
) -> None:
    pen = LogWriter()
    damage(pen)
    broken = [finding for finding in pen.find_problems() if finding.level == "broken"]
    assert [(finding.promise, words in finding.text) for finding in broken] == [(promise, True)], broken
    assert broken[0].promise in PROMISES
    assert broken[0].session == "s"
    assert broken[0].seq > 0, "the finding names its place"


ABOUT_THE_BEGINNING = (a_line_is_missing, born_of_a_job, a_branchs_compression_of_an_earlier_context)


@pytest.mark.parametrize("damage", [damage for damage, _, _ in DAMAGE if damage not in ABOUT_THE_BEGINNING])
def test_damage_after_a_long_healthy_log_is_found(damage: Callable[[LogWriter], None]) -> None:
    """The findings do not depend on the length of the log before them."""
    alone, late = LogWriter(), LogWriter()
    damage(alone)
    past = LogWriter()
    for _ in range(5):
        past.write_turn(ASKED, STARTED, Returned(call="a"), Returned(call="b"))
    late.log = past.log
    shift = len(late.log)
    late.log += [_shift_entry(entry, shift) for entry in alone.log]
    kinds = [(finding.promise, finding.level) for finding in alone.find_problems()]
    assert [(finding.promise, finding.level) for finding in late.find_problems()] == kinds


def _shift_entry(entry: Entry, by: int) -> Entry:
    """Return the entry with its numbers shifted by `by`."""
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


# -- doubts: valid, but worth a report ---------------------------------------------------------------------------------


def test_an_unanswered_message_is_reported_as_a_doubt() -> None:
    pen = LogWriter()
    pen.write_turn()
    pen.write(HELLO, structs.replace(HELLO, asks=False), HELLO)
    assert [(it.promise, it.level, it.text) for it in pen.find_problems()] == [
        ("P2", "doubt", "2 messages without an answer yet")
    ]


def test_a_failed_turn_is_reported_as_a_doubt_until_it_is_retried() -> None:
    pen = LogWriter()
    heard = pen.write(HELLO)
    op = pen.write(Began(type="turn", takes=(heard,)))
    pen.write(Ended(outcome="failed", reason="no model"), op=op)
    assert [(it.level, it.text) for it in pen.find_problems()] == [("doubt", f"turn {op} failed, visibly: no model")]
    pen.write(Changed(change=OperationsUndone(ops=(op,), again=True)))
    again = pen.write(Began(type="turn", takes=(heard,)))
    pen.write(Thought(text="hi"), REPLY, Ended(), op=again)
    assert pen.find_problems() == []


# -- healthy logs ------------------------------------------------------------------------------------------------------


def test_a_thousand_healthy_logs_give_no_doubt() -> None:
    checked = AuditCounts()
    for seed in range(1_000):
        for chapter in RandomLog().perform(make_random_actions(seed)).sessions.values():
            findings, count = audit_session(chapter.id, chapter.log)
            assert [finding for finding in findings if finding.level == "broken"] == [], seed
            assert count.entries == len(chapter.log)
            checked += count
    assert checked.compressions > 100
    assert checked.turns > 1_000


def released_and_taken_again(pen: LogWriter) -> None:
    heard = pen.write(HELLO)
    op = pen.write(Began(type="turn", takes=(heard,)))
    pen.write(Ended(outcome="released"), op=op)
    again = pen.write(Began(type="turn", takes=(heard,)))
    pen.write(Thought(text="hi"), REPLY, Ended(), op=again)


def a_note_that_nobody_may_see(pen: LogWriter) -> None:
    """It cites a private message and one of a group, and nobody heard both."""
    pen.write_turn()
    pen.write(Noted(text="a secret", cites=(1, 2)))


def a_compression_during_a_turn(pen: LogWriter) -> None:
    first = pen.write_turn()
    compression = pen.write(Began(type="compression"))
    pen.write_turn()
    pen.write(Compressed(summary="s", covers=first), Ended(), op=compression)


def erased_thought(pen: LogWriter) -> None:
    pen.write_turn(ASKED, STARTED, Returned(call="a"), Returned(call="b"))
    pen.write_erasure(3)


def erased_result(pen: LogWriter) -> None:
    pen.write_turn(ASKED, STARTED, Returned(call="a"), Returned(call="b"))
    pen.write_erasure(5)


def erased_result_before_another_round(pen: LogWriter) -> None:
    pen.write_turn(ASKED, Returned(call="a"), Returned(call="b"), ASKED, Returned(call="a"), Returned(call="b"))
    pen.write_erasure(4)


def erased_compression_before_another(pen: LogWriter) -> None:
    first = pen.write_turn()
    op = pen.write_compression(first, generation=0)
    pen.write_erasure(op + 1, compressions=(op,))
    pen.write_compression(pen.write_turn(), generation=2)


def a_branch_whose_parent_was_erased(pen: LogWriter) -> None:
    """Its view, and so its generation, changed without a word in its own log."""
    pen.write(Changed(change=BranchedFrom(parent="p", at=3)))
    pen.write_compression(pen.write_turn(), generation=0)
    pen.write_turn()
    pen.write_compression(pen.write_turn(), generation=4)
    pen.write_compression(pen.write_turn(), generation=5)


def a_branch_that_begins_with_its_parents_name(pen: LogWriter) -> None:
    pen.write(Changed(change=BranchedFrom(parent="p", at=3)), Changed(change=SessionTitled(title="t")))
    pen.write_turn()


def cut_short_by_an_erasure(pen: LogWriter) -> None:
    pen.write(HELLO)
    op = pen.write(Began(type="turn", takes=(1,)))
    pen.write(ASKED, STARTED, op=op)
    pen.write_erasure(1)
    pen.write(Ended(outcome="erased"), op=op)


@pytest.mark.parametrize(
    "healthy",
    [
        released_and_taken_again,
        a_note_that_nobody_may_see,
        a_compression_during_a_turn,
        erased_thought,
        erased_result,
        erased_result_before_another_round,
        erased_compression_before_another,
        a_branch_whose_parent_was_erased,
        a_branch_that_begins_with_its_parents_name,
        cut_short_by_an_erasure,
    ],
)
def test_unusual_but_valid_logs_give_no_doubt(healthy: Callable[[LogWriter], None]) -> None:
    pen = LogWriter()
    healthy(pen)
    assert pen.find_problems() == []


def test_the_audit_counts_what_it_checked() -> None:
    pen = LogWriter()
    pen.write_compression(pen.write_turn(), generation=0)
    counts = AuditCounts(sessions=1, entries=len(pen.log), heard=1, turns=1, compressions=1)
    assert audit_session("s", pen.log) == ([], counts)
    assert audit_session("s", []) == ([], AuditCounts(sessions=1))
    assert AuditCounts(entries=1, heard=2) + AuditCounts(entries=3, compressions=1) == AuditCounts(
        entries=4, heard=2, compressions=1
    )


def test_every_promise_has_a_line_in_the_audit() -> None:
    assert list(PROMISES) == [f"P{n}" for n in range(1, 10)]
    assert {promise for _, promise, _ in DAMAGE} == {"P1", "P2", "P3", "P5", "P6", "P8"}
