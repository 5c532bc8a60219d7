"""The vendors' SDKs with the fake model server. If an SDK cannot read an answer, or reads it differently, the fake is
wrong."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import httpx2
import pytest

from everhold.core.entries import ToolCall
from everhold.models.transcript import strip_seal
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse, ToolSpec
from everhold.testing.model_server import (
    ModelServer,
    ModelServerReply,
    StreamFault,
    VendorFailure,
    make_rate_limit_failure,
)
from tests.models.conftest import KEY, Connect
from tests.waiting import LIMIT_SECONDS

# imported by name, because the SDKs' many types would take the type checker longer than all of everhold
anthropic_sdk: Any = import_module("anthropic")
openai_sdk: Any = import_module("openai")

NOTE = ToolSpec(
    name="note",
    description="Keeps a fact",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
MADE = ToolCall(id="call_1", tool="note", arguments={"text": "the door is blue — très bleu 🚪"})
REPLY = ModelServerReply(
    text="Noted, with care.", reasoning="It matters to her.", calls=(MADE, ToolCall(id="call_2", tool="note"))
)
ASKED = ModelRequest(system="Be brief.", messages=(ModelMessage(role="user", text="the door is blue"),), tools=(NOTE,))


@pytest.fixture
def openai_client(server: ModelServer) -> Any:
    return openai_sdk.AsyncOpenAI(base_url=server.openai, api_key=KEY, max_retries=0, timeout=LIMIT_SECONDS)


@pytest.fixture
def anthropic_client(server: ModelServer) -> Any:
    return anthropic_sdk.AsyncAnthropic(base_url=server.anthropic, api_key=KEY, max_retries=0, timeout=LIMIT_SECONDS)


def as_openai_reads(completion: Any) -> ModelResponse:
    message = completion.choices[0].message
    return ModelResponse(
        text=message.content or "",
        reasoning=getattr(message, "reasoning_content", ""),
        calls=tuple(
            ToolCall(id=c.id, tool=c.function.name, arguments=json.loads(c.function.arguments))
            for c in message.tool_calls
        ),
        model=completion.model,
    )


def as_anthropic_reads(message: Any) -> ModelResponse:
    return ModelResponse(
        text="".join(block.text for block in message.content if block.type == "text"),
        reasoning="".join(block.thinking for block in message.content if block.type == "thinking"),
        calls=tuple(
            ToolCall(id=block.id, tool=block.name, arguments=block.input)
            for block in message.content
            if block.type == "tool_use"
        ),
        model=message.model,
    )


def ours(answer: ModelResponse) -> ModelResponse:
    return ModelResponse(
        text=answer.text, reasoning=strip_seal(answer.reasoning), calls=answer.calls, model=answer.model
    )


async def test_the_openai_sdk_reads_the_same_complete_answer(
    server: ModelServer, openai: Connect, openai_client: Any
) -> None:
    server.add_steps(REPLY, REPLY)
    mine = await openai(stream=False).answer(ASKED)
    body = server.last_request.json
    theirs = await openai_client.chat.completions.create(**body)
    assert server.last_request.json == body, "the SDK sends what we send"
    assert ours(mine) == as_openai_reads(theirs)
    assert (mine.usage.input, mine.usage.output) == (theirs.usage.prompt_tokens, theirs.usage.completion_tokens)
    assert theirs.choices[0].finish_reason == "tool_calls"


async def test_the_openai_sdk_reads_the_same_stream(server: ModelServer, openai: Connect, openai_client: Any) -> None:
    server.add_steps(REPLY, REPLY)
    heard: list[str] = []
    mine = await openai().answer(ASKED, on_text=heard.append)
    body = server.last_request.json
    del body["stream"]
    async with openai_client.chat.completions.stream(**body) as stream:
        theirs = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert ours(mine).calls == as_openai_reads(final).calls
    assert ours(mine).text == as_openai_reads(final).text
    assert [piece for piece in theirs if piece] == heard
    assert (mine.usage.input, mine.usage.output) == (final.usage.prompt_tokens, final.usage.completion_tokens)


async def test_the_anthropic_sdk_reads_the_same_complete_answer(
    server: ModelServer, anthropic: Connect, anthropic_client: Any
) -> None:
    server.add_steps(REPLY, REPLY)
    mine = await anthropic(stream=False).answer(ASKED)
    body = server.last_request.json
    theirs = await anthropic_client.messages.create(**body)
    assert server.last_request.json == body, "the SDK sends what we send"
    assert ours(mine) == as_anthropic_reads(theirs)
    assert theirs.stop_reason == "tool_use"
    usage = theirs.usage
    again = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    assert (mine.usage.input, mine.usage.output) == (again, usage.output_tokens)


async def test_the_anthropic_sdk_reads_the_same_stream(
    server: ModelServer, anthropic: Connect, anthropic_client: Any
) -> None:
    server.add_steps(REPLY, REPLY)
    heard: list[str] = []
    mine = await anthropic().answer(ASKED, on_text=heard.append)
    body = server.last_request.json
    del body["stream"]
    async with anthropic_client.messages.stream(**body) as stream:
        theirs = [piece async for piece in stream.text_stream]
        final = await stream.get_final_message()
    assert ours(mine) == as_anthropic_reads(final)
    assert theirs == heard
    assert mine.usage.output == final.usage.output_tokens


async def test_a_tool_round_equals_what_the_sdks_send(
    server: ModelServer, openai_client: Any, anthropic_client: Any, openai: Connect, anthropic: Connect
) -> None:
    """The answer as each SDK dumps it equals what we send for the same conversation."""
    server.add_steps(REPLY)
    heard = {"role": "user", "content": "the door is blue"}
    completion = await openai_client.chat.completions.create(model="fake", messages=[heard])
    said = completion.choices[0].message.model_dump(exclude_none=True, exclude={"reasoning_content"})
    results = [{"role": "tool", "tool_call_id": id_, "content": "kept"} for id_ in ("call_1", "call_2")]
    await openai_client.chat.completions.create(model="fake", messages=[heard, said, *results])
    theirs = server.last_request.json["messages"]
    talk = (
        ModelMessage(role="user", text="the door is blue"),
        ModelMessage(role="assistant", text=REPLY.text, calls=REPLY.calls),
        *(ModelMessage(role="tool", call=id_, text="kept") for id_ in ("call_1", "call_2")),
    )
    await openai().answer(ModelRequest(system="", messages=talk))
    mine = server.last_request.json["messages"]
    for message in (*mine, *theirs):
        for made in message.get("tool_calls", ()):
            made["function"]["arguments"] = json.loads(made["function"]["arguments"])
    assert mine == theirs

    server.add_steps(REPLY)
    thinking = {"type": "enabled", "budget_tokens": 1024}
    first = {"role": "user", "content": [{"type": "text", "text": "the door is blue"}]}
    answer = await anthropic_client.messages.create(model="fake", max_tokens=2048, thinking=thinking, messages=[first])
    content = [block.model_dump(exclude_none=True) for block in answer.content]
    blocks = [
        {"type": "tool_result", "tool_use_id": id_, "content": [{"type": "text", "text": "kept"}]}
        for id_ in ("call_1", "call_2")
    ]
    turns = [first, {"role": "assistant", "content": content}, {"role": "user", "content": blocks}]
    await anthropic_client.messages.create(model="fake", max_tokens=2048, thinking=thinking, messages=turns)
    theirs = server.last_request.json["messages"]
    model = anthropic(params={"thinking": thinking}, cache="off")
    server.add_steps(REPLY)
    mine_first = await model.answer(ModelRequest(system="", messages=talk[:1]))
    again = ModelMessage(role="assistant", text=mine_first.text, calls=mine_first.calls, reasoning=mine_first.reasoning)
    await model.answer(ModelRequest(system="", messages=(talk[0], again, *talk[2:])))
    assert server.last_request.json["messages"] == theirs


@pytest.mark.parametrize(
    "kind, error",
    [
        ("rate_limit", "RateLimitError"),
        ("server_error", "InternalServerError"),
        ("overloaded", "InternalServerError|OverloadedError"),
        ("too_long", "BadRequestError"),
        ("unauthorized", "AuthenticationError"),
        ("forbidden", "PermissionDeniedError"),
        ("not_found", "NotFoundError"),
        ("invalid", "BadRequestError"),
    ],
)
async def test_errors_are_recognised_by_the_sdks(
    server: ModelServer, openai_client: Any, anthropic_client: Any, kind: Any, error: str
) -> None:
    server.add_steps(VendorFailure(kind=kind), VendorFailure(kind=kind))
    said = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai_sdk.APIStatusError) as raised:
        await openai_client.chat.completions.create(model="fake", messages=said)
    assert type(raised.value).__name__ in error.split("|")
    assert raised.value.body["message"]
    with pytest.raises(anthropic_sdk.APIStatusError) as raised:
        await anthropic_client.messages.create(model="fake", max_tokens=5, messages=said)
    assert type(raised.value).__name__ in error.split("|")
    assert raised.value.body["error"]["message"]


async def test_the_sdks_respect_retry_after(server: ModelServer, openai_client: Any, anthropic_client: Any) -> None:
    said = [{"role": "user", "content": "hi"}]
    server.add_steps(make_rate_limit_failure("0", retry_after_ms="1"), ModelServerReply(text="later"))
    completion = await openai_client.with_options(max_retries=1).chat.completions.create(model="fake", messages=said)
    assert completion.choices[0].message.content == "later"
    server.add_steps(make_rate_limit_failure("0"), ModelServerReply(text="later"))
    message = await anthropic_client.with_options(max_retries=1).messages.create(
        model="fake", max_tokens=5, messages=said
    )
    assert message.content[0].text == "later"


@pytest.mark.parametrize("how", ["drop", "reset", "error"])
async def test_broken_streams_raise_errors_in_the_sdks(
    server: ModelServer, openai_client: Any, anthropic_client: Any, how: Any
) -> None:
    said = [{"role": "user", "content": "hi"}]
    broken = ModelServerReply(text="one two three four", cut=StreamFault(kind=how, after=4))
    server.add_steps(broken, broken)
    stream = await openai_client.chat.completions.create(model="fake", messages=said, stream=True)
    with pytest.raises((openai_sdk.APIError, httpx2.TransportError)):
        await exhausted(stream)
    stream = await anthropic_client.messages.create(model="fake", max_tokens=5, messages=said, stream=True)
    with pytest.raises((anthropic_sdk.APIError, httpx2.TransportError)):
        await exhausted(stream)


async def exhausted(stream: Any) -> None:
    async for _ in stream:
        pass


async def test_the_sdks_can_list_the_models(server: ModelServer, openai_client: Any) -> None:
    assert [model.id async for model in openai_client.models.list()] == ["fake"]
