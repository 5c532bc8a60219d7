"""Decide when pending items are sent to a memory: after every turn, after several turns, after an urgent item, or after
a silence.

The items stay in the log until they are delivered, so waiting loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

BATCHING_SECONDS: Final = 2.0
"""`async`: exchanges in quick succession are sent together."""
SILENCE_SECONDS: Final = 600.0
"""After so long without a new exchange the batch is sent."""


class MemoryPacing(Struct, frozen=True, kw_only=True):
    """`turns_per_batch` exchanges make a batch (0: no limit), and `silence_seconds` without a new one end a batch that
    is not full.
    """

    turns_per_batch: int = 1
    silence_seconds: float = SILENCE_SECONDS


class PendingItem(Struct, frozen=True):
    """An item after a memory's cursor.

    `urgent`: a note, an undo, a context reset, a summary, or a switch of the session. It is sent at once, with all
    items before it.
    """

    at: float
    urgent: bool = False


class DueItems(Struct, frozen=True):
    """The first `count` items are due. The rest, if any, is due in `seconds`."""

    count: int
    seconds: float = 0.0


def parse_write_setting(write: str | int) -> MemoryPacing:
    """Return the pacing for a value of `write` in the configuration."""
    match write:
        case int():
            return MemoryPacing(turns_per_batch=write)
        case "async":
            return MemoryPacing(turns_per_batch=0, silence_seconds=BATCHING_SECONDS)
        case "session":
            return MemoryPacing(turns_per_batch=0)
        case _:
            return MemoryPacing()


def select_due_items(
    pace: MemoryPacing, waiting: Sequence[PendingItem], *, now: float, released: float = float("-inf")
) -> DueItems:
    """Return which of the `waiting` items are sent now. Items up to the time `released` are not held back."""
    urgent = max((place for place, it in enumerate(waiting, 1) if it.urgent), default=0)
    rest = waiting[urgent:]
    if not rest:
        return DueItems(urgent)
    full = pace.turns_per_batch and len(rest) >= pace.turns_per_batch
    silent = now - rest[-1].at
    # After the clock went back the length of the silence is unknown; sending too early does no harm.
    if full or not 0 <= silent < pace.silence_seconds or rest[-1].at <= released:
        return DueItems(len(waiting))
    return DueItems(urgent, pace.silence_seconds - silent)
