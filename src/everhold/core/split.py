"""A long reply -> the parts that are sent. Done once, before the first part goes out; never done again."""

from __future__ import annotations

from typing import Final

_SEAMS: Final = ("\n\n", "\n", ". ", " ")


def split(text: str, limit: int) -> tuple[str, ...]:
    """`text` in parts of at most `limit` UTF-16 units, cut at the best seam in the second half of each part.

    Platforms count UTF-16 units. Joining the parts gives the text back, whatever it holds.
    """
    assert limit >= 2
    parts: list[str] = []
    while _units(text) > limit:
        head = _prefix(text, limit)
        for seam in _SEAMS:
            cut = head.rfind(seam, len(head) // 2)
            if cut > 0:
                head = head[: cut + len(seam)]
                break
        parts.append(head)
        text = text[len(head) :]
    if text or not parts:
        parts.append(text)
    return tuple(parts)


def _units(text: str) -> int:
    return len(text) + sum(ord(char) > 0xFFFF for char in text)


def _prefix(text: str, limit: int) -> str:
    units = 0
    for index, char in enumerate(text):
        units += 2 if ord(char) > 0xFFFF else 1
        if units > limit:
            return text[:index]
    return text
