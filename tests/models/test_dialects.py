"""Variants of chat completions, as captured or documented. Each must be understood."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everhold.core.entries import ToolCall
from everhold.models.openai import OpenAIModel
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse, ToolSpec
from everhold.testing.model_server import ModelServer, ModelServerStatus
from tests.models.conftest import Connect

NOTE = ToolSpec(name="note", description="", parameters={"type": "object"})
LOOK = ToolSpec(name="look_up", description="", parameters={"type": "object"})
HELLO = ModelRequest(system="", messages=(ModelMessage(role="user", text="hello"),), tools=(NOTE, LOOK))
DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


def tool(id_: str | None = None, name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"tool_calls": [{**({"id": id_} if id_ is not None else {}), "function": function, **more}]}


async def read(server: ModelServer, openai: Connect, *chunks: bytes, kind: str = "text/event-stream") -> ModelResponse:
    server.add_steps(ModelServerStatus(status=200, body=b"".join(chunks), headers={"content-type": kind}))
    model = openai()
    assert isinstance(model, OpenAIModel)
    return await model.answer(HELLO)


END = chunk({}, "tool_calls") + DONE


async def test_a_name_repeated_in_every_fragment_is_used_once(server: ModelServer, openai: Connect) -> None:
    parts = [chunk(tool("c1", "note", part, index=0)) for part in ('{"a"', ": 1", "}")]
    assert (await read(server, openai, *parts, END)).calls == (ToolCall(id="c1", tool="note", arguments={"a": 1}),)


async def test_a_name_in_fragments_is_joined(server: ModelServer, openai: Connect) -> None:
    parts = [chunk(tool("c1", "look", "", index=0)), chunk(tool(None, "_up", "{}", index=0))]
    assert (await read(server, openai, *parts, END)).calls == (ToolCall(id="c1", tool="look_up"),)


async def test_calls_without_an_index_are_separated(server: ModelServer, openai: Connect) -> None:
    """Without an index, or with the same one for all, a new id with a name begins a new call."""
    expected = (
        ToolCall(id="c1", tool="note", arguments={"a": 1}),
        ToolCall(id="c2", tool="look_up", arguments={"b": 2}),
    )
    for index in ({}, {"index": 0}):
        parts = [
            chunk(tool("c1", "note", '{"a":', **index)),
            chunk(tool(None, None, "1}", **index)),
            chunk(tool("c2", "look_up", '{"b":2}', **index)),
        ]
        assert (await read(server, openai, *parts, END)).calls == expected


async def test_calls_with_alternating_fragments_are_separated(server: ModelServer, openai: Connect) -> None:
    parts = [
        chunk(tool("c1", "note", "", index=0)),
        chunk(tool("c2", "look_up", "", index=1)),
        chunk(tool(None, None, '{"b"', index=1)),
        chunk(tool(None, None, '{"a":1}', index=0)),
        chunk(tool(None, None, ":2}", index=1)),
    ]
    answer = await read(server, openai, *parts, END)
    assert [made.arguments for made in answer.calls] == [{"a": 1}, {"b": 2}]


async def test_arguments_as_an_object_without_an_id_are_accepted(server: ModelServer, openai: Connect) -> None:
    answer = await read(server, openai, chunk(tool(None, "note", {"a": 1})), END)
    assert answer.calls[0].arguments == {"a": 1}
    assert answer.calls[0].id.startswith("call_")


async def test_calls_with_finish_reason_stop_are_accepted(server: ModelServer, openai: Connect) -> None:
    answer = await read(server, openai, chunk(tool("c1", "note", "{}", index=0)), chunk({}, "stop"), DONE)
    assert answer.calls == (ToolCall(id="c1", tool="note"),)


async def test_fragments_without_a_call_are_skipped(server: ModelServer, openai: Connect) -> None:
    odd: list[Any] = [{"tool_calls": [None]}, {"tool_calls": 3}, {"tool_calls": [{"function": None}]}, {"content": 3}]
    answer = await read(server, openai, *(chunk(delta) for delta in odd), chunk({"content": "ok"}, "stop"), DONE)
    assert answer.text == "ok"
    assert answer.calls == ()


@pytest.mark.parametrize(
    "usage",
    [
        chunk({}, None, usage={"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 5}),
        chunk({}, None, usage={"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 5}),
        chunk({}, None, usage={"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 13, "cached_tokens": 5}),
        chunk({}, None, x_groq={"usage": {"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 5}}),
        b'data: {"choices":[{"delta":{},"usage":{"prompt_tokens":9,"completion_tokens":4,"cached_tokens":5}}]}\n\n',
    ],
)
async def test_usage_in_any_chunk_is_read(server: ModelServer, openai: Connect, usage: bytes) -> None:
    early = chunk({"content": "ok"}, None, usage={"prompt_tokens": 9, "completion_tokens": 1})
    answer = await read(server, openai, early, usage, chunk({}, "stop", usage=None), DONE)
    assert (answer.usage.input, answer.usage.cached, answer.usage.output) == (9, 5, 4)


async def test_invalid_usage_is_ignored(server: ModelServer, openai: Connect) -> None:
    nonsense = {"prompt_tokens": "many", "completion_tokens": -3, "total_tokens": True, "cost": "free"}
    answer = await read(server, openai, chunk({"content": "ok"}, "stop", usage=nonsense), DONE)
    assert (answer.usage.input, answer.usage.output, answer.usage.usd) == (0, 0, 0.0)


async def test_a_cost_reported_by_the_server_is_used(server: ModelServer, openai: Connect) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.0125}
    answer = await read(server, openai, chunk({"content": "ok"}, "stop", usage=usage), DONE)
    assert answer.usage.usd == 0.0125


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_under_both_names_is_read(server: ModelServer, openai: Connect, field: str) -> None:
    answer = await read(server, openai, chunk({field: "be"}), chunk({field: "cause"}), chunk({"content": "so"}, "stop"))
    assert (answer.reasoning, answer.text) == ("because", "so")


@pytest.mark.parametrize(
    "pieces, text, reasoning",
    [
        (["<think>hm", "m</think>", "\n\nYes"], "Yes", "hmm"),
        (["<th", "ink>", "\nhmm\n", "</th", "ink>\nYes", " no"], "Yes no", "\nhmm\n"),
        (["<think>on", "ly"], "", "only"),
        (["<think>a</think>", "\n", " "], "", "a"),
        (["<b>bold</b>"], "<b>bold</b>", ""),
        (["<th"], "<th", ""),
        ([" <", "p>"], " <p>", ""),
        (["Use <think> tags</think>"], "Use <think> tags</think>", ""),
    ],
)
async def test_reasoning_in_tags_is_separated(
    server: ModelServer, openai: Connect, pieces: list[str], text: str, reasoning: str
) -> None:
    answer = await read(server, openai, *(chunk({"content": p}) for p in pieces), chunk({}, "stop"), DONE)
    assert (answer.text, answer.reasoning) == (text, reasoning)


async def test_content_in_parts_is_joined(server: ModelServer, openai: Connect) -> None:
    parts: list[dict[str, Any]] = [
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": [{"type": "text", "text": "Yes"}, None, {"type": "reference"}]},
    ]
    answer = await read(server, openai, *(chunk(part) for part in parts), chunk({}, "stop"), DONE)
    assert (answer.text, answer.reasoning) == ("Yes", "hm")


async def test_a_divided_surrogate_pair_is_joined(server: ModelServer, openai: Connect) -> None:
    halves = [
        b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\ude00b"}}]}\n\n',
    ]
    heard: list[str] = []
    body = b"".join(halves) + chunk({}, "stop") + DONE
    server.add_steps(ModelServerStatus(status=200, body=body, headers={"content-type": "text/event-stream"}))
    answer = await openai().answer(HELLO, on_text=heard.append)
    assert answer.text == "a😀b" == "".join(heard)
    lone = b'data: {"choices":[{"delta":{"content":"a\\ud83d"},"finish_reason":"stop"}]}\n\n'
    assert (await read(server, openai, lone, DONE)).text == "a\ufffd"


async def test_refusals_are_text(server: ModelServer, openai: Connect) -> None:
    answer = await read(server, openai, chunk({"refusal": "I would "}), chunk({"refusal": "rather not."}, "stop"), DONE)
    assert answer.text == "I would rather not."


async def test_other_choices_are_ignored(server: ModelServer, openai: Connect) -> None:
    other = b'data: {"choices":[{"index":1,"delta":{"content":"B"},"finish_reason":"stop"}]}\n\n'
    assert (await read(server, openai, chunk({"content": "A"}), other, chunk({}, "stop"), DONE)).text == "A"


async def test_a_stream_with_another_content_type_is_read(server: ModelServer, openai: Connect) -> None:
    for kind in ("text/plain", "application/octet-stream", "application/json"):
        answer = await read(server, openai, b": hi\n\n", chunk({"content": "ok"}, "stop"), DONE, kind=kind)
        assert answer.text == "ok"


async def test_a_complete_answer_to_a_stream_request_is_read(server: ModelServer, openai: Connect) -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": None}]}
    assert (await read(server, openai, json.dumps(body).encode(), kind="application/json")).text == "ok"
