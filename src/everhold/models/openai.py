"""OpenAI's chat completions, which many servers implement: one request, one answer, no retries."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from everhold.core.attachments import sanitize_file_name
from everhold.core.entries import ModelUsage, ToolCall
from everhold.core.tokens import estimate_tokens, weigh_request, weigh_text
from everhold.errors import Overloaded, Refused, TooLong
from everhold.infra.secret import SecretString
from everhold.models.errors import ModelEndpoint, build_body_error, build_dropped_error, build_garbled_error
from everhold.models.factory import ModelFactory
from everhold.models.http_client import ModelHttpClient, join_url
from everhold.models.transcript import (
    AssistantRound,
    EncodedFile,
    FileRules,
    LoadBlob,
    TextAccumulator,
    ThinkTagSplitter,
    add_file,
    assign_unique_call_ids,
    build_parameter_schema,
    encode_tool_name,
    format_result_text,
    format_user_text,
    group_rounds,
    load_files,
    map_tool_names,
    open_seal,
    parse_arguments,
    repair_surrogates,
    seal_reasoning,
    strip_seal,
)
from everhold.ports.clock import Clock
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse, ToolSpec

if TYPE_CHECKING:
    from everhold.models.settings import OpenAISettings
    from everhold.ports.plugin import PluginContext

MAX_TOOL_NAME_CHARS: Final = 1_000
"""A longer name that comes in pieces is not completed, because no tool has it."""
_FAILED_REASONS: Final = frozenset({"error", "network_error", "insufficient_system_resource", "abort", "aborted"})
"""Finish reasons that mean that the answer is incomplete."""
_FILTERED_REASONS: Final = frozenset({"content_filter", "sensitive", "safety"})
_TRUNCATED_REASONS: Final = frozenset({"length", "max_tokens", "model_length", "model_context_window_exceeded"})

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode

MAX_CACHE_BYTES: Final = 8 * 1024 * 1024
"""How many rendered conversations are cached."""
LONG_MESSAGE_BYTES: Final = 64 * 1024


class OpenAIModel:
    """A model at a chat completions endpoint."""

    def __init__(self, settings: OpenAISettings, *, clock: Clock, load_blob: LoadBlob | None = None) -> None:
        self.name = settings.name
        self.context_tokens = settings.context_tokens
        self.max_output_tokens = settings.output_token_limit if isinstance(settings.output_token_limit, int) else None
        self._settings = settings
        self._load_blob = load_blob
        self._file_rules = FileRules(settings.images, settings.pdf, settings.max_image_bytes)
        self._http_client = ModelHttpClient(
            url=join_url(settings.base_url, "/chat/completions"),
            model=settings.name,
            headers={**_build_auth_headers(settings), **settings.headers},
            deadlines=settings.deadline_seconds.to_deadlines(),
            clock=clock,
        )
        host = urlsplit(settings.base_url).hostname or ""
        self._seal_owner = f"openai:{host}:{settings.name}"
        self._limit_key = settings.limit_key or (
            "max_completion_tokens" if host.endswith("openai.com") else "max_tokens"
        )
        nine = settings.call_ids == "nine" or (not settings.call_ids and host.endswith("mistral.ai"))
        self._encode_call_id = _make_nine_char_id if nine else _shorten_call_id
        replay = settings.reasoning or (
            "reasoning_content" if host.endswith(("deepseek.com", "moonshot.ai", "moonshot.cn")) else "none"
        )
        self._reasoning_key = "" if replay == "none" else replay
        self._message_cache = _RenderedMessageCache()
        self._rendered_tools = _RenderedTools((), {}, msgspec.Raw(b"[]"))

    def __repr__(self) -> str:
        return f"<OpenAIModel {self._http_client.endpoint}>"

    async def aclose(self) -> None:
        await self._http_client.aclose()

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        body = await self.encode_request(request)
        known = self._render_tools(request.tools).names
        reading = _OpenAIResponseReader(self._http_client.endpoint, known, now=self._http_client.now, on_text=on_text)
        await self._http_client.post(body, reading)
        return self._build_response(request, reading, body)

    async def encode_request(self, request: ModelRequest) -> bytes:
        """Return the bytes to send. Messages come last, so a longer conversation begins with the bytes of the shorter
        one."""
        settings = self._settings
        params = settings.merge_params(_translate_params(request))
        if limit := params.pop("max_tokens"):
            params[self._limit_key] = limit
        fields: dict[str, Any] = {"model": self.name}
        fields |= sorted((key, value) for key, value in params.items() if value is not None)
        fields["stream"] = settings.stream
        if settings.stream and settings.stream_usage:
            fields["stream_options"] = {"include_usage": True}
        if request.tools:
            fields["tools"] = self._render_tools(request.tools).rendered
        fields["messages"] = await self._build_messages(request)
        return _encode(fields)

    def _render_tools(self, tools: tuple[ToolSpec, ...]) -> _RenderedTools:
        """Return the tools in wire format. They are cached, because they rarely change between turns."""
        if self._rendered_tools.specs is not tools and not _are_same_objects(self._rendered_tools.specs, tools):
            self._rendered_tools = _RenderedTools(
                tools,
                map_tool_names(tools),
                msgspec.Raw(
                    _encode([_build_tool(tool.name, tool.description, build_parameter_schema(tool)) for tool in tools])
                ),
            )
        return self._rendered_tools

    async def _build_messages(self, request: ModelRequest) -> list[Any]:
        out: list[Any] = []
        if request.system:
            out.append({"role": "system", "content": repair_surrogates(request.system)})
        if not self._settings.alternate and (words := self._render_plain_messages(request.messages)) is not None:
            return out + words
        images = await load_files(request, self._load_blob, self._file_rules)
        for item in group_rounds(request.messages, wire_id=self._encode_call_id):
            if isinstance(item, AssistantRound):
                out.append(self._build_assistant_message(item))
                out += [
                    {"role": "tool", "tool_call_id": done.id, "content": _format_result(done.result)}
                    for done in item.calls
                ]
            elif self._settings.alternate and out and out[-1]["role"] == "user":
                out[-1]["content"] = _join_contents(out[-1]["content"], _build_user_content(item, images))
            else:
                out.append({"role": "user", "content": _build_user_content(item, images)})
        return out

    def _render_plain_messages(self, messages: tuple[ModelMessage, ...]) -> list[msgspec.Raw] | None:
        """Return a text-only conversation in wire format, or None if it contains anything else."""
        out, whole = self._message_cache.find_prefix(messages), True
        for message in messages[len(out) :]:
            if message.role == "tool" or message.calls or message.attachments:
                return None
            if message.role == "assistant" and not message.text.strip():
                whole = False
                continue
            out.append(msgspec.Raw(_encode(self._build_plain_message(message))))
        if whole:
            self._message_cache.store(messages, out)
        return out

    def _build_plain_message(self, message: ModelMessage) -> dict[str, Any]:
        if message.role == "assistant":
            return self._build_assistant_message(AssistantRound(message, ()))
        return {"role": "user", "content": _build_user_content(message, {})}

    def _build_assistant_message(self, round_: AssistantRound) -> dict[str, Any]:
        message = round_.message
        said: dict[str, Any] = {
            "role": "assistant",
            "content": repair_surrogates(message.text) if message.text.strip() else None,
        }
        if not round_.calls:
            return said
        sealed = open_seal(message.reasoning, by=self._seal_owner)
        kept = sealed if isinstance(sealed, dict) else {}
        if self._reasoning_key:
            said[self._reasoning_key] = repair_surrogates(strip_seal(message.reasoning))
        if "details" in kept:
            said["reasoning_details"] = kept["details"]
        extra = kept.get("extra", {})
        said["tool_calls"] = [
            {
                "id": done.id,
                "type": "function",
                "function": {
                    "name": encode_tool_name(done.call.tool),
                    "arguments": _encode(done.call.arguments).decode(),
                },
                **({"extra_content": extra[done.call.id]} if done.call.id in extra else {}),
            }
            for done in round_.calls
        ]
        return said

    def _build_response(self, request: ModelRequest, reading: _OpenAIResponseReader, body: bytes) -> ModelResponse:
        endpoint = self._http_client.endpoint
        text, reasoning = str(reading.text), str(reading.reasoning)
        written = [call for call in reading.calls if call.name]
        calls = assign_unique_call_ids(
            (call.build_call(reading.names) for call in written), taken=request.messages, body=body
        )
        usage = self._build_usage(request, reading, text=text + reasoning)
        if not text.strip() and not calls:
            _raise_for_empty_answer(endpoint, reading.finish, usage=usage, window=self.context_tokens)
        parts: dict[str, Any] = {}
        if extra := {call.id: w.extra for call, w in zip(calls, written, strict=True) if w.extra is not None}:
            parts["extra"] = extra
        if reading.details and calls:
            parts["details"] = reading.details
        if parts:
            reasoning = seal_reasoning(reasoning, by=self._seal_owner, parts=parts)
        return ModelResponse(
            text=text,
            calls=calls,
            reasoning=reasoning,
            model=reading.model or self.name,
            usage=usage,
            finish="length" if reading.finish in _TRUNCATED_REASONS else "",
        )

    def _build_usage(self, request: ModelRequest, reading: _OpenAIResponseReader, *, text: str) -> ModelUsage:
        counts = reading.usage
        if counts is None:
            # the server does not count tokens; an estimate keeps budgets right, zero would not
            wrote = weigh_text(text) + sum(call.estimate_tokens() for call in reading.calls)
            usage = ModelUsage(input=estimate_tokens(weigh_request(request)), output=wrote)
        else:
            usage = _parse_usage(counts)
        price = self._settings.price
        if price is not None:
            usd = price.compute_usd(usage)
        else:
            usd = _as_amount(counts.get("cost")) if counts is not None else 0.0
        return msgspec.structs.replace(usage, usd=usd)


class _RenderedMessageCache:
    """Conversations in wire format. Most of a request is byte for byte the previous one, so it is reused."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[tuple[ModelMessage, ...], list[msgspec.Raw], int]] = {}
        """Keyed by the id of their first message. While it is kept, no other object can have its id. The last used is
        last."""
        self._size_bytes = 0

    def find_prefix(self, messages: tuple[ModelMessage, ...]) -> list[msgspec.Raw]:
        """Return the cached part for these messages: as many of the first as are the same objects as before."""
        before = self._entries.get(id(messages[0])) if messages else None
        if before is None:
            return []
        same = list(map(operator.is_, messages, before[0]))
        return before[1][: same.index(False) if False in same else len(same)]

    def store(self, messages: tuple[ModelMessage, ...], rendered: list[msgspec.Raw]) -> None:
        if not messages:
            return
        _, _, before = self._entries.pop(id(messages[0]), ((), [], 0))
        size = sum(map(len, rendered))
        if size > LONG_MESSAGE_BYTES * len(
            messages
        ):  # the texts are kept, too; those of short ones are not worth counting
            size += sum(getsizeof(message.text) for message in messages)
        self._size_bytes += size - before
        self._entries[id(messages[0])] = (messages, rendered, size)
        while self._size_bytes > MAX_CACHE_BYTES:
            _, _, size = self._entries.pop(next(iter(self._entries)))
            self._size_bytes -= size


class _RenderedTools(NamedTuple):
    """Tools by their wire names, and their wire format."""

    specs: tuple[ToolSpec, ...]
    names: dict[str, str]
    rendered: msgspec.Raw


class _StreamedToolCall:
    """A tool call that is being received."""

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.name = ""
        self.extra: Any = None
        self._parts: list[str] = []
        self._object: dict[str, Any] | None = None

    def add(self, function: dict[str, Any], known: dict[str, str]) -> None:
        name = function.get("name")
        # some servers repeat the name in every fragment, others send it in pieces
        is_complete = self.name in known or len(self.name) > MAX_TOOL_NAME_CHARS
        if isinstance(name, str) and name != self.name and not is_complete:
            self.name += name
        part = function.get("arguments")
        if isinstance(part, str):
            self._parts.append(part)
        elif isinstance(part, dict):
            self._object = part

    def build_call(self, known: dict[str, str]) -> ToolCall:
        written = self._object if self._object is not None else "".join(self._parts)
        return ToolCall(
            id=repair_surrogates(self.id),
            tool=known.get(self.name, repair_surrogates(self.name)),
            arguments=parse_arguments(written),
        )

    def estimate_tokens(self) -> int:
        return weigh_text(self.name) + sum(map(weigh_text, self._parts))


class _OpenAIResponseReader:
    """Builds one answer from chunks, or from one whole completion."""

    def __init__(
        self,
        endpoint: ModelEndpoint,
        known: dict[str, str],
        *,
        now: Callable[[], float],
        on_text: Callable[[str], None] | None,
    ) -> None:
        """`known` tools: wire name -> everhold's name."""
        self._endpoint = endpoint
        self._now = now
        self.names = known
        self.text = TextAccumulator(on_text)
        self.reasoning = TextAccumulator()
        self.details: list[Any] = []
        self.calls: list[_StreamedToolCall] = []
        self._by_index: dict[int, _StreamedToolCall] = {}
        self.usage: dict[str, Any] | None = None
        self.model = ""
        self.finish = ""
        self.closed = False
        self._think_splitter = ThinkTagSplitter()

    @property
    def finished(self) -> bool:
        return bool(self.finish)

    def read_event(self, name: str, data: bytes) -> None:
        data = data.strip()
        if data == b"[DONE]":
            self.closed = True
            if not self.finish:
                raise build_dropped_error(self._endpoint, "the stream was closed without a finish reason")
            return
        if self.closed or not data:
            return
        chunk = self._decode_object(data)
        if name == "error" and "error" not in chunk:
            chunk = {"error": chunk}
        self._read_chunk(chunk, "delta")

    def read_whole(self, data: bytes) -> None:
        body = self._decode_object(data)
        self._read_chunk(body, "message")
        if not self.finish:
            if not body.get("choices"):
                raise build_garbled_error(self._endpoint, "JSON that is not a completion")
            self.finish = "stop"  # what parses as a whole was not cut off

    def _decode_object(self, data: bytes) -> dict[str, Any]:
        try:
            value = _decode(data)
        except (ValueError, RecursionError):
            value = _decode_leniently(data)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = value[0]
        if not isinstance(value, dict):
            raise build_garbled_error(
                self._endpoint, f"data that is not a JSON object: {data[:80].decode('utf-8', 'replace')!r}"
            )
        return value

    def _read_chunk(self, chunk: dict[str, Any], key: str) -> None:
        if chunk.get("error"):
            raise build_body_error(self._endpoint, chunk, now=self._now())
        if isinstance(model := chunk.get("model"), str) and model and model != self.model:
            self.model = repair_surrogates(model)
        self._read_usage(chunk)
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            return
        for choice in choices:
            if isinstance(choice, dict) and choice.get("index", 0) in (0, None):
                self._read_choice(choice, key)

    def _read_usage(self, chunk: dict[str, Any]) -> None:
        groq = chunk.get("x_groq")
        for usage in (chunk.get("usage"), groq.get("usage") if isinstance(groq, dict) else None):
            if isinstance(usage, dict) and usage:
                self.usage = usage

    def _read_choice(self, choice: dict[str, Any], key: str) -> None:
        if isinstance(usage := choice.get("usage"), dict) and usage:
            self.usage = usage
        delta = choice.get(key) or choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            self._read_delta(delta)
        finish = choice.get("finish_reason")
        if not isinstance(finish, str) or not finish:
            return
        if finish in _FAILED_REASONS:
            if isinstance(choice.get("error"), dict):
                raise build_body_error(self._endpoint, choice, now=self._now())
            raise build_dropped_error(self._endpoint, f"the answer broke off ({finish})")
        self._add_split_text(self._think_splitter.close())
        self.finish = finish

    def _read_delta(self, delta: dict[str, Any]) -> None:
        for name in ("reasoning_content", "reasoning"):
            if isinstance(piece := delta.get(name), str) and piece:
                self.reasoning.add(piece)
                break
        if isinstance(details := delta.get("reasoning_details"), list):
            self.details += details
        self._read_content(delta.get("content"))
        if isinstance(refusal := delta.get("refusal"), str):
            self.text.add(refusal)
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                if isinstance(call, dict):
                    self._read_call_fragment(call)

    def _read_content(self, content: Any) -> None:
        if isinstance(content, str):
            self._add_split_text(self._think_splitter.feed(content))
        elif isinstance(content, list):
            for part in content:
                if not isinstance(part, dict):
                    continue
                if isinstance(text := part.get("text"), str):
                    self._add_split_text(self._think_splitter.feed(text))
                elif "thinking" in part:
                    self._read_thinking(part["thinking"])

    def _read_thinking(self, thinking: Any) -> None:
        if isinstance(thinking, str):
            self.reasoning.add(thinking)
        elif isinstance(thinking, list):
            for part in thinking:
                if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                    self.reasoning.add(text)

    def _add_split_text(self, split: tuple[str, str]) -> None:
        thought, text = split
        if thought:
            self.reasoning.add(thought)
        if text:
            self.text.add(text)

    def _read_call_fragment(self, fragment: dict[str, Any]) -> None:
        id_ = fragment.get("id")
        id_ = id_ if isinstance(id_, str) else ""
        index = fragment.get("index")
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        writing = self._by_index.get(index) if isinstance(index, int) else (self.calls[-1] if self.calls else None)
        # servers without indexes give every call of an answer the same index, or none
        if writing is None or (id_ and writing.id and id_ != writing.id and function.get("name")):
            writing = _StreamedToolCall(id_)
            self.calls.append(writing)
            if isinstance(index, int):
                self._by_index[index] = writing
        elif id_ and not writing.id:
            writing.id = id_
        if fragment.get("extra_content") is not None:
            writing.extra = fragment["extra_content"]
        writing.add(function, self.names)


def _build_openai_model(settings: OpenAISettings, context: PluginContext) -> OpenAIModel:
    return OpenAIModel(settings, clock=context.clock, load_blob=context.blob)


factory: Final = ModelFactory("OpenAISettings", _build_openai_model)
ollama: Final = ModelFactory("OllamaSettings", _build_openai_model)
lmstudio: Final = ModelFactory("LmStudioSettings", _build_openai_model)
vllm: Final = ModelFactory("VllmSettings", _build_openai_model)
llamacpp: Final = ModelFactory("LlamaCppSettings", _build_openai_model)
"""Servers on this machine that speak the same API. They differ in their address and need no key."""


# -- rendering ---------------------------------------------------------------------------------------------------------


def _build_auth_headers(settings: OpenAISettings) -> dict[str, SecretString]:
    if not settings.api_key or settings.auth == "none":
        return {}
    key = settings.api_key.reveal().strip()
    return (
        {"authorization": SecretString(f"Bearer {key}")}
        if settings.auth == "bearer"
        else {"api-key": SecretString(key)}
    )


def _translate_params(request: ModelRequest) -> dict[str, Any]:
    """Return the request's parameters, with a tool choice if there are tools."""
    params = dict(request.params)
    choice = params.pop("tool_choice", None)
    if choice and request.tools:
        named = isinstance(choice, dict)
        params["tool_choice"] = (
            {"type": "function", "function": {"name": encode_tool_name(choice["name"])}} if named else choice
        )
    return params


def _build_tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": encode_tool_name(name), "description": description, "parameters": parameters},
    }


def _build_user_content(message: ModelMessage, images: dict[str, EncodedFile | str]) -> str | list[dict[str, Any]]:
    text = format_user_text(message)
    shown_: list[dict[str, Any]] = []
    for attachment in message.attachments:
        picture = images.get(attachment.blob)
        if isinstance(picture, EncodedFile) and picture.media:
            url = f"data:{picture.media};base64,{picture.data}"
            name = sanitize_file_name(attachment.name) or "file.pdf"
            shown_.append(
                {"type": "image_url", "image_url": {"url": url}}
                if picture.is_image
                else {"type": "file", "file": {"filename": name, "file_data": url}}
            )
        else:
            text = add_file(text, attachment, picture)
    if not shown_:
        return text or "(empty message)"
    return [*([{"type": "text", "text": text}] if text else []), *shown_]


def _format_result(message: ModelMessage) -> str:
    text = format_result_text(message)
    return f"Error: {text}" if message.error and not text.lower().startswith("error") else text


def _join_contents(first: str | list[dict[str, Any]], second: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _shorten_call_id(id_: str) -> str:
    """Return an id that OpenAI accepts: at most forty characters."""
    return id_ if 0 < len(id_) <= 40 and id_.isascii() else "call_" + _hash_id(id_)[:24]


def _make_nine_char_id(id_: str) -> str:
    return id_ if len(id_) == 9 and id_.isascii() and id_.isalnum() else _hash_id(id_)[:9]


def _hash_id(id_: str) -> str:
    return hashlib.sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()


def _are_same_objects(some: tuple[object, ...], others: tuple[object, ...]) -> bool:
    """Return whether these are the same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


# -- parsing -----------------------------------------------------------------------------------------------------------


def _decode_leniently(data: bytes) -> object:
    """Parse JSON that strict parsers refuse, for example with a lone surrogate; None if it is invalid."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _parse_usage(counts: dict[str, Any]) -> ModelUsage:
    read = _as_token_count(counts.get("prompt_tokens"))
    wrote = _as_token_count(counts.get("completion_tokens"))
    total = _as_token_count(counts.get("total_tokens"))
    details = counts.get("prompt_tokens_details")
    cached = _as_token_count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    cached = (
        cached or _as_token_count(counts.get("cached_tokens")) or _as_token_count(counts.get("prompt_cache_hit_tokens"))
    )
    # some vendors count reasoning in the total only
    return ModelUsage(input=read, cached=min(cached, read), output=max(wrote, total - read))


def _as_token_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else 0


def _as_amount(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6 else 0.0


def _raise_for_empty_answer(endpoint: ModelEndpoint, finish: str, *, usage: ModelUsage, window: int) -> None:
    """Check the answer. An answer without text is valid only if the model ended its turn."""
    if finish in _FILTERED_REASONS:
        raise Refused(f"{endpoint}: the provider's content filter withheld the answer", remedy="word it differently")
    if finish in _TRUNCATED_REASONS:
        if finish == "model_context_window_exceeded" or usage.input + usage.output >= window:
            raise TooLong(f"{endpoint}: the context window was full before the answer began")
        raise Refused(
            f"{endpoint} used all {usage.output} output tokens before the answer began",
            remedy="raise `max_tokens` for this model, or let it reason less",
        )
    if finish == "tool_calls":
        raise Overloaded(f"{endpoint} announced tool calls and made none")
