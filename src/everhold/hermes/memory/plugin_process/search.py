"""Finds out how a plug-in can be searched, for the readback of what was stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .conversations import ConversationProvider
from .hermes_modules import HermesMemoryProvider

SEARCH_TOOL_WORDS = ("search", "recall", "query", "find")
"""Words in the names of search tools."""
QUERY_PARAMETERS = ("query", "text", "q", "question", "topic")
"""Names of the parameter that holds the query."""
MAX_TEXTS = 200
MAX_TEXT_CHARS = 20_000


SearchPlugin = Callable[[ConversationProvider, str], Any]


def find_search(sample: Any, tools: list[dict[str, Any]]) -> tuple[str, SearchPlugin | None]:
    """Return how to search: by a `tool` that needs only a query, by `prefetch`, or not at all."""
    for tool in tools:
        words = [name for name in QUERY_PARAMETERS if name in tool["parameters"].get("properties", {})]
        wanted = set(tool["parameters"].get("required", ()))
        if any(word in tool["name"].lower() for word in SEARCH_TOOL_WORDS) and words and wanted <= {words[0]}:
            return "tool", _build_tool_search(tool["name"], words[0])
    own = getattr(type(sample), "prefetch", None)
    if own is None or own is HermesMemoryProvider.prefetch:
        return "", None
    return "prefetch", lambda conversation, query: conversation.call_hook(
        "prefetch", query, session_id=conversation.session
    )


def _build_tool_search(name: str, asked: str) -> SearchPlugin:
    return lambda conversation, query: conversation.call_hook("handle_tool_call", name, {asked: query})


def extract_texts(answer: Any) -> list[str]:
    """Return every text in an answer, which is mostly JSON in a string. Raises RuntimeError if the
    answer is an error.
    """
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
