"""Pins: entries that a person keeps verbatim in the context, whatever is compressed.

A pin is an entry of the log that names another entry. It holds no words, so an erased entry is no longer shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from everhold.core.entries import Entry, EntryKind, Heard, Returned, Said, Stamp, VerbatimMessage
from everhold.core.provenance import describe_author, describe_speaker, identify_speaker
from everhold.core.tokens import weigh_text

PINNABLE_KINDS: Final = (EntryKind.HEARD, EntryKind.SAID, EntryKind.RETURNED)
MAX_PIN_TOKENS: Final = 2_000
"""The tokens of all pins of a session together."""
MAX_PIN_WINDOW_SHARE: Final = 1 / 8
"""The same as a share of the model's window."""
PIN_LINE_TOKENS: Final = 8
"""The line around a pinned text."""


def build_pinned(entry: Entry) -> VerbatimMessage | None:
    """Return a pinned entry as the model reads it; None if it is erased, or of a kind that cannot be pinned."""
    match entry.body:
        case Heard(command=command) as heard:
            text = heard.text if command is None else command.argument
            pieces = (f"[{piece.source}, by {describe_author(piece)}] {piece.text}" for piece in heard.pieces)
            text = "\n".join(part for part in (text, *pieces) if part.strip())
            who = describe_speaker(heard.sender, identify_speaker(entry, heard))
        case Said(text=text) | Returned(text=text):
            who = entry.author
        case _:
            return None
    return VerbatimMessage(seq=entry.seq, text=text, who=who, why="said") if text.strip() else None


def get_pin_stamp(entry: Entry) -> Stamp | None:
    """Return the stamp of a pinned entry, which says who may see it; None if it has none."""
    return entry.body.stamp if isinstance(entry.body, Heard | Said) else None


def weigh_pins(pins: Iterable[VerbatimMessage]) -> int:
    """Return how many tokens pins take."""
    return sum(weigh_text(pin.text) + PIN_LINE_TOKENS for pin in pins)


def count_pin_tokens(window: int) -> int:
    """Return how many tokens all pins together may take in a window of this size."""
    return min(MAX_PIN_TOKENS, int(window * MAX_PIN_WINDOW_SHARE))
