"""A1: each conversation has its own address, whatever a platform's ids contain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from msgspec import structs

from everhold.core.access import compute_audience
from everhold.core.address import CHAT_KINDS, Address, derive_address, parse_address
from everhold.errors import InvalidRequest
from tests.core.planted_bugs import find_failing_example

HOSTILE = st.one_of(
    st.text(max_size=6),  # with surrogates, because a platform's ids may contain them
    st.text(alphabet=":/%#?&\\ \t\n\0.-_~@+=aA0\ud800\udfffé😀", max_size=6),
    st.sampled_from(["", "42", "%2F", "%3A", "%25", "%", ":", "/", "thread", "person", "dm", "main", "agent", "a:b"]),
)


def addresses() -> st.SearchStrategy[Address]:
    return st.builds(
        Address,
        agent=HOSTILE,
        platform=HOSTILE,
        kind=st.sampled_from(CHAT_KINDS),
        chat=HOSTILE,
        account=HOSTILE,
        thread=HOSTILE,
        person=HOSTILE,
    ).map(normal)


def normal(address: Address) -> Address:
    """An account named like the agent is left out: those two are one."""
    return structs.replace(address, account="") if address.account == address.agent else address


@settings(max_examples=150, deadline=None)
@given(addresses(), addresses())
@example(
    Address(agent="a", platform="t", kind="group", chat="1", thread="42"),
    Address(agent="a", platform="t", kind="group", chat="1", person="42"),
)
@example(
    Address(agent="a", platform="t", account="b", kind="dm", chat="1"),
    Address(agent="a", platform="t/b", kind="dm", chat="1"),
)
@example(
    Address(agent="a", platform="t", kind="dm", chat="\ud83d\ude00"),
    Address(agent="a", platform="t", kind="dm", chat="😀"),
)
def test_two_conversations_never_share_an_address(one: Address, other: Address) -> None:
    assert (str(one) == str(other)) == (one == other)


@settings(max_examples=150, deadline=None)
@given(addresses())
def test_an_address_survives_formatting_and_parsing(address: Address) -> None:
    assert parse_address(str(address)) == address
    assert str(parse_address(str(address))) == str(address)


@settings(max_examples=80, deadline=None)
@given(addresses())
def test_an_address_is_safe_in_a_log_a_file_name_and_a_terminal(address: Address) -> None:
    assert str(address).isascii()
    assert str(address).isprintable()
    assert " " not in str(address)


def unlabelled(address: Address) -> str:
    return str(structs.replace(address, thread="", person="")) + "".join(
        ":" + part.encode("utf-8", "surrogatepass").hex() for part in (address.thread, address.person) if part
    )


def unescaped(address: Address) -> str:
    return f"agent:{address.agent}:{address.platform}:{address.kind}:{address.chat}"


def thread_or_person(address: Address) -> str:
    return str(structs.replace(address, thread=address.thread or address.person, person=""))


def replacing(address: Address) -> str:
    return str(structs.replace(address, chat=address.chat.encode("utf-8", "replace").decode()))


@pytest.mark.parametrize("spelling", [unlabelled, unescaped, thread_or_person, replacing])
def test_a_colliding_address_format_is_found(spelling: Callable[[Address], str]) -> None:
    def prop(pair: tuple[Address, Address]) -> None:
        one, other = pair
        assert (spelling(one) == spelling(other)) == (one == other)

    plain = st.text(alphabet="?:\ud800\udfff", max_size=2)
    few = st.builds(Address, agent=plain, platform=plain, kind=st.just("dm"), chat=plain, thread=plain, person=plain)
    swapped = few.map(lambda one: (one, structs.replace(one, thread=one.person, person=one.thread)))
    moved = st.tuples(few, plain).map(lambda drawn: (drawn[0], structs.replace(drawn[0], chat=drawn[1])))
    find_failing_example(swapped | moved, prop)


def test_user_42_in_a_group_and_thread_42_in_it_have_different_addresses() -> None:
    here: dict[str, Any] = {"agent": "main", "platform": "telegram", "account": "main", "kind": "group", "chat": "-100"}
    user = derive_address(**here, sender="42")
    thread = derive_address(**here, thread="42", sender="42")
    assert str(user) == "agent:main:telegram:group:-100:person:42"
    assert str(thread) == "agent:main:telegram:group:-100:thread:42"


@pytest.mark.parametrize("account", ["", "main"])
def test_a_plain_direct_chat_has_the_short_form(account: str) -> None:
    address = derive_address(agent="main", platform="telegram", account=account, kind="dm", chat="123", sender="123")
    assert str(address) == "agent:main:telegram:dm:123"


def test_an_account_is_in_the_address_unless_it_is_named_like_the_agent() -> None:
    named = Address(agent="main", platform="telegram", account="main", kind="dm", chat="1")
    other = Address(agent="main", platform="telegram", account="second", kind="dm", chat="1")
    assert str(named) == "agent:main:telegram:dm:1"
    assert str(other) == "agent:main:telegram/second:dm:1"
    assert parse_address(str(other)).account == "second"


@pytest.mark.parametrize(
    "kind, thread, group, threads, per_person",
    [
        ("dm", "", "per-person", "per-person", False),
        ("dm", "7", "per-person", "per-person", False),
        ("group", "", "per-person", "shared", True),
        ("group", "", "shared", "per-person", False),
        ("group", "7", "per-person", "shared", False),
        ("group", "7", "shared", "per-person", True),
        ("channel", "", "per-person", "shared", True),
        ("channel", "", "shared", "shared", False),
        ("thread", "7", "per-person", "shared", False),
        ("thread", "7", "shared", "per-person", True),
    ],
)
def test_the_sharing_rules_decide_who_shares_a_session(
    kind: str, thread: str, group: str, threads: str, per_person: bool
) -> None:
    address = derive_address(
        agent="main",
        platform="slack",
        account="main",
        kind=kind,
        chat="C1",
        thread=thread,
        sender="U1",
        group=group,
        threads=threads,
    )
    assert address.person == ("U1" if per_person else "")
    assert address.thread == thread
    assert parse_address(str(address)) == address


@settings(max_examples=80, deadline=None)
@given(HOSTILE, HOSTILE, HOSTILE, st.sampled_from(["group", "channel", "thread"]))
def test_everybody_in_a_shared_chat_gets_the_same_address(agent: str, one: str, other: str, kind: str) -> None:
    def of(sender: str) -> str:
        return str(
            derive_address(
                agent=agent, platform="p", account="a", kind=kind, chat="c", thread="t", sender=sender, threads="shared"
            )
        )

    assert of(one) == of(other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "agent",
        "main:telegram:dm:1",
        "agent:main:telegram:dm",
        "agent:main:telegram:phone:1",
        "user:main:telegram:dm:1",
        "agent:main:telegram:dm:1:thread",
        "agent:main:telegram:dm:1:topic:2",
        "agent:main:telegram:dm:1:thread:2:thread:3",
        "agent:main:telegram:dm:1:thread:2:person:3:person:4",
        "agent:main:telegram:dm:%FF",
        "agent:main:telegram:dm:%C3",
        "agent:main:telegram:dm:\ud800",
    ],
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_address(text)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=":/%agentdmthrpson0123FC\ud800é", max_size=40) | st.text(max_size=30))
def test_any_typed_text_is_an_address_or_is_refused(text: str) -> None:
    try:
        address = parse_address(text)
    except InvalidRequest:
        return
    assert parse_address(str(address)) == normal(address)


def test_an_unknown_address_kind_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        derive_address(agent="main", platform="p", account="", kind="phone", chat="1")


class TestAudience:
    """Who was there, as P5 needs to know it."""

    def test_the_audience_of_a_direct_chat_is_its_person(self) -> None:
        assert compute_audience(Address(agent="a", platform="p", kind="dm", chat="1"), "ada") == ("person:ada",)

    def test_the_audience_of_a_personal_session_is_that_person(self) -> None:
        assert compute_audience(Address(agent="a", platform="p", kind="group", chat="1", person="7"), "ada") == (
            "chat:agent:a:p:group:1:person:7",
            "person:ada",
        )

    def test_the_audience_of_a_shared_chat_is_the_chat(self) -> None:
        address = Address(agent="a", platform="p", kind="group", chat="1")
        assert compute_audience(address, "ada") == compute_audience(address, "bob") == (f"chat:{address}",)

    @settings(max_examples=80, deadline=None)
    @given(addresses(), addresses())
    def test_two_chats_have_different_audiences(self, one: Address, other: Address) -> None:
        def shared(address: Address) -> bool:
            return address.kind != "dm" and not address.person

        if shared(one) and shared(other) and one != other:
            assert compute_audience(one, "ada") != compute_audience(other, "ada")
        if not shared(one) and shared(other):
            assert compute_audience(one, "ada") != compute_audience(other, "ada")
