"""Small parts of sentences that everhold writes."""

from __future__ import annotations


def describe_count(number: int, noun: str, plural: str = "") -> str:
    """`1 message`, `2,000 messages`. `plural` is for nouns that take more than an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
