"""P4, P5: memories receive each exchange once, with the stamp of its time and for its audience."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import structs

from everhold.core.entries import (
    BODY_VERSION,
    Began,
    Changed,
    ChatLocation,
    ContextReset,
    Ended,
    Entry,
    EntryBody,
    EntryKind,
    Heard,
    Noted,
    OperationsUndone,
    Returned,
    Said,
    Stamp,
    Thought,
    ToolCall,
    get_body_kind,
    list_consumed_seqs,
)
from everhold.core.exchange import (
    MEMORY_KINDS,
    REMEMBERED_OUTCOMES,
    build_exchange,
    build_exchange_key,
    build_note,
    build_note_key,
    build_retraction,
    fingerprint_batch,
    is_memory_entry,
)
from everhold.core.people import PeopleDirectory
from everhold.ports.memory import Exchange, JobResult, MemoryItem, MemoryNote, MemoryRetraction, MemoryUtterance
from tests.core.bodies import any_body
from tests.core.random_log import RandomLog, RandomSession, make_random_actions

PLACE = ChatLocation(platform="fake", chat="1")
ADA = Stamp(
    person="ada", audience=("person:ada",), address="agent:main:fake:dm:1", title="old", directory="/a", repo="r"
)
GROUP = Stamp(person="bob", audience=("chat:g",), address="agent:main:fake:group:g")


def make_entry(
    seq: int, body: EntryBody | None, *, op: int | None = None, author: str = "person:ada", at: float = 0.0
) -> Entry:
    kind = EntryKind.HEARD if body is None else get_body_kind(body)
    return Entry(
        session="s",
        seq=seq,
        pos=seq,
        kind=kind,
        op=op,
        author=author,
        at=at,
        version=BODY_VERSION,
        body=body,
        digest=b"",
    )


def make_heard(seq: int, text: str = "hello", stamp: Stamp = ADA, **rest: float) -> Entry:
    return make_entry(seq, Heard(origin=PLACE, text=text, stamp=stamp), **rest)  # type: ignore[arg-type]


def make_exchange(*entries: Entry, said: Stamp = ADA, parent: str = "") -> Exchange:
    reply = make_entry(9, Said(text="hi", to=PLACE, stamp=said), op=5, author="agent:main", at=7.0)
    made = build_exchange(
        session="s", agent="main", op=5, heard=entries, steps=[reply], parent=parent, people=PeopleDirectory()
    )
    assert made is not None
    return made


def test_an_exchange_lists_its_messages_with_authors_in_order() -> None:
    made = make_exchange(make_heard(1, "one", at=1.0), make_heard(2, "two", at=2.0), parent="p")
    assert [(it.author, it.text, it.at) for it in made.heard] == [
        ("person:ada", "one", 1.0),
        ("person:ada", "two", 2.0),
    ]
    assert [(it.author, it.text) for it in made.said] == [("agent:main", "hi")]
    assert (made.session, made.agent, made.op, made.at, made.parent) == ("s", "main", 5, 7.0, "p")
    assert made.key == build_exchange_key("s", 5)


def test_the_identity_of_an_exchange_comes_from_its_stamp() -> None:
    """Titles, directories and addresses change, but an exchange keeps the stamp of its time."""
    assert make_exchange(make_heard(1, stamp=ADA)).stamp == ADA
    later = structs.replace(ADA, title="new", directory="/b", address="agent:main:fake:dm:2")
    made = make_exchange(make_heard(1, stamp=ADA), make_heard(2, stamp=later))
    assert made.stamp == later, "the last one speaks for all"
    assert [it.stamp for it in made.heard] == [ADA, later], "and each keeps its own"


def test_an_exchange_across_two_chats_is_for_people_in_both() -> None:
    """A direct chat and a group are bound to one session: the group must not recall the private messages."""
    both = structs.replace(ADA, audience=("person:ada", "person:bob"))
    assert make_exchange(make_heard(1, stamp=ADA), make_heard(2, stamp=GROUP), said=GROUP).stamp.audience == ()
    assert make_exchange(make_heard(1, stamp=GROUP), make_heard(2, stamp=ADA)).stamp.audience == ()
    assert make_exchange(make_heard(1, stamp=ADA), make_heard(2, stamp=both), said=both).stamp.audience == (
        "person:ada",
    )
    assert make_exchange(make_heard(1, stamp=both), make_heard(2, stamp=both), said=both).stamp.audience == (
        "person:ada",
        "person:bob",
    )


def test_erased_messages_are_not_sent_to_memories() -> None:
    made = make_exchange(make_entry(1, None), make_heard(2, "still here"))
    assert [it.text for it in made.heard] == ["still here"]
    assert make_exchange(make_entry(1, None)).stamp == ADA, "the reply is left, under its own stamp"
    gone = build_exchange(
        session="s",
        agent="main",
        op=5,
        heard=[make_entry(1, None)],
        steps=[make_entry(9, Ended(), op=5)],
        people=PeopleDirectory(),
    )
    assert gone is None


def test_tool_calls_are_reported_with_tool_and_outcome() -> None:
    steps = [
        make_entry(3, Thought(calls=(ToolCall(id="a", tool="read"), ToolCall(id="b", tool="send"))), op=5),
        make_entry(4, Returned(call="a"), op=5),
        make_entry(5, Returned(call="b", error=True), op=5),
        make_entry(6, Thought(calls=(ToolCall(id="a", tool="write"),)), op=5),
        make_entry(7, Returned(call="a", error=True, unknown=True), op=5),
        make_entry(8, Said(text="hi", to=PLACE, stamp=ADA), op=5),
    ]
    made = build_exchange(session="s", agent="main", op=5, heard=[], steps=steps, people=PeopleDirectory())
    assert made is not None
    assert made.did == ("read: done", "send: failed", "write: outcome unknown")


def test_a_note_contains_its_text_and_the_note_it_replaces() -> None:
    body = Noted(text="tea", action="replace", fact="drink", cites=(1, 2), supersedes=4, tags=("t",), stamp=ADA)
    made = build_note(make_entry(7, body, author="tool:memory", at=3.0), agent="main")
    assert made is not None
    assert made.key == build_note_key("s", 7)
    assert made.supersedes == build_note_key("s", 4)
    assert (made.text, made.action, made.fact, made.cites, made.tags) == ("tea", "replace", "drink", (1, 2), ("t",))
    assert (made.stamp, made.author, made.at, made.seq) == (ADA, "tool:memory", 3.0, 7)
    assert build_note(make_entry(7, Noted(text="first", stamp=ADA)), agent="main").supersedes == ""  # type: ignore[union-attr]
    assert build_note(make_entry(7, None), agent="main") is None


def test_an_undo_retracts_the_exchanges_of_its_turns() -> None:
    entry = make_entry(9, Changed(change=OperationsUndone(ops=(2, 5, 7))), at=4.0)
    made = build_retraction(entry, agent="main", turns=(2, 5))
    assert made is not None
    assert made.keys == (build_exchange_key("s", 2), build_exchange_key("s", 5))
    assert made.at == 4.0
    assert build_retraction(entry, agent="main", turns=()) is None


@pytest.mark.parametrize("kind", list(EntryKind))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_notes_ended_turns_and_undos_are_memory_entries(kind: EntryKind, data: st.DataObject) -> None:
    body = data.draw(any_body(kind))
    expected = (
        isinstance(body, Noted)
        or (isinstance(body, Ended) and body.outcome in REMEMBERED_OUTCOMES)
        or (isinstance(body, Changed) and isinstance(body.change, OperationsUndone))
    )
    assert is_memory_entry(make_entry(1, body, op=1)) == expected
    if expected:
        assert kind in MEMORY_KINDS


def test_failed_or_unended_operations_are_not_memory_entries() -> None:
    assert not is_memory_entry(make_entry(1, Ended()))
    for outcome in ("failed", "released", "refused", "erased"):
        assert not is_memory_entry(make_entry(1, Ended(outcome=outcome), op=1))
    assert not is_memory_entry(make_entry(1, Changed(change=ContextReset()), op=1))
    assert not is_memory_entry(structs.replace(make_entry(1, Ended(), op=1), body=None))


# -- on random logs ----------------------------------------------------------------------------------------------------


def list_memories(chapter: RandomSession) -> Iterator[MemoryItem]:
    """Everything that a session has for memory, in order."""
    whats = {entry.seq: entry.body.type for entry in chapter.log if isinstance(entry.body, Began)}
    for entry in chapter.log:
        if not is_memory_entry(entry):
            continue
        match entry.body:
            case Ended() if whats[entry.op or 0] == "turn":
                steps = [it for it in chapter.log if it.op == entry.op]
                heard_ = [chapter.log[seq - 1] for seq in list_consumed_seqs(steps)]
                made = build_exchange(
                    session=chapter.id,
                    agent="main",
                    op=entry.op or 0,
                    heard=heard_,
                    steps=steps,
                    people=PeopleDirectory(),
                )
            case Changed(change=OperationsUndone(ops=ops)):
                turns = [op for op in ops if whats[op] == "turn"]
                yield from filter(None, [build_retraction(entry, agent="main", turns=turns)])
                continue
            case _:
                yield from filter(None, [build_note(entry, agent="main")])
                continue
        if made is not None:
            yield made


def test_no_two_items_share_a_key() -> None:
    for seed in range(200):
        chronicle = RandomLog().perform(make_random_actions(seed))
        keys = [it.key for chapter in chronicle.sessions.values() for it in list_memories(chapter)]
        assert len(keys) == len(set(keys))


def test_a_batch_built_again_later_is_identical() -> None:
    """A retry after any amount of further conversation repeats it to the byte; only an erasure may change it."""
    compared = 0
    for seed in range(60):
        chronicle = RandomLog()
        first: dict[str, str] = {}
        for action in make_random_actions(seed):
            if action[0] == "erase":
                continue
            chronicle.perform_action(action)
            for chapter in chronicle.sessions.values():
                for it in list_memories(chapter):
                    made = fingerprint_batch("name", [it])
                    assert first.setdefault(it.key, made) == made
                    compared += 1
    assert compared > 1_000


def test_a_field_added_later_does_not_change_the_digest_of_a_batch_in_flight() -> None:
    for record in (Exchange, MemoryNote, MemoryRetraction, JobResult, MemoryUtterance):
        assert record.__struct_config__.omit_defaults, record


def test_every_batch_has_its_own_key() -> None:
    one, two = make_exchange(make_heard(1, "one")), make_exchange(make_heard(1, "two"))
    prints = [
        fingerprint_batch("n", [one]),
        fingerprint_batch("n", [two]),
        fingerprint_batch("n", [one, two]),
        fingerprint_batch("n", [two, one]),
        fingerprint_batch("m", [one]),
        fingerprint_batch("n", []),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint_batch("n", (one,)) == prints[0]
