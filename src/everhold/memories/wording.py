"""Exchanges and notes -> the words a service is given."""

from __future__ import annotations

import re
from typing import Final

from everhold.ports.memory import Batch, Exchange, Note

_ESCAPE: Final = "\ue000"
"""From the private area: what stands for itself and for the character that no database takes."""
_ESCAPED: Final = re.compile("\ue000([\ue001\ue002])")


def packed(text: str) -> str:
    """`text` without the one character that databases refuse, or drop in silence; `unpacked` gives it back."""
    return text.replace(_ESCAPE, "\ue000\ue001").replace("\x00", "\ue000\ue002")


def unpacked(text: str) -> str:
    return _ESCAPED.sub(lambda found: _ESCAPE if found[1] == "\ue001" else "\x00", text)


def told(exchange: Exchange) -> str:
    """An exchange as one text, a paragraph for each who spoke."""
    spoken = [(one.stamp.person or one.author.rpartition(":")[2], one.text) for one in exchange.heard]
    spoken += [(exchange.agent, one.text) for one in exchange.said]
    return packed("\n\n".join(f"{who}: {text.strip()}" for who, text in spoken if text.strip()))


def outdated(batch: Batch, note: Note) -> str:
    """What a note takes back: the words of what it replaces or removes; nothing for one that adds."""
    if note.action == "add":
        return ""
    known = batch.replaced.get(note.supersedes) or batch.replaced.get(note.fact)
    # whoever removes something repeats what it said
    return known or (note.text if note.action == "remove" else "")
