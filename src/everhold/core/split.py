"""A long reply -> the parts that are sent. Done once, before the first part goes out; never done again."""

from __future__ import annotations

from typing import Final

_SEAMS: Final = ("\n\n", "\n", ". ", " ")


def units(text: str) -> int:
    """How long a text is, as platforms count."""
    return len(text) + sum(char > "\uffff" for char in text)


def split(text: str, limit: int) -> tuple[str, ...]:
    """`text` in parts of at most `limit` UTF-16 units, cut at the best seam in the second half of each part.

    Platforms count UTF-16 units. Joining the parts gives the text back, whatever it holds.
    """
    assert limit >= 2
    parts: list[str] = []
    start = 0
    while (end := _reach(text, start, limit)) < len(text):
        cut = _seam(text, start, end)
        parts.append(text[start:cut])
        start = cut
    return (*parts, text[start:])


def _reach(text: str, start: int, limit: int) -> int:
    """Where `limit` units from `start` end. Looks no further than that, so a long text costs its length."""
    piece = text[start : start + limit]
    if not piece or max(piece) <= "\uffff":
        return start + len(piece)
    units = 0
    for index, char in enumerate(piece):
        units += 2 if char > "\uffff" else 1
        if units > limit:
            return start + index
    return start + len(piece)


def _seam(text: str, start: int, end: int) -> int:
    """Where to cut between `start` and `end`: after the best seam in the second half, or else at the end."""
    for seam in _SEAMS:
        cut = text.rfind(seam, start + (end - start) // 2, end)
        if cut > start:
            return cut + len(seam)
    return end
