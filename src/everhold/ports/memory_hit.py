"""What a memory found. Providers return it, and so do their tools."""

from __future__ import annotations

from msgspec import Struct


class MemoryHit(Struct, frozen=True, kw_only=True):
    """One search result of a provider, and its source."""

    text: str
    score: float = 0.0
    session: str = ""
    seq: int = 0
    person: str = ""
    """The person it is stored under. For a reply, the person it was sent to."""
    at: float = 0.0
    key: str = ""
    author: str = ""
    """The author as in the log: `person:…`, `agent:…`."""
    kind: str = ""
    """message, reply or note; empty if unknown."""
    origin: str = ""
    """The source, if no participant wrote the text: `tool:<name>`, `bot:<name>`, `file:<name>`."""
    until: float = 0.0
    """Since when it no longer holds; 0 if it holds, or if that is unknown."""
    replaced_by: str = ""
    """The later entry that says something else, as `session:seq`; empty if there is none."""
    remote_id: str = ""
    """The provider's own id, if a person or a model may need it."""
