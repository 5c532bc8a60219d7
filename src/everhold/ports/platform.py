"""A platform's promise: hand over what is heard, deliver what is said, and be honest about repeats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from everhold.core.entries import Attachment, Place
from everhold.ports.store import Position


class Delivery(StrEnum):
    """How a repeated hand-over stays safe."""

    KEYED = "keyed"
    """The far side recognises the key: send again."""
    UPSERT = "upsert"
    """The same document is overwritten with itself: send again, but not past a newer one."""
    PROBE = "probe"
    """The far side can be asked: look, then send."""
    BLIND = "blind"
    """Nobody can tell: follow the configured policy, count it, show it."""
    UNACKNOWLEDGED = "unacknowledged"
    """Calls return before the work is done: keep everything replayable."""


class Incoming(Struct, frozen=True, kw_only=True):
    """A message at the door, as the platform tells it. Ids are the platform's stable ones, never display names."""

    origin: Place
    text: str
    sender: str
    """The platform's id of whoever speaks."""
    name: str = ""
    kind: str = "dm"
    """dm, group, channel or thread."""
    event: str = "message"
    revision: str = ""
    addressed: bool = True
    """Mentioned, replied to, or alone with the agent."""
    bot: bool = False
    hops: int = 0
    attachments: tuple[Attachment, ...] = ()
    agent: str = ""
    """For platforms that let the caller choose."""
    directory: str = ""
    repo: str = ""
    position: Position | None = None


class Verdict(Struct, frozen=True, kw_only=True):
    """What became of a message at the door. Only `accepted` and `duplicate` may be acknowledged as kept."""

    outcome: str
    """accepted, duplicate, differs, denied, or ignored."""
    session: str = ""
    seq: int = 0
    reason: str = ""


Accept = Callable[[Incoming], Awaitable[Verdict]]


class Outgoing(Struct, frozen=True, kw_only=True):
    """One part of a reply on its way out. `key` is the same whenever the same part is sent again."""

    to: Place
    text: str
    key: str
    edits: str = ""
    """The remote id of a draft that this text replaces."""
    hops: int = 0


class Platform(Protocol):
    """One account on one platform."""

    name: str
    account: str
    delivery: Delivery
    text_limit: int
    """The longest text one message may carry."""
    visible_after: float
    """Seconds until something that was delivered can be found by `probe`."""

    async def listen(self, accept: Accept) -> None:
        """Receive until cancelled. Acknowledge a message only after `accept` has returned."""

    async def send(self, out: Outgoing) -> str:
        """Deliver; the remote id. Raises Transient (known unsent), Refused, or InDoubt."""

    async def probe(self, out: Outgoing) -> str | None:
        """For `probe` delivery: the remote id if `out.key` has arrived, None if it has not."""


class Drafting(Protocol):
    """What a platform may offer besides: a reply that is seen while it grows. Declared by `drafting`."""

    async def draft(self, out: Outgoing) -> str:
        """Show an unfinished reply; its remote id, for `Outgoing.edits`."""

    async def revise(self, remote: str, out: Outgoing) -> None:
        """Show more of it."""
