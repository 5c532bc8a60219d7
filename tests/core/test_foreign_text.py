"""Plug-ins may return invalid text; a turn keeps the rest and continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from everhold.core.entries import (
    ChatLocation,
    EntryKind,
    Noted,
    Returned,
    Said,
    Thought,
    ToolCall,
    encode_body,
    strip_surrogates_deep,
)
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.tool import SendRequest, ToolEffect, ToolResult
from everhold.testing.fakes import FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway
from tests.core.bodies import any_body

NO_TEXT = "caf\udce9.txt"
"""A file name as Python reads it where the disk holds Latin-1."""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[InProcessGateway]:
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        yield gateway


@settings(max_examples=60, deadline=None)
@given(any_body(EntryKind.THOUGHT) | any_body(EntryKind.RETURNED) | any_body(EntryKind.SAID))
def test_valid_text_is_unchanged(body: Thought | Returned | Said) -> None:
    assert strip_surrogates_deep(body) is body


def test_invalid_text_is_replaced_at_any_depth() -> None:
    call = ToolCall(id=NO_TEXT, tool="t", arguments={NO_TEXT: [1, {"deep": NO_TEXT}], "n": None})
    dirty = Thought(text=NO_TEXT, calls=(call,), reasoning="fine")
    with pytest.raises(UnicodeEncodeError):
        encode_body(dirty)
    clean = strip_surrogates_deep(dirty)
    assert "\udce9" not in encode_body(clean)
    assert clean.reasoning == "fine"
    assert clean.text.startswith("caf")
    assert clean.calls[0].arguments["n"] is None
    assert len(clean.calls[0].arguments) == 2


def test_a_reply_with_invalid_characters_is_kept_without_them(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = FakeModel([ModelResponse(text=f"it is {NO_TEXT}")])
    gateway.send_message("what is it?")
    assert [text[:9] for text in gateway.list_shown_texts()] == ["it is caf"]
    gateway.assert_sound()


@pytest.mark.parametrize("effect", list(ToolEffect))
def test_a_tool_result_with_invalid_characters_is_kept_without_them(
    gateway: InProcessGateway, effect: ToolEffect
) -> None:
    place = ChatLocation(platform="fake", account="main", chat="elsewhere")
    result = ToolResult(text=NO_TEXT, notes=[Noted(text=NO_TEXT)], send_requests=[SendRequest(text=NO_TEXT, to=place)])
    tool = FakeTool("list", effect, act=lambda _arguments, _context: result)

    def answer(request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        return (
            ModelResponse(text=last.text)
            if last.role == "tool"
            else ModelResponse(calls=(ToolCall(id="c", tool="list"),))
        )

    gateway.runtimes.tools = {"list": tool}
    gateway.runtimes.model = FakeModel(answer)
    session = gateway.send_message("list the files").session
    assert sum(tool.started.values()) == 1
    assert gateway.read_bodies(session, Returned)[0].text.startswith("caf")
    assert gateway.read_bodies(session, Noted)[0].text.startswith("caf")
    assert len(gateway.list_shown_texts()) == 2
    gateway.assert_sound()
