"""Prepares a request's messages for any vendor's format, and keeps the reasoning of an answer for its model.

Each call is followed by its result, ids and names are valid on the wire, and images are loaded. Each message is
rendered from itself and from the messages before it, so a longer conversation begins with the bytes of the shorter one.

Reasoning may have to be returned to its model. The text for people comes first, then the sealed parts for the model.
Signatures and encrypted parts must return to the model that made them unchanged, or it refuses to continue after a tool
call. Other models cannot use them and never receive them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from everhold.core.attachments import MAX_SHOWN_CHARS, PDF, is_text_file
from everhold.core.entries import INVALID_ARGUMENTS_KEY, Attachment, ToolCall, strip_surrogates
from everhold.core.provenance import FOREIGN_LINE_PREFIX, LINE_BREAK, clean_label, render_user_text
from everhold.ports.model import ModelMessage, ModelRequest, ToolSpec

LoadBlob: TypeAlias = Callable[[str], Awaitable[bytes | None]]
"""Content hash -> bytes; None if it was erased."""

TOOL_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
EMPTY_RESULT_TEXT: Final = "(nothing)"


class AnsweredCall(Struct, frozen=True):
    """A call with its result. Both have this `id` on the wire."""

    id: str
    call: ToolCall
    result: ModelMessage


class AssistantRound(Struct, frozen=True):
    """A message of the assistant, with those of its calls that have results."""

    message: ModelMessage
    calls: tuple[AnsweredCall, ...]


class EncodedFile(Struct, frozen=True):
    """An image or a PDF in wire format, or the text of a text file."""

    media: str
    """Empty for a text."""
    data: str

    @property
    def is_image(self) -> bool:
        return self.media.startswith("image/")


def group_rounds(
    messages: Iterable[ModelMessage], *, wire_id: Callable[[str], str]
) -> list[ModelMessage | AssistantRound]:
    """Return the conversation with each result after its call. Calls without results, results without calls, and empty
    messages are left out.

    Messages between a call and its result come after the result. A repeated id gets a number.
    """
    out: list[ModelMessage | AssistantRound] = []
    used: set[str] = set()
    times: dict[str, int] = {}
    pending: list[ModelMessage] = []
    speaking: ModelMessage | None = None
    results: dict[str, ModelMessage] = {}

    def unused(id_: str) -> str:
        name = wire_id(id_)
        while name in used:
            times[id_] = times.get(id_, 1) + 1
            name = wire_id(f"{id_}_{times[id_]}")
        used.add(name)
        return name

    def settle() -> None:
        nonlocal speaking
        if speaking is not None:
            calls = tuple(
                AnsweredCall(unused(call.id), call, result)
                for call in speaking.calls
                if (result := results.pop(call.id, None)) is not None
            )
            if calls or speaking.text.strip():
                out.append(AssistantRound(speaking, calls))
        out.extend(pending)
        speaking = None
        pending.clear()
        results.clear()

    # most messages have no calls and need no sorting
    for message in messages:
        if message.role == "assistant":
            if speaking is not None or pending:
                settle()
            results.clear()
            if message.calls:
                speaking = message
            elif message.text.strip():
                out.append(AssistantRound(message, ()))
        elif message.role == "tool":
            results.setdefault(message.call, message)
        elif speaking is None:
            out.append(message)
        else:
            pending.append(message)
    settle()
    return out


def format_user_text(message: ModelMessage) -> str:
    """Return a user's message with its speaker and its pieces. No line of it can pose as another speaker."""
    return _clean_text(render_user_text(message))


def format_result_text(message: ModelMessage) -> str:
    """Return a tool's text. It is never empty, because some servers refuse that."""
    return _clean_text(message.text) if message.text.strip() else EMPTY_RESULT_TEXT


def encode_tool_name(name: str) -> str:
    """Return a tool name that every vendor accepts. The same name always gives the same result."""
    if TOOL_NAME_PATTERN.match(name):
        return name
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:55]}_{mark}"


def map_tool_names(tools: Sequence[ToolSpec]) -> dict[str, str]:
    """Wire name -> everhold's name."""
    return {encode_tool_name(tool.name): tool.name for tool in tools}


def build_parameter_schema(tool: ToolSpec) -> dict[str, Any]:
    """Return its parameters, as an object even if there are none."""
    if tool.parameters.get("type") == "object":
        return tool.parameters if "properties" in tool.parameters else {**tool.parameters, "properties": {}}
    return {"type": "object", "properties": {}, **tool.parameters}


def parse_arguments(written: object) -> dict[str, Any]:
    """Parse the arguments of a call. Text that is not a JSON object is kept as it is."""
    if isinstance(written, dict):
        return written
    raw = written if isinstance(written, str) else "" if written is None else json.dumps(written)
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw, parse_constant=_reject_constant)
        if isinstance(value, str):  # some models wrap the object in a string
            value = json.loads(value, parse_constant=_reject_constant)
        if value is None:
            return {}
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError):
        return {INVALID_ARGUMENTS_KEY: repair_surrogates(raw)}
    return value if isinstance(value, dict) else {INVALID_ARGUMENTS_KEY: repair_surrogates(raw)}


def make_call_id(body: bytes, index: int) -> str:
    """Return an id for a call without a usable one. The same answer to the same request gives the same id."""
    return "call_" + hashlib.sha256(body + b"\n%d" % index).hexdigest()[:24]


def assign_unique_call_ids(
    calls: Iterable[ToolCall], *, taken: Iterable[ModelMessage], body: bytes
) -> tuple[ToolCall, ...]:
    """Return the calls with ids that are unique in this conversation."""
    calls = list(calls)
    if not calls:
        return ()
    ids = {call.id for message in taken for call in message.calls}
    out: list[ToolCall] = []
    for index, call in enumerate(calls):
        id_ = call.id if call.id and call.id not in ids else make_call_id(body, index)
        ids.add(id_)
        out.append(ToolCall(id=id_, tool=call.tool, arguments=call.arguments))
    return tuple(out)


def repair_surrogates(text: str) -> str:
    """Return `text` with divided surrogate pairs joined and lone surrogates replaced."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class TextAccumulator:
    """Text that arrives in pieces. It passes on only complete characters."""

    def __init__(self, on_text: Callable[[str], None] | None = None) -> None:
        self._on_text = on_text
        self._pieces: list[str] = []
        self._pending_surrogate = ""

    def add(self, piece: str) -> None:
        piece = self._pending_surrogate + piece
        self._pending_surrogate = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._pending_surrogate = piece[:-1], piece[-1]
        if piece:
            piece = repair_surrogates(piece)
            self._pieces.append(piece)
            if self._on_text is not None:
                self._on_text(piece)

    def __str__(self) -> str:
        return "".join(self._pieces) + ("\ufffd" if self._pending_surrogate else "")


# -- attachments -------------------------------------------------------------------------------------------------------


class FileRules(Struct, frozen=True):
    """Which files a model is shown."""

    images: bool
    pdf: bool
    most_bytes: int


async def load_files(request: ModelRequest, load: LoadBlob | None, rules: FileRules) -> dict[str, EncodedFile | str]:
    """Return every file in the conversation that the model can read, by blob: its content, or why it is missing."""
    found: dict[str, EncodedFile | str] = {}
    for message in request.messages:
        for attachment in message.attachments:
            is_new = attachment.blob and attachment.blob not in found
            if is_new and _is_shown(attachment, rules) and (message.role == "user" or _is_image(attachment)):
                data = request.files.get(attachment.blob)
                if data is None and load is not None:
                    data = await load(attachment.blob)
                found[attachment.blob] = _encode_file(attachment, data, rules.most_bytes)
    return found


def _is_shown(attachment: Attachment, rules: FileRules) -> bool:
    if _is_image(attachment):
        return rules.images
    return is_text_file(attachment) or (rules.pdf and attachment.media == PDF)


def _is_image(attachment: Attachment) -> bool:
    return attachment.media.startswith("image/")


def describe_text_file(attachment: Attachment, text: str) -> str:
    """Return a text file as data: a line with its name, and every line of it behind a mark."""
    return (
        describe_attachment(attachment) + f"\n{FOREIGN_LINE_PREFIX}" + LINE_BREAK.sub(f"\n{FOREIGN_LINE_PREFIX}", text)
    )


def add_file(text: str, attachment: Attachment, file: EncodedFile | str | None) -> str:
    """Return a message's text with a file that is no part of its own: a text file, or one that cannot be shown."""
    if isinstance(file, EncodedFile):
        shown = describe_text_file(attachment, file.data)
    else:
        shown = describe_attachment(attachment, file or "")
    return f"{text}\n{shown}" if text else shown


def describe_attachment(attachment: Attachment, why: str = "") -> str:
    """Return the description of an attachment that is not shown."""
    name = clean_label(attachment.name) or "unnamed"
    kind = attachment.media or "file"
    size = f", {attachment.size} bytes" if attachment.size else ""
    return f"[attachment {name} ({kind}{size}){': ' + why if why else ''}]"


def _encode_file(attachment: Attachment, data: bytes | None, most: int) -> EncodedFile | str:
    if data is None:
        return "no longer stored"
    if is_text_file(attachment):
        return EncodedFile("", _read_text(data))
    if len(data) > most:
        return "too large to show"
    media = _detect_media_type(data)
    return EncodedFile(media, base64.b64encode(data).decode()) if media else "of a kind that cannot be shown"


def _read_text(data: bytes) -> str:
    text = data[: 4 * MAX_SHOWN_CHARS].decode("utf-8", "replace")
    if len(text) <= MAX_SHOWN_CHARS and len(data) <= 4 * MAX_SHOWN_CHARS:
        return text
    return f"{text[:MAX_SHOWN_CHARS]}\n(The file is longer; the rest is not shown.)"


def _detect_media_type(data: bytes) -> str:
    """Return the media type of the bytes, because vendors refuse a wrong one."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if data.startswith(b"%PDF-"):
        return PDF
    return ""


def _clean_text(text: str) -> str:
    return strip_surrogates(text)[0]


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# -- reasoning ---------------------------------------------------------------------------------------------------------

SEAL_CHAR: Final = "\x1e"
THINK_OPEN_TAG: Final = "<think>"
THINK_CLOSE_TAG: Final = "</think>"


def seal_reasoning(text: str, *, by: str, parts: Any) -> str:
    """Return `text` with `parts` attached for the model `by`."""
    return f"{text}{SEAL_CHAR}{json.dumps({'by': by, 'parts': parts}, ensure_ascii=True, separators=(',', ':'))}"


def strip_seal(reasoning: str) -> str:
    """Return the text for people."""
    text, mark, _ = reasoning.rpartition(SEAL_CHAR)
    return text if mark else reasoning


def open_seal(reasoning: str, *, by: str) -> Any:
    """Return the parts that `by` attached, or None if another model did."""
    _, mark, sealed = reasoning.rpartition(SEAL_CHAR)
    if not mark:
        return None
    try:
        found = json.loads(sealed)
    except ValueError:
        return None
    return found.get("parts") if isinstance(found, dict) and found.get("by") == by else None


class ThinkTagSplitter:
    """Separates reasoning from text on servers that do not: it is in think tags at the very beginning, or absent."""

    def __init__(self) -> None:
        self._state = "before"
        self._held = ""
        self._blanks: list[str] = []
        """The white space at the very beginning, of which there may be very much in very many pieces."""

    def feed(self, piece: str) -> tuple[str, str]:
        """Return the reasoning and the text of a piece. A possible beginning of a tag is held back."""
        if self._state == "text":
            return "", piece
        if self._state == "before" and not self._held:
            start = piece.lstrip()
            self._blanks.append(piece[: len(piece) - len(start)])
            piece = start
        self._held += piece
        thought = ""
        if self._state == "before":
            if THINK_OPEN_TAG.startswith(self._held[: len(THINK_OPEN_TAG)]):
                if len(self._held) < len(THINK_OPEN_TAG):
                    return "", ""
                self._state, self._held = "thinking", self._held[len(THINK_OPEN_TAG) :]
                self._blanks.clear()
            else:
                return "", self._release_held()
        if self._state == "thinking":
            thought, mark, rest = self._held.partition(THINK_CLOSE_TAG)
            if not mark:
                keep = max(0, len(thought) - len(THINK_CLOSE_TAG) + 1)
                thought, self._held = thought[:keep], thought[keep:]
                return thought, ""
            self._state, self._held = "after", rest
        self._held = self._held.lstrip()
        return thought, self._release_held() if self._held else ""

    def close(self) -> tuple[str, str]:
        """Return what was held back, at the end of the stream."""
        thinking, after = self._state == "thinking", self._state == "after"
        rest = self._release_held()
        if after:
            return "", ""
        return (rest, "") if thinking else ("", rest)

    def _release_held(self) -> str:
        held, self._held, self._state = "".join((*self._blanks, self._held)), "", "text"
        self._blanks.clear()
        return held
