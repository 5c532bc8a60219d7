"""Which words of a log are a person's."""

from __future__ import annotations

from hypothesis import given, strategies as st

from everhold.core import forgetting
from everhold.core.entries import (
    OWN,
    Began,
    Body,
    Call,
    Changed,
    ContextReset,
    Entry,
    Heard,
    Noted,
    Place,
    Said,
    SessionTitled,
    Stamp,
    TaskRequested,
    Thought,
    kind_of,
)

AT = Place(platform="p")


def log(*bodies: tuple[str, Body, int | None]) -> list[Entry]:
    return [
        Entry(
            session="s",
            seq=seq,
            pos=seq,
            kind=kind_of(body),
            op=seq if op == OWN else op,
            author=author,
            at=1.0,
            version=1,
            body=body,
            digest=b"",
        )
        for seq, (author, body, op) in enumerate(bodies, 1)
    ]


def heard(who: str, text: str) -> tuple[str, Body, None]:
    return f"person:{who}", Heard(origin=AT, text=text, stamp=Stamp(person=who)), None


def said(whom: str, text: str, op: int) -> tuple[str, Body, int]:
    return "agent:main", Said(text=text, to=AT, stamp=Stamp(person=whom)), op


def test_a_conversation_of_one_is_all_theirs_but_for_what_holds_it_together() -> None:
    entries = log(
        heard("ada", "hello"),
        ("system", Began(type="turn", takes=(1,)), OWN),
        ("agent:main", Thought(text="hm"), 2),
        said("ada", "hi", 2),
        ("system", Changed(change=SessionTitled(title="chat")), None),
        ("system", Changed(change=ContextReset()), None),
    )
    assert forgetting.theirs(entries, {"ada"}) == forgetting.Part(seqs=(1, 3, 4, 5), alone=True)
    assert forgetting.theirs(entries, {"bob"}) == forgetting.Part()


def test_in_company_only_what_is_theirs_goes() -> None:
    entries = log(
        heard("ada", "the code is kumquat99"),
        heard("bob", "what is for lunch"),
        ("system", Began(type="turn", takes=(1,)), OWN),
        ("agent:main", Thought(text="noted"), 3),
        said("ada", "fine", 3),
        ("system", Began(type="turn", takes=(2,)), OWN),
        said("bob", "soup for lunch", 6),
        ("agent:main", Thought(calls=(Call(id="1", tool="t", arguments={"q": "Kumquat99"}),)), 6),
        ("agent:main", Noted(text="ada has a code", stamp=Stamp(person="ada")), 6),
        ("person:bob", Changed(change=TaskRequested(text="ask about kumquat99", stamp=Stamp(person="bob"))), None),
    )
    part = forgetting.theirs(entries, {"ada"})
    assert part.seqs == (1, 4, 5, 8, 9)
    assert part.repeated == (8,)
    # a word that others use, too, betrays nothing
    assert forgetting.theirs(entries, {"ada"}, others={"kumquat99"}).repeated == ()


@given(st.lists(st.tuples(st.sampled_from(["ada", "bob"]), st.text(max_size=12)), max_size=12))
def test_nothing_somebody_else_said_ever_goes_and_all_they_said_does(said_: list[tuple[str, str]]) -> None:
    entries = log(*(heard(who, text) for who, text in said_))
    seqs = set(forgetting.theirs(entries, {"ada"}).seqs)
    assert seqs == {entry.seq for entry in entries if entry.author == "person:ada"}


def test_scripts_without_spaces_are_told_apart_by_pieces() -> None:
    assert forgetting.vocabulary("密码是香蕉船") & forgetting.vocabulary("他说密码是香蕉")
    assert not forgetting.vocabulary("密码是香蕉船") & forgetting.vocabulary("今天天气很好")
