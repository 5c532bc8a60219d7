"""What a reader has at the end is what was committed."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from everhold.core.entries import Usage
from everhold.web.ink import Ink
from everhold.web.reply import Growth, Reply, Turned, Words


def reply(text: str) -> Reply:
    return Reply(id="1", text=text, usage=Usage())


@pytest.mark.parametrize(
    "growth, written",
    [
        ([reply("whole")], "whole"),
        ([Words("wh"), Words("ole"), reply("whole")], "whole"),
        ([Words("who"), reply("whole")], "whole"),
        ([Words(" whole "), reply("whole")], " whole "),
        ([Words("let me look"), Turned(), Words("it is 3"), reply("it is 3")], "let me look\n\nit is 3"),
        ([Words("a try"), reply("the answer")], "a try\n\nthe answer"),
        ([Words("a try"), Turned(), Turned(), reply("the answer")], "a try\n\nthe answer"),
        ([Turned(), Words("x"), reply("x")], "x"),
        ([reply("")], ""),
    ],
)
def test_words_are_never_written_twice_and_the_record_always(growth: list[Growth], written: str) -> None:
    ink = Ink()
    assert "".join(ink.of(more) for more in growth) == written == ink.written


@given(st.lists(st.one_of(st.text(max_size=4).map(Words), st.just(Turned()))), st.text(max_size=8))
def test_whatever_came_before_the_record_comes_last(before: list[Growth], text: str) -> None:
    ink = Ink()
    written = "".join(ink.of(more) for more in [*before, reply(text)])
    assert written.strip().endswith(text.strip())
    assert written == ink.written
