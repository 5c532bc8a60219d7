"""Searches for plug-ins whose own search tool does not show everything that they stored.

A readback through such a tool finds nothing, and a resend would store everything twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .conversations import ConversationProvider

MAX_MESSAGES = 50


def search_honcho(conversation: ConversationProvider, query: str) -> Any:
    """Search the messages of both peers, and the conclusions.

    `honcho_search` shows a peer what was said since the peer joined the session. The server sets this time anew with
    every message, so it shows only the newest ones. A search by author has no such limit.
    """
    answer = conversation.call_hook("handle_tool_call", "honcho_search", {"query": query})
    if isinstance(answer, str) and "error" in (decoded := json.loads(answer)):
        return decoded
    noted = conversation.call_hook("handle_tool_call", "honcho_conclude", {"list": True, "query": query})
    return [answer, noted, *_search_authors(conversation.provider, query)]


def _search_authors(provider: Any, query: str) -> list[str]:
    """Return the messages of the session's two peers. Another version of the plug-in may lack these parts."""
    manager = getattr(provider, "_manager", None)
    session = getattr(manager, "_cache", {}).get(getattr(provider, "_session_key", None))
    peers = [getattr(session, name, None) for name in ("user_peer_id", "assistant_peer_id")]
    get_peer = getattr(manager, "_get_or_create_peer", None)
    if session is None or not callable(get_peer):
        return []
    return [
        str(message.content) for peer in peers if peer for message in get_peer(peer).search(query, limit=MAX_MESSAGES)
    ]


KNOWN_SEARCHES: dict[str, Callable[[ConversationProvider, str], Any]] = {"honcho": search_honcho}
"""By the plug-in's name."""
