"""Small parts of sentences that everhold writes."""

from __future__ import annotations

import math


def describe_count(number: int, noun: str, plural: str = "") -> str:
    """`1 message`, `2,000 messages`. `plural` is for nouns that take more than an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def shorten_text(text: str, most: int) -> str:
    """Return a text on one line, with at most `most` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def describe_duration(seconds: float) -> str:
    """`8 seconds`, `3 minutes`, `2 hours`: for people, rounded up."""
    for unit, name in ((3_600, "hour"), (60, "minute")):
        if seconds > unit:
            return describe_count(math.ceil(seconds / unit), name)
    return describe_count(max(1, math.ceil(seconds)), "second")
