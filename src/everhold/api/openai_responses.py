"""POST /v1/responses: agents as models in OpenAI's Responses format."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from everhold.api.errors import ApiError, build_json_response, convert_error
from everhold.api.openai_input import extract_text, format_arguments, parse_tool_call, parse_tool_choice, parse_tools
from everhold.api.openai_shared import OpenAIQuery, collect_reply, prime_stream, stream_reply
from everhold.api.reply_wait import FinalReply, ReplyGrowth
from everhold.api.request import ApiCall, JsonObject
from everhold.api.request_files import RequestFiles, decode_request
from everhold.api.streaming import ReplyWriter
from everhold.core.entries import ModelUsage, ToolCall
from everhold.errors import EverholdError
from everhold.ports.model import ModelMessage


class ResponseRequest(Struct):
    """A request in OpenAI's Responses format. Keys that are not listed here are ignored."""

    model: Annotated[str, Meta(max_length=200, description="The agent.")]
    input: Annotated[str | list[dict[str, Any]], Meta(description="Text, or a list of items.")]
    instructions: str | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    previous_response_id: str | None = None


async def create_response(call: ApiCall) -> Response:
    """Send messages to an agent; with `X-Everhold-Session` in a session that is stored."""
    given = decode_request(call, ResponseRequest)
    if given.previous_response_id:
        raise ApiError(
            400,
            "invalid_request",
            "responses are not stored by their id",
            remedy="name the conversation with X-Everhold-Session and send only the new messages",
        )
    growth = await stream_reply(call, await _parse_request(call, given), stream=bool(given.stream))
    frame = _build_frame(call, given)
    if given.stream:
        lines = _stream_events(frame, await prime_stream(call, growth))
        return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
    reply = await collect_reply(call, growth)
    if reply is None:
        return Response(status_code=499)
    return build_json_response(_build_completed(frame, reply, reply.text))


# -- reading -----------------------------------------------------------------------------------------------------------


async def _parse_request(call: ApiCall, given: ResponseRequest) -> OpenAIQuery:
    agent = call.resolve_agent(given.model)
    items = [{"role": "user", "content": given.input}] if isinstance(given.input, str) else given.input
    system = [given.instructions] if given.instructions else []
    messages: list[ModelMessage] = []
    files = await RequestFiles.load(call, [it.get("content") for it in items if it.get("role") == "user"])
    made: dict[int, list[ToolCall]] = {}  # by the index of the assistant's message
    for index, item in enumerate(items):
        where = f"input[{index}]"
        match item:
            case {"role": "system" | "developer"}:
                system.append(extract_text(item.get("content"), where))
            case {"role": "user"}:
                text, attached = files.read_content(item.get("content"), where)
                messages.append(ModelMessage(role="user", text=text, attachments=attached))
            case {"role": "assistant"}:
                messages.append(ModelMessage(role="assistant", text=extract_text(item.get("content"), where)))
            case {"type": "function_call"}:
                call_made = parse_tool_call(item.get("call_id"), item.get("name"), item.get("arguments"), where)
                # in this format calls are items of their own, after the assistant's message
                if not messages or messages[-1].role != "assistant":
                    messages.append(ModelMessage(role="assistant"))
                made.setdefault(len(messages) - 1, []).append(call_made)
            case {"type": "function_call_output", "call_id": str(id)}:
                messages.append(ModelMessage(role="tool", text=extract_text(item.get("output"), where), call=id))
            case {"type": "reasoning"}:
                continue
            case _:
                raise ApiError(400, "invalid_request", f"{where} has a type that is not supported")
    for place, calls in made.items():
        messages[place] = msgspec.structs.replace(messages[place], calls=tuple(calls))
    params = {
        "temperature": given.temperature,
        "top_p": given.top_p,
        "max_tokens": given.max_output_tokens,
        "tool_choice": parse_tool_choice(given.tool_choice),
    }
    return OpenAIQuery(
        agent=agent,
        system="\n\n".join(system),
        messages=tuple(messages),
        tools=parse_tools(given.tools),
        files=files.contents,
        params={name: value for name, value in params.items() if value is not None},
    )


# -- writing -----------------------------------------------------------------------------------------------------------


def _build_frame(call: ApiCall, given: ResponseRequest) -> JsonObject:
    gates = call.context.control.gates
    return {
        "id": f"resp_{gates.chance.bytes(12).hex()}",
        "object": "response",
        "created_at": int(gates.clock.now()),
        "status": "in_progress",
        "model": given.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": given.instructions,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": given.temperature,
        "tool_choice": given.tool_choice or "auto",
        "tools": given.tools or [],
        "top_p": given.top_p,
        "usage": None,
    }


def _build_completed(frame: JsonObject, reply: FinalReply, text: str) -> JsonObject:
    status = "incomplete" if reply.is_truncated else "completed"
    output = [_build_message(frame, text, status=status)] if text or not reply.calls else []
    output += [_build_function_call(frame, index, made) for index, made in enumerate(reply.calls)]
    details = {"reason": "max_output_tokens"} if reply.is_truncated else None
    return {
        **frame,
        "status": status,
        "incomplete_details": details,
        "output": output,
        "usage": _format_usage(reply.usage),
    }


def _build_message(frame: JsonObject, text: str, *, status: str) -> JsonObject:
    content = [] if status == "in_progress" else [_build_text_part(text)]
    return {"id": f"msg_{frame['id']}", "type": "message", "role": "assistant", "status": status, "content": content}


def _build_text_part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _build_function_call(frame: JsonObject, index: int, made: ToolCall) -> JsonObject:
    return {
        "id": f"fc_{frame['id']}_{index}",
        "type": "function_call",
        "status": "completed",
        "call_id": made.id,
        "name": made.tool,
        "arguments": format_arguments(made),
    }


def _format_usage(usage: ModelUsage) -> JsonObject:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input + usage.output,
    }


class _ResponseEventEncoder:
    """Encodes events and numbers them."""

    def __init__(self) -> None:
        self.number = 0

    def encode_event(self, type: str, **fields: Any) -> bytes:
        body = {"type": type, "sequence_number": self.number, **fields}
        self.number += 1
        return f"event: {type}\n".encode() + b"data: " + msgspec.json.encode(body) + b"\n\n"


async def _stream_events(frame: JsonObject, growth: AsyncIterator[ReplyGrowth]) -> AsyncIterator[bytes]:
    encoder, writer = _ResponseEventEncoder(), ReplyWriter()
    at = {"item_id": f"msg_{frame['id']}", "output_index": 0, "content_index": 0}
    yield encoder.encode_event("response.created", response=frame)
    yield encoder.encode_event("response.in_progress", response=frame)
    try:
        async for more in growth:
            text = writer.write_growth(more)
            if text and writer.is_first(text):
                yield _encode_opening(encoder, frame, at)
            if text:
                yield encoder.encode_event("response.output_text.delta", **at, delta=text, logprobs=[])
            if isinstance(more, FinalReply):
                yield _encode_closing(encoder, frame, at, more, writer)
    except ApiError as refusal:
        yield _encode_failure(encoder, frame, refusal)
    except EverholdError as error:
        yield _encode_failure(encoder, frame, convert_error(error))


def _encode_opening(encoder: _ResponseEventEncoder, frame: JsonObject, at: JsonObject) -> bytes:
    item = _build_message(frame, "", status="in_progress")
    return encoder.encode_event("response.output_item.added", output_index=0, item=item) + encoder.encode_event(
        "response.content_part.added", **at, part=_build_text_part("")
    )


def _encode_closing(
    encoder: _ResponseEventEncoder, frame: JsonObject, at: JsonObject, reply: FinalReply, writer: ReplyWriter
) -> bytes:
    text = writer.written_text
    done = _build_completed(frame, reply, text)
    lines: list[bytes] = []
    for index, item in enumerate(done["output"]):
        if item["type"] == "message":
            if not text:
                lines.append(_encode_opening(encoder, frame, at))
            lines.append(encoder.encode_event("response.output_text.done", **at, text=text, logprobs=[]))
            lines.append(encoder.encode_event("response.content_part.done", **at, part=_build_text_part(text)))
        else:
            position = {"item_id": item["id"], "output_index": index}
            given = item["arguments"]
            lines += (
                encoder.encode_event("response.output_item.added", output_index=index, item={**item, "arguments": ""}),
                encoder.encode_event("response.function_call_arguments.delta", **position, delta=given),
                encoder.encode_event("response.function_call_arguments.done", **position, arguments=given),
            )
        lines.append(encoder.encode_event("response.output_item.done", output_index=index, item=item))
    lines.append(encoder.encode_event(f"response.{done['status']}", response=done))
    return b"".join(lines)


def _encode_failure(encoder: _ResponseEventEncoder, frame: JsonObject, refusal: ApiError) -> bytes:
    error = {"code": "server_error", "message": f"{refusal.message} {refusal.remedy}".strip()}
    return encoder.encode_event("response.failed", response={**frame, "status": "failed", "error": error})
