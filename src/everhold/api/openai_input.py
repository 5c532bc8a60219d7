"""Converts texts, tools and tool calls of OpenAI-compatible requests. Files are in `request_files.py`."""

from __future__ import annotations

from typing import Any

import msgspec

from everhold.api.errors import ApiError
from everhold.core.entries import INVALID_ARGUMENTS_KEY, ToolCall
from everhold.ports.model import ToolSpec

FILE_PART_TYPES = frozenset({"image_url", "input_image", "file", "input_file", "input_audio"})
TEXT_PART_TYPES = frozenset({"text", "input_text", "output_text"})


def extract_text(content: Any, where: str) -> str:
    """Return the text of a message's content, which is a string or a list of parts."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "\n".join(_extract_part_text(part, where) for part in content)
        case _:
            raise _build_bad_request(f"{where} must be text or a list of parts")


def is_text_part(part: Any) -> bool:
    """Return whether a part of a message's content is text, or nothing that is known."""
    return not (isinstance(part, dict) and part.get("type") in FILE_PART_TYPES)


def _extract_part_text(part: Any, where: str) -> str:
    match part:
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": str(kind), "text": str(text)} if kind in TEXT_PART_TYPES:
            return text
        case {"type": str(kind)}:
            raise _build_bad_request(f"{where} holds a part of type {kind!r}; only user messages may hold it")
        case _:
            raise _build_bad_request(f"{where} holds a part without a type")


def parse_tool_call(id: Any, name: Any, arguments: Any, where: str) -> ToolCall:
    """Return an earlier tool call. Its arguments may be invalid JSON, because a caller repeats what the model wrote."""
    if not isinstance(id, str) or not isinstance(name, str):
        raise _build_bad_request(f"{where} must have an id and a name")
    try:
        given = msgspec.json.decode(arguments or "{}", type=dict[str, Any]) if isinstance(arguments, str) else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        given = {INVALID_ARGUMENTS_KEY: arguments}
    return ToolCall(id=id, tool=name, arguments=given)


def parse_tools(tools: list[dict[str, Any]] | None) -> tuple[ToolSpec, ...]:
    """Return the functions, in either of OpenAI's two formats. Other kinds of tools are ignored."""
    found = []
    for tool in tools or ():
        if tool.get("type") != "function":
            continue
        function = tool.get("function", tool)
        match function:
            case {"name": str(name)}:
                description, parameters = function.get("description"), function.get("parameters")
                found.append(
                    ToolSpec(
                        name=name,
                        description=description if isinstance(description, str) else "",
                        parameters=parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}},
                    )
                )
            case _:
                raise _build_bad_request("a function in `tools` needs a name")
    return tuple(found)


def parse_tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Return which tool the model must call: `auto`, `none`, `required`, `{"name"}`, or None if not specified."""
    match choice:
        case None | "auto" | "none" | "required":
            return choice
        case {"type": "function", "name": str(name)} | {"type": "function", "function": {"name": str(name)}}:
            return {"name": name}
        case str():
            raise _build_bad_request("`tool_choice` must be auto, none, required, or a function by its name")
        case _:
            return None  # it names a tool of a kind that is ignored


def format_arguments(call: ToolCall) -> str:
    """Return a call's arguments as the model wrote them, even if they are not valid JSON."""
    if (written := call.unparsed_arguments) is not None:
        return written
    return msgspec.json.encode(call.arguments).decode()


def _build_bad_request(message: str) -> ApiError:
    return ApiError(400, "invalid_request", message)
