"""Exchanges and notes -> the words a service is given."""

from __future__ import annotations

from everhold.ports.memory import Batch, Exchange, Note


def told(exchange: Exchange) -> str:
    """An exchange as one text, a paragraph for each who spoke."""
    spoken = [(one.stamp.person or one.author.rpartition(":")[2], one.text) for one in exchange.heard]
    spoken += [(exchange.agent, one.text) for one in exchange.said]
    return "\n\n".join(f"{who}: {text.strip()}" for who, text in spoken if text.strip())


def outdated(batch: Batch, note: Note) -> str:
    """What a note takes back: the words of what it replaces or removes; nothing for one that adds."""
    if note.action == "add":
        return ""
    known = batch.replaced.get(note.supersedes) or batch.replaced.get(note.fact)
    # whoever removes something repeats what it said
    return known or (note.text if note.action == "remove" else "")
