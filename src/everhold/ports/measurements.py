"""What a store measures about itself for monitoring: sums by consumer, never a row for each session."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class ConsumerLoad(Struct, frozen=True, kw_only=True):
    """The work of one consumer that waits, over all sessions."""

    consumer: str
    due: int
    """Cursors with something to do, now or later."""
    failing: int
    """Those of them whose last attempt failed."""
    lag_seconds: float
    """How long the oldest cursor that could be claimed has waited; 0 if there is none."""


class StoreLoad(Struct, frozen=True, kw_only=True):
    """What waits in a store, by consumer."""

    consumers: tuple[ConsumerLoad, ...]
    pending_messages: int
    dead_letters: Mapping[str, int]
    """Consumer -> items that were given up."""
    dead_letters_in_doubt: int
    receipts_in_doubt: int
    size_bytes: int
    """What the store takes on its disk."""


class ConsumerBacklog(Struct, frozen=True, kw_only=True):
    """What one consumer has yet to deliver, over all sessions. To find it, every session that is behind is read."""

    consumer: str
    items: int
    oldest_at: float | None
    """When the oldest of these items was committed; None if there is none."""
