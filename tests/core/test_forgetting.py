"""Which words of a log are a person's."""

from __future__ import annotations

from hypothesis import given, strategies as st

from everhold.core import forgetting
from everhold.core.entries import (
    OWN_OPERATION,
    Began,
    Changed,
    ChatLocation,
    ContextReset,
    Entry,
    EntryBody,
    Heard,
    Noted,
    Said,
    SessionTitled,
    Stamp,
    TaskRequested,
    Thought,
    ToolCall,
    get_body_kind,
)

AT = ChatLocation(platform="p")


def log(*bodies: tuple[str, EntryBody, int | None]) -> list[Entry]:
    return [
        Entry(
            session="s",
            seq=seq,
            pos=seq,
            kind=get_body_kind(body),
            op=seq if op == OWN_OPERATION else op,
            author=author,
            at=1.0,
            version=1,
            body=body,
            digest=b"",
        )
        for seq, (author, body, op) in enumerate(bodies, 1)
    ]


def heard(who: str, text: str) -> tuple[str, EntryBody, None]:
    return f"person:{who}", Heard(origin=AT, text=text, stamp=Stamp(person=who)), None


def said(person: str, text: str, op: int) -> tuple[str, EntryBody, int]:
    return "agent:main", Said(text=text, to=AT, stamp=Stamp(person=person)), op


def test_in_a_direct_chat_all_but_structural_entries_are_erased() -> None:
    entries = log(
        heard("ada", "hello"),
        ("system", Began(type="turn", takes=(1,)), OWN_OPERATION),
        ("agent:main", Thought(text="hm"), 2),
        said("ada", "hi", 2),
        ("system", Changed(change=SessionTitled(title="chat")), None),
        ("system", Changed(change=ContextReset()), None),
    )
    assert forgetting.select_personal_entries(entries, {"ada": 0.0}) == forgetting.PersonalPart(
        seqs=(1, 3, 4, 5), sole_speaker=True
    )
    assert forgetting.select_personal_entries(entries, {"bob": 0.0}) == forgetting.PersonalPart()


def test_in_a_group_only_the_person_s_text_is_erased() -> None:
    entries = log(
        heard("ada", "the code is kumquat99"),
        heard("bob", "what is for lunch"),
        ("system", Began(type="turn", takes=(1,)), OWN_OPERATION),
        ("agent:main", Thought(text="noted"), 3),
        said("ada", "fine", 3),
        ("system", Began(type="turn", takes=(2,)), OWN_OPERATION),
        said("bob", "soup for lunch", 6),
        ("agent:main", Thought(calls=(ToolCall(id="1", tool="t", arguments={"q": "Kumquat99"}),)), 6),
        ("agent:main", Noted(text="ada has a code", stamp=Stamp(person="ada")), 6),
        ("person:bob", Changed(change=TaskRequested(text="ask about kumquat99", stamp=Stamp(person="bob"))), None),
    )
    part = forgetting.select_personal_entries(entries, {"ada": 0.0})
    assert part.seqs == (1, 4, 5, 8, 9)
    assert part.repeated == (8,)
    # a word that other people use too does not identify the person
    assert forgetting.select_personal_entries(entries, {"ada": 0.0}, others={"kumquat99"}).repeated == ()


@given(st.lists(st.tuples(st.sampled_from(["ada", "bob"]), st.text(max_size=12)), max_size=12))
def test_exactly_the_person_s_text_is_erased(said_: list[tuple[str, str]]) -> None:
    entries = log(*(heard(who, text) for who, text in said_))
    seqs = set(forgetting.select_personal_entries(entries, {"ada": 0.0}).seqs)
    assert seqs == {entry.seq for entry in entries if entry.author == "person:ada"}


def test_scripts_without_spaces_are_compared_in_fragments() -> None:
    assert forgetting.extract_distinctive_words("密码是香蕉船") & forgetting.extract_distinctive_words("他说密码是香蕉")
    assert not forgetting.extract_distinctive_words("密码是香蕉船") & forgetting.extract_distinctive_words(
        "今天天气很好"
    )
