"""Error texts of real servers: whether the request is too long, how long to wait, and no text that looks like a key."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everhold.errors import EverholdError, OperatorNeeded, Overloaded, Refused, TooLong
from everhold.infra.secret import SecretString
from everhold.models.errors import (
    ModelEndpoint,
    build_body_error,
    build_http_error,
    is_too_long_message,
    parse_duration,
    parse_error_body,
    parse_retry_after,
)
from everhold.models.http_client import SseParser, StreamTooLarge

ENDPOINT = ModelEndpoint(model="m", host="h.example", secrets=(SecretString("topsecretvalue"),))
NOW = 1_800_000_000.0


def say(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


TOO_LONG: dict[str, tuple[int, Any]] = {
    "openai": (
        400,
        say(
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
            code="context_length_exceeded",
        ),
    ),
    "openai responses": (400, say("Your input exceeds the context window of this model. Please adjust your input.")),
    "openai code only": (400, say("Bad request", code="context_length_exceeded")),
    "openai one string": (
        400,
        say(
            "Invalid 'messages[1].content': string too long. Expected a string with maximum length 10485760, but got "
            "a string with length 20000000 instead.",
            code="string_above_max_length",
        ),
    ),
    "openai never fits the minute": (
        429,
        say(
            "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 41000. "
            "The input or output tokens must be reduced in order to run successfully.",
            code="rate_limit_exceeded",
        ),
    ),
    "anthropic": (
        400,
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 210317 tokens > 200000 maximum"},
        },
    ),
    "anthropic with output": (
        400,
        say(
            "input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000, decrease input length or "
            "`max_tokens` and try again"
        ),
    ),
    "anthropic size": (413, {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds"}}),
    "vllm": (
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 "
            "in the messages, 1000 in the completion). Please reduce the length of the messages or completion.",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    "vllm decoder": (
        400,
        say("The decoder prompt (length 9000) is longer than the maximum model length of 8192. Make sure that ..."),
    ),
    "vllm input": (400, say("Input length (9000) exceeds model's maximum context length (8192).")),
    "vllm max_tokens": (
        400,
        say(
            "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is 4096 "
            "tokens and your request has 2104 input tokens (2000 > 4096 - 2104)."
        ),
    ),
    "vllm newer": (
        400,
        say(
            "You passed 8193 input tokens and requested 0 output tokens. However, the model's context length is only "
            "8192 tokens, resulting in a maximum input length of 8192 tokens."
        ),
    ),
    "sglang": (400, say("The input (10007 tokens) is longer than the model's context length (8192 tokens).")),
    "sglang total": (
        400,
        say("Requested token count exceeds the model's maximum context length of 8192 tokens. You requested 9000."),
    ),
    "tgi": (
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4076 `inputs` "
            "tokens and 100 `max_new_tokens`",
            "error_type": "validation",
        },
    ),
    "tgi inputs": (422, {"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 1025"}),
    "llama.cpp": (
        400,
        say(
            "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            type="exceed_context_size_error",
            n_prompt_tokens=5000,
            n_ctx=4096,
            code=400,
        ),
    ),
    "llama.cpp older": (
        500,
        say(
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            code=500,
            type="server_error",
        ),
    ),
    "llama.cpp mid": (500, say("Context size has been exceeded.", code=500, type="server_error")),
    "llama-cpp-python": (
        500,
        say("Requested tokens (5000) exceed context window of 2048", type="internal_server_error"),
    ),
    "ollama": (400, {"error": "the input length exceeds the context length"}),
    "ollama api": (400, {"error": {"message": "prompt too long; exceeded max context length by 4 tokens"}}),
    "lm studio": (
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the context length. Try to "
            "load the model with a larger context length, or provide a shorter input"
        },
    ),
    "lm studio overflow": (
        400,
        {
            "error": "Trying to keep the first 12000 tokens when context the overflows. However, the model is loaded "
            "with context length of only 4096 tokens, which is not enough."
        },
    ),
    "lm studio reached": (400, {"error": "Reached context length of 4096 tokens with this model"}),
    "tabbyapi": (400, {"detail": "Prompt length 9000 is greater than max_seq_len 8192"}),
    "tabbyapi context": (422, {"detail": "Context length 9000 is greater than max_seq_len 8192"}),
    "tensorrt-llm": (400, {"detail": "Prompt length (9000) exceeds maximum input length (8192)."}),
    "gemini": (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
    ),
    "vertex": (
        400,
        say("Unable to submit request because the input token count is 40000 but the model only supports up to 32768."),
    ),
    "xai": (400, say("This model's maximum prompt length is 131072 but the request contains 537812 tokens.")),
    "groq": (400, say("Please reduce the length of the messages or completion.", code="context_length_exceeded")),
    "groq minute": (
        413,
        say("Request too large for model `llama` on tokens per minute (TPM): Limit 12000, Requested 15000"),
    ),
    "cerebras": (
        400,
        say("Please reduce the length of the messages or completion. Current length is 8193 while limit is 8192"),
    ),
    "mistral": (
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
            "context length",
            "type": "invalid_request_error",
            "code": "3051",
        },
    ),
    "openrouter": (
        400,
        say(
            "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens. "
            'Please reduce the length of either one, or use the "middle-out" transform',
            code=400,
        ),
    ),
    "openrouter, upstream's words inside": (
        400,
        say(
            "Provider returned error",
            code=400,
            metadata={"raw": '{"error":{"message":"prompt is too long: 210317 tokens > 200000 maximum"}}'},
        ),
    ),
    "moonshot": (400, say("Invalid request: Your request exceeded model token limit: 131072 (requested: 200000)")),
    "moonshot input": (400, say("Input token length too long")),
    "zhipu": (400, say("Prompt exceeds max length", code="1261")),
    "zhipu tokens": (400, say("tokens in request more than max tokens allowed")),
    "dashscope": (400, say("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]")),
    "minimax": (400, say("invalid params, context window exceeds limit (2013)")),
    "together": (400, say("`inputs` tokens + `max_new_tokens` must be <= 131073. Given: 131100")),
    "fireworks": (400, say("The prompt is too long: 140000, model maximum context length: 131071")),
    "cohere": (400, {"message": "too many tokens: size limit exceeded by 100 tokens. Try using shorter inputs."}),
    "bedrock": (400, {"message": "Input is too long for requested model."}),
    "bedrock tokens": (400, {"message": "Input Tokens Exceeded: Number of input tokens exceeds maximum length."}),
    "copilot": (
        400,
        say("prompt token count of 140000 exceeds the limit of 128000", code="model_max_prompt_tokens_exceeded"),
    ),
    "deepseek": (400, say("This model's maximum context length is 65536 tokens. However, you requested 70000 tokens.")),
}

NOT_TOO_LONG: dict[str, tuple[int, Any, type[EverholdError]]] = {
    "openai minute": (
        429,
        say(
            "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29000, "
            "Requested 2000. Please try again in 2s.",
            code="rate_limit_exceeded",
        ),
        Overloaded,
    ),
    "anthropic minute": (
        429,
        say(
            "This request would exceed your organization's rate limit of 40,000 input tokens per minute. Please reduce "
            "the prompt length or the maximum tokens requested, or try again later.",
            type="rate_limit_error",
        ),
        Overloaded,
    ),
    "gemini quota": (
        429,
        [say("You exceeded your current quota. Quota exceeded for metric: input_token_count, limit: 250000")],
        Overloaded,
    ),
    "bedrock throttled": (429, {"message": "Too many tokens, please wait before trying again."}, Overloaded),
    "bedrock throttled, relayed": (
        503,
        say("ThrottlingException: Too many tokens, please wait before trying again."),
        Overloaded,
    ),
    "too many tokens a minute": (429, say("Too many tokens"), Overloaded),
    "too many requests": (429, say("Too many requests"), Overloaded),
    "output limit": (
        400,
        say("max_tokens is too large: 100000. This model supports at most 16384 completion tokens"),
        Refused,
    ),
    "budget": (400, say("`max_tokens` must be greater than `thinking.budget_tokens`."), Refused),
    "name": (400, say("Invalid 'tools[0].function.name': string too long. Expected at most 64 characters"), Refused),
    "images": (400, say("messages.0.content: too many images"), Refused),
    "schema": (400, say("Invalid schema for function 'x': in context=(), 'type' is required"), Refused),
    "model": (
        404,
        say("The model `long-context` does not exist; its maximum context length is unknown"),
        OperatorNeeded,
    ),
    "loading": (503, say("Loading model", type="unavailable_error", code=503), Overloaded),
}


@pytest.mark.parametrize("who", TOO_LONG)
def test_too_long_in_every_vendor_s_error_text(who: str) -> None:
    status, body = TOO_LONG[who]
    error = build_http_error(ENDPOINT, status=status, headers={}, body=json.dumps(body).encode(), now=NOW)
    assert type(error) is TooLong, error


@pytest.mark.parametrize("who", NOT_TOO_LONG)
def test_similar_texts_are_not_too_long(who: str) -> None:
    status, body, kind = NOT_TOO_LONG[who]
    error = build_http_error(ENDPOINT, status=status, headers={}, body=json.dumps(body).encode(), now=NOW)
    assert type(error) is kind, error


@pytest.mark.parametrize(
    "body, words",
    [
        (b'{"error": {"message": "m"}}', "m"),
        (b'{"error": "m"}', "m"),
        (b'[{"error": {"message": "m"}}]', "m"),
        (b'{"detail": "m"}', "m"),
        (b'{"detail": [{"loc": ["body"], "msg": "m"}]}', "m"),
        (b'{"message": "m", "type": "x"}', "m"),
        (b'{"errors": [{"message": "m"}]}', "m"),
        (b'"m"', "m"),
        (b"m", "m"),
        (b"<html><style>p{}</style><p>m</p></html>", "m"),
        (b"", ""),
        (b"[]", ""),
        (b"3", ""),
        (b'{"error": 3}', ""),
        (b'{"error": []}', ""),
        (b"[" * 9000, "[" * 9000),
    ],
)
def test_error_texts_are_found_in_any_format(body: bytes, words: str) -> None:
    assert parse_error_body(body).message == words
    assert isinstance(build_http_error(ENDPOINT, status=418, headers={}, body=body, now=NOW), Refused)


@given(st.binary(max_size=300), st.integers(min_value=300, max_value=599))
def test_any_body_becomes_an_error(body: bytes, status: int) -> None:
    error = build_http_error(ENDPOINT, status=status, headers={}, body=body, now=NOW)
    assert isinstance(error, Overloaded | Refused)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "502", "try again in 3s", "\ud800", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "details", "detail", "x"]), inner, max_size=4
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["error", "type", "message"]), JSON, max_size=3))
def test_any_error_object_becomes_an_error(body: dict[str, Any]) -> None:
    assert isinstance(build_body_error(ENDPOINT, body, now=NOW), Overloaded | Refused)


@pytest.mark.parametrize(
    "text",
    [
        "key topsecretvalue is wrong",
        "Incorrect API key provided: sk-proj-abc***************wxyz.",
        "Authorization: Bearer abcdef123456",
        "AIzaSyA1234567890abcdef is not valid",
        "gsk_abcdefgh12345678 expired",
    ],
)
def test_keys_are_masked(text: str) -> None:
    shown = ENDPOINT.redact_text(text)
    assert "***" in shown
    for key in ("topsecret", "sk-proj", "wxyz", "abcdef", "gsk_abc"):
        assert key not in shown


def test_long_and_unusual_texts_are_shortened_and_cleaned() -> None:
    shown = ENDPOINT.redact_text("a\n\tb\x1b[31m\u202e" + "x" * 1000)
    assert shown.startswith("a b[31mxxx")
    assert len(shown) == 300


# -- waits -------------------------------------------------------------------------------------------------------------

DATE = formatdate(NOW, usegmt=True)


@pytest.mark.parametrize(
    "headers, status, seconds",
    [
        ({}, 429, None),
        ({"Retry-After": "0"}, 429, 0.0),
        ({"RETRY-AFTER": " 12 "}, 503, 12.0),
        ({"retry-after": "0.75"}, 429, 0.75),
        ({"retry-after": "20s"}, 429, 20.0),
        ({"retry-after": formatdate(NOW + 90, usegmt=True)}, 503, 90.0),
        ({"retry-after": formatdate(NOW - 90, usegmt=True)}, 503, 0.0),
        ({"retry-after": formatdate(NOW + 90, usegmt=True), "date": formatdate(NOW + 60, usegmt=True)}, 503, 30.0),
        ({"retry-after": "2027-01-15T08:01:00Z"}, 429, 60.0),
        ({"retry-after-ms": "1500"}, 429, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 429, 1.5),
        ({"x-ms-retry-after-ms": "250"}, 429, 0.25),
        ({"x-ratelimit-reset-after": "3.5"}, 429, 3.5),
        ({"retry-after": "soon"}, 429, None),
        ({"retry-after": "-5"}, 429, None),
        ({"retry-after": "nan"}, 429, None),
        ({"retry-after": "inf"}, 429, None),
        ({"retry-after": "1e300"}, 429, None),
        ({"retry-after": ""}, 429, None),
        ({"retry-after": "soon", "x-ratelimit-reset-tokens": "7s"}, 429, 7.0),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 429, 360.0),
        (
            {
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-tokens": "6m0s",
                "x-ratelimit-remaining-tokens": "100",
            },
            429,
            1.0,
        ),
        ({"x-ratelimit-reset-tokens": "120ms"}, 429, 0.12),
        ({"x-ratelimit-reset-requests": "2m59.56s"}, 429, 179.56),
        ({"x-ratelimit-reset-tokens-minute": "11.25"}, 429, 11.25),
        ({"x-ratelimit-reset": str(int(NOW) + 40)}, 429, 40.0),
        ({"X-RateLimit-Reset": str(int(NOW + 40) * 1000)}, 429, 40.0),
        ({"ratelimit-reset": "15"}, 429, 15.0),
        ({"anthropic-ratelimit-input-tokens-reset": "2027-01-15T08:00:05Z"}, 429, 5.0),
        ({"x-ratelimit-reset-requests": "999999"}, 429, None),
        ({"x-ratelimit-reset-requests": "1s"}, 503, None),
        ({"x-ratelimit-reset-requests": "later"}, 429, None),
    ],
)
def test_retry_delays_are_parsed_in_every_notation(headers: dict[str, str], status: int, seconds: float | None) -> None:
    found = parse_retry_after(headers, status=status, now=NOW)
    assert found == (pytest.approx(seconds) if seconds is not None else None)


@pytest.mark.parametrize(
    "body, seconds",
    [
        (say("Please try again in 20s. Visit ..."), 20.0),
        (say("Please try again in 6m0s."), 360.0),
        (say("Please try again in 7m12.384s."), 432.384),
        (say("Please try again in 150ms."), 0.15),
        (say("Rate limited, retry in 30 seconds"), 30.0),
        (say("slow", details=[{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}]), 34.07),
        (say("try again in a few minutes"), None),
    ],
)
def test_retry_delays_are_parsed_in_texts(body: Any, seconds: float | None) -> None:
    error = build_http_error(ENDPOINT, status=429, headers={}, body=json.dumps(body).encode(), now=NOW)
    assert isinstance(error, Overloaded)
    assert error.retry_after == (pytest.approx(seconds) if seconds is not None else None)


@given(st.text(max_size=30))
def test_any_header_is_handled(value: str) -> None:
    for name in ("retry-after", "retry-after-ms", "x-ratelimit-reset", "date"):
        found = parse_retry_after({name: value}, status=429, now=NOW)
        assert found is None or found >= 0
    assert parse_duration(value) is None or parse_duration(value) is not None
    assert is_too_long_message(value) in (True, False)


# -- events ------------------------------------------------------------------------------------------------------------

FIELD = st.sampled_from(
    [b"data: x", b"data:y", b"data", b": comment", b"event: e", b"event:", b"id: 3", b"retry: 1", b"", b"z"]
)


def in_one_go(raw: bytes) -> list[tuple[str, bytes]]:
    """The standard, line by line, for a complete stream."""
    out: list[tuple[str, bytes]] = []
    name = ""
    data: list[bytes] = []
    for line in [*raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"), b""]:
        field, _, value = line.partition(b":")
        if not line:
            if data:
                out.append((name, b"\n".join(data)))
            name, data = "", []
        elif field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode()
    return out


@given(st.lists(FIELD), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(1, 9)), st.booleans())
def test_events_do_not_depend_on_how_the_bytes_arrive(
    lines: list[bytes], newline: bytes, cuts: list[int], mark: bool
) -> None:
    raw = newline.join(lines)
    events, found, at = SseParser(), [], 0
    whole = (b"\xef\xbb\xbf" if mark else b"") + raw
    for size in [*cuts, len(whole) or 1]:
        found += events.feed(whole[at : at + size])
        at += size
    assert found + events.close() == in_one_go(raw)


def test_an_endless_event_is_cut_off() -> None:
    events = SseParser()
    for _ in range(15):
        events.feed(b"x" * (1 << 20))
    with pytest.raises(StreamTooLarge):
        events.feed(b"x" * (2 << 20))


@pytest.mark.parametrize(
    "status, body, kind",
    [
        (401, say("Incorrect API key provided"), OperatorNeeded),
        (402, say("Insufficient credits"), OperatorNeeded),
        (403, say("This key may not use this model"), OperatorNeeded),
        (404, say("The model `gpt-9` does not exist"), OperatorNeeded),
        (
            429,
            say("You exceeded your current quota, please check your plan", code="insufficient_quota"),
            OperatorNeeded,
        ),
        (403, say("Your input was flagged by moderation"), Refused),
        (400, say("Invalid schema"), Refused),
        (503, say("overloaded"), Overloaded),
    ],
)
def test_what_only_an_operator_can_repair_is_told_apart(status: int, body: Any, kind: type[EverholdError]) -> None:
    error = build_http_error(ENDPOINT, status=status, headers={}, body=json.dumps(body).encode(), now=NOW)
    assert type(error) is kind
    assert error.remedy or kind is not OperatorNeeded
