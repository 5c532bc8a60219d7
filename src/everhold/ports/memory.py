"""A memory provider's promise: store this, find this. Everything else is an optional, declared capability.

A provider holds no buffer, no cache and no thread that data could die in: the log is the queue, and a lane calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from everhold.core.entries import Stamp
from everhold.ports.platform import Delivery


class Utterance(Struct, frozen=True, kw_only=True):
    """Who said what in an exchange."""

    author: str
    text: str
    at: float
    stamp: Stamp


class Exchange(Struct, frozen=True, kw_only=True):
    """One finished operation: what was heard, what was done, what was said."""

    key: str
    session: str
    agent: str
    op: int
    heard: tuple[Utterance, ...]
    said: tuple[Utterance, ...]
    did: tuple[str, ...] = ()
    at: float = 0.0
    stamp: Stamp = Stamp()
    parent: str = ""
    tags: tuple[str, ...] = ()


class Note(Struct, frozen=True, kw_only=True):
    """A fact somebody wants kept."""

    key: str
    session: str
    agent: str
    seq: int
    text: str
    author: str
    at: float
    stamp: Stamp
    action: str = "add"
    fact: str = ""
    supersedes: str = ""
    """Key of the note this one replaces."""
    cites: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()


class Retraction(Struct, frozen=True, kw_only=True):
    """What was stored under these keys was undone."""

    key: str
    session: str
    agent: str
    keys: tuple[str, ...]
    at: float = 0.0


Memory: TypeAlias = Exchange | Note | Retraction


class Batch(Struct, frozen=True, kw_only=True):
    """What is handed over at once: one session's, in order. A repeat is exactly the same batch."""

    name: str
    """The memory session's name."""
    items: tuple[Memory, ...]


class Query(Struct, frozen=True, kw_only=True):
    """What to look for, and for whom. There is no default scope."""

    text: str
    agent: str
    session: str
    name: str
    audience: tuple[str, ...]
    person: str
    limit: int = 20


class Found(Struct, frozen=True, kw_only=True):
    """Something a provider remembers, and where it came from."""

    text: str
    score: float = 0.0
    session: str = ""
    seq: int = 0
    person: str = ""
    at: float = 0.0
    key: str = ""


class MemoryProvider(Protocol):
    """One instance for one agent."""

    delivery: Delivery
    deadline: float
    """Seconds a call may take."""
    visible_after: float
    """Seconds until what was stored can be found by `probe`."""

    async def store(self, batch: Batch) -> Mapping[str, str]:
        """Keep every item; the remote id of each key. Raises Transient, Refused, or InDoubt."""

    async def find(self, query: Query) -> Sequence[Found]: ...

    async def probe(self, batch: Batch) -> Sequence[str]:
        """For `probe` delivery: those keys of `batch` that have arrived."""
