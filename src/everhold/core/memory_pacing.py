"""When what waits for a memory is handed over: after every turn, after so many, or when the talk turns or rests.

It only decides when. What is said stays in the log until it is delivered, so waiting loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

BATCHING_SECONDS: Final = 2.0
"""`async`: what is said in quick succession goes together."""
SILENCE_SECONDS: Final = 600.0
"""So long after the last word nobody waits for more."""


class MemoryPacing(Struct, frozen=True, kw_only=True):
    """`turns` exchanges make a batch (0: however many), and a silence of `rest` seconds ends one that is not full."""

    turns_per_batch: int = 1
    silence_seconds: float = SILENCE_SECONDS


class PendingItem(Struct, frozen=True):
    """Something in the log, from a memory's position on: an exchange, or something behind which nobody waits.

    `urgent`: a note, an undo, a fresh context, a summary, another session. All before it goes with it.
    """

    at: float
    urgent: bool = False


class DueItems(Struct, frozen=True):
    """The first `count` of what waits are due; the rest not before `seconds` have passed, if there is a rest."""

    count: int
    seconds: float = 0.0


def parse_write_setting(write: str | int) -> MemoryPacing:
    """What `write` in the configuration stands for."""
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
    """What of `waiting` is to be handed over now. Whatever was said up to `released` is not held back any longer."""
    urgent = max((place for place, it in enumerate(waiting, 1) if it.urgent), default=0)
    rest = waiting[urgent:]
    if not rest:
        return DueItems(urgent)
    full = pace.turns_per_batch and len(rest) >= pace.turns_per_batch
    silent = now - rest[-1].at
    # after a clock went back nobody knows how long it has been silent, and too early does no harm
    if full or not 0 <= silent < pace.silence_seconds or rest[-1].at <= released:
        return DueItems(len(waiting))
    return DueItems(urgent, pace.silence_seconds - silent)
