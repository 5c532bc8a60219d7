"""The context from the fast functions agrees with a naive reader of the whole log, whatever happened."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec import structs

from everhold.core.context import (
    ERASED_RESULT_TEXT,
    MAX_STUB_CHARS,
    ContextSelection,
    SessionContext,
    assemble_context,
    build_model_request,
    find_oversized,
    fingerprint_request,
    render_messages,
    render_stub,
    select_operations,
    shorten_stubs,
    start_request_prefix,
)
from everhold.core.entries import (
    Began,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    EntryBody,
    EntryKind,
    Erased,
    OperationsUndone,
    Returned,
    Took,
)
from everhold.ports.model import ModelMessage, ToolSpec
from everhold.ports.store import Operation
from tests.core.naive_reader import NaiveReader, make_reader, summarize_messages
from tests.core.planted_bugs import find_first_failing
from tests.core.random_log import STORY, Action, RandomLog, RandomSession, make_random_actions

Choose = Callable[..., ContextSelection]


def operations(chapter: RandomSession) -> list[Operation]:
    """Return the operations of a log, as a store would list them."""
    ops: dict[int, Operation] = {}

    def change(op: int, **fields: Any) -> None:
        ops[op] = structs.replace(ops[op], **fields)

    for entry in chapter.log:
        seq = entry.seq
        match entry.body:
            case Began(type=what, takes=takes, compression=compression):
                ops[seq] = Operation(
                    session=chapter.id,
                    op=seq,
                    type=what,
                    state="running",
                    first=min((*takes, seq)),
                    last=0,
                    compression=compression,
                )
            case Changed(change=ContextReset()):
                ops[seq] = Operation(
                    session=chapter.id, op=seq, type="context_reset", state="done", first=seq, last=seq
                )
            case Compressed(covers=covers):
                change(entry.op or 0, covers=covers)
            case Ended(outcome=outcome):
                change(entry.op or 0, state=outcome, last=seq)
            case Changed(change=OperationsUndone(ops=undone)):
                turns = [op for op in undone if ops[op].type == "turn" and not ops[op].undone_at]
                void = [op for op, it in ops.items() if it.type == "compression" and turns and it.covers >= min(turns)]
                for op in {*undone, *void}:
                    if not ops[op].undone_at:
                        change(op, undone_at=seq)
            case Erased(compressions=compressions):
                for op in compressions:
                    if not ops[op].undone_at:
                        change(op, undone_at=seq)
            case _:
                pass
    return list(ops.values())


def select_context(
    chronicle: RandomLog,
    chapter: RandomSession,
    *,
    at: int | None = None,
    compression: int | None = None,
    over: bool = False,
    choose_: Choose = select_operations,
) -> SessionContext:
    """The view, by way of core."""
    gone = {entry.op for entry in chapter.log if entry.kind == "compressed" and entry.body is None}
    known = [operation for operation in operations(chapter) if operation.op not in gone]
    selection = choose_(known, at=chapter.last + 1 if at is None else at, compression=compression, over=over)
    view = assemble_context(selection, chapter.log)
    if selection.is_whole and chapter.parent:
        parent = chronicle.sessions[chapter.parent]
        return select_context(chronicle, parent, at=chapter.parent_at + 1, over=True, choose_=choose_) + view
    return view


def check_readers_agree(story: list[Action], choose_: Choose = select_operations) -> RandomLog:
    """Tell a story; at its end, and at the beginning of every turn, both readers must see the same."""
    chronicle = RandomLog().perform(story)
    logs = chronicle.logs()
    for chapter in chronicle.sessions.values():
        now = render_messages(select_context(chronicle, chapter, choose_=choose_))
        assert summarize_messages(now) == make_reader(logs, chapter.id).read_context()
        check_calls_have_results(now)
        for turn in chapter.turns.values():
            for pin in list_pinned_compressions(chapter.log, turn.op):
                before = render_messages(
                    select_context(chronicle, chapter, at=turn.op, compression=pin, choose_=choose_)
                )
                assert summarize_messages(before) == NaiveReader(logs, chapter.id, turn.op).read_context(pin)
        for mark in chapter.marks[::4]:
            branch = render_messages(select_context(chronicle, chapter, at=mark + 1, over=True, choose_=choose_))
            assert summarize_messages(branch) == NaiveReader(logs, chapter.id, mark + 1, ended=True).read_context()
    return chronicle


def list_pinned_compressions(log: Sequence[Entry], op: int) -> list[int]:
    """Return the compressions that a turn was answered under, in order."""
    bodies = [entry.body for entry in log if entry.op == op]
    return [body.compression for body in bodies if isinstance(body, Began | Took) and body.compression is not None]


def check_calls_have_results(shown: Sequence[ModelMessage]) -> None:
    """Check that each call is followed immediately by its result, and that there are no other results."""
    rest = list(shown)
    while rest:
        message = rest.pop(0)
        assert message.role != "tool", "a result without its call"
        for call in message.calls:
            assert rest, "a call without its result"
            result = rest.pop(0)
            assert (result.role, result.call) == ("tool", call.id), "a call without its result"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STORY)
def test_the_fast_and_the_naive_reader_see_the_same_context(story: list[Action]) -> None:
    check_readers_agree(story)


def test_both_readers_agree_on_a_thousand_random_logs() -> None:
    happened: Counter[str] = Counter()
    for seed in range(1_000):
        for chapter in check_readers_agree(make_random_actions(seed)).sessions.values():
            happened.update(type(entry.body).__name__ for entry in chapter.log)
            happened.update(turn.state for turn in chapter.turns.values())
            happened["branch"] += bool(chapter.parent)
    for what in ("Compressed", "Erased", "Took", "NoneType", "branch", "released", "failed", "stopped", "erased"):
        assert happened[what] > 50, f"hardly a history with {what}"


# -- planted bugs ------------------------------------------------------------------------------------------------------


def every(alter: Callable[[Operation], Operation | None], **fixed: Any) -> Choose:
    """A `choose` that takes operations for something else than they are."""

    def wrong(known: Sequence[Operation], **how: Any) -> ContextSelection:
        return select_operations([it for it in map(alter, known) if it is not None], **{**how, **fixed})

    return wrong


def altering(**fields: Any) -> Callable[[Operation], Operation]:
    return lambda it: structs.replace(it, **fields)


def same(it: Operation) -> Operation:
    return it


def takes(what: str, state: str, instead: str) -> Callable[[Operation], Operation]:
    return lambda it: structs.replace(it, state=instead) if (it.type, it.state) == (what, state) else it


def oldest_compression(known: Sequence[Operation], *, compression: int | None = None, **how: Any) -> ContextSelection:
    done = [it.op for it in known if it.type == "compression" and it.state == "done"]
    return select_operations(
        [it for it in known if it.type != "compression" or it.op in (*done[:1], compression)],
        compression=compression,
        **how,
    )


def out_of_order(known: Sequence[Operation], **how: Any) -> ContextSelection:
    selection = select_operations(known, **how)
    return structs.replace(selection, turns=selection.turns[::-1])


def orphans(known: Sequence[Operation], **how: Any) -> ContextSelection:
    return structs.replace(select_operations(known, **how), is_whole=False)


def never_orphans(known: Sequence[Operation], **how: Any) -> ContextSelection:
    return structs.replace(select_operations(known, **how), is_whole=True)


def a_late_summary_of_what_was_left(known: Sequence[Operation], *, at: int, **how: Any) -> ContextSelection:
    """Goes by the time of a compression, not by what it covers."""
    fresh = max((it.op for it in known if it.type == "context_reset" and it.op < at), default=0)
    moved = [
        structs.replace(it, covers=max(it.covers, fresh)) if it.type == "compression" and it.op > fresh else it
        for it in known
    ]
    return select_operations(moved, at=at, **how)


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(every(lambda it: None if it.type == "context_reset" else it), id="context resets are ignored"),
        pytest.param(every(altering(undone_at=0)), id="undone turns are shown"),
        pytest.param(
            every(lambda it: structs.replace(it, undone_at=1) if it.undone_at else it),
            id="turns are hidden before their undo",
        ),
        pytest.param(every(takes("compression", "refused", "done")), id="a refused compression counts"),
        pytest.param(every(lambda it: None if it.type == "compression" else it), id="compressions do not count"),
        pytest.param(every(takes("turn", "released", "done")), id="released turns are shown"),
        pytest.param(every(takes("turn", "erased", "done")), id="erased turns are shown"),
        pytest.param(every(takes("turn", "failed", "refused")), id="failed turns are hidden"),
        pytest.param(every(takes("turn", "stopped", "refused")), id="stopped turns are hidden"),
        pytest.param(every(same, compression=None), id="pins are ignored"),
        pytest.param(every(same, over=False), id="a branch sees what its parent had not finished"),
        pytest.param(
            every(lambda it: structs.replace(it, covers=it.covers - 1) if it.covers else it),
            id="covered turns come back",
        ),
        oldest_compression,
        out_of_order,
        orphans,
        never_orphans,
        a_late_summary_of_what_was_left,
    ],
)
def test_the_check_finds_a_wrong_selection(bug: Choose) -> None:
    def prop(seed: int) -> None:
        check_readers_agree(make_random_actions(seed), bug)

    find_first_failing(range(2_000), prop)


# -- the prompt cache --------------------------------------------------------------------------------------------------

Render = Callable[[SessionContext], Sequence[ModelMessage]]


def check_context_grows(story: list[Action], render: Render = render_messages) -> int:
    """Tell a story: while the generation stays, what is shown only grows at its end. How often that was seen."""
    chronicle = RandomLog()
    shown: dict[tuple[str, int, int], Sequence[ModelMessage]] = {}
    looked = 0
    for action in story:
        chronicle.perform_action(action)
        for chapter in chronicle.sessions.values():
            turn = chapter.running
            if turn is not None and turn.open:
                continue  # no model is called between a call and its result
            now = render(select_context(chronicle, chapter))
            generation = chronicle.generation(chapter)
            # messages of a released turn are pending again; the context before the turn does not change
            for op in {0, turn.op if turn else 0}:
                before = shown.get((chapter.id, generation, op), ())
                assert tuple(now[: len(before)]) == tuple(before), "the prefix changed, so the model's cache misses"
                looked += bool(before)
            shown[chapter.id, generation, turn.op if turn else 0] = now
    return looked


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STORY)
def test_a_turn_only_appends_to_the_request(story: list[Action]) -> None:
    check_context_grows(story)


def test_the_prefix_is_stable_in_a_hundred_random_logs() -> None:
    assert sum(check_context_grows(make_random_actions(seed)) for seed in range(100)) > 2_000


def newest_on_top(view: SessionContext) -> Sequence[ModelMessage]:
    return tuple(reversed(render_messages(view)))


def counted(view: SessionContext) -> Sequence[ModelMessage]:
    return (ModelMessage(role="user", name="everhold", text=f"{len(view.turns)} exchanges"), *render_messages(view))


def without_what_failed_before(view: SessionContext) -> Sequence[ModelMessage]:
    """Shows how the last turn ended, and forgets it when another follows."""
    shown = render_messages(view)
    return [message for message in shown[:-1] if message.name != "everhold"] + list(shown[-1:])


@pytest.mark.parametrize("bug", [newest_on_top, counted, without_what_failed_before])
def test_the_check_finds_an_unstable_prefix(bug: Render) -> None:
    def prop(seed: int) -> None:
        check_context_grows(make_random_actions(seed), bug)

    find_first_failing(range(300), prop)


# -- undo --------------------------------------------------------------------------------------------------------------


def make_idle_log(seed: int) -> tuple[RandomLog, RandomSession]:
    """A history at a moment when nothing runs."""
    chronicle = RandomLog().perform(make_random_actions(seed))
    chapter = chronicle.sessions["s0"]
    if chapter.running:
        chronicle.finish(chapter, "done")
    if chapter.running_compression:
        chronicle.perform_action(("compression_end", 0, 0))
    return chronicle, chapter


def test_undoing_a_compression_restores_the_exact_earlier_context() -> None:
    compressed = 0
    for seed in range(200):
        chronicle, chapter = make_idle_log(seed)
        before = render_messages(select_context(chronicle, chapter))
        chronicle.perform_action(("compression_begin", 0, 1))
        if chapter.running_compression is None:
            continue
        chronicle.perform_action(("compression_end", 0, 1))
        during = render_messages(select_context(chronicle, chapter))
        assert during != before
        chronicle.perform_action(("undo_compression", 0, 0))
        assert render_messages(select_context(chronicle, chapter)) == before
        compressed += 1
    assert compressed > 50


def test_undoing_a_turn_restores_the_exact_earlier_context() -> None:
    for seed in range(100):
        chronicle, chapter = make_idle_log(seed)
        chapter.pending.clear()
        before = render_messages(select_context(chronicle, chapter))
        for action in (("hear", 0, 1), ("begin", 0, 1), ("think", 0, 2), ("run", 0, 1), ("end", 0, 0)):
            chronicle.perform_action(action)
        turn = list(chapter.turns.values())[-1]
        after = render_messages(select_context(chronicle, chapter))
        assert after[: len(before)] == before
        assert len(after) > len(before)
        chronicle.undo(chapter, [turn])
        assert render_messages(select_context(chronicle, chapter)) == before


def test_a_context_reset_hides_everything_before_it() -> None:
    for seed in range(100):
        chronicle, chapter = make_idle_log(seed)
        chronicle.perform_action(("fresh", 0, 0))
        assert render_messages(select_context(chronicle, chapter)) == ()
        chronicle.perform_action(("undo_compression", 0, 0))
        assert render_messages(select_context(chronicle, chapter)) == ()


# -- single promises ---------------------------------------------------------------------------------------------------


def test_an_erased_result_is_not_shown_as_not_run() -> None:
    """The model would do it again."""
    chronicle = RandomLog().perform(
        [("hear", 0, 1), ("begin", 0, 1), ("think", 0, 1), ("run", 0, 1), ("run", 0, 1), ("end", 0, 0)]
    )
    chapter = chronicle.sessions["s0"]
    results = [entry.seq for entry in chapter.log if entry.kind is EntryKind.RETURNED]
    chronicle.erase(chapter, {results[0]})
    shown = render_messages(select_context(chronicle, chapter))
    check_calls_have_results(shown)
    texts = [message.text for message in shown if message.role == "tool"]
    assert texts[0] == ERASED_RESULT_TEXT
    assert texts[1].startswith("result-")


def test_a_result_of_an_erased_thought_is_not_matched_to_another_thought() -> None:
    acts: list[Action] = [("hear", 0, 1), ("begin", 0, 1)]
    acts += [("think", 0, 0), ("run", 0, 1), ("think", 0, 0), ("run", 0, 1), ("end", 0, 0)]
    chronicle = RandomLog().perform(acts)
    chapter = chronicle.sessions["s0"]
    first = next(entry.seq for entry in chapter.log if entry.kind is EntryKind.RETURNED)
    second = [entry.seq for entry in chapter.log if entry.kind is EntryKind.THOUGHT][1]
    chronicle.erase(chapter, {first, second})
    shown = render_messages(select_context(chronicle, chapter))
    assert [message.text for message in shown if message.role == "tool"] == [ERASED_RESULT_TEXT]


def test_a_message_that_arrives_mid_turn_comes_after_that_turn() -> None:
    acts: list[Action] = [
        ("hear", 0, 1),
        ("begin", 0, 1),
        ("hear", 0, 1),
        ("end", 0, 0),
        ("begin", 0, 1),
        ("end", 0, 0),
    ]
    chronicle = RandomLog().perform(acts)
    shown = summarize_messages(render_messages(select_context(chronicle, chronicle.sessions["s0"])))
    assert [one[0] for one in shown] == ["user", "assistant", "user", "assistant"]


def test_a_long_result_always_becomes_the_same_stub() -> None:
    text = "".join(chr(97 + n % 26) for n in range(20_000))
    body = Returned(call="c0", text=text)
    chronicle = RandomLog().perform([("hear", 0, 1), ("begin", 0, 1), ("think", 0, 0)])
    chapter = chronicle.sessions["s0"]
    seq = chronicle.commit(chapter, body, op=2)
    view = select_context(chronicle, chapter)
    assert find_oversized(view) == (seq,)
    assert find_oversized(view, most=20_000) == ()
    whole, stubbed = render_messages(view)[-1].text, render_messages(view, stubs=frozenset({seq}))[-1].text
    assert whole == text
    assert len(stubbed) < 2_000
    assert stubbed.startswith(text[:1_000])
    assert stubbed.endswith(text[-300:])
    assert f"entry {seq}" in stubbed
    assert stubbed == render_messages(view, stubs=frozenset({seq, 99}))[-1].text
    short = Returned(call="c0", text="x" * 1_600)
    shorter = render_messages(
        SessionContext(
            turns=tuple(
                structs.replace(it, steps=tuple(_replace_entry(e, seq, short) for e in it.steps)) for it in view.turns
            )
        ),
        stubs=frozenset({seq}),
    )
    assert shorter[-1].text == "x" * 1_600, "a stub is never longer than the text it replaces"
    shortened = shorten_stubs(view, {seq})
    assert render_messages(shortened, stubs=frozenset({seq})) == render_messages(view, stubs=frozenset({seq}))
    assert max(len(getattr(it.body, "text", "")) for turn in shortened.turns for it in turn.steps) <= MAX_STUB_CHARS
    assert render_stub(render_stub("y" * 10**8, 10**10), 10**10) == render_stub("y" * 10**8, 10**10)


def _replace_entry(entry: Entry, seq: int, body: EntryBody) -> Entry:
    return structs.replace(entry, body=body) if entry.seq == seq else entry


def test_equal_contexts_give_equal_bytes() -> None:
    chronicle = RandomLog().perform(make_random_actions(1))
    shown = render_messages(select_context(chronicle, chronicle.sessions["s0"]))
    assert shown
    request = build_model_request(shown, system="You are a test.")
    assert fingerprint_request(request) == fingerprint_request(
        build_model_request(tuple(shown), system="You are a test.", params={})
    )
    assert fingerprint_request(request) != fingerprint_request(
        build_model_request(shown[:-1], system="You are a test.")
    )
    assert fingerprint_request(request) != fingerprint_request(build_model_request(shown, system="You are a test"))
    assert fingerprint_request(request) != fingerprint_request(
        build_model_request(shown, system="You are a test.", params={"temperature": 0})
    )


MESSAGES = st.lists(
    st.builds(
        ModelMessage,
        role=st.sampled_from(["user", "assistant", "tool"]),
        text=st.text(max_size=8),
        name=st.sampled_from(["", "ada", '"']),
    ),
    max_size=4,
).map(tuple)


@given(MESSAGES, MESSAGES, MESSAGES, st.text(max_size=4), st.booleans())
def test_a_fingerprint_depends_on_the_whole_request_only(
    before: tuple[ModelMessage, ...],
    more: tuple[ModelMessage, ...],
    other: tuple[ModelMessage, ...],
    system: str,
    tools: bool,
) -> None:
    specs = (ToolSpec(name="t", description="d", parameters={"a": 1}),) if tools else ()
    request = build_model_request(before + more, system=system, tools=specs, params={"n": 1} if tools else None)
    digested = {name: getattr(request, name) for name in ("system", "messages", "tools", "params")}  # not the files
    whole = hashlib.sha256(msgspec.json.encode(digested)).hexdigest()
    sealed = start_request_prefix(system).extend_with(before)
    assert sealed is not None
    assert fingerprint_request(request) == whole
    assert fingerprint_request(request, sealed) == whole
    assert fingerprint_request(request, sealed) == whole, "a sealed prefix can be extended more than once"
    assert fingerprint_request(request, start_request_prefix(system).extend_with(other)) == whole, (
        "another beginning is no help, and no harm"
    )
    assert fingerprint_request(request, start_request_prefix(system + "!").extend_with(before)) == whole
