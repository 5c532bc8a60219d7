"""Anthropic's messages API: one request, one answer, no retries."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.core.entries import ModelUsage, ToolCall
from everhold.core.tokens import estimate_tokens, weigh_request, weigh_text
from everhold.errors import Refused, TooLong
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
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse

if TYPE_CHECKING:
    from everhold.models.settings import AnthropicSettings, ModelPrice

_CALL_ID_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_TRUNCATED_REASONS: Final = frozenset({"max_tokens", "model_context_window_exceeded"})
_TOOL_CHOICES: Final = {"auto": "auto", "none": "none", "required": "any"}
MAX_TEMPERATURE: Final = 1.0
"""The highest temperature of this API; other APIs allow 2."""

_encode: Final = msgspec.json.Encoder().encode

ContentBlock = dict[str, Any]


class AnthropicModel:
    """A model at a messages endpoint."""

    def __init__(self, settings: AnthropicSettings, *, clock: Clock, load_blob: LoadBlob | None = None) -> None:
        self.name = settings.name
        self.context_tokens = settings.context_tokens
        self.max_output_tokens = settings.output_token_limit if isinstance(settings.output_token_limit, int) else None
        self._settings = settings
        self._load_blob = load_blob
        self._file_rules = FileRules(settings.images, settings.pdf, settings.max_image_bytes)
        self._seal_owner = f"anthropic:{settings.name}"
        self._price = _build_price(settings)
        self._http_client = ModelHttpClient(
            url=join_url(settings.base_url, "/v1/messages"),
            model=settings.name,
            headers={**_build_auth_headers(settings), **settings.headers},
            plain={"anthropic-version": settings.version},
            deadlines=settings.deadline_seconds.to_deadlines(),
            clock=clock,
        )

    def __repr__(self) -> str:
        return f"<AnthropicModel {self._http_client.endpoint}>"

    async def aclose(self) -> None:
        await self._http_client.aclose()

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        body = await self.encode_request(request)
        reading = _AnthropicResponseReader(
            self._http_client.endpoint, request, now=self._http_client.now, on_text=on_text
        )
        await self._http_client.post(body, reading)
        return self._build_response(request, reading, body)

    async def encode_request(self, request: ModelRequest) -> bytes:
        """Return the bytes to send. Messages come last, so a longer conversation begins with the bytes of the shorter
        one."""
        settings = self._settings
        images = await load_files(request, self._load_blob, self._file_rules)
        params = settings.merge_params(_translate_params(request))
        limit = params.pop("max_tokens")
        items = group_rounds(request.messages, wire_id=_encode_call_id)
        thinking = _is_thinking_enabled(params)
        if thinking and params["thinking"].get("type") == "enabled" and self._lacks_thinking(items):
            # the API wants the thinking of a tool round signed from its start, so a round that another model began
            # cannot have it
            del params["thinking"]
            thinking = False
        if thinking and _is_tool_choice_forced(params):
            del params["thinking"]  # the API does not allow thinking with a forced tool call
            thinking = False
        messages = self._build_messages(items, images, thinking=thinking)
        fields: list[tuple[str, Any]] = [("model", self.name), ("max_tokens", limit)]
        fields += sorted((key, value) for key, value in params.items() if value is not None)
        fields.append(("stream", settings.stream))
        if request.tools:
            tools = [_build_tool(tool.name, tool.description, build_parameter_schema(tool)) for tool in request.tools]
            fields.append(("tools", tools))
            self._add_cache_control(tools[-1])
        if request.system.strip():
            system: ContentBlock = {"type": "text", "text": repair_surrogates(request.system)}
            fields.append(("system", [system]))
            self._add_cache_control(system)
        for block in _select_cache_points(messages):
            self._add_cache_control(block)
        fields.append(("messages", messages))
        return b"{" + b",".join(_encode(key) + b":" + _encode(value) for key, value in fields) + b"}"

    def _add_cache_control(self, block: ContentBlock) -> None:
        if self._settings.cache != "off":
            block["cache_control"] = {"type": "ephemeral"}
            if self._settings.cache == "1h":
                block["cache_control"]["ttl"] = "1h"

    def _lacks_thinking(self, items: list[ModelMessage | AssistantRound]) -> bool:
        """Return whether the conversation is in a tool round that does not begin with this model's thinking."""
        last = next((item for item in reversed(items) if isinstance(item, AssistantRound)), None)
        if last is None or not last.calls:
            return False
        return self._build_assistant_blocks(last, thinking=True)[0]["type"] not in ("thinking", "redacted_thinking")

    def _build_messages(
        self, items: list[ModelMessage | AssistantRound], images: dict[str, EncodedFile | str], *, thinking: bool
    ) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []

        def add(role: str, blocks: list[ContentBlock]) -> None:
            if out and out[-1]["role"] == role:
                out[-1]["content"] += blocks
            elif blocks:
                out.append({"role": role, "content": blocks})

        if not items or isinstance(items[0], AssistantRound):
            add("user", [_build_text_block("(the conversation goes on)")])
        for item in items:
            if isinstance(item, AssistantRound):
                add("assistant", self._build_assistant_blocks(item, thinking=thinking))
                add("user", [_build_result_block(done.id, done.result, images) for done in item.calls])
            else:
                add("user", _build_user_blocks(item, images))
        return out

    def _build_assistant_blocks(self, round_: AssistantRound, *, thinking: bool) -> list[ContentBlock]:
        text = repair_surrogates(round_.message.text)
        calls = {
            done.call.id: {
                "type": "tool_use",
                "id": done.id,
                "name": encode_tool_name(done.call.tool),
                "input": done.call.arguments,
            }
            for done in round_.calls
        }
        if thinking:
            sealed = open_seal(round_.message.reasoning, by=self._seal_owner)
            if sealed and (blocks := _restore_blocks(sealed, strip_seal(round_.message.reasoning), text, dict(calls))):
                return blocks
        return [*([_build_text_block(text)] if text.strip() else []), *calls.values()]

    def _build_response(self, request: ModelRequest, reading: _AnthropicResponseReader, body: bytes) -> ModelResponse:
        blocks = [reading.blocks[index] for index in sorted(reading.blocks)]
        written = [block for block in blocks if block.kind == "tool_use"]
        calls = assign_unique_call_ids(
            (block.build_call(reading.names) for block in written), taken=request.messages, body=body
        )
        text = "".join(str(block.text) for block in blocks if block.kind == "text")
        reasoning = "".join(str(block.text) for block in blocks if block.kind == "thinking")
        usage = self._build_usage(request, reading, blocks)
        if not text.strip() and not calls:
            _raise_for_empty_answer(self._http_client.endpoint, reading.finish, usage=usage)
        if any(block.kind in ("thinking", "redacted_thinking") for block in blocks):
            ids = iter(calls)
            reasoning = seal_reasoning(
                reasoning,
                by=self._seal_owner,
                parts=[block.build_skeleton(next(ids).id if block.kind == "tool_use" else "") for block in blocks],
            )
        return ModelResponse(
            text=text,
            calls=calls,
            reasoning=reasoning,
            model=reading.model or self.name,
            usage=usage,
            finish="length" if reading.finish in _TRUNCATED_REASONS else "",
        )

    def _build_usage(
        self, request: ModelRequest, reading: _AnthropicResponseReader, blocks: list[_StreamedBlock]
    ) -> ModelUsage:
        counts = reading.usage
        read, written = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
        if counts.get("input_tokens", 0) or read or written:
            usage = ModelUsage(
                input=counts.get("input_tokens", 0) + read + written, cached=read, output=counts.get("output_tokens", 0)
            )
        else:
            # the server does not count tokens; an estimate keeps budgets right, zero would not
            wrote = counts.get("output_tokens", 0) or sum(block.estimate_tokens() for block in blocks)
            usage = ModelUsage(input=estimate_tokens(weigh_request(request)), output=wrote)
        usd = self._price.compute_usd(usage, written=written) if self._price is not None else 0.0
        return msgspec.structs.replace(usage, usd=usd)


class _StreamedBlock:
    """One content block of an answer that is being received."""

    def __init__(self, kind: str, begun: dict[str, Any], on_text: Callable[[str], None] | None) -> None:
        self.kind = kind
        self.id = begun["id"] if isinstance(begun.get("id"), str) else ""
        self.name = begun["name"] if isinstance(begun.get("name"), str) else ""
        self.input = begun.get("input")
        self.sealed = begun["data"] if isinstance(begun.get("data"), str) else ""
        self._signature = [begun["signature"]] if isinstance(begun.get("signature"), str) else []
        self.text = TextAccumulator(on_text if kind == "text" else None)
        self._json: list[str] = []
        if isinstance(
            start := begun.get(kind), str
        ):  # a `text` block has its text in `text`, a `thinking` block in `thinking`
            self.text.add(start)

    def add(self, delta: dict[str, Any]) -> None:
        for key in ("text", "thinking"):
            if isinstance(piece := delta.get(key), str):
                self.text.add(piece)
        if isinstance(piece := delta.get("partial_json"), str):
            self._json.append(piece)
        if isinstance(piece := delta.get("signature"), str):
            self._signature.append(piece)

    def build_call(self, known: dict[str, str]) -> ToolCall:
        written = "".join(self._json)
        return ToolCall(
            id=repair_surrogates(self.id),
            tool=known.get(self.name, repair_surrogates(self.name)),
            arguments=parse_arguments(written if written.strip() else self.input),
        )

    def build_skeleton(self, call_id: str) -> list[Any]:
        """Return what is needed to rebuild this block from the answer's text, reasoning and calls."""
        if self.kind == "tool_use":
            return ["tool_use", call_id]
        if self.kind == "redacted_thinking":
            return ["redacted_thinking", self.sealed]
        return [self.kind, len(str(self.text)), "".join(self._signature)]

    def estimate_tokens(self) -> int:
        return weigh_text(str(self.text)) + weigh_text(self.name) + sum(map(weigh_text, self._json))


class _AnthropicResponseReader:
    """Builds one answer from events, or from one whole message."""

    def __init__(
        self,
        endpoint: ModelEndpoint,
        request: ModelRequest,
        *,
        now: Callable[[], float],
        on_text: Callable[[str], None] | None,
    ) -> None:
        self._endpoint = endpoint
        self._now = now
        self._on_text = on_text
        self.names = map_tool_names(request.tools)
        self.blocks: dict[int, _StreamedBlock] = {}
        self.usage: dict[str, int] = {}
        self.model = ""
        self.finish = ""
        self.closed = False

    @property
    def finished(self) -> bool:
        return bool(self.finish)

    def read_event(self, name: str, data: bytes) -> None:
        if self.closed or not data.strip():
            return
        event = self._decode_object(data)
        match event.get("type") or name:
            case "message_start":
                self._read_message(event.get("message"))
            case "content_block_start":
                self._begin_block(event.get("index"), event.get("content_block"))
            case "content_block_delta":
                block, delta = self.blocks.get(_as_index(event.get("index"))), event.get("delta")
                if block is not None and isinstance(delta, dict):
                    block.add(delta)
            case "message_delta":
                self._read_usage(event.get("usage"))
                delta = event.get("delta")
                if isinstance(delta, dict) and isinstance(reason := delta.get("stop_reason"), str):
                    self.finish = reason
            case "message_stop":
                self.closed = True
                if not self.finish:
                    raise build_dropped_error(self._endpoint, "the stream was closed without a stop reason")
            case "error":
                raise build_body_error(self._endpoint, event, now=self._now())
            case _:
                pass  # pings, block ends, and kinds that may be added

    def read_whole(self, data: bytes) -> None:
        body = self._decode_object(data)
        if body.get("type") == "error" or body.get("error"):
            raise build_body_error(self._endpoint, body, now=self._now())
        content = body.get("content")
        if not isinstance(content, list):
            raise build_garbled_error(self._endpoint, "JSON that is not a message")
        self._read_message(body)
        for index, block in enumerate(content):
            self._begin_block(index, block)
        reason = body.get("stop_reason")
        self.finish = reason if isinstance(reason, str) and reason else "end_turn"

    def _decode_object(self, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise build_garbled_error(
                self._endpoint, f"data that is not a JSON object: {data[:80].decode('utf-8', 'replace')!r}"
            )
        return value

    def _read_message(self, message: Any) -> None:
        if isinstance(message, dict):
            self._read_usage(message.get("usage"))
            if isinstance(model := message.get("model"), str):
                self.model = repair_surrogates(model)

    def _begin_block(self, index: Any, block: Any) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in ("text", "thinking", "redacted_thinking", "tool_use"):
            self.blocks[_as_index(index)] = _StreamedBlock(kind, block, self._on_text)

    def _read_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            for key, value in usage.items():
                if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40:
                    self.usage[key] = value


factory: Final = ModelFactory(
    "AnthropicSettings", lambda settings, context: AnthropicModel(settings, clock=context.clock, load_blob=context.blob)
)


# -- rendering ---------------------------------------------------------------------------------------------------------


def _build_auth_headers(settings: AnthropicSettings) -> dict[str, SecretString]:
    if not settings.api_key or settings.auth == "none":
        return {}
    key = settings.api_key.reveal().strip()
    return (
        {"x-api-key": SecretString(key)}
        if settings.auth == "x-api-key"
        else {"authorization": SecretString(f"Bearer {key}")}
    )


def _build_price(settings: AnthropicSettings) -> ModelPrice | None:
    """Return the price, with Anthropic's factors where only input and output prices are given."""
    price = settings.price
    if price is None:
        return None
    write = 2.0 if settings.cache == "1h" else 1.25
    return price.model_copy(
        update={
            "cached": price.input * 0.1 if price.cached is None else price.cached,
            "cache_write": price.input * write if price.cache_write is None else price.cache_write,
        }
    )


def _translate_params(request: ModelRequest) -> dict[str, Any]:
    """Return the request's parameters for this API, which refuses unknown fields."""
    asked = request.params
    params = {name: value for name, value in asked.items() if name not in ("stop", "seed", "tool_choice")}
    choice = asked.get("tool_choice")
    if choice and request.tools:
        named = isinstance(choice, dict)
        params["tool_choice"] = (
            {"type": "tool", "name": encode_tool_name(choice["name"])} if named else {"type": _TOOL_CHOICES[choice]}
        )
    stop = asked.get("stop") or ()
    if words := [word for word in ((stop,) if isinstance(stop, str) else stop) if word.strip()]:
        params["stop_sequences"] = words
    if "temperature" in params:
        params["temperature"] = min(params["temperature"], MAX_TEMPERATURE)
    return params


def _is_tool_choice_forced(params: dict[str, Any]) -> bool:
    choice = params.get("tool_choice")
    return isinstance(choice, dict) and choice.get("type") in ("any", "tool")


def _is_thinking_enabled(params: dict[str, Any]) -> bool:
    thinking = params.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") not in (None, "disabled")


def _build_tool(name: str, description: str, parameters: dict[str, Any]) -> ContentBlock:
    return {"name": encode_tool_name(name), "description": description, "input_schema": parameters}


def _build_text_block(text: str) -> ContentBlock:
    return {"type": "text", "text": text}


def _build_user_blocks(message: ModelMessage, images: dict[str, EncodedFile | str]) -> list[ContentBlock]:
    text = format_user_text(message)
    shown_: list[ContentBlock] = []
    for attachment in message.attachments:
        picture = images.get(attachment.blob)
        if isinstance(picture, EncodedFile) and picture.media:
            shown_.append(_build_file_block(picture))
        else:
            text = add_file(text, attachment, picture)
    if text.strip():
        return [*shown_, _build_text_block(text)]
    return shown_ or [_build_text_block("(empty message)")]


def _build_result_block(id_: str, message: ModelMessage, images: dict[str, EncodedFile | str]) -> ContentBlock:
    content: list[ContentBlock] = [_build_text_block(format_result_text(message))]
    content += [
        _build_file_block(picture)
        for a in message.attachments
        if isinstance(picture := images.get(a.blob), EncodedFile) and picture.is_image
    ]
    block: ContentBlock = {"type": "tool_result", "tool_use_id": id_, "content": content}
    if message.error:
        block["is_error"] = True
    return block


def _build_file_block(picture: EncodedFile) -> ContentBlock:
    kind = "image" if picture.is_image else "document"
    return {"type": kind, "source": {"type": "base64", "media_type": picture.media, "data": picture.data}}


def _restore_blocks(sealed: Any, reasoning: str, text: str, calls: dict[str, ContentBlock]) -> list[ContentBlock]:
    """Return the blocks exactly as this model wrote them, or none if the answer was changed."""
    blocks: list[ContentBlock] = []
    thought = said = 0
    try:
        for kind, what, *signature in sealed:
            if kind == "thinking":
                blocks.append(
                    {"type": kind, "thinking": reasoning[thought : thought + what], "signature": signature[0]}
                )
                thought += what
            elif kind == "redacted_thinking":
                blocks.append({"type": kind, "data": what})
            elif kind == "text":
                if text[said : said + what].strip():
                    blocks.append(_build_text_block(text[said : said + what]))
                said += what
            elif kind == "tool_use":
                blocks.append(calls.pop(what))
    except (ValueError, TypeError, KeyError, IndexError):
        return []
    return blocks if said == len(text) and thought == len(reasoning) and not calls else []


def _select_cache_points(messages: list[dict[str, Any]]) -> list[ContentBlock]:
    """Set the cache points: at the end, and where the previous request ended."""
    ends = [message["content"][-1] for message in messages[-1:]]
    if len(messages) > 2:
        ends.append(messages[-3]["content"][-1])
    return ends


def _encode_call_id(id_: str) -> str:
    return (
        id_
        if _CALL_ID_PATTERN.match(id_)
        else "toolu_" + hashlib.sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    )


# -- parsing -----------------------------------------------------------------------------------------------------------


def _as_index(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _raise_for_empty_answer(endpoint: ModelEndpoint, finish: str, *, usage: ModelUsage) -> None:
    """Check the answer. An answer without text is valid only if the model ended its turn."""
    if finish == "refusal":
        raise Refused(f"{endpoint}: the provider's safety filter withheld the answer", remedy="word it differently")
    if finish == "model_context_window_exceeded":
        raise TooLong(f"{endpoint}: the context window was full before the answer began")
    if finish == "max_tokens":
        raise Refused(
            f"{endpoint} used all {usage.output} output tokens before the answer began",
            remedy="raise `max_tokens` for this model, or let it think less",
        )
