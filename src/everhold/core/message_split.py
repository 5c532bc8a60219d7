"""Split a long reply into the parts that are sent. A reply is split once, before its first part is sent."""

from __future__ import annotations

import re
from typing import Final

_BREAK_POINTS: Final = ("\n\n", "\n", ". ", " ")
_CODE_FENCE: Final = re.compile(r"^ {0,3}(`{3,10}|~{3,10})([^`\n]{0,40})$", re.MULTILINE)
"""A line that opens a code block, or closes one if nothing follows the marks."""
_MAX_FENCE_CHARS: Final = 64
"""More characters than such a line has. Looking this far after a cut shows whether the cut is inside such a line."""
_CLOSING_FENCE_UNITS: Final = 11
"""The units reserved for the line that closes a block."""
_MIN_LIMIT_FOR_FENCES: Final = 200
"""Below this limit code blocks are not closed and reopened."""


def count_units(text: str) -> int:
    """Return the length of a text in UTF-16 units, as platforms count."""
    return len(text) + sum(char > "\uffff" for char in text)


def split_text(text: str, limit: int) -> tuple[str, ...]:
    """Split `text` into parts of at most `limit` UTF-16 units, at the best break in the second half of each part.

    Joining the parts gives the text back. Each part is shown by itself, so a code block that continues in the next part
    is closed in this part and opened again in the next.
    """
    assert limit >= 2
    may_have_code = "```" in text or "~~~" in text
    if may_have_code and limit >= _MIN_LIMIT_FOR_FENCES and _CODE_FENCE.search(text) is not None:
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
            cut, opened = at, ""  # a block that has hardly begun moves whole into the next part
        part = begin + text[start:cut]
        if opened:
            mark = _extract_fence_marker(opened)
            part += mark if part.endswith("\n") else f"\n{mark}"
            # If the block ends right after the cut, do not open it again in the next part.
            if (ends := re.compile(rf" {{0,3}}{mark}[ \t]*(?:\n|\Z)").match(text, cut)) is not None:
                cut, opened = ends.end(), ""
        parts.append(part)
        start = cut
        if start == len(text):
            return tuple(parts)


def _find_open_block(text: str, start: int, cut: int, opened: str) -> tuple[int, str]:
    """Return where the block that is open at `cut` was opened, and the line that opened it; the line is empty if none
    is open.
    """
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
    """Return the index after `limit` units from `start`. It reads no further, so splitting a long text takes linear
    time.
    """
    piece = text[start : start + limit]
    if piece.isascii() or max(piece) <= "\uffff":
        return start + len(piece)
    units = 0
    for index, char in enumerate(piece):
        units += 2 if char > "\uffff" else 1
        if units > limit:
            return start + index
    return start + len(piece)


def _find_break(text: str, start: int, end: int) -> int:
    """Return where to cut between `start` and `end`: after the best break in the second half, else at the end."""
    for break_point in _BREAK_POINTS:
        cut = text.rfind(break_point, start + (end - start) // 2, end)
        if cut > start:
            return cut + len(break_point)
    return end
