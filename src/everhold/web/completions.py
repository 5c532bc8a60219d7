"""POST /v1/chat/completions and GET /v1/models: an agent looks like a model. The model's name is the agent's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from everhold.core.entries import Call as ToolCall, Usage
from everhold.errors import EverholdError
from everhold.ports.model import Message
from everhold.web.answers import Refusal, answer, refusal_of
from everhold.web.asking import PARAMS, Asked, grow, primed, whole
from everhold.web.call import Call, Json
from everhold.web.ink import Ink
from everhold.web.reply import Growth, Reply
from everhold.web.speech import arguments_of, call_of, choice_of, text_of, tools_of


class ChatMessage(Struct):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class StreamOptions(Struct):
    include_usage: bool | None = None


class Chat(Struct):
    """A chat completion, as the original describes it; what is not listed here is passed over."""

    model: Annotated[str, Meta(description="The agent.")]
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    n: Annotated[int, Meta(ge=1, le=1, description="How many answers: one, no more.")] | None = None


async def models(call: Call) -> Response:
    """The agents."""
    return answer({"object": "list", "data": [_model(name) for name in sorted(call.office.agents.settings.agents)]})


async def model(call: Call) -> Response:
    """One agent."""
    return answer(_model(call.agent(call.path["id"])))


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "everhold"}


async def completions(call: Call) -> Response:
    """Talk to an agent; with `X-Everhold-Session` in a conversation that is kept."""
    given = call.body(Chat)
    growth = await grow(call, _asked(call, given), stream=bool(given.stream))
    created = int(call.office.control.gates.clock.now())
    if given.stream:
        usage = bool(given.stream_options and given.stream_options.include_usage)
        lines = _lines(call, await primed(call, growth), model=given.model, created=created, usage=usage)
        return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
    reply = await whole(call, growth)
    if reply is None:
        return Response(status_code=499)
    message: Json = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [_call(made) for made in reply.calls]
    elif not reply.text:
        message["content"] = ""
    return answer(
        {
            "id": f"chatcmpl-{reply.id}",
            "object": "chat.completion",
            "created": created,
            "model": given.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}],
            "usage": _usage(reply.usage),
        }
    )


def _asked(call: Call, given: Chat) -> Asked:
    agent = call.agent(given.model)
    system: list[str] = []
    messages: list[Message] = []
    for index, message in enumerate(given.messages):
        where = f"messages[{index}]"
        text = text_of(message.content, where)
        match message.role:
            case "system" | "developer":
                system.append(text)
            case "tool" | "function":
                messages.append(Message(role="tool", text=text, call=message.tool_call_id or ""))
            case "assistant":
                calls = tuple(_call_of(made, where) for made in message.tool_calls or ())
                messages.append(Message(role="assistant", text=text, calls=calls))
            case "user":
                messages.append(Message(role="user", text=text, name=message.name or ""))
    wishes = {name: getattr(given, name) for name in PARAMS}
    if given.max_completion_tokens is not None:  # the newer name of the same wish
        wishes["max_tokens"] = given.max_completion_tokens
    wishes["tool_choice"] = choice_of(given.tool_choice)
    return Asked(
        agent=agent,
        system="\n\n".join(system),
        messages=tuple(messages),
        tools=tools_of(given.tools),
        params={name: value for name, value in wishes.items() if value is not None},
    )


def _call_of(made: Json, where: str) -> ToolCall:
    function = made.get("function")
    function = function if isinstance(function, dict) else {}
    return call_of(made.get("id"), function.get("name"), function.get("arguments"), where)


def _call(made: ToolCall) -> Json:
    return {"id": made.id, "type": "function", "function": {"name": made.tool, "arguments": arguments_of(made)}}


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.calls else "length" if reply.cut else "stop"


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


# -- streaming ---------------------------------------------------------------------------------------------------------


async def _lines(
    call: Call, growth: AsyncIterator[Growth], *, model: str, created: int, usage: bool
) -> AsyncIterator[bytes]:
    id = f"chatcmpl-{call.office.control.gates.chance.bytes(12).hex()}"
    frame: Json = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        return _data({**frame, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    ink = Ink()
    try:
        async for more in growth:
            if text := ink.of(more):
                yield chunk({"content": text})
            if isinstance(more, Reply):
                if more.calls:
                    yield chunk({"tool_calls": [{"index": i, **_call(made)} for i, made in enumerate(more.calls)]})
                yield chunk({}, _finish(more))
                if usage:
                    yield _data({**frame, "choices": [], "usage": _usage(more.usage)})
    except Refusal as refusal:
        yield _data(refusal.body())
    except EverholdError as error:
        yield _data(refusal_of(error).body())
    yield b"data: [DONE]\n\n"


def _data(value: Json) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
