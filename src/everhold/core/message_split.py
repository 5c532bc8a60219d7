"""A long reply -> the parts that are sent. Done once, before the first part goes out; never done again."""

from __future__ import annotations

import re
from typing import Final

_BREAK_POINTS: Final = ("\n\n", "\n", ". ", " ")
_CODE_FENCE: Final = re.compile(r"^ {0,3}(`{3,10}|~{3,10})([^`\n]{0,40})$", re.MULTILINE)
"""A line that opens a block of code, or ends one if nothing stands behind the marks."""
_MAX_FENCE_CHARS: Final = 64
"""More characters than such a line has: whether one is torn by a cut is seen by looking so far behind it."""
_CLOSING_FENCE_UNITS: Final = 11
"""The room that is left for the line that ends a block."""
_MIN_LIMIT_FOR_FENCES: Final = 200
"""Below this there is no room for anything but the text itself."""


def count_units(text: str) -> int:
    """How long a text is, as platforms count."""
    return len(text) + sum(char > "\uffff" for char in text)


def split_text(text: str, limit: int) -> tuple[str, ...]:
    """`text` in parts of at most `limit` UTF-16 units, cut at the best seam in the second half of each part.

    Platforms count UTF-16 units. Joining the parts gives the text back, whatever it holds; but each part is shown by
    itself, so a block of code that goes on in the next one is ended in this one and begun again there.
    """
    assert limit >= 2
    if limit >= _MIN_LIMIT_FOR_FENCES and _CODE_FENCE.search(text) is not None:
        return _split_keeping_blocks(text, limit)
    parts: list[str] = []
    start = 0
    while (end := _find_limit(text, start, limit)) < len(text):
        cut = _find_break(text, start, end)
        parts.append(text[start:cut])
        start = cut
    return (*parts, text[start:])


def _split_keeping_blocks(text: str, limit: int) -> tuple[str, ...]:
    parts: list[str] = []
    start, opened = 0, ""
    while True:
        begin = f"{opened}\n" if opened else ""
        if _find_limit(text, start, limit - count_units(begin)) == len(text):
            return (*parts, begin + text[start:])
        cut = _find_break(text, start, _find_limit(text, start, limit - count_units(begin) - _CLOSING_FENCE_UNITS))
        at, opened = _find_open_block(text, start, cut, opened)
        if opened and at > start + (cut - start) // 2:
            cut, opened = at, ""  # a block that has hardly begun goes whole into the next part
        part = begin + text[start:cut]
        if opened:
            mark = _extract_fence_marker(opened)
            part += mark if part.endswith("\n") else f"\n{mark}"
            # where it ends anyway, it is not begun again for nothing
            if (ends := re.compile(rf" {{0,3}}{mark}[ \t]*(?:\n|\Z)").match(text, cut)) is not None:
                cut, opened = ends.end(), ""
        parts.append(part)
        start = cut
        if start == len(text):
            return tuple(parts)


def _find_open_block(text: str, start: int, cut: int, opened: str) -> tuple[int, str]:
    """Where the block that is open at `cut` was opened, and by which line; an empty one if none is."""
    at = start
    for line in _CODE_FENCE.finditer(text, start, cut + _MAX_FENCE_CHARS):
        if line.start() >= cut:
            break
        mark, about = line[1], line[2].strip()
        if not opened:
            at, opened = line.start(), line[0].rstrip()
        elif not about and mark.startswith(_extract_fence_marker(opened)):
            opened = ""
    return at, opened


def _extract_fence_marker(opened: str) -> str:
    line = opened.lstrip()
    return line[: len(line) - len(line.lstrip(line[0]))]


def _find_limit(text: str, start: int, limit: int) -> int:
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


def _find_break(text: str, start: int, end: int) -> int:
    """Where to cut between `start` and `end`: after the best seam in the second half, or else at the end."""
    for seam in _BREAK_POINTS:
        cut = text.rfind(seam, start + (end - start) // 2, end)
        if cut > start:
            return cut + len(seam)
    return end
