"""A streamed reply ends up as the committed text."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from everhold.api.reply_wait import FinalReply, ReplyGrowth, ReplyRestarted, ReplyText
from everhold.api.streaming import ReplyWriter
from everhold.core.entries import ModelUsage


def reply(text: str) -> FinalReply:
    return FinalReply(id="1", text=text, usage=ModelUsage())


@pytest.mark.parametrize(
    "growth, written",
    [
        ([reply("whole")], "whole"),
        ([ReplyText("wh"), ReplyText("ole"), reply("whole")], "whole"),
        ([ReplyText("who"), reply("whole")], "whole"),
        ([ReplyText(" whole "), reply("whole")], " whole "),
        (
            [ReplyText("let me look"), ReplyRestarted(), ReplyText("it is 3"), reply("it is 3")],
            "let me look\n\nit is 3",
        ),
        ([ReplyText("a try"), reply("the answer")], "a try\n\nthe answer"),
        ([ReplyText("a try"), ReplyRestarted(), ReplyRestarted(), reply("the answer")], "a try\n\nthe answer"),
        ([ReplyRestarted(), ReplyText("x"), reply("x")], "x"),
        ([reply("")], ""),
    ],
)
def test_growing_text_is_written_once_and_the_committed_text_always(growth: list[ReplyGrowth], written: str) -> None:
    ink = ReplyWriter()
    assert "".join(ink.write_growth(more) for more in growth) == written == ink.written_text


@given(st.lists(st.one_of(st.text(max_size=4).map(ReplyText), st.just(ReplyRestarted()))), st.text(max_size=8))
def test_the_committed_text_is_written_last(before: list[ReplyGrowth], text: str) -> None:
    ink = ReplyWriter()
    written = "".join(ink.write_growth(more) for more in [*before, reply(text)])
    assert written.strip().endswith(text.strip())
    assert written == ink.written_text
