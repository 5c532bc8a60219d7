"""Parse and render memory files of other systems, such as MEMORY.md. Each entry of a file is one note."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

ENTRY_SEPARATOR: Final = "§"
"""Stands alone on a line between two entries of a file that a program wrote."""
TARGET_BY_FILE: Final = {"USER.md": "user", "MEMORY.md": "memory"}
"""Files whose entries become facts, and the target of those facts."""
PERSONA_FILE: Final = "SOUL.md"
"""The file that describes the agent's persona."""

_BULLET: Final = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_HEADING: Final = re.compile(r"\s*#{1,6}\s+")


def parse_memory_file(text: str) -> list[str]:
    """Return the entries of a file in order, without duplicates. Separators delimit them; a file without separators is
    split into list items and paragraphs.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    if any(line.strip() == ENTRY_SEPARATOR for line in lines):
        found = re.split(rf"(?m)^\s*{ENTRY_SEPARATOR}\s*$", "\n".join(lines))
    else:
        found = _split_paragraphs(lines)
    # A separator alone, such as in a list item, is no entry: written again, it would separate others.
    return list(dict.fromkeys(part.strip() for part in found if part.strip() not in ("", ENTRY_SEPARATOR)))


def _split_paragraphs(lines: Iterable[str]) -> list[str]:
    pieces: list[list[str]] = [[]]
    for line in lines:
        if not line.strip() or _HEADING.match(line):
            pieces.append([])
        elif match := _BULLET.match(line):
            pieces.append([line[match.end() :]])
        else:
            pieces[-1].append(line.strip())
    return [" ".join(piece) for piece in pieces]


def render_memory_file(texts: Iterable[str]) -> str:
    """Return a file that parses into the same entries."""
    return f"\n{ENTRY_SEPARATOR}\n".join(text.strip() for text in texts)


def build_file_entry_key(*, agent: str, names: Iterable[str], file: str, text: str) -> str:
    """Return the key that identifies an entry of a file when it is imported again, in any session with the same memory
    names.
    """
    parts = (agent, *sorted(names), file, text)
    return f"file:{hashlib.sha256(chr(0).join(parts).encode('utf-8', 'surrogatepass')).hexdigest()}"
