"""POST /v1/responses: the newer of the two ways to talk to an agent as if it were a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from everhold.core.entries import Call as ToolCall, Usage
from everhold.errors import EverholdError
from everhold.ports.model import Message
from everhold.web.answers import Refusal, answer, refusal_of
from everhold.web.asking import Asked, grow, primed, whole
from everhold.web.call import Call, Json
from everhold.web.ink import Ink
from everhold.web.reply import Growth, Reply
from everhold.web.speech import arguments_of, call_of, choice_of, text_of, tools_of


class Ask(Struct):
    """A response to create, as the original describes it; what is not listed here is passed over."""

    model: Annotated[str, Meta(description="The agent.")]
    input: Annotated[str | list[dict[str, Any]], Meta(description="What is said: text, or a list of items.")]
    instructions: str | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    previous_response_id: str | None = None


async def responses(call: Call) -> Response:
    """Talk to an agent; with `X-Everhold-Session` in a conversation that is kept."""
    given = call.body(Ask)
    if given.previous_response_id:
        raise Refusal(
            400,
            "misuse",
            "responses are not kept by their id",
            remedy="name the conversation with X-Everhold-Session and send only what is new",
        )
    growth = await grow(call, _asked(call, given), stream=bool(given.stream))
    frame = _frame(call, given)
    if given.stream:
        lines = _lines(frame, await primed(call, growth))
        return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
    reply = await whole(call, growth)
    if reply is None:
        return Response(status_code=499)
    return answer(_completed(frame, reply, reply.text))


# -- reading -----------------------------------------------------------------------------------------------------------


def _asked(call: Call, given: Ask) -> Asked:
    agent = call.agent(given.model)
    items = [{"role": "user", "content": given.input}] if isinstance(given.input, str) else given.input
    system = [given.instructions] if given.instructions else []
    messages: list[Message] = []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        match item:
            case {"role": "system" | "developer"}:
                system.append(text_of(item.get("content"), where))
            case {"role": "user"}:
                messages.append(Message(role="user", text=text_of(item.get("content"), where)))
            case {"role": "assistant"}:
                messages.append(Message(role="assistant", text=text_of(item.get("content"), where)))
            case {"type": "function_call"}:
                made = call_of(item.get("call_id"), item.get("name"), item.get("arguments"), where)
                _add_call(messages, made)
            case {"type": "function_call_output", "call_id": str(id)}:
                messages.append(Message(role="tool", text=text_of(item.get("output"), where), call=id))
            case {"type": "reasoning"}:
                continue
            case _:
                raise Refusal(400, "misuse", f"{where} is of a kind that is not understood here")
    params = {
        "temperature": given.temperature,
        "top_p": given.top_p,
        "max_tokens": given.max_output_tokens,
        "tool_choice": choice_of(given.tool_choice),
    }
    return Asked(
        agent=agent,
        system="\n\n".join(system),
        messages=tuple(messages),
        tools=tools_of(given.tools),
        params={name: value for name, value in params.items() if value is not None},
    )


def _add_call(messages: list[Message], made: ToolCall) -> None:
    """Calls stand apart here; for a model they belong to the assistant's message before them."""
    if messages and messages[-1].role == "assistant":
        messages[-1] = msgspec.structs.replace(messages[-1], calls=(*messages[-1].calls, made))
    else:
        messages.append(Message(role="assistant", calls=(made,)))


# -- writing -----------------------------------------------------------------------------------------------------------


def _frame(call: Call, given: Ask) -> Json:
    gates = call.office.control.gates
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


def _completed(frame: Json, reply: Reply, text: str) -> Json:
    status = "incomplete" if reply.cut else "completed"
    output = [_message(frame, text, status=status)] if text or not reply.calls else []
    output += [_function(frame, index, made) for index, made in enumerate(reply.calls)]
    details = {"reason": "max_output_tokens"} if reply.cut else None
    return {**frame, "status": status, "incomplete_details": details, "output": output, "usage": _usage(reply.usage)}


def _message(frame: Json, text: str, *, status: str) -> Json:
    content = [] if status == "in_progress" else [_part(text)]
    return {"id": f"msg_{frame['id']}", "type": "message", "role": "assistant", "status": status, "content": content}


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _function(frame: Json, index: int, made: ToolCall) -> Json:
    return {
        "id": f"fc_{frame['id']}_{index}",
        "type": "function_call",
        "status": "completed",
        "call_id": made.id,
        "name": made.tool,
        "arguments": arguments_of(made),
    }


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input + usage.output,
    }


class _Sheet:
    """Events in order, each with its number."""

    def __init__(self) -> None:
        self.number = 0

    def event(self, type: str, **fields: Any) -> bytes:
        body = {"type": type, "sequence_number": self.number, **fields}
        self.number += 1
        return f"event: {type}\n".encode() + b"data: " + msgspec.json.encode(body) + b"\n\n"


async def _lines(frame: Json, growth: AsyncIterator[Growth]) -> AsyncIterator[bytes]:
    sheet, ink = _Sheet(), Ink()
    at = {"item_id": f"msg_{frame['id']}", "output_index": 0, "content_index": 0}
    yield sheet.event("response.created", response=frame)
    yield sheet.event("response.in_progress", response=frame)
    try:
        async for more in growth:
            text = ink.of(more)
            if text and ink.written == text:
                yield _opened(sheet, frame, at)
            if text:
                yield sheet.event("response.output_text.delta", **at, delta=text, logprobs=[])
            if isinstance(more, Reply):
                yield _closed(sheet, frame, at, more, ink)
    except Refusal as refusal:
        yield _failed(sheet, frame, refusal)
    except EverholdError as error:
        yield _failed(sheet, frame, refusal_of(error))


def _opened(sheet: _Sheet, frame: Json, at: Json) -> bytes:
    item = _message(frame, "", status="in_progress")
    return sheet.event("response.output_item.added", output_index=0, item=item) + sheet.event(
        "response.content_part.added", **at, part=_part("")
    )


def _closed(sheet: _Sheet, frame: Json, at: Json, reply: Reply, ink: Ink) -> bytes:
    done = _completed(frame, reply, ink.written)
    lines = b""
    for index, item in enumerate(done["output"]):
        if item["type"] == "message":
            if not ink.written:
                lines += _opened(sheet, frame, at)
            lines += sheet.event("response.output_text.done", **at, text=ink.written, logprobs=[])
            lines += sheet.event("response.content_part.done", **at, part=_part(ink.written))
        else:
            place = {"item_id": item["id"], "output_index": index}
            lines += sheet.event("response.output_item.added", output_index=index, item={**item, "arguments": ""})
            lines += sheet.event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            lines += sheet.event("response.function_call_arguments.done", **place, arguments=item["arguments"])
        lines += sheet.event("response.output_item.done", output_index=index, item=item)
    return lines + sheet.event(f"response.{done['status']}", response=done)


def _failed(sheet: _Sheet, frame: Json, refusal: Refusal) -> bytes:
    error = {"code": "server_error", "message": f"{refusal.message} {refusal.remedy}".strip()}
    return sheet.event("response.failed", response={**frame, "status": "failed", "error": error})
