"""A delivery becomes text by a template. What it contains cannot reach into the template, or grow without a limit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everhold.core.hook_template import MAX_TEXT_CHARS, HookDocument, is_wanted, render_template

DATA = {
    "repository": {"full_name": "ada/x"},
    "commits": [{"message": "fix {body}"}, {"message": "add"}],
    "count": 3,
    "ok": True,
    "nothing": None,
    "body": "own",
}


def make_document(data: Any = DATA, **headers: str) -> HookDocument:
    return HookDocument(data, headers=headers, body=json.dumps(data))


@pytest.mark.parametrize(
    "template, text",
    [
        ("{repository.full_name} has {count}", "ada/x has 3"),
        ("{commits.0.message}|{commits.1.message}|{commits.2.message}", "fix {body}|add|"),
        ("{commits.-1.message}{commits.x}{repository.full_name.y}{nothing}{missing}", ""),
        ("{repository} {ok}", '{"full_name": "ada/x"} true'),
        ("{headers.x-event} {headers.X-Event} {headers.y}", "push push "),
        ('{"a": 1} {} {a b} {{count}}', '{"a": 1} {} {a b} {3}'),
        ("{body}", "own"),
    ],
)
def test_paths_are_replaced_and_other_braces_stay(template: str, text: str) -> None:
    assert render_template(template, make_document(**{"x-event": "push"})) == text


def test_the_whole_body_is_a_text_if_it_has_no_field_of_this_name() -> None:
    assert render_template("got {body}", HookDocument(None, headers={}, body="<xml/>")) == "got <xml/>"


@given(st.recursive(st.none() | st.text() | st.integers(), lambda it: st.lists(it) | st.dictionaries(st.text(), it)))
def test_nothing_grows_beyond_the_limit(data: Any) -> None:
    document = make_document({"a": data, "long": "x" * 100_000})
    assert len(render_template("{a}{long}" * 20 + "{body}", document)) <= MAX_TEXT_CHARS


def test_when_names_values_that_a_delivery_must_have() -> None:
    document = make_document(**{"x-event": "push"})
    assert is_wanted(document, {})
    assert is_wanted(document, {"headers.x-event": ("pull", "push"), "count": ("3",)})
    assert not is_wanted(document, {"headers.x-event": ("push",), "count": ("4",)})
    assert not is_wanted(document, {"missing": ("x",)})
