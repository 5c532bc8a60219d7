"""How a plug-in can be searched, if it can: for a look at what became of what it was told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .conversations import ConversationProvider
from .hermes_modules import HermesMemoryProvider

SEARCH_TOOL_WORDS = ("search", "recall", "query", "find")
"""Words in the names of tools that look something up."""
QUERY_PARAMETERS = ("query", "text", "q", "question", "topic")
"""What they call the words to look for."""
MAX_TEXTS = 200
MAX_TEXT_CHARS = 20_000


SearchPlugin = Callable[[ConversationProvider, str], Any]


def find_search(sample: Any, tools: list[dict[str, Any]]) -> tuple[str, SearchPlugin | None]:
    """By a `tool` that wants nothing but words, or by `prefetch`, or not at all."""
    for tool in tools:
        words = [name for name in QUERY_PARAMETERS if name in tool["parameters"].get("properties", {})]
        wanted = set(tool["parameters"].get("required", ()))
        if any(word in tool["name"].lower() for word in SEARCH_TOOL_WORDS) and words and wanted <= {words[0]}:
            return "tool", _build_tool_search(tool["name"], words[0])
    own = getattr(type(sample), "prefetch", None)
    if own is None or own is HermesMemoryProvider.prefetch:
        return "", None
    return "prefetch", lambda seat, query: seat.call_hook("prefetch", query, session_id=seat.session)


def _build_tool_search(name: str, asked: str) -> SearchPlugin:
    return lambda seat, query: seat.call_hook("handle_tool_call", name, {asked: query})


def extract_texts(answer: Any) -> list[str]:
    """Every text in an answer: most are JSON in a string. One that says what went wrong is no answer."""
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except ValueError:
            return [answer[:MAX_TEXT_CHARS]]
    if isinstance(answer, dict) and answer.get("error"):
        raise RuntimeError(str(answer["error"])[:MAX_TEXT_CHARS])
    found: list[str] = []
    left = [answer]
    while left and len(found) < MAX_TEXTS:
        one = left.pop(0)
        if isinstance(one, str):
            found.append(one[:MAX_TEXT_CHARS])
        elif isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            left.extend(one)
    return found
