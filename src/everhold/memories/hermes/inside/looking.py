"""How a plug-in can be searched, if it can: for a look at what became of what it was told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .offered import MemoryProvider
from .seats import Seat

SEARCHING = ("search", "recall", "query", "find")
"""Words in the names of tools that look something up."""
ASKED_FOR = ("query", "text", "q", "question", "topic")
"""What they call the words to look for."""
MOST_TEXTS = 200
LONGEST = 20_000


Search = Callable[[Seat, str], Any]


def searches(sample: Any, tools: list[dict[str, Any]]) -> tuple[str, Search | None]:
    """By a `tool` that wants nothing but words, or by `prefetch`, or not at all."""
    for tool in tools:
        words = [name for name in ASKED_FOR if name in tool["parameters"].get("properties", {})]
        wanted = set(tool["parameters"].get("required", ()))
        if any(word in tool["name"].lower() for word in SEARCHING) and words and wanted <= {words[0]}:
            return "tool", _by_tool(tool["name"], words[0])
    own = getattr(type(sample), "prefetch", None)
    if own is None or own is MemoryProvider.prefetch:
        return "", None
    return "prefetch", lambda seat, query: seat.ask("prefetch", query, session_id=seat.session)


def _by_tool(name: str, asked: str) -> Search:
    return lambda seat, query: seat.ask("handle_tool_call", name, {asked: query})


def texts(answer: Any) -> list[str]:
    """Every text in an answer: most are JSON in a string. One that says what went wrong is no answer."""
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except ValueError:
            return [answer[:LONGEST]]
    if isinstance(answer, dict) and answer.get("error"):
        raise RuntimeError(str(answer["error"])[:LONGEST])
    found: list[str] = []
    left = [answer]
    while left and len(found) < MOST_TEXTS:
        one = left.pop(0)
        if isinstance(one, str):
            found.append(one[:LONGEST])
        elif isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            left.extend(one)
    return found
