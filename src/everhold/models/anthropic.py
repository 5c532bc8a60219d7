"""Anthropic's messages API: one request, one answer, no retries."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.core.entries import Call, Usage
from everhold.core.tokens import expected, weigh, weigh_request
from everhold.errors import Refused, TooLong
from everhold.models.factory import ModelFactory
from everhold.models.faults import Whom, dropped, fault_within, garbled
from everhold.models.reasoning import opened, seal, shown
from everhold.models.transcript import (
    LoadBlob,
    Picture,
    Pieces,
    Round,
    arguments,
    distinct,
    mend,
    mention,
    names,
    outcome,
    pictures,
    rounds,
    schema,
    spoken,
    wire_name,
)
from everhold.models.wire import Wire, at
from everhold.ports.clock import Clock
from everhold.ports.model import Answer, Message, Request
from everhold.secret import Secret

if TYPE_CHECKING:
    from everhold.models.settings import AnthropicSettings, Price

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_CUT: Final = frozenset({"max_tokens", "model_context_window_exceeded"})
_CHOICES: Final = {"auto": "auto", "none": "none", "required": "any"}
HOTTEST: Final = 1.0
"""The highest temperature there is here; elsewhere it is 2."""

_encode: Final = msgspec.json.Encoder().encode

Block = dict[str, Any]


class AnthropicModel:
    """A model behind a messages endpoint."""

    def __init__(self, settings: AnthropicSettings, *, clock: Clock, load_blob: LoadBlob | None = None) -> None:
        self.name = settings.name
        self.context_tokens = settings.context_tokens
        self.most_output = settings.limit if isinstance(settings.limit, int) else None
        self._settings = settings
        self._load = load_blob if settings.images else None
        self._maker = f"anthropic:{settings.name}"
        self._price = _price(settings)
        self._wire = Wire(
            url=at(settings.base_url, "/v1/messages"),
            model=settings.name,
            headers={**_authorization(settings), **settings.headers},
            plain={"anthropic-version": settings.version},
            deadlines=settings.deadline_seconds.deadlines(),
            clock=clock,
        )

    def __repr__(self) -> str:
        return f"<AnthropicModel {self._wire.whom}>"

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        body = await self.body(request)
        reading = _Reading(self._wire.whom, request, now=self._wire.now, on_text=on_text)
        await self._wire.ask(body, reading)
        return self._finish(request, reading, body)

    async def body(self, request: Request) -> bytes:
        """The bytes that are sent. Messages come last: a longer conversation begins like the shorter one."""
        settings = self._settings
        images = await pictures(request.messages, self._load, most=settings.max_image_bytes)
        params = settings.wishes(_translated(request))
        limit = params.pop("max_tokens")
        items = rounds(request.messages, wire_id=_wire_id)
        thinking = _thinks(params)
        if thinking and params["thinking"].get("type") == "enabled" and self._unsigned(items):
            # a tool round that another model began cannot go on with thinking: the API wants it signed from its start
            del params["thinking"]
            thinking = False
        if thinking and _forced(params):
            del params["thinking"]  # whoever is made to call a tool may not think about it first
            thinking = False
        messages = self._messages(items, images, thinking=thinking)
        fields: list[tuple[str, Any]] = [("model", self.name), ("max_tokens", limit)]
        fields += sorted((key, value) for key, value in params.items() if value is not None)
        fields.append(("stream", settings.stream))
        if request.tools:
            tools = [_tool(tool.name, tool.description, schema(tool)) for tool in request.tools]
            fields.append(("tools", tools))
            self._mark(tools[-1])
        if request.system.strip():
            system: Block = {"type": "text", "text": mend(request.system)}
            fields.append(("system", [system]))
            self._mark(system)
        for block in _newest(messages):
            self._mark(block)
        fields.append(("messages", messages))
        return b"{" + b",".join(_encode(key) + b":" + _encode(value) for key, value in fields) + b"}"

    def _mark(self, block: Block) -> None:
        if self._settings.cache != "off":
            block["cache_control"] = {"type": "ephemeral"}
            if self._settings.cache == "1h":
                block["cache_control"]["ttl"] = "1h"

    def _unsigned(self, items: list[Message | Round]) -> bool:
        """Whether the conversation stands in a tool round that does not begin with this model's thinking."""
        last = next((item for item in reversed(items) if isinstance(item, Round)), None)
        if last is None or not last.calls:
            return False
        return self._said(last, thinking=True)[0]["type"] not in ("thinking", "redacted_thinking")

    def _messages(
        self, items: list[Message | Round], images: dict[str, Picture | str], *, thinking: bool
    ) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []

        def add(role: str, blocks: list[Block]) -> None:
            if out and out[-1]["role"] == role:
                out[-1]["content"] += blocks
            elif blocks:
                out.append({"role": role, "content": blocks})

        if not items or isinstance(items[0], Round):
            add("user", [_text("(the conversation goes on)")])
        for item in items:
            if isinstance(item, Round):
                add("assistant", self._said(item, thinking=thinking))
                add("user", [_result(done.id, done.result, images) for done in item.calls])
            else:
                add("user", _heard(item, images))
        return out

    def _said(self, round_: Round, *, thinking: bool) -> list[Block]:
        text = mend(round_.message.text)
        calls = {
            done.call.id: {
                "type": "tool_use",
                "id": done.id,
                "name": wire_name(done.call.tool),
                "input": done.call.arguments,
            }
            for done in round_.calls
        }
        if thinking:
            sealed = opened(round_.message.reasoning, by=self._maker)
            if sealed and (blocks := _as_it_was(sealed, shown(round_.message.reasoning), text, dict(calls))):
                return blocks
        return [*([_text(text)] if text.strip() else []), *calls.values()]

    def _finish(self, request: Request, reading: _Reading, body: bytes) -> Answer:
        blocks = [reading.blocks[index] for index in sorted(reading.blocks)]
        written = [block for block in blocks if block.kind == "tool_use"]
        calls = distinct((block.call(reading.names) for block in written), taken=request.messages, body=body)
        text = "".join(str(block.text) for block in blocks if block.kind == "text")
        reasoning = "".join(str(block.text) for block in blocks if block.kind == "thinking")
        usage = self._usage(request, reading, blocks)
        if not text.strip() and not calls:
            _explain_silence(self._wire.whom, reading.finish, usage=usage)
        if any(block.kind in ("thinking", "redacted_thinking") for block in blocks):
            ids = iter(calls)
            reasoning = seal(
                reasoning,
                by=self._maker,
                parts=[block.skeleton(next(ids).id if block.kind == "tool_use" else "") for block in blocks],
            )
        return Answer(
            text=text,
            calls=calls,
            reasoning=reasoning,
            model=reading.model or self.name,
            usage=usage,
            finish="length" if reading.finish in _CUT else "",
        )

    def _usage(self, request: Request, reading: _Reading, blocks: list[_Block]) -> Usage:
        told = reading.usage
        read, written = told.get("cache_read_input_tokens", 0), told.get("cache_creation_input_tokens", 0)
        if told.get("input_tokens", 0) or read or written:
            usage = Usage(
                input=told.get("input_tokens", 0) + read + written, cached=read, output=told.get("output_tokens", 0)
            )
        else:
            # a server that counts nothing: an estimate keeps budgets honest, zero would not
            wrote = told.get("output_tokens", 0) or sum(block.weight() for block in blocks)
            usage = Usage(input=expected(weigh_request(request)), output=wrote)
        usd = self._price.usd(usage, written=written) if self._price is not None else 0.0
        return msgspec.structs.replace(usage, usd=usd)


class _Block:
    """One block of an answer as it is being written."""

    def __init__(self, kind: str, begun: dict[str, Any], on_text: Callable[[str], None] | None) -> None:
        self.kind = kind
        self.id = begun["id"] if isinstance(begun.get("id"), str) else ""
        self.name = begun["name"] if isinstance(begun.get("name"), str) else ""
        self.input = begun.get("input")
        self.sealed = begun["data"] if isinstance(begun.get("data"), str) else ""
        self.signature = begun["signature"] if isinstance(begun.get("signature"), str) else ""
        self.text = Pieces(on_text if kind == "text" else None)
        self._json: list[str] = []
        if isinstance(start := begun.get(kind), str):  # `text` holds its text in `text`, `thinking` in `thinking`
            self.text.add(start)

    def add(self, delta: dict[str, Any]) -> None:
        for key in ("text", "thinking"):
            if isinstance(piece := delta.get(key), str):
                self.text.add(piece)
        if isinstance(piece := delta.get("partial_json"), str):
            self._json.append(piece)
        if isinstance(piece := delta.get("signature"), str):
            self.signature += piece

    def call(self, known: dict[str, str]) -> Call:
        written = "".join(self._json)
        return Call(
            id=mend(self.id),
            tool=known.get(self.name, mend(self.name)),
            arguments=arguments(written if written.strip() else self.input),
        )

    def skeleton(self, call_id: str) -> list[Any]:
        """What is needed to write this block again from the answer's text, reasoning and calls."""
        if self.kind == "tool_use":
            return ["tool_use", call_id]
        if self.kind == "redacted_thinking":
            return ["redacted_thinking", self.sealed]
        return [self.kind, len(str(self.text)), self.signature]

    def weight(self) -> int:
        return weigh(str(self.text)) + weigh(self.name) + sum(map(weigh, self._json))


class _Reading:
    """Makes one answer out of events, or out of one whole message."""

    def __init__(
        self, whom: Whom, request: Request, *, now: Callable[[], float], on_text: Callable[[str], None] | None
    ) -> None:
        self._whom = whom
        self._now = now
        self._on_text = on_text
        self.names = names(request.tools)
        self.blocks: dict[int, _Block] = {}
        self.usage: dict[str, int] = {}
        self.model = ""
        self.finish = ""
        self.closed = False

    @property
    def finished(self) -> bool:
        return bool(self.finish)

    def event(self, name: str, data: bytes) -> None:
        if self.closed or not data.strip():
            return
        event = self._object(data)
        match event.get("type") or name:
            case "message_start":
                self._message(event.get("message"))
            case "content_block_start":
                self._begin(event.get("index"), event.get("content_block"))
            case "content_block_delta":
                block, delta = self.blocks.get(_index(event.get("index"))), event.get("delta")
                if block is not None and isinstance(delta, dict):
                    block.add(delta)
            case "message_delta":
                self._count(event.get("usage"))
                delta = event.get("delta")
                if isinstance(delta, dict) and isinstance(reason := delta.get("stop_reason"), str):
                    self.finish = reason
            case "message_stop":
                self.closed = True
                if not self.finish:
                    raise dropped(self._whom, "the stream was closed without a stop reason")
            case "error":
                raise fault_within(self._whom, event, now=self._now())
            case _:
                pass  # pings, block ends, and kinds to come

    def whole(self, data: bytes) -> None:
        body = self._object(data)
        if body.get("type") == "error" or body.get("error"):
            raise fault_within(self._whom, body, now=self._now())
        content = body.get("content")
        if not isinstance(content, list):
            raise garbled(self._whom, "JSON that is no message")
        self._message(body)
        for index, block in enumerate(content):
            self._begin(index, block)
        reason = body.get("stop_reason")
        self.finish = reason if isinstance(reason, str) and reason else "end_turn"

    def _object(self, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise garbled(self._whom, f"something that is no JSON object: {data[:80].decode('utf-8', 'replace')!r}")
        return value

    def _message(self, message: Any) -> None:
        if isinstance(message, dict):
            self._count(message.get("usage"))
            if isinstance(model := message.get("model"), str):
                self.model = mend(model)

    def _begin(self, index: Any, block: Any) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in ("text", "thinking", "redacted_thinking", "tool_use"):
            self.blocks[_index(index)] = _Block(kind, block, self._on_text)

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            for key, value in usage.items():
                if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40:
                    self.usage[key] = value


factory: Final = ModelFactory(
    "AnthropicSettings", lambda settings, context: AnthropicModel(settings, clock=context.clock, load_blob=context.blob)
)


# -- rendering ---------------------------------------------------------------------------------------------------------


def _authorization(settings: AnthropicSettings) -> dict[str, Secret]:
    if not settings.api_key or settings.auth == "none":
        return {}
    key = settings.api_key.reveal().strip()
    return {"x-api-key": Secret(key)} if settings.auth == "x-api-key" else {"authorization": Secret(f"Bearer {key}")}


def _price(settings: AnthropicSettings) -> Price | None:
    """The price with Anthropic's own factors where only input and output were given."""
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


def _translated(request: Request) -> dict[str, Any]:
    """What was asked for, as this API has it: a field that it does not know is refused."""
    asked = request.params
    params = {name: value for name, value in asked.items() if name not in ("stop", "seed", "tool_choice")}
    choice = asked.get("tool_choice")
    if choice and request.tools:
        named = isinstance(choice, dict)
        params["tool_choice"] = (
            {"type": "tool", "name": wire_name(choice["name"])} if named else {"type": _CHOICES[choice]}
        )
    stop = asked.get("stop") or ()
    if words := [word for word in ((stop,) if isinstance(stop, str) else stop) if word.strip()]:
        params["stop_sequences"] = words
    if "temperature" in params:
        params["temperature"] = min(params["temperature"], HOTTEST)
    return params


def _forced(params: dict[str, Any]) -> bool:
    choice = params.get("tool_choice")
    return isinstance(choice, dict) and choice.get("type") in ("any", "tool")


def _thinks(params: dict[str, Any]) -> bool:
    thinking = params.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") not in (None, "disabled")


def _tool(name: str, description: str, parameters: dict[str, Any]) -> Block:
    return {"name": wire_name(name), "description": description, "input_schema": parameters}


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _heard(message: Message, images: dict[str, Picture | str]) -> list[Block]:
    text = spoken(message)
    shown_: list[Block] = []
    for attachment in message.attachments:
        picture = images.get(attachment.blob)
        if isinstance(picture, Picture):
            shown_.append(_image(picture))
        else:
            text += ("\n" if text else "") + mention(attachment, picture or "")
    if text.strip():
        return [*shown_, _text(text)]
    return shown_ or [_text("(empty message)")]


def _result(id_: str, message: Message, images: dict[str, Picture | str]) -> Block:
    content: list[Block] = [_text(outcome(message))]
    content += [_image(picture) for a in message.attachments if isinstance(picture := images.get(a.blob), Picture)]
    block: Block = {"type": "tool_result", "tool_use_id": id_, "content": content}
    if message.error:
        block["is_error"] = True
    return block


def _image(picture: Picture) -> Block:
    return {"type": "image", "source": {"type": "base64", "media_type": picture.media, "data": picture.data}}


def _as_it_was(sealed: Any, reasoning: str, text: str, calls: dict[str, Block]) -> list[Block]:
    """The blocks exactly as this model wrote them; none if the answer is no longer what it was."""
    blocks: list[Block] = []
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
                    blocks.append(_text(text[said : said + what]))
                said += what
            elif kind == "tool_use":
                blocks.append(calls.pop(what))
    except (ValueError, TypeError, KeyError, IndexError):
        return []
    return blocks if said == len(text) and thought == len(reasoning) and not calls else []


def _newest(messages: list[dict[str, Any]]) -> list[Block]:
    """Where the cache may be entered: the end, and where the request before this one ended."""
    ends = [message["content"][-1] for message in messages[-1:]]
    if len(messages) > 2:
        ends.append(messages[-3]["content"][-1])
    return ends


def _wire_id(id_: str) -> str:
    return id_ if _ID.match(id_) else "toolu_" + hashlib.sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()[:24]


# -- reading -----------------------------------------------------------------------------------------------------------


def _index(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _explain_silence(whom: Whom, finish: str, *, usage: Usage) -> None:
    """An answer without a word is an answer only if the model meant to be silent."""
    if finish == "refusal":
        raise Refused(f"{whom}: the provider's safety filter withheld the answer", remedy="word it differently")
    if finish == "model_context_window_exceeded":
        raise TooLong(f"{whom}: its window was full before it could say anything")
    if finish == "max_tokens":
        raise Refused(
            f"{whom} used up its {usage.output} output tokens before it said anything",
            remedy="raise `max_tokens` for this model, or let it think less",
        )
