"""Answers of models: text, calls, reasoning, usage and cost, streamed and whole."""

from __future__ import annotations

import pytest

from everhold.core.entries import ToolCall
from everhold.models.transcript import strip_seal
from everhold.ports.model import ModelMessage, ModelRequest, ToolSpec
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.models.conftest import Connect

HELLO = ModelRequest(system="You are kind.", messages=(ModelMessage(role="user", text="hello", name="Ada"),))
WEATHER = ToolSpec(
    name="weather",
    description="What the sky does",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


@pytest.mark.parametrize("stream", [True, False])
async def test_text_is_returned_whole_and_streamed(server: ModelServer, connect: Connect, stream: bool) -> None:
    server.add_steps(ModelServerReply(text="Good morning, Ada. ☀️ How are you?"))
    heard: list[str] = []
    answer = await connect(stream=stream).answer(HELLO, on_text=heard.append)
    assert answer.text == "Good morning, Ada. ☀️ How are you?" == "".join(heard)
    assert (len(heard) > 3) == stream
    assert server.last_request.json["stream"] is stream
    assert answer.calls == ()
    assert answer.model == "fake"


@pytest.mark.parametrize("stream", [True, False])
async def test_calls_are_assembled_from_fragments(server: ModelServer, connect: Connect, stream: bool) -> None:
    first = ToolCall(id="call_1", tool="weather", arguments={"city": "Zürich", "days": 3})
    second = ToolCall(id="call_2", tool="weather", arguments={})
    server.add_steps(ModelServerReply(text="Let me look.", calls=(first, second)))
    request = ModelRequest(system="", messages=HELLO.messages, tools=(WEATHER,))
    answer = await connect(stream=stream).answer(request)
    assert answer.text == "Let me look."
    assert answer.calls == (first, second)


@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_is_kept_separate_from_text(server: ModelServer, connect: Connect, stream: bool) -> None:
    server.add_steps(ModelServerReply(text="42", reasoning="Six times seven."))
    heard: list[str] = []
    answer = await connect(stream=stream).answer(HELLO, on_text=heard.append)
    assert answer.text == "42" == "".join(heard)
    assert strip_seal(answer.reasoning) == "Six times seven."


@pytest.mark.parametrize("stream", [True, False])
async def test_usage_is_priced(server: ModelServer, connect: Connect, stream: bool) -> None:
    server.add_steps(ModelServerReply(text="word " * 400))
    model = connect(stream=stream, price={"input": 2.0, "cached": 0.5, "cache_write": 2.0, "output": 10.0})
    answer = await model.answer(HELLO)
    usage = answer.usage
    assert usage.output == 500
    assert usage.input > 0
    assert usage.usd == pytest.approx((usage.input * 2 + 500 * 10) / 1e6)


async def test_usage_is_estimated_if_the_server_reports_none(server: ModelServer, connect: Connect) -> None:
    server.add_steps(ModelServerReply(text="word " * 400, usage=False))
    answer = await connect(price={"input": 2.0, "output": 10.0}).answer(HELLO)
    assert 400 <= answer.usage.output <= 600
    assert answer.usage.input >= 5
    assert answer.usage.usd > 0.004


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_cut_at_its_limit_is_marked(server: ModelServer, connect: Connect, stream: bool) -> None:
    model = connect(stream=stream)
    server.add_steps(
        ModelServerReply(text="Once upon a", finish="length"),
        ModelServerReply(text="Once upon a", finish="max_tokens"),
        ModelServerReply(text="End."),
    )
    assert [(await model.answer(HELLO)).finish for _ in range(3)][1:] == ["length", ""]
