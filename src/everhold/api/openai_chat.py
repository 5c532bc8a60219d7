"""POST /v1/chat/completions and GET /v1/models: agents as OpenAI-compatible models. The model's name is the agent's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from everhold.api.errors import ApiError, build_json_response, convert_error
from everhold.api.openai_input import extract_text, format_arguments, parse_tool_call, parse_tool_choice, parse_tools
from everhold.api.openai_shared import PASSED_PARAMS, OpenAIQuery, collect_reply, prime_stream, stream_reply
from everhold.api.reply_wait import FinalReply, ReplyGrowth
from everhold.api.request import ApiCall, JsonObject
from everhold.api.request_files import RequestFiles, decode_request
from everhold.api.streaming import ReplyWriter
from everhold.core.entries import ModelUsage, ToolCall
from everhold.errors import EverholdError
from everhold.ports.model import ModelMessage


class ChatMessage(Struct):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class StreamOptions(Struct):
    include_usage: bool | None = None


class ChatCompletionRequest(Struct):
    """A chat completion request in OpenAI's format. Keys that are not listed here are ignored."""

    model: Annotated[str, Meta(max_length=200, description="The agent.")]
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
    n: Annotated[int, Meta(ge=1, le=1, description="The number of answers; only 1 is supported.")] | None = None


async def list_models(call: ApiCall) -> Response:
    """Return the agents as models."""
    return build_json_response({"object": "list", "data": [_build_model(name) for name in call.list_agents()]})


async def get_model(call: ApiCall) -> Response:
    """Return one agent as a model."""
    return build_json_response(_build_model(call.resolve_agent(call.path["id"])))


def _build_model(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "everhold"}


async def create_completion(call: ApiCall) -> Response:
    """Send messages to an agent; with `X-Everhold-Session` in a session that is stored."""
    given = decode_request(call, ChatCompletionRequest)
    growth = await stream_reply(call, await _parse_request(call, given), stream=bool(given.stream))
    created = int(call.context.control.gates.clock.now())
    if given.stream:
        usage = bool(given.stream_options and given.stream_options.include_usage)
        lines = _stream_chunks(call, await prime_stream(call, growth), model=given.model, created=created, usage=usage)
        return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
    reply = await collect_reply(call, growth)
    if reply is None:
        return Response(status_code=499)
    message: JsonObject = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [_format_call(made) for made in reply.calls]
    elif not reply.text:
        message["content"] = ""
    return build_json_response(
        {
            "id": f"chatcmpl-{reply.id}",
            "object": "chat.completion",
            "created": created,
            "model": given.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _get_finish_reason(reply)}],
            "usage": _format_usage(reply.usage),
        }
    )


async def _parse_request(call: ApiCall, given: ChatCompletionRequest) -> OpenAIQuery:
    agent = call.resolve_agent(given.model)
    system: list[str] = []
    messages: list[ModelMessage] = []
    files = await RequestFiles.load(call, [it.content for it in given.messages if it.role == "user"])
    for index, message in enumerate(given.messages):
        where = f"messages[{index}]"
        if message.role == "user":
            text, attached = files.read_content(message.content, where)
            messages.append(ModelMessage(role="user", text=text, name=message.name or "", attachments=attached))
            continue
        text = extract_text(message.content, where)
        match message.role:
            case "system" | "developer":
                system.append(text)
            case "tool" | "function":
                messages.append(ModelMessage(role="tool", text=text, call=message.tool_call_id or ""))
            case "assistant":
                calls = tuple(_parse_call(made, where) for made in message.tool_calls or ())
                messages.append(ModelMessage(role="assistant", text=text, calls=calls))
    params = {name: getattr(given, name) for name in PASSED_PARAMS}
    if given.max_completion_tokens is not None:  # the newer name of max_tokens
        params["max_tokens"] = given.max_completion_tokens
    params["tool_choice"] = parse_tool_choice(given.tool_choice)
    return OpenAIQuery(
        agent=agent,
        system="\n\n".join(system),
        messages=tuple(messages),
        tools=parse_tools(given.tools),
        files=files.contents,
        params={name: value for name, value in params.items() if value is not None},
    )


def _parse_call(made: JsonObject, where: str) -> ToolCall:
    function = made.get("function")
    function = function if isinstance(function, dict) else {}
    return parse_tool_call(made.get("id"), function.get("name"), function.get("arguments"), where)


def _format_call(made: ToolCall) -> JsonObject:
    return {"id": made.id, "type": "function", "function": {"name": made.tool, "arguments": format_arguments(made)}}


def _get_finish_reason(reply: FinalReply) -> str:
    return "tool_calls" if reply.calls else "length" if reply.is_truncated else "stop"


def _format_usage(usage: ModelUsage) -> JsonObject:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


# -- streaming ---------------------------------------------------------------------------------------------------------


async def _stream_chunks(
    call: ApiCall, growth: AsyncIterator[ReplyGrowth], *, model: str, created: int, usage: bool
) -> AsyncIterator[bytes]:
    id = f"chatcmpl-{call.context.control.gates.chance.bytes(12).hex()}"
    frame: JsonObject = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}

    def encode_chunk(delta: JsonObject, finish: str | None = None) -> bytes:
        return _encode_sse(
            {**frame, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}
        )

    yield encode_chunk({"role": "assistant", "content": ""})
    writer = ReplyWriter()
    try:
        async for more in growth:
            if text := writer.write_growth(more):
                yield encode_chunk({"content": text})
            if isinstance(more, FinalReply):
                if more.calls:
                    yield encode_chunk(
                        {"tool_calls": [{"index": i, **_format_call(made)} for i, made in enumerate(more.calls)]}
                    )
                yield encode_chunk({}, _get_finish_reason(more))
                if usage:
                    yield _encode_sse({**frame, "choices": [], "usage": _format_usage(more.usage)})
    except ApiError as refusal:
        yield _encode_sse(refusal.to_json())
    except EverholdError as error:
        yield _encode_sse(convert_error(error).to_json())
    yield b"data: [DONE]\n\n"


def _encode_sse(value: JsonObject) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
