"""The steps of the scripted model server, and its answers in each vendor's format."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from everhold.core.entries import ToolCall

CREATED_AT: Final = 1_750_000_000


class ReceivedModelRequest(Struct, frozen=True, kw_only=True):
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def dialect(self) -> Literal["openai", "anthropic"]:
        return "anthropic" if self.path.split("?")[0].endswith("/messages") else "openai"


# -- steps: how to answer the next request
# ------------------------------------------------------------------------------


class StreamFault(Struct, frozen=True, kw_only=True):
    """A fault after `after` events of a stream, or in the middle of a whole answer.

    `end`: the body ends properly, but the answer is incomplete. `done`: the stream also says that it is complete.
    `drop`: the connection closes. `reset`: it is reset. `hang`: nothing more comes. `alive`: only keep-alives come.
    `garbage`: invalid bytes. `error`: the vendor's error event. `repeat`: that event comes `times` times.
    """

    kind: Literal["end", "done", "drop", "reset", "hang", "alive", "garbage", "error", "repeat"]
    after: int = 2
    times: int = 100


class ModelServerReply(Struct, frozen=True, kw_only=True):
    """An answer. Everything that a real server decides can be set here."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    pieces: tuple[str, ...] | None = None
    """The streamed pieces of the text; by default its words."""
    raw_arguments: str | None = None
    """Replaces the arguments of every call, valid JSON or not."""
    finish: str = ""
    model: str = ""
    usage: bool = True
    """False: a server that does not count tokens."""
    stream: bool | None = None
    """Whether to stream, regardless of the request."""
    done: bool = True
    """False: no [DONE], no message_stop."""
    linger: bool = False
    """The connection stays open after the answer is complete."""
    pause_seconds: float = 0.0
    """Seconds between events."""
    bytes_per_write: int = 0
    """Bytes per write; 0: an event per write."""
    newline: str = "\n"
    cut: StreamFault | None = None


class ModelServerStatus(Struct, frozen=True, kw_only=True):
    """A refusal with this status and this body."""

    status: int
    body: Any = None
    """Bytes are sent unchanged, anything else as JSON."""
    headers: dict[str, str] = {}


VendorFailureKind = Literal[
    "rate_limit",
    "server_error",
    "overloaded",
    "too_long",
    "unauthorized",
    "forbidden",
    "not_found",
    "invalid",
    "billing",
]


class VendorFailure(Struct, frozen=True, kw_only=True):
    """A refusal in the format of the vendor whose API was called."""

    kind: VendorFailureKind
    headers: dict[str, str] = {}


class HangingConnection(Struct, frozen=True):
    """Accepts the request and never answers."""


class DroppedConnection(Struct, frozen=True):
    """Accepts the request and closes, or resets, the connection."""

    reset: bool = False


ModelServerStep: TypeAlias = (
    ModelServerReply | ModelServerStatus | VendorFailure | HangingConnection | DroppedConnection
)
ModelServerScript: TypeAlias = ModelServerStep | Callable[[ReceivedModelRequest], ModelServerStep]


def make_rate_limit_failure(after: str | None = "2", **headers: str) -> VendorFailure:
    """A 429; underscores in header names become dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return VendorFailure(kind="rate_limit", headers={**({"retry-after": after} if after is not None else {}), **named})


# -- rendering ---------------------------------------------------------------------------------------------------------


class OpenaiReplyRenderer:
    """Render a chat completion, whole or in chunks."""

    def __init__(self, reply: ModelServerReply, body: Any, counts: dict[str, int], number: int) -> None:
        self._reply = reply
        self.id = f"chatcmpl-{number}"
        self._finish = reply.finish or ("tool_calls" if reply.calls else "stop")
        self._model = reply.model or body.get("model", "fake")
        self._usage_asked = bool((body.get("stream_options") or {}).get("include_usage"))
        self._usage = {
            "prompt_tokens": counts["read"],
            "completion_tokens": counts["wrote"],
            "total_tokens": counts["read"] + counts["wrote"],
            "prompt_tokens_details": {"cached_tokens": counts["cached"], "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": estimate_tokens(reply.reasoning)},
        }

    def render_whole(self) -> dict[str, Any]:
        reply = self._reply
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.tool, "arguments": _format_arguments(reply, c)}}
                for c in reply.calls
            ]
        out = self._make_envelope("chat.completion")
        out["choices"] = [{"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish}]
        if reply.usage:
            out["usage"] = self._usage
        return out

    def render_events(self) -> Iterator[bytes]:
        reply = self._reply
        yield self._render_chunk({"role": "assistant", "content": "", "refusal": None})
        for piece in _split_words(reply.reasoning):
            yield self._render_chunk({"reasoning_content": piece})
        for piece in _split_words(reply.text) if reply.pieces is None else reply.pieces:
            yield self._render_chunk({"content": piece})
        for index, call in enumerate(reply.calls):
            start = {
                "index": index,
                "id": call.id,
                "type": "function",
                "function": {"name": call.tool, "arguments": ""},
            }
            yield self._render_chunk({"tool_calls": [start]})
            for piece in _split_thirds(_format_arguments(reply, call)):
                yield self._render_chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield self._render_chunk({}, finish=self._finish)
        if self._usage_asked and reply.usage:
            yield _format_sse_data(
                {**self._make_envelope("chat.completion.chunk"), "choices": [], "usage": self._usage}
            )
        if reply.done:
            yield self.render_end()

    def render_error(self) -> bytes:
        return _format_sse_data({"error": {"message": "The server had an error", "type": "server_error", "code": None}})

    def render_end(self) -> bytes:
        return b"data: [DONE]\n\n"

    def render_keepalive(self) -> bytes:
        return b": PROCESSING\n\n"

    def _render_chunk(self, delta: dict[str, Any], *, finish: str | None = None) -> bytes:
        frame = self._make_envelope("chat.completion.chunk")
        frame["choices"] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        if self._usage_asked and self._reply.usage:
            frame["usage"] = None
        return _format_sse_data(frame)

    def _make_envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": CREATED_AT,
            "model": self._model,
            "system_fingerprint": "fp_fake",
        }


class AnthropicReplyRenderer:
    """Render a message, whole or as events."""

    def __init__(self, reply: ModelServerReply, body: Any, counts: dict[str, int], number: int) -> None:
        self._reply = reply
        self.id = f"msg_{number:024d}"
        self._finish = reply.finish or ("tool_use" if reply.calls else "end_turn")
        self._model = reply.model or body.get("model", "fake")
        self._counts = counts

    def render_whole(self) -> dict[str, Any]:
        message = self._make_message()
        message["content"] = [block for block, _ in self._iter_blocks()]
        message["stop_reason"] = self._finish
        if self._reply.usage:
            message["usage"] = self._make_usage(self._counts["wrote"])
        return message

    def render_events(self) -> Iterator[bytes]:
        start = self._make_message()
        if self._reply.usage:
            start["usage"] = self._make_usage(1)
        yield _format_sse_event("message_start", message=start)
        yield self.render_keepalive()
        for index, (block, deltas) in enumerate(self._iter_blocks()):
            yield _format_sse_event("content_block_start", index=index, content_block=_empty_block(block))
            for delta in deltas:
                yield _format_sse_event("content_block_delta", index=index, delta=delta)
            yield _format_sse_event("content_block_stop", index=index)
        usage = {"output_tokens": self._counts["wrote"]} if self._reply.usage else {}
        yield _format_sse_event(
            "message_delta", delta={"stop_reason": self._finish, "stop_sequence": None}, usage=usage
        )
        if self._reply.done:
            yield self.render_end()

    def render_error(self) -> bytes:
        return _format_sse_event("error", error={"type": "overloaded_error", "message": "Overloaded"})

    def render_end(self) -> bytes:
        return _format_sse_event("message_stop")

    def render_keepalive(self) -> bytes:
        return _format_sse_event("ping")

    def _make_message(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _make_usage(self, wrote: int) -> dict[str, Any]:
        counts = self._counts
        return {
            "input_tokens": counts["read"],
            "cache_creation_input_tokens": counts["written"],
            "cache_read_input_tokens": counts["cached"],
            "output_tokens": wrote,
            "service_tier": "standard",
        }

    def _iter_blocks(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        reply = self._reply
        if reply.reasoning:
            mark = sign_thinking(reply.reasoning)
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _split_words(reply.reasoning)]
            deltas.append({"type": "signature_delta", "signature": mark})
            yield {"type": "thinking", "thinking": reply.reasoning, "signature": mark}, deltas
        if reply.text:
            pieces = _split_words(reply.text) if reply.pieces is None else reply.pieces
            yield {"type": "text", "text": reply.text}, [{"type": "text_delta", "text": piece} for piece in pieces]
        for call in reply.calls:
            written = _split_thirds(_format_arguments(reply, call))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *written]]
            yield {"type": "tool_use", "id": call.id, "name": call.tool, "input": call.arguments}, deltas


def sign_thinking(thinking: str) -> str:
    """Return the signature of this server's thinking, which it recognises."""
    return hashlib.sha256(b"fake" + thinking.encode()).hexdigest()


def _empty_block(block: dict[str, Any]) -> dict[str, Any]:
    empty = {"text": "", "thinking": "", "signature": "", "input": {}}
    return {key: empty.get(key, value) if key != "type" else value for key, value in block.items()}


def _format_arguments(reply: ModelServerReply, call: ToolCall) -> str:
    return reply.raw_arguments if reply.raw_arguments is not None else json.dumps(call.arguments)


def _split_words(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+\Z", text)


def _split_thirds(text: str) -> list[str]:
    step = max(1, -(-len(text) // 3))
    return [text[i : i + step] for i in range(0, len(text), step)]


def _format_sse_data(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _format_sse_event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\n".encode() + _format_sse_data({"type": name, **fields})


def dump_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def estimate_tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)
