"""Foreign code may hand over what is no text; a turn keeps the rest and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from everhold.core.entries import Call, Kind, Noted, Place, Returned, Said, Thought, cleansed, encode
from everhold.ports.model import Answer, Request
from everhold.ports.tool import Effect, Result, Saying
from everhold.testing.fakes import FakeTool, ScriptedModel
from everhold.testing.house import House
from tests.core.bodies import bodies

NO_TEXT = "caf\udce9.txt"
"""A file name as Python reads it where the disk holds Latin-1."""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    with house.awake():
        yield house


@settings(max_examples=60, deadline=None)
@given(bodies(Kind.THOUGHT) | bodies(Kind.RETURNED) | bodies(Kind.SAID))
def test_what_is_clean_is_left_as_it_is(body: Thought | Returned | Said) -> None:
    assert cleansed(body) is body


def test_what_is_no_text_is_replaced_however_deep_it_lies() -> None:
    call = Call(id=NO_TEXT, tool="t", arguments={NO_TEXT: [1, {"deep": NO_TEXT}], "n": None})
    dirty = Thought(text=NO_TEXT, calls=(call,), reasoning="fine")
    with pytest.raises(UnicodeEncodeError):
        encode(dirty)
    clean = cleansed(dirty)
    assert "\udce9" not in encode(clean)
    assert clean.reasoning == "fine"
    assert clean.text.startswith("caf")
    assert clean.calls[0].arguments["n"] is None
    assert len(clean.calls[0].arguments) == 2


def test_a_model_that_says_no_text_is_answered_with_the_rest(house: House) -> None:
    house.furniture.model = ScriptedModel([Answer(text=f"it is {NO_TEXT}")])
    house.say("what is it?")
    assert [text[:9] for text in house.heard_back()] == ["it is caf"]
    house.sound()


@pytest.mark.parametrize("effect", list(Effect))
def test_a_tool_that_returns_no_text_is_run_once_and_the_model_sees_the_rest(house: House, effect: Effect) -> None:
    place = Place(platform="fake", account="main", chat="elsewhere")
    result = Result(text=NO_TEXT, notes=[Noted(text=NO_TEXT)], sayings=[Saying(text=NO_TEXT, to=place)])
    tool = FakeTool("list", effect, act=lambda _arguments, _context: result)

    def answer(request: Request) -> Answer:
        last = request.messages[-1]
        return Answer(text=last.text) if last.role == "tool" else Answer(calls=(Call(id="c", tool="list"),))

    house.furniture.tools = {"list": tool}
    house.furniture.model = ScriptedModel(answer)
    session = house.say("list the files").session
    assert sum(tool.started.values()) == 1
    assert house.bodies(session, Returned)[0].text.startswith("caf")
    assert house.bodies(session, Noted)[0].text.startswith("caf")
    assert len(house.heard_back()) == 2
    house.sound()
