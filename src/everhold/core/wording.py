"""Small parts of sentences that everhold writes."""

from __future__ import annotations

import datetime
import math
from typing import Final

WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


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


def format_clock(at: float, zone: datetime.tzinfo, zone_name: str) -> str:
    """Return date, weekday, time and zone as a model reads them: `2026-11-17 Tue 16:53 Europe/Berlin`."""
    moment = datetime.datetime.fromtimestamp(at, zone)
    # not %a, which depends on the locale
    return f"{moment:%Y-%m-%d} {WEEKDAYS[moment.weekday()]} {moment:%H:%M} {zone_name}"
