"""Exchanges and notes -> the words a service is given."""

from __future__ import annotations

import re
from typing import Final

from everhold.ports.memory import Exchange, MemoryBatch, MemoryNote

_ESCAPE_CHAR: Final = "\ue000"
"""From the private area: what stands for itself and for the character that no database takes."""
_ESCAPED_PATTERN: Final = re.compile("\ue000([\ue001\ue002])")


def escape_nul(text: str) -> str:
    """`text` without the one character that databases refuse, or drop in silence; `unpacked` gives it back."""
    return text.replace(_ESCAPE_CHAR, "\ue000\ue001").replace("\x00", "\ue000\ue002")


def unescape_nul(text: str) -> str:
    return _ESCAPED_PATTERN.sub(lambda found: _ESCAPE_CHAR if found[1] == "\ue001" else "\x00", text)


def format_exchange(exchange: Exchange) -> str:
    """An exchange as one text, a paragraph for each who spoke."""
    spoken = [(one.stamp.person or one.author.rpartition(":")[2], one.text) for one in exchange.heard]
    spoken += [(exchange.agent, one.text) for one in exchange.said]
    return escape_nul("\n\n".join(f"{who}: {text.strip()}" for who, text in spoken if text.strip()))


def find_outdated_text(batch: MemoryBatch, note: MemoryNote) -> str:
    """What a note takes back: the words of what it replaces or removes; nothing for one that adds."""
    if note.action == "add":
        return ""
    known = batch.replaced.get(note.supersedes) or batch.replaced.get(note.fact)
    # whoever removes something repeats what it said
    return known or (note.text if note.action == "remove" else "")
