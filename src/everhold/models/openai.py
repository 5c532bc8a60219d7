"""Chat completions, as OpenAI began them and many servers speak them: one request, one answer, no retries."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from everhold.core.entries import Call, Usage
from everhold.core.tokens import expected, weigh, weigh_request
from everhold.errors import Overloaded, Refused, TooLong
from everhold.models.factory import ModelFactory
from everhold.models.faults import Whom, dropped, fault_within, garbled
from everhold.models.reasoning import Tagged, opened, seal, shown
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
from everhold.ports.model import Answer, Message, Request, ToolSpec
from everhold.secret import Secret

if TYPE_CHECKING:
    from everhold.models.settings import OpenAISettings

_BROKEN: Final = frozenset({"error", "network_error", "insufficient_system_resource", "abort", "aborted"})
"""Finish reasons that mean the opposite."""
_FILTERED: Final = frozenset({"content_filter", "sensitive", "safety"})
_CUT: Final = frozenset({"length", "max_tokens", "model_length", "model_context_window_exceeded"})

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode

MOST_BYTES: Final = 8 * 1024 * 1024
"""Of conversations that are kept as they were told last."""


class OpenAIModel:
    """A model behind a chat-completions endpoint."""

    def __init__(self, settings: OpenAISettings, *, clock: Clock, load_blob: LoadBlob | None = None) -> None:
        self.name = settings.name
        self.context_tokens = settings.context_tokens
        self.most_output = settings.limit if isinstance(settings.limit, int) else None
        self._settings = settings
        self._load = load_blob if settings.images else None
        self._wire = Wire(
            url=at(settings.base_url, "/chat/completions"),
            model=settings.name,
            headers={**_authorization(settings), **settings.headers},
            deadlines=settings.deadline_seconds.deadlines(),
            clock=clock,
        )
        host = urlsplit(settings.base_url).hostname or ""
        self._maker = f"openai:{host}:{settings.name}"
        self._limit_key = settings.limit_key or (
            "max_completion_tokens" if host.endswith("openai.com") else "max_tokens"
        )
        nine = settings.call_ids == "nine" or (not settings.call_ids and host.endswith("mistral.ai"))
        self._wire_id = _nine if nine else _forty
        replay = settings.reasoning or (
            "reasoning_content" if host.endswith(("deepseek.com", "moonshot.ai", "moonshot.cn")) else "none"
        )
        self._replay = "" if replay == "none" else replay
        self._told = _Told()
        self._tools = _Offered((), {}, msgspec.Raw(b"[]"))

    def __repr__(self) -> str:
        return f"<OpenAIModel {self._wire.whom}>"

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        body = await self.body(request)
        known = self._offered(request.tools).names
        reading = _Reading(self._wire.whom, known, now=self._wire.now, on_text=on_text)
        await self._wire.ask(body, reading)
        return self._finish(request, reading, body)

    async def body(self, request: Request) -> bytes:
        """The bytes that are sent. Messages come last: a longer conversation begins like the shorter one."""
        settings = self._settings
        params = settings.wishes(_translated(request))
        if limit := params.pop("max_tokens"):
            params[self._limit_key] = limit
        fields: dict[str, Any] = {"model": self.name}
        fields |= sorted((key, value) for key, value in params.items() if value is not None)
        fields["stream"] = settings.stream
        if settings.stream and settings.stream_usage:
            fields["stream_options"] = {"include_usage": True}
        if request.tools:
            fields["tools"] = self._offered(request.tools).rendered
        fields["messages"] = await self._messages(request)
        return _encode(fields)

    def _offered(self, tools: tuple[ToolSpec, ...]) -> _Offered:
        """The tools as they go over the wire; from turn to turn they are the same."""
        if self._tools.specs is not tools and not _same(self._tools.specs, tools):
            self._tools = _Offered(
                tools,
                names(tools),
                msgspec.Raw(_encode([_tool(tool.name, tool.description, schema(tool)) for tool in tools])),
            )
        return self._tools

    async def _messages(self, request: Request) -> list[Any]:
        out: list[Any] = []
        if request.system:
            out.append({"role": "system", "content": mend(request.system)})
        if not self._settings.alternate and (words := self._words(request.messages)) is not None:
            return out + words
        images = await pictures(request.messages, self._load, most=self._settings.max_image_bytes)
        for item in rounds(request.messages, wire_id=self._wire_id):
            if isinstance(item, Round):
                out.append(self._said(item))
                out += [
                    {"role": "tool", "tool_call_id": done.id, "content": _result(done.result)} for done in item.calls
                ]
            elif self._settings.alternate and out and out[-1]["role"] == "user":
                out[-1]["content"] = _joined(out[-1]["content"], _heard(item, images))
            else:
                out.append({"role": "user", "content": _heard(item, images)})
        return out

    def _words(self, messages: tuple[Message, ...]) -> list[msgspec.Raw] | None:
        """A conversation of nothing but words, as it goes over the wire; None if there is more in it."""
        out, whole = self._told.beginning(messages), True
        for message in messages[len(out) :]:
            if message.role == "tool" or message.calls or message.attachments:
                return None
            if message.role == "assistant" and not message.text.strip():
                whole = False
                continue
            out.append(msgspec.Raw(_encode(self._word(message))))
        if whole:
            self._told.keep(messages, out)
        return out

    def _word(self, message: Message) -> dict[str, Any]:
        if message.role == "assistant":
            return self._said(Round(message, ()))
        return {"role": "user", "content": _heard(message, {})}

    def _said(self, round_: Round) -> dict[str, Any]:
        message = round_.message
        said: dict[str, Any] = {"role": "assistant", "content": mend(message.text) if message.text.strip() else None}
        if not round_.calls:
            return said
        sealed = opened(message.reasoning, by=self._maker)
        kept = sealed if isinstance(sealed, dict) else {}
        if self._replay:
            said[self._replay] = mend(shown(message.reasoning))
        if "details" in kept:
            said["reasoning_details"] = kept["details"]
        extra = kept.get("extra", {})
        said["tool_calls"] = [
            {
                "id": done.id,
                "type": "function",
                "function": {
                    "name": wire_name(done.call.tool),
                    "arguments": _encode(done.call.arguments).decode(),
                },
                **({"extra_content": extra[done.call.id]} if done.call.id in extra else {}),
            }
            for done in round_.calls
        ]
        return said

    def _finish(self, request: Request, reading: _Reading, body: bytes) -> Answer:
        whom = self._wire.whom
        text, reasoning = str(reading.text), str(reading.reasoning)
        written = [call for call in reading.calls if call.name]
        calls = distinct((call.finished(reading.names) for call in written), taken=request.messages, body=body)
        usage = self._usage(request, reading, text=text + reasoning)
        if not text.strip() and not calls:
            _explain_silence(whom, reading.finish, usage=usage, window=self.context_tokens)
        parts: dict[str, Any] = {}
        if extra := {call.id: w.extra for call, w in zip(calls, written, strict=True) if w.extra is not None}:
            parts["extra"] = extra
        if reading.details and calls:
            parts["details"] = reading.details
        if parts:
            reasoning = seal(reasoning, by=self._maker, parts=parts)
        return Answer(
            text=text,
            calls=calls,
            reasoning=reasoning,
            model=reading.model or self.name,
            usage=usage,
            finish="length" if reading.finish in _CUT else "",
        )

    def _usage(self, request: Request, reading: _Reading, *, text: str) -> Usage:
        told = reading.usage
        if told is None:
            # a server that counts nothing: an estimate keeps budgets honest, zero would not
            wrote = weigh(text) + sum(call.weight() for call in reading.calls)
            usage = Usage(input=expected(weigh_request(request)), output=wrote)
        else:
            usage = _usage(told)
        price = self._settings.price
        if price is not None:
            usd = price.usd(usage)
        else:
            usd = _amount(told.get("cost")) if told is not None else 0.0
        return msgspec.structs.replace(usage, usd=usd)


class _Told:
    """Conversations as they were told last: most of a request is what the one before it was, to the byte."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[tuple[Message, ...], list[msgspec.Raw], int]] = {}
        """By their first message: while it is kept, no other one can have its id. Who was used last stands last."""
        self._bytes = 0

    def beginning(self, messages: tuple[Message, ...]) -> list[msgspec.Raw]:
        """What is known of these: of as many of the first as are the very ones that were told before."""
        before = self._kept.get(id(messages[0])) if messages else None
        if before is None:
            return []
        same = list(map(operator.is_, messages, before[0]))
        return before[1][: same.index(False) if False in same else len(same)]

    def keep(self, messages: tuple[Message, ...], rendered: list[msgspec.Raw]) -> None:
        if not messages:
            return
        _, _, before = self._kept.pop(id(messages[0]), ((), [], 0))
        size = sum(map(len, rendered))
        self._bytes += size - before
        self._kept[id(messages[0])] = (messages, rendered, size)
        while self._bytes > MOST_BYTES:
            _, _, size = self._kept.pop(next(iter(self._kept)))
            self._bytes -= size


class _Offered(NamedTuple):
    """Tools, by their names on the wire and as they are told."""

    specs: tuple[ToolSpec, ...]
    names: dict[str, str]
    rendered: msgspec.Raw


class _Writing:
    """A tool call as it is being written."""

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.name = ""
        self.extra: Any = None
        self._parts: list[str] = []
        self._object: dict[str, Any] | None = None

    def add(self, function: dict[str, Any], known: dict[str, str]) -> None:
        name = function.get("name")
        # some servers repeat the name with every fragment, others write it in pieces
        if isinstance(name, str) and name != self.name and self.name not in known:
            self.name += name
        part = function.get("arguments")
        if isinstance(part, str):
            self._parts.append(part)
        elif isinstance(part, dict):
            self._object = part

    def finished(self, known: dict[str, str]) -> Call:
        written = self._object if self._object is not None else "".join(self._parts)
        return Call(id=mend(self.id), tool=known.get(self.name, mend(self.name)), arguments=arguments(written))

    def weight(self) -> int:
        return weigh(self.name) + sum(map(weigh, self._parts))


class _Reading:
    """Makes one answer out of chunks, or out of one whole completion."""

    def __init__(
        self, whom: Whom, known: dict[str, str], *, now: Callable[[], float], on_text: Callable[[str], None] | None
    ) -> None:
        """`known` tools: name on the wire -> name at home."""
        self._whom = whom
        self._now = now
        self.names = known
        self.text = Pieces(on_text)
        self.reasoning = Pieces()
        self.details: list[Any] = []
        self.calls: list[_Writing] = []
        self._by_index: dict[int, _Writing] = {}
        self.usage: dict[str, Any] | None = None
        self.model = ""
        self.finish = ""
        self.closed = False
        self._tagged = Tagged()

    @property
    def finished(self) -> bool:
        return bool(self.finish)

    def event(self, name: str, data: bytes) -> None:
        data = data.strip()
        if data == b"[DONE]":
            self.closed = True
            if not self.finish:
                raise dropped(self._whom, "the stream was closed without a finish reason")
            return
        if self.closed or not data:
            return
        chunk = self._object(data)
        if name == "error" and "error" not in chunk:
            chunk = {"error": chunk}
        self._take(chunk, "delta")

    def whole(self, data: bytes) -> None:
        body = self._object(data)
        self._take(body, "message")
        if not self.finish:
            if not body.get("choices"):
                raise garbled(self._whom, "JSON that is no completion")
            self.finish = "stop"  # what parses as a whole was not cut off

    def _object(self, data: bytes) -> dict[str, Any]:
        try:
            value = _decode(data)
        except (ValueError, RecursionError):
            value = _lenient(data)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = value[0]
        if not isinstance(value, dict):
            raise garbled(self._whom, f"something that is no JSON object: {data[:80].decode('utf-8', 'replace')!r}")
        return value

    def _take(self, chunk: dict[str, Any], key: str) -> None:
        if chunk.get("error"):
            raise fault_within(self._whom, chunk, now=self._now())
        if isinstance(model := chunk.get("model"), str) and model and model != self.model:
            self.model = mend(model)
        self._count(chunk)
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            return
        for choice in choices:
            if isinstance(choice, dict) and choice.get("index", 0) in (0, None):
                self._choice(choice, key)

    def _count(self, chunk: dict[str, Any]) -> None:
        groq = chunk.get("x_groq")
        for usage in (chunk.get("usage"), groq.get("usage") if isinstance(groq, dict) else None):
            if isinstance(usage, dict) and usage:
                self.usage = usage

    def _choice(self, choice: dict[str, Any], key: str) -> None:
        if isinstance(usage := choice.get("usage"), dict) and usage:
            self.usage = usage
        delta = choice.get(key) or choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            self._delta(delta)
        finish = choice.get("finish_reason")
        if not isinstance(finish, str) or not finish:
            return
        if finish in _BROKEN:
            if isinstance(choice.get("error"), dict):
                raise fault_within(self._whom, choice, now=self._now())
            raise dropped(self._whom, f"the answer broke off ({finish})")
        self._word(self._tagged.close())
        self.finish = finish

    def _delta(self, delta: dict[str, Any]) -> None:
        for name in ("reasoning_content", "reasoning"):
            if isinstance(piece := delta.get(name), str) and piece:
                self.reasoning.add(piece)
                break
        if isinstance(details := delta.get("reasoning_details"), list):
            self.details += details
        self._content(delta.get("content"))
        if isinstance(refusal := delta.get("refusal"), str):
            self.text.add(refusal)
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                if isinstance(call, dict):
                    self._call(call)

    def _content(self, content: Any) -> None:
        if isinstance(content, str):
            self._word(self._tagged.feed(content))
        elif isinstance(content, list):
            for part in content:
                if not isinstance(part, dict):
                    continue
                if isinstance(text := part.get("text"), str):
                    self._word(self._tagged.feed(text))
                elif "thinking" in part:
                    self._thought(part["thinking"])

    def _thought(self, thinking: Any) -> None:
        if isinstance(thinking, str):
            self.reasoning.add(thinking)
        elif isinstance(thinking, list):
            for part in thinking:
                if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                    self.reasoning.add(text)

    def _word(self, split: tuple[str, str]) -> None:
        thought, text = split
        if thought:
            self.reasoning.add(thought)
        if text:
            self.text.add(text)

    def _call(self, fragment: dict[str, Any]) -> None:
        id_ = fragment.get("id")
        id_ = id_ if isinstance(id_, str) else ""
        index = fragment.get("index")
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        writing = self._by_index.get(index) if isinstance(index, int) else (self.calls[-1] if self.calls else None)
        # servers that do not count give every call of an answer the same index, or none
        if writing is None or (id_ and writing.id and id_ != writing.id and function.get("name")):
            writing = _Writing(id_)
            self.calls.append(writing)
            if isinstance(index, int):
                self._by_index[index] = writing
        elif id_ and not writing.id:
            writing.id = id_
        if fragment.get("extra_content") is not None:
            writing.extra = fragment["extra_content"]
        writing.add(function, self.names)


factory: Final = ModelFactory(
    "OpenAISettings", lambda settings, context: OpenAIModel(settings, clock=context.clock, load_blob=context.blob)
)


# -- rendering ---------------------------------------------------------------------------------------------------------


def _authorization(settings: OpenAISettings) -> dict[str, Secret]:
    if not settings.api_key or settings.auth == "none":
        return {}
    key = settings.api_key.reveal().strip()
    return {"authorization": Secret(f"Bearer {key}")} if settings.auth == "bearer" else {"api-key": Secret(key)}


def _translated(request: Request) -> dict[str, Any]:
    """What was asked for; a choice of tools where there are any."""
    params = dict(request.params)
    choice = params.pop("tool_choice", None)
    if choice and request.tools:
        named = isinstance(choice, dict)
        params["tool_choice"] = (
            {"type": "function", "function": {"name": wire_name(choice["name"])}} if named else choice
        )
    return params


def _tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": wire_name(name), "description": description, "parameters": parameters},
    }


def _heard(message: Message, images: dict[str, Picture | str]) -> str | list[dict[str, Any]]:
    text = spoken(message)
    shown_: list[dict[str, Any]] = []
    for attachment in message.attachments:
        picture = images.get(attachment.blob)
        if isinstance(picture, Picture):
            url = f"data:{picture.media};base64,{picture.data}"
            shown_.append({"type": "image_url", "image_url": {"url": url}})
        else:
            text += ("\n" if text else "") + mention(attachment, picture or "")
    if not shown_:
        return text or "(empty message)"
    return [*([{"type": "text", "text": text}] if text else []), *shown_]


def _result(message: Message) -> str:
    text = outcome(message)
    return f"Error: {text}" if message.error and not text.lower().startswith("error") else text


def _joined(first: str | list[dict[str, Any]], second: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _forty(id_: str) -> str:
    """An id as OpenAI takes it: at most forty characters."""
    return id_ if 0 < len(id_) <= 40 and id_.isascii() else "call_" + _hash(id_)[:24]


def _nine(id_: str) -> str:
    return id_ if len(id_) == 9 and id_.isascii() and id_.isalnum() else _hash(id_)[:9]


def _hash(id_: str) -> str:
    return hashlib.sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()


def _same(some: tuple[object, ...], others: tuple[object, ...]) -> bool:
    """Whether these are the very same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


# -- reading -----------------------------------------------------------------------------------------------------------


def _lenient(data: bytes) -> object:
    """What stricter readers refuse and servers send all the same, half a surrogate pair for one; None if it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _usage(told: dict[str, Any]) -> Usage:
    read = _tokens(told.get("prompt_tokens"))
    wrote = _tokens(told.get("completion_tokens"))
    total = _tokens(told.get("total_tokens"))
    details = told.get("prompt_tokens_details")
    cached = _tokens(details.get("cached_tokens")) if isinstance(details, dict) else 0
    cached = cached or _tokens(told.get("cached_tokens")) or _tokens(told.get("prompt_cache_hit_tokens"))
    # some vendors leave reasoning out of what was completed, but not out of the total
    return Usage(input=read, cached=min(cached, read), output=max(wrote, total - read))


def _tokens(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else 0


def _amount(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6 else 0.0


def _explain_silence(whom: Whom, finish: str, *, usage: Usage, window: int) -> None:
    """An answer without a word is an answer only if the model meant to be silent."""
    if finish in _FILTERED:
        raise Refused(f"{whom}: the provider's content filter withheld the answer", remedy="word it differently")
    if finish in _CUT:
        if finish == "model_context_window_exceeded" or usage.input + usage.output >= window:
            raise TooLong(f"{whom}: its window was full before it could say anything")
        raise Refused(
            f"{whom} used up its {usage.output} output tokens before it said anything",
            remedy="raise `max_tokens` for this model, or let it reason less",
        )
    if finish == "tool_calls":
        raise Overloaded(f"{whom} announced tool calls and made none")
