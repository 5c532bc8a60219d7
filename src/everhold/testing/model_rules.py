"""The requests that real vendors refuse, with their error texts, and their prompt caches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from everhold.testing.model_dialects import ModelServerStatus, VendorFailure, dump_json, estimate_tokens, sign_thinking

MAX_CACHE_BREAKPOINTS: Final = 4
_MESSAGES_FIELDS: Final = frozenset(
    {
        "model", "messages", "max_tokens", "metadata", "service_tier", "stop_sequences", "stream", "system",
        "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p", "container", "output_config",
    }
)  # fmt: skip


# -- refusals ----------------------------------------------------------------------------------------------------------


def find_completion_error(body: Any, headers: Mapping[str, str]) -> str:
    if not body.get("messages"):
        return (
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
        )
    if "max_tokens" in body and "max_completion_tokens" in body:
        return "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
    if wrong := _wrong_functions(body.get("tools", [])):
        return wrong
    open_calls: set[str] = set()
    for index, message in enumerate(body["messages"]):
        if wrong := _wrong_completion_message(index, message, open_calls):
            return wrong
    if open_calls:
        return f"The following tool_call_ids did not have response messages: {', '.join(open_calls)}"
    return ""


def _wrong_functions(tools: list[dict[str, Any]]) -> str:
    for index, tool in enumerate(tools):
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool["function"]["name"]):
            return f"Invalid 'tools[{index}].function.name': string does not match pattern."
        if tool["function"]["parameters"].get("type") != "object":
            return f"Invalid schema for function '{tool['function']['name']}': schema must have type 'object'."
    return ""


def _wrong_completion_message(index: int, message: dict[str, Any], open_calls: set[str]) -> str:
    """Return what is wrong with a message after the previous ones. `open_calls` are the calls without a result so
    far."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        return _wrong_tool_result(index, message, open_calls)
    if open_calls:
        return (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(open_calls)}"
        )
    if role not in ("system", "developer", "user", "assistant"):
        return f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', 'tool'."
    calls = message.get("tool_calls")
    if calls is not None and not calls:
        return f"Invalid 'messages[{index}].tool_calls': empty array."
    if content is None and not calls:
        return f"Invalid value for 'content': expected a string, got null. (messages[{index}])"
    for call in calls or ():
        if len(call["id"]) > 40:
            return f"Invalid 'messages[{index}].tool_calls[0].id': string too long. Expected maximum length 40."
        json.loads(call["function"]["arguments"])
        open_calls.add(call["id"])
    return ""


def _wrong_tool_result(index: int, message: dict[str, Any], open_calls: set[str]) -> str:
    if message.get("tool_call_id") not in open_calls:
        return (
            f"Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
            f"'tool_calls'. (messages[{index}])"
        )
    open_calls.discard(message["tool_call_id"])
    if not isinstance(message.get("content"), str | list):
        return f"Invalid type for 'messages[{index}].content': expected a string."
    return ""


def find_messages_error(body: Any, headers: Mapping[str, str]) -> str:
    if "anthropic-version" not in headers:
        return "anthropic-version: header is required"
    if not isinstance(body.get("max_tokens"), int):
        return "max_tokens: Field required"
    if unknown := sorted(body.keys() - _MESSAGES_FIELDS):
        return f"{unknown[0]}: Extra inputs are not permitted"
    if body.get("temperature", 0) > 1:
        return "temperature: Input should be less than or equal to 1"
    if any(not word.strip() for word in body.get("stop_sequences", ())):
        return "stop_sequences: each stop sequence must contain non-whitespace"
    messages = body.get("messages")
    if not messages:
        return "messages: at least one message is required"
    if messages[0]["role"] != "user":
        return 'messages: first message must use the "user" role'
    for index, tool in enumerate(body.get("tools", [])):
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", tool["name"]):
            return f"tools.{index}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        if tool["input_schema"].get("type") != "object":
            return f"tools.{index}.custom.input_schema.type: Input should be 'object'"
    marks = sum("cache_control" in block for block in iter_cacheable_blocks(body))
    if marks > MAX_CACHE_BREAKPOINTS:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."
    return _find_turns_error(body, messages)


def _find_turns_error(body: Any, messages: list[dict[str, Any]]) -> str:
    thinking = (body.get("thinking") or {}).get("type") == "enabled"
    seen: set[str] = set()
    wanted: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not blocks:
            return f"{where}: all messages must have non-empty content except for the optional final assistant message"
        if index and message["role"] == messages[index - 1]["role"]:
            return f'{where}: roles must alternate between "user" and "assistant", but found multiple in a row'
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if set(wanted) - set(results):
            return (
                f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(wanted)}. Each `tool_use` block must have a corresponding `tool_result` block next."
            )
        if set(results) - set(wanted):
            return f"{where}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {', '.join(results)}."
        wanted = []
        for at, block in enumerate(blocks):
            if wrong := _wrong_block(where, at, block, seen):
                return wrong
            if block["type"] == "tool_use":
                seen.add(block["id"])
                wanted.append(block["id"])
        last = index >= len(messages) - 2 and message["role"] == "assistant"
        if thinking and last and wanted and blocks[0]["type"] not in ("thinking", "redacted_thinking"):
            return (
                f"{where}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{blocks[0]['type']}`."
            )
    if wanted:
        return f"messages.{len(messages) - 1}: `tool_use` ids were found without `tool_result` blocks immediately after"
    return ""


def _wrong_block(where: str, at: int, block: dict[str, Any], seen: set[str]) -> str:
    """Return what is wrong with a content block. `seen` are the ids of the earlier tool calls."""
    kind = block["type"]
    if kind == "text" and not block["text"].strip():
        return f"{where}: text content blocks must be non-empty"
    if kind == "thinking" and block.get("signature") != sign_thinking(block["thinking"]):
        return f"{where}.content.{at}: Invalid `signature` in `thinking` block"
    if kind in ("thinking", "redacted_thinking") and "cache_control" in block:
        return f"{where}.content.{at}.{kind}.cache_control: Extra inputs are not permitted"
    if kind == "tool_use" and not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
        return f"{where}.content.{at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if kind == "tool_use" and block["id"] in seen:
        return f"{where}.content.{at}: `tool_use` ids must be unique"
    return ""


def make_invalid_reply(
    dialect: str, message: str, *, code: str | None = None, param: str | None = None
) -> ModelServerStatus:
    if dialect == "anthropic":
        return ModelServerStatus(status=400, body=_make_anthropic_error("invalid_request_error", message))
    return ModelServerStatus(
        status=400, body=_make_openai_error(message, "invalid_request_error", code=code, param=param)
    )


def _make_openai_error(message: str, kind: str, *, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _make_anthropic_error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_011fake"}


_OPENAI_ERRORS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "rate_limit": (
        429,
        _make_openai_error(
            "Rate limit reached for fake in organization org-fake on requests per min (RPM): Limit 3, Used 3, "
            "Requested 1. Visit https://platform.openai.com/account/rate-limits to learn more.",
            "requests",
            code="rate_limit_exceeded",
        ),
    ),
    "server_error": (
        500,
        _make_openai_error("The server had an error while processing your request. Sorry about that!", "server_error"),
    ),
    "overloaded": (
        503,
        _make_openai_error("The engine is currently overloaded, please try again later", "service_unavailable"),
    ),
    "too_long": (
        400,
        _make_openai_error(
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. "
            "Please reduce the length of the messages.",
            "invalid_request_error",
            code="context_length_exceeded",
            param="messages",
        ),
    ),
    "unauthorized": (
        401,
        _make_openai_error(
            "Incorrect API key provided: sk-fake**********************wxyz. You can find your API key at "
            "https://platform.openai.com/account/api-keys.",
            "invalid_request_error",
            code="invalid_api_key",
        ),
    ),
    "forbidden": (403, _make_openai_error("Project does not have access to model `fake`", "invalid_request_error")),
    "not_found": (
        404,
        _make_openai_error(
            "The model `fake` does not exist or you do not have access to it.",
            "invalid_request_error",
            code="model_not_found",
        ),
    ),
    "invalid": (
        400,
        _make_openai_error("Invalid value for 'temperature'", "invalid_request_error", param="temperature"),
    ),
    "billing": (
        429,
        _make_openai_error(
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
            code="insufficient_quota",
        ),
    ),
}
_ANTHROPIC_ERRORS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "rate_limit": (
        429,
        _make_anthropic_error(
            "rate_limit_error",
            "This request would exceed your organization's rate limit of 40,000 input tokens per minute. Please reduce "
            "the prompt length or the maximum tokens requested, or try again later.",
        ),
    ),
    "server_error": (500, _make_anthropic_error("api_error", "Internal server error")),
    "overloaded": (529, _make_anthropic_error("overloaded_error", "Overloaded")),
    "too_long": (
        400,
        _make_anthropic_error("invalid_request_error", "prompt is too long: 210317 tokens > 200000 maximum"),
    ),
    "unauthorized": (401, _make_anthropic_error("authentication_error", "invalid x-api-key")),
    "forbidden": (
        403,
        _make_anthropic_error(
            "permission_error", "Your API key does not have permission to use the specified resource"
        ),
    ),
    "not_found": (404, _make_anthropic_error("not_found_error", "model: fake")),
    "invalid": (
        400,
        _make_anthropic_error("invalid_request_error", "temperature: Input should be less than or equal to 1"),
    ),
    "billing": (
        400,
        _make_anthropic_error(
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade.",
        ),
    ),
}


def make_failure_reply(failure: VendorFailure, dialect: str) -> ModelServerStatus:
    status, body = (_ANTHROPIC_ERRORS if dialect == "anthropic" else _OPENAI_ERRORS)[failure.kind]
    return ModelServerStatus(status=status, body=body, headers=failure.headers)


def iter_cacheable_blocks(body: Any) -> Iterator[dict[str, Any]]:
    """Return every cacheable part of a messages request, in the order of the API."""
    yield from body.get("tools", [])
    system = body.get("system", [])
    yield from [{"type": "text", "text": system}] if isinstance(system, str) else system
    for message in body["messages"]:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield {"role": message["role"], **block}


def count_prompt_tokens(body: Any) -> int:
    texts: list[str] = [dump_json(tool) for tool in body.get("tools", [])]
    _collect_texts(body.get("system", ""), texts)
    _collect_texts(body.get("messages", []), texts)
    return sum(map(estimate_tokens, texts)) + 4 * len(body.get("messages", []))


def _collect_texts(value: Any, texts: list[str]) -> None:
    if isinstance(value, str):
        texts.append(value if not value.startswith("data:") else "i" * 4400)
    elif isinstance(value, list):
        for item in value:
            _collect_texts(item, texts)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ("role", "type", "id", "cache_control", "signature", "tool_use_id", "tool_call_id"):
                _collect_texts(item, texts)
