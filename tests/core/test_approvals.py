"""What a request binds, who may answer it, what a person is shown, and what a remembered rule covers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from everhold.core import approvals
from everhold.core.approvals import (
    RememberedRule,
    clean_approval_id,
    compute_call_digest,
    escape_text,
    find_ground,
    find_rule,
    make_approval_id,
    render_arguments,
)
from everhold.core.entries import ToolCall
from tests.core.test_approval_audit import CALL, DIGEST, REQUEST

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=8), JSON, max_size=4)


def digest(arguments: dict[str, Any]) -> str:
    call = ToolCall(id="c", tool="lamp", arguments=arguments)
    return compute_call_digest(agent="main", call=call, effect="once", reach="outside", spec="s")


@given(one=ARGUMENTS, other=ARGUMENTS)
def test_a_digest_is_the_same_exactly_for_the_same_arguments(one: dict[str, Any], other: dict[str, Any]) -> None:
    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (digest(one) == digest(other)) is is_same
    assert digest(one) == digest(dict(reversed(one.items())))


@pytest.mark.parametrize("part", ["agent", "effect", "reach", "spec", "tool"])
def test_everything_that_decides_what_runs_is_in_the_digest(part: str) -> None:
    parts: dict[str, Any] = {"agent": "main", "effect": "once", "reach": "outside", "spec": "s"}
    call = structs.replace(CALL, tool="other") if part == "tool" else CALL
    changed = parts if part == "tool" else {**parts, part: "other"}
    assert compute_call_digest(call=call, **changed) != DIGEST


@given(text=st.text())
def test_nothing_that_is_shown_is_invisible_or_turns_the_text(text: str) -> None:
    shown = escape_text(text)
    assert all(char == "\n" or char.isprintable() for char in shown)
    assert escape_text(shown) == shown


@given(arguments=ARGUMENTS)
def test_no_argument_can_look_like_a_line_of_the_gateway(arguments: dict[str, Any]) -> None:
    assert all(line.startswith("  ") for line in render_arguments(arguments).splitlines())


def test_hidden_characters_are_spelled_out() -> None:
    assert escape_text("rm\u202e\u200b\x1b[2K x\u00a0y") == "rm\\u{202e}\\u{200b}\\u{1b}[2K x\\u{a0}y"
    assert render_arguments({"command": " ls "}) == '  command: " ls "'
    assert render_arguments({}) == "  (no arguments)"


@given(key=st.text(max_size=40), attempt=st.integers(0, 3))
def test_an_id_can_be_typed(key: str, attempt: int) -> None:
    id = make_approval_id(key, attempt)
    assert len(id) == approvals.ID_CHARS
    assert clean_approval_id(f" #{id.lower()} ") == id
    assert make_approval_id(key, attempt) == id
    assert make_approval_id(key, attempt + 1) != id


GROUNDS: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (("owner",), {"is_owner": True}, "owner"),
    (("owner",), {"is_owner": False}, ""),
    (("owner",), {"is_owner": False, "is_operator": True}, "operator"),
    (("self",), {"is_owner": True}, ""),
    (("self",), {"is_owner": False, "authors": ("person:ada",)}, "self"),
    (("owner",), {"is_owner": False, "authors": ("person:ada",)}, ""),
    (("kim",), {"is_owner": False, "label": "kim"}, "kim"),
    (("kim",), {"is_owner": True, "label": "ada"}, ""),
    (("owner",), {"is_owner": False, "label": "owner"}, ""),
    (("self",), {"is_owner": False, "label": "self"}, ""),
]


@pytest.mark.parametrize("approvers, who, ground", GROUNDS)
def test_only_whom_the_request_names_may_answer(approvers: tuple[str, ...], who: dict[str, Any], ground: str) -> None:
    request = structs.replace(REQUEST, approvers=approvers, author="person:ada")
    assert find_ground(request, **{"authors": (), "label": "", **who}) == ground


def test_a_person_without_a_name_is_not_self() -> None:
    request = structs.replace(REQUEST, approvers=("self",), author="")
    assert not find_ground(request, is_owner=False, authors=("",), label="")


RULE = RememberedRule(
    digest=DIGEST, agent="main", tool="lamp", role=2, place="dm", via="chat", session="s", request="R",
    by="person:ada", at=0.0, until=100.0,
)  # fmt: skip
CALLS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"role": 3}, True),
    ({"role": 1}, False),
    ({"digest": "other"}, False),
    ({"place": "group"}, False),
    ({"via": "schedule"}, False),
    ({"now": 100.0}, False),
]


@pytest.mark.parametrize("changes, is_covered", CALLS)
def test_a_rule_covers_exactly_the_same_call(changes: dict[str, Any], is_covered: bool) -> None:
    asked = {"digest": DIGEST, "role": 2, "place": "dm", "via": "chat", "now": 1.0, **changes}
    assert bool(find_rule({"X": RULE}, **asked)) is is_covered
