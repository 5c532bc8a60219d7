"""Formats exchanges and notes as the texts that a service receives."""

from __future__ import annotations

import re
from typing import Final

from everhold.ports.memory import Exchange, MemoryBatch, MemoryNote

_ESCAPE_CHAR: Final = "\ue000"
"""From the private use area. It escapes itself and the NUL character, which no database accepts."""
_ESCAPED_PATTERN: Final = re.compile("\ue000([\ue001\ue002])")


def escape_nul(text: str) -> str:
    """Return `text` without NUL, which databases refuse or silently drop; `unescape_nul` restores it."""
    return text.replace(_ESCAPE_CHAR, "\ue000\ue001").replace("\x00", "\ue000\ue002")


def unescape_nul(text: str) -> str:
    return _ESCAPED_PATTERN.sub(lambda found: _ESCAPE_CHAR if found[1] == "\ue001" else "\x00", text)


def format_exchange(exchange: Exchange) -> str:
    """Return an exchange as one text, with a paragraph for each utterance."""
    spoken = [(one.stamp.person or one.author.rpartition(":")[2], one.text) for one in exchange.heard]
    spoken += [(exchange.agent, one.text) for one in exchange.said]
    return escape_nul("\n\n".join(f"{who}: {text.strip()}" for who, text in spoken if text.strip()))


def find_outdated_text(batch: MemoryBatch, note: MemoryNote) -> str:
    """Return the text that a note replaces or removes; empty for a note that adds."""
    if note.action == "add":
        return ""
    known = batch.replaced.get(note.supersedes) or batch.replaced.get(note.fact)
    # a note that removes repeats the removed text
    return known or (note.text if note.action == "remove" else "")
