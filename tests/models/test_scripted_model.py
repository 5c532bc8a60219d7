"""The scripted model follows its script, and raises when the script is too short."""

from __future__ import annotations

import pytest

from everhold.errors import Overloaded
from everhold.ports.model import Model, ModelMessage, ModelRequest, ModelResponse
from everhold.testing.scripted_model import ScriptedAnswer, ScriptedModel

HELLO = ModelRequest(system="", messages=(ModelMessage(role="user", text="hello"),))


async def test_answers_come_from_a_list() -> None:
    model = ScriptedModel(["one two", ModelResponse(text="three", model="x"), Overloaded("busy", retry_after=3)])
    heard: list[str] = []
    assert (await model.answer(HELLO, on_text=heard.append)).text == "one two" == "".join(heard)
    assert await model.answer(HELLO) == ModelResponse(text="three", model="x")
    with pytest.raises(Overloaded):
        await model.answer(HELLO)
    assert model.requests == [HELLO] * 3
    with pytest.raises(AssertionError, match="4 times"):
        await model.answer(HELLO)
    model.add_answers("more")
    assert model.answers_left == 1
    assert (await model.answer(HELLO)).text == "more"


async def test_answers_come_from_a_function() -> None:
    async def later(request: ModelRequest) -> ScriptedAnswer:
        return request.messages[-1].text.upper()

    model: Model = ScriptedModel(later)
    assert (await model.answer(HELLO)).text == "HELLO"
    assert (await ScriptedModel(lambda request: f"{len(request.messages)}").answer(HELLO)).text == "1"
