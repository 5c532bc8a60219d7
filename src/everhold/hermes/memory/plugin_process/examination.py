"""Collects everything that a plug-in shows to one user, for the test whether it keeps people apart."""

from __future__ import annotations

import json
import sys
from typing import Any

from .conversations import ConversationProvider
from .search import QUERY_PARAMETERS

READING_WORDS = (
    "search", "recall", "query", "find", "context", "profile", "list", "get", "read", "show", "probe", "related",
    "reason", "reasoning", "reflect", "lookup", "browse", "history",
)  # fmt: skip
"""Words in the names of tools, or of their actions, that only read."""
WRITING_WORDS = (
    "add",
    "save",
    "set",
    "update",
    "delete",
    "remove",
    "forget",
    "clear",
    "write",
    "store",
    "retain",
    "conclude",
)
TEXT_PARAMETERS = (*QUERY_PARAMETERS, "entity", "subject", "keyword", "keywords", "content")
ACTION_PARAMETERS = ("action", "mode", "operation", "command")


def examine_conversation(
    conversation: ConversationProvider, tools: list[dict[str, Any]], query: str, word: str
) -> list[str]:
    """Return where the plug-in shows a word: in recall, prompt block, or a reading tool. What fails shows nothing."""
    conversation.begin_turn(query)
    shown = [("recall", _call(conversation, "prefetch", query, session_id=conversation.session))]
    with conversation.threads:  # most plug-ins prepare recall in the background
        _call(conversation, "queue_prefetch", query, session_id=conversation.session)
    shown.append(("recall", _call(conversation, "prefetch", query, session_id=conversation.session)))
    shown.append(("prompt block", _call(conversation, "system_prompt_block")))
    for tool in tools:
        for arguments in build_reading_calls(tool, query):
            shown.append((f"tool {tool['name']}", _call(conversation, "handle_tool_call", tool["name"], arguments)))
    return [place for place, text in shown if word.casefold() in text.casefold()]


def build_reading_calls(tool: dict[str, Any], query: str) -> list[dict[str, Any]]:
    """Return arguments with which a tool only reads; none if it may write, or wants something unknown."""
    properties = tool["parameters"].get("properties", {})
    wanted = set(tool["parameters"].get("required", ()))
    texts = {name: query for name in TEXT_PARAMETERS if name in properties}
    action = next((name for name in ACTION_PARAMETERS if name in properties), "")
    actions = properties[action].get("enum", ()) if action and isinstance(properties[action], dict) else ()
    if reading := [str(it) for it in actions if _is_reading(str(it))]:
        calls = [{action: it, **texts} for it in reading]
    elif _is_reading(tool["name"]):
        calls = [texts]
    else:
        calls = []
    return [arguments for arguments in calls if wanted <= arguments.keys()]


def _is_reading(name: str) -> bool:
    words = name.lower().replace("-", "_").split("_")
    return any(word in READING_WORDS for word in words) and not any(word in WRITING_WORDS for word in words)


def _call(conversation: ConversationProvider, hook: str, *args: Any, **kwargs: Any) -> str:
    try:
        found = conversation.call_hook(hook, *args, **kwargs)
    # foreign code: a reading that fails shows nothing to anybody
    except Exception as error:
        sys.stderr.write(f"`{hook}` failed in a test: {type(error).__name__}: {error}\n")
        return ""
    return found if isinstance(found, str) else json.dumps(found, default=str)
