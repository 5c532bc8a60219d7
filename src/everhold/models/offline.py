"""A model that needs no network and no key. It is a program that quotes, calls tools and summarises, and it says so.

The same request always gets the same answer. It answers from the conversation and from recalled memories, and knows
nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from msgspec import Struct, structs

from everhold.core.compression import STAYS_VERBATIM
from everhold.core.entries import ModelUsage, ToolCall
from everhold.core.provenance import FOREIGN_LINE_PREFIX, OWN_LINE_PREFIX, UNKNOWN_AUTHOR, describe_author
from everhold.core.tokens import estimate_tokens, weigh_json, weigh_request, weigh_text
from everhold.errors import TooLong
from everhold.models.factory import ModelFactory
from everhold.models.sentence_selection import (
    SpokenLine,
    find_best_line,
    format_bullets,
    parse_spoken_lines,
    select_key_lines,
    split_sentences,
)
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse, ToolSpec
from everhold.ports.plugin import PluginContext

if TYPE_CHECKING:
    from everhold.models.settings import OfflineSettings

SELF_DESCRIPTION: Final = (
    "I am everhold's offline model: a small program, not a language model. I need no network and no key. I answer by "
    "quoting what was said here and what was remembered, I call tools when you say “use tool NAME {…}”, and I write "
    "summaries."
)
SUMMARY_SHARE: Final = 0.45
"""Of what is summed up."""
MIN_SUMMARY_SHARE: Final = 0.4
"""What is left of a summary beside messages that stay verbatim. They take a part of its place."""
SUMMARY_TOKENS: Final = 1_200
MAX_QUOTE_CHARS: Final = 400

_SUMMARY_REQUEST: Final = re.compile(
    r"\b(?:summar(?:y|ise|ize|ies)|condense|compress)\b.{0,200}"
    r"\b(?:conversation|chat|dialogue|transcript|messages|session)",
    re.IGNORECASE | re.DOTALL,
)
_TOKEN_LIMIT: Final = re.compile(
    r"(?:at most|no more than|within|under|up to|maximum(?: of)?|max\.?)\s+(?:about\s+)?"
    r"([\d,]{2,7})\s+(words|tokens|characters)",
    re.IGNORECASE,
)
_TAG: Final = re.compile(r"<(/?)([\w:-]{1,64})\b[^<>]*>")
_RECALL_TAG: Final = re.compile(r"recall|memor|remember|context", re.IGNORECASE)
_RECALL_WORD: Final = re.compile(r"\b(?:recall|memor)", re.IGNORECASE)
_RECALL_HEADING_CHARS: Final = 250
_BULLET: Final = re.compile(r"[ \t]*[-*•]")
_TOOL_REQUEST: Final = re.compile(
    r"\b(?:use|call|run)\s+(?:the\s+)?(?:tool\s+[\"'`“]?([\w:./-]+)[\"'`”]?|[\"'`“]?([\w:./-]+)[\"'`”]?\s+tool\b)",
    re.IGNORECASE,
)
_REMEMBER_REQUEST: Final = re.compile(
    r"^(?:please[, ]+|can you |could you |hey[, ]+)*+"
    r"(?:remember|note|keep in mind|don.t forget|make a note|merk dir|merke dir)\b[,:]?\s*"
    r"(?:(?:that|this|dass|of)\b[,:]?\s*)?(.+)",
    re.IGNORECASE | re.DOTALL,
)
_SEARCH_REQUEST: Final = re.compile(
    r"^(?:please[, ]+|can you |could you )*+"
    r"(?:search(?: (?:the|our|my|your))?(?: (?:log|history|sessions?|memory|conversations?))?(?: for)?|look up|"
    r"look for|suche(?: nach)?)\b[:,]?\s+(.+)",
    re.IGNORECASE | re.DOTALL,
)
_QUESTION: Final = re.compile(
    r"^(?:(?:and|so|but|now|then|ok|okay|well|please)[, ]+)*(?:what|who|whom|whose|when|where|why|which|how|is|are|was|"
    r"were|do|does|did|can|could|will|would|should|have|has|tell me|was|wer|wie|wo|wann|warum)\b",
    re.IGNORECASE,
)
_IDENTITY_QUESTION: Final = re.compile(
    r"\b(?:who|what) are you\b|\bwhat can you do\b|\bwhat is this\b|^/?help\b|\bare you (?:an? )?(?:ai|llm|model|real)",
    re.IGNORECASE,
)
_GREETING: Final = re.compile(r"^(?:hi|hello|hey|hallo|good (?:morning|evening|day))\b[\s\w,!.]{0,30}$", re.IGNORECASE)
_RECAP_REQUEST: Final = re.compile(r"\b(?:summari[sz]e|sum (?:it|this|that|us) up|summary|recap)\b", re.IGNORECASE)

_HEADING: Final = re.compile(r"\[Summary of [^\]]{0,400}\]")
_NOTICE: Final = re.compile(r"everhold: \[.*\]$")
_SPEAKER_PREFIX: Final = re.compile(r"[^\s:\[\]-][^:\n\[\]]{0,39}: ")
_SPEAKER_LINE: Final = re.compile(r"\[((?=[^\]]* · )[^\]]*|(?:forwarded|quoted|embedded), [^\]]*)\] ?(.*)")
_STAYS: Final = f" · {STAYS_VERBATIM}"
_PIECE_HEAD: Final = re.compile(r"\w+, written by (.*?); data")

_STORING_TOOLS: Final = ("remember", "memory_add", "memory", "note", "notes")
_SEARCHING_TOOLS: Final = ("session_search", "search", "memory_search", "recall")
_TEXT_PARAMETERS: Final = ("text", "content", "fact", "note", "query", "q", "value", "message", "memory", "data")
_ADD_ACTIONS: Final = ("add", "remember", "save", "store", "create", "note", "append", "write", "search", "find")
_GATEWAY_NAME: Final = "everhold"
"""The name of the gateway's own messages in a conversation."""
_MEMORY_NAME: Final = "memory"
"""The name of recalled material in a request. It is data and never a request of a person."""


class UsagePricing(Protocol):
    def compute_usd(self, usage: ModelUsage) -> float: ...


class RequestedToolCall(Struct, frozen=True):
    """A tool that a person asks for."""

    tool: str
    arguments: dict[str, Any]


class OfflineModel:
    """Implements the model port without a language model."""

    def __init__(
        self,
        *,
        name: str = "offline",
        context_tokens: int = 16_000,
        pace: float = 0.0,
        price: UsagePricing | None = None,
    ) -> None:
        self.name = name
        self.context_tokens = context_tokens
        self._seconds_per_word = pace
        self._price = price

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        read = estimate_tokens(weigh_request(request))
        if read > self.context_tokens:
            raise TooLong(f"{self.name}: the request has about {read} tokens, its window holds {self.context_tokens}")
        text, calls = _build_reply(request, self.context_tokens)
        for word in re.findall(r"\s*\S+|\s+\Z", text):
            if on_text is not None:
                on_text(word)
            if self._seconds_per_word:
                await asyncio.sleep(self._seconds_per_word)
        usage = ModelUsage(input=read, output=weigh_text(text) + sum(weigh_json(call.arguments) + 10 for call in calls))
        if self._price is not None:
            usage = structs.replace(usage, usd=self._price.compute_usd(usage))
        return ModelResponse(text=text, calls=calls, model=self.name, usage=usage)


def _build(settings: OfflineSettings, _: PluginContext) -> OfflineModel:
    return OfflineModel(
        name=settings.name,
        context_tokens=settings.context_tokens,
        pace=settings.seconds_per_word,
        price=settings.price,
    )


factory: Final = ModelFactory("OfflineSettings", _build)


# -- what to do --------------------------------------------------------------------------------------------------------


def _build_reply(request: ModelRequest, window: int) -> tuple[str, tuple[ToolCall, ...]]:
    if not request.tools and _SUMMARY_REQUEST.search(request.system):
        return _build_summary(request, window), ()
    before, turn = _split_current_turn(request.messages)
    results = _collect_results(turn)
    parts: list[str] = []
    wishes: list[RequestedToolCall] = []
    earlier = [line for message in before for line in _extract_lines(message)]
    for message in turn:
        if message.name == _MEMORY_NAME:
            earlier += _extract_lines(message)
        if message.role != "user" or message.name in (_GATEWAY_NAME, _MEMORY_NAME):
            continue
        said, recalled = split_recalled(message.text)
        for item in _find_requested_calls(said, _list_callable_tools(request)):
            if isinstance(item, str):
                parts.append(item)
            elif (result := results.get(_make_call_key(item.tool, item.arguments))) is not None:
                parts.append(result)
            else:
                wishes.append(item)
        if not _find_requested_calls(said, _list_callable_tools(request)):
            known = [*earlier, *(SpokenLine(text=s, source="recalled") for s in recalled)]
            parts.append(
                _answer_text(said, message.name, known) if said or not message.pieces else _quote_pieces(message)
            )
        earlier += _extract_lines(message)
    if wishes:
        return "", tuple(_build_call(requested, index, request) for index, requested in enumerate(wishes))
    if _is_first_contact(request.messages) and SELF_DESCRIPTION not in parts:
        parts.insert(0, SELF_DESCRIPTION)
    return "\n\n".join(parts) or SELF_DESCRIPTION, ()


def _split_current_turn(messages: Sequence[ModelMessage]) -> tuple[Sequence[ModelMessage], Sequence[ModelMessage]]:
    """Return the finished part and the current turn: everything after the last answer without a tool call."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "assistant" and not messages[index].calls:
            return messages[: index + 1], messages[index + 1 :]
    return (), messages


def _is_first_contact(messages: Sequence[ModelMessage]) -> bool:
    return not any(
        (message.role == "assistant" and not message.calls) or message.text.startswith("[Summary")
        for message in messages
    )


def _collect_results(turn: Sequence[ModelMessage]) -> dict[str, str]:
    """Return the results of the calls that this turn has already made, as text."""
    calls = {call.id: call for message in turn for call in message.calls}
    results: dict[str, str] = {}
    for message in turn:
        call = calls.get(message.call) if message.role == "tool" else None
        if call is not None:
            verb = "failed" if message.error else "returned"
            results[_make_call_key(call.tool, call.arguments)] = (
                f"{call.tool} {verb}: {message.text.strip() or 'nothing'}"
            )
    return results


def _make_call_key(tool: str, arguments: dict[str, Any]) -> str:
    return tool + json.dumps(arguments, sort_keys=True)


def _build_call(requested: RequestedToolCall, index: int, request: ModelRequest) -> ToolCall:
    seed = f"{len(request.messages)} {index} {_make_call_key(requested.tool, requested.arguments)}"
    id_ = "call_" + hashlib.sha256(seed.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return ToolCall(id=id_, tool=requested.tool, arguments=requested.arguments)


# -- tools -------------------------------------------------------------------------------------------------------------


def _list_callable_tools(request: ModelRequest) -> Sequence[ToolSpec]:
    """The tools that may be called."""
    return () if request.params.get("tool_choice") == "none" else request.tools


def _find_requested_calls(said: str, tools: Sequence[ToolSpec]) -> list[RequestedToolCall | str]:
    """Return the requested calls, or why one cannot be made; nothing if no tool is requested."""
    named = [_parse_tool_request(match, said, tools) for match in _TOOL_REQUEST.finditer(said)]
    found = [item for item in named if item is not None]
    if found or said.rstrip().endswith("?"):
        return found
    if (match := _REMEMBER_REQUEST.match(said)) and (tool := _find_tool(tools, _STORING_TOOLS)):
        return [RequestedToolCall(tool.name, fill_arguments(tool, match[1].strip()))]
    if (match := _SEARCH_REQUEST.match(said)) and (tool := _find_tool(tools, _SEARCHING_TOOLS)):
        return [RequestedToolCall(tool.name, fill_arguments(tool, match[1].strip(" .!\"'“”")))]
    return []


def _parse_tool_request(match: re.Match[str], said: str, tools: Sequence[ToolSpec]) -> RequestedToolCall | str | None:
    name = (match[1] or match[2]).rstrip(".,:;")
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        if match[2]:  # “run the whole tool chain” names no tool
            return None
        offered = ", ".join(tool.name for tool in tools) or "none"
        return f"There is no tool “{name}” here. I have: {offered}."
    start = said.find("{", match.end())
    if start < 0 or said[match.end() : start].strip(" :,") not in ("", "with", "with arguments", "arguments"):
        rest = said[match.end() :].strip(" :,.")
        return RequestedToolCall(name, fill_arguments(tool, rest.removeprefix("with ").strip()) if rest else {})
    try:
        arguments, _ = json.JSONDecoder().raw_decode(said, start)
        arguments = json.loads(json.dumps(arguments, ensure_ascii=False).encode())
    except (ValueError, RecursionError):
        return f"What follows “{name}” is not a JSON object: {_quote_text(said[start:])}"
    return RequestedToolCall(name, arguments)


def _find_tool(tools: Sequence[ToolSpec], names: Iterable[str]) -> ToolSpec | None:
    by_name = {tool.name: tool for tool in tools}
    return next((by_name[name] for name in names if name in by_name), None)


def fill_arguments(tool: ToolSpec, text: str) -> dict[str, Any]:
    """Return arguments for a tool from plain text, according to its schema."""
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    required: list[str] = list(tool.parameters.get("required", ()))
    textual: str | None = next((name for name in _TEXT_PARAMETERS if name in properties), None)
    if textual is None:
        textual = next((name for name in required if properties.get(name, {}).get("type") == "string"), None)
    arguments: dict[str, Any] = {}
    for name in dict.fromkeys([*required, *([textual] if textual else [])]):
        rule = properties.get(name, {})
        if "enum" in rule:
            arguments[name] = next((word for word in _ADD_ACTIONS if word in rule["enum"]), rule["enum"][0])
        elif name == textual:
            arguments[name] = text
        else:
            arguments[name] = rule.get("default", _EMPTY_VALUES.get(rule.get("type", "string"), text))
    return arguments


_EMPTY_VALUES: Final[dict[str, Any]] = {
    "integer": 1,
    "number": 1,
    "boolean": False,
    "array": [],
    "object": {},
    "null": None,
}


# -- words -------------------------------------------------------------------------------------------------------------


def _answer_text(said: str, name: str, known: Sequence[SpokenLine]) -> str:
    said = said.strip()
    if _IDENTITY_QUESTION.search(said):
        return SELF_DESCRIPTION
    if _GREETING.match(said):
        return f"Hello{', ' + name if name else ''}."
    if _RECAP_REQUEST.search(said) and len(said) < 120:
        kept = select_key_lines(known, tokens=SUMMARY_TOKENS // 3)
        return f"So far:\n{format_bullets(kept)}" if kept else "So far nothing was said that I could sum up."
    search = _SEARCH_REQUEST.match(said)
    if said.endswith("?") or _QUESTION.match(said) or search:
        found = find_best_line(search[1] if search else said, known, asker=name)
        return (
            _format_citation(found, name)
            if found
            else "I find nothing about that in this conversation or in what I remember."
        )
    if match := _REMEMBER_REQUEST.match(said):
        return f"I have no memory tool here, but it stays in this conversation: {_quote_text(match[1])}"
    return f"I heard: {_quote_text(said)}" if said else "I heard nothing."


def _quote_pieces(message: ModelMessage) -> str:
    """Return what a message without own words contains. Nothing in it is a request."""
    return "\n".join(f"{describe_author(piece)} wrote: {_quote_text(piece.text)}" for piece in message.pieces)


def _format_citation(line: SpokenLine, asker: str) -> str:
    if line.source == "recalled":
        return f"I remember: {_quote_text(line.text)}"
    if line.source == "tool":
        return f"A tool returned: {_quote_text(line.text)}"
    if line.source == "summary":
        return f"From earlier: {line.speaker + ': ' if line.speaker else ''}{_quote_text(line.text)}"
    return f"{'You' if line.speaker in ('', asker) else line.speaker} said: {_quote_text(line.text)}"


def _quote_text(text: str) -> str:
    text = " ".join(text.split())
    return f"“{text if len(text) <= MAX_QUOTE_CHARS else text[: MAX_QUOTE_CHARS - 1] + '…'}”"


def split_recalled(text: str) -> tuple[str, list[str]]:
    """Return what a person said, and the sentences that were recalled with it."""
    recalled: list[str] = []
    for find_blocks in (_find_tagged_blocks, _find_fenced_blocks, _find_listed_blocks):
        kept, at = [], 0
        for block in find_blocks(text):
            recalled += split_sentences(text[block.begin : block.end])
            kept.append(text[at : block.start])
            at = block.stop
        text = "\n".join([*kept, text[at:]])
    return text.strip(), recalled


class RecalledBlock(NamedTuple):
    """Where a block of recalled text is: from `start` to `stop`, with its content from `begin` to `end`."""

    start: int
    begin: int
    end: int
    stop: int


def _find_tagged_blocks(text: str) -> Iterator[RecalledBlock]:
    """Find `<recalled> … </recalled>`. Each tag is read once, also if it is never closed."""
    opened: dict[str, re.Match[str]] = {}
    for tag in _TAG.finditer(text):
        name = tag[2].lower()
        if not tag[1]:
            if _RECALL_TAG.search(name):
                opened.setdefault(name, tag)
        elif name in opened:
            first = opened[name]
            yield RecalledBlock(first.start(), first.end(), tag.start(), tag.end())
            opened.clear()


def _find_fenced_blocks(text: str) -> Iterator[RecalledBlock]:
    """Find blocks of code whose first line says that they are recalled."""
    at = 0
    while (start := text.find("```", at)) >= 0 and (line_end := text.find("\n", start)) >= 0:
        at = line_end + 1
        if _RECALL_WORD.search(text, start + 3, line_end):
            end = text.find("```", at)
            if end < 0:
                return
            yield RecalledBlock(start, at, end, end + 3)
            at = end + 3


def _find_listed_blocks(text: str) -> Iterator[RecalledBlock]:
    """Find lists under a line that says that they are recalled."""
    at, heading, begin = 0, -1, -1
    for line in text.splitlines(keepends=True):
        is_bullet = _BULLET.match(line) is not None
        if begin >= 0 and not is_bullet:
            yield RecalledBlock(heading, begin, at, at)
            heading = begin = -1
        if begin < 0 and is_bullet and heading >= 0:
            begin = at
        elif begin < 0:
            heading = at if len(line) <= _RECALL_HEADING_CHARS and _RECALL_WORD.search(line) else -1
        at += len(line)
    if begin >= 0:
        yield RecalledBlock(heading, begin, at, at)


def _extract_recalled_sentences(text: str) -> list[str]:
    """Return the sentences of recalled material, without this model's own answers, which are quotes already."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("| "):
            blocks[-1].append(line[2:])
        elif blocks[-1]:
            blocks.append([])
    said = ["\n".join(block) for block in blocks if block]
    return [
        sentence for block in said if not block.startswith(SELF_DESCRIPTION[:40]) for sentence in split_sentences(block)
    ]


def _extract_lines(message: ModelMessage) -> list[SpokenLine]:
    """Return the sentences of a message that may be quoted later, without this model's own, which are quotes
    already."""
    if message.role == "assistant":
        return []
    if message.name == _MEMORY_NAME:
        return [SpokenLine(text=sentence, source="recalled") for sentence in _extract_recalled_sentences(message.text)]
    said, recalled = split_recalled(message.text)
    out = [SpokenLine(text=sentence, source="recalled") for sentence in recalled]
    if message.role == "tool":
        return out + [SpokenLine(text=s, speaker="tool", source="tool") for s in split_sentences(said)]
    if message.name == _GATEWAY_NAME and said.startswith("[Summary"):
        body = said.partition("\n")[2]
        return out + [structs.replace(line, source="summary") for line in parse_spoken_lines(body)]
    if message.name == _GATEWAY_NAME:
        return out
    for piece in message.pieces:
        author = piece.name or piece.by or UNKNOWN_AUTHOR
        out += [SpokenLine(text=sentence, speaker=author) for sentence in split_sentences(piece.text)]
    return out + [SpokenLine(text=_extract_fact(sentence), speaker=message.name) for sentence in split_sentences(said)]


def _extract_fact(sentence: str) -> str:
    """Return the statement: “Remember that the door is blue” says that the door is blue."""
    match = _REMEMBER_REQUEST.match(sentence)
    return match[1].strip() if match and not sentence.endswith("?") else sentence


# -- summaries ---------------------------------------------------------------------------------------------------------


def _build_summary(request: ModelRequest, window: int) -> str:
    lines: list[SpokenLine] = []
    for message in request.messages:
        if message.role == "user" and not message.name:
            lines += _parse_transcript(message.text)
        else:
            speaker = message.name or message.role
            lines += [structs.replace(line, speaker=line.speaker or speaker) for line in _extract_lines(message)]
            if message.role == "assistant":
                lines += [SpokenLine(text=sentence, speaker="assistant") for sentence in split_sentences(message.text)]
    # the earlier summary stays whole as long as it fits; new text is shortened most
    share = {"summary": 1.0}
    worth = sum(
        (weigh_text(line.text) + weigh_text(line.speaker) + 2) * share.get(line.source, SUMMARY_SHARE) for line in lines
    )
    beside = sum(weigh_text(line.text) for line in lines if line.source == "kept")
    worth = max(worth - beside, worth * MIN_SUMMARY_SHARE)
    lines = [line for line in lines if line.source != "kept"]
    most = min(_find_summary_limit(request), window // 4, max(40, int(worth)))
    kept = select_key_lines(lines, tokens=most)
    if not kept and lines:
        longest = max(lines, key=lambda line: len(line.text))
        kept = [structs.replace(longest, text=longest.text[: most * 3])]
    return format_bullets(kept)


class TranscriptBlock(Struct):
    """One message of a transcript: its speaker, and its lines without their prefixes."""

    speaker: str
    lines: list[str]
    stays: bool = False
    """It stays beside the summary, which therefore does not repeat it."""


def _parse_transcript(text: str) -> list[SpokenLine]:
    """Parse a transcript message by message. A line with a prefix belongs to the message before it."""
    lines: list[SpokenLine] = []
    plain: list[str] = []
    block: TranscriptBlock | None = None
    for raw in split_recalled(text)[0].split("\n"):
        head = _SPEAKER_LINE.match(raw)
        if head is None and raw.startswith((OWN_LINE_PREFIX, FOREIGN_LINE_PREFIX)) and (block or plain):
            if block is None:
                speaker, said = _split_speaker(plain.pop())
                lines += _parse_plain_transcript(plain)
                plain, block = [], TranscriptBlock(speaker, [said], speaker.endswith(_STAYS))
            block.lines.append(raw[len(OWN_LINE_PREFIX) :])
            continue
        if block is not None:
            lines += _parse_block(block)
            block = None
        if head is not None:
            lines += _parse_plain_transcript(plain)
            plain, block = [], TranscriptBlock(_get_speaker_name(head[1]), [head[2]], head[1].endswith(_STAYS))
        else:
            plain.append(raw)
    return lines + (_parse_block(block) if block is not None else _parse_plain_transcript(plain))


def _get_speaker_name(head: str) -> str:
    """Return the name in a line that names a speaker, or the author of a forwarded or quoted text."""
    if found := _PIECE_HEAD.match(head):
        head = found[1]
    return head.partition(" · ")[0]


def _split_speaker(line: str) -> tuple[str, str]:
    found = _SPEAKER_PREFIX.match(line)
    return (found[0][:-2], line[found.end() :]) if found else ("", line)


def _parse_block(block: TranscriptBlock) -> list[SpokenLine]:
    if block.speaker == _GATEWAY_NAME:
        return _parse_plain_transcript([f"{_GATEWAY_NAME}: {block.lines[0]}", *block.lines[1:]])
    source = "kept" if block.stays else "tool" if block.speaker == "tool" else "said"
    said = split_sentences("\n".join(block.lines).replace(SELF_DESCRIPTION, ""))
    return [SpokenLine(text=sentence, speaker=block.speaker, source=source) for sentence in said]


def _parse_plain_transcript(transcript: Sequence[str]) -> list[SpokenLine]:
    """Parse a transcript line by line, with the summary of the earlier part if there is one."""
    lines: list[SpokenLine] = []
    part: list[str] = []
    source = "said"

    def close() -> None:
        for line in parse_spoken_lines("\n".join(part).replace(SELF_DESCRIPTION, "")):
            tool = line.speaker == "tool" and source == "said"
            kept = line.speaker.endswith(_STAYS)
            lines.append(structs.replace(line, source="kept" if kept else "tool" if tool else source))
        part.clear()

    for raw in transcript:
        if _HEADING.search(raw):
            close()
            source = "summary"
        elif not _NOTICE.match(raw):
            if source == "summary" and _SPEAKER_PREFIX.match(raw):
                close()
                source = "said"
            part.append(raw)
    close()
    return lines


def _find_summary_limit(request: ModelRequest) -> int:
    """Return the token limit of a summary, from the request's parameters or its text."""
    most = SUMMARY_TOKENS
    limit = request.params.get("max_tokens")
    if isinstance(limit, int) and limit > 0:
        most = min(most, limit)
    texts = [request.system, *(message.text[-500:] for message in request.messages[-1:])]
    for text in texts:
        for match in _TOKEN_LIMIT.finditer(text):
            count = int(match[1].replace(",", "") or 0)
            most = min(most, {"words": count * 4 // 3, "tokens": count, "characters": count // 4}[match[2].lower()])
    return max(20, most)
