"""Memory files of other systems, MEMORY.md and its kin: text -> entries, and back. Each entry is one thing to keep."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

ENTRY_SEPARATOR: Final = "§"
"""Stands alone on a line between two entries, where a file was written by a program."""
TARGET_BY_FILE: Final = {"USER.md": "user", "MEMORY.md": "memory"}
"""Files whose entries are facts to keep in mind, and what those are about."""
PERSONA_FILE: Final = "SOUL.md"
"""Who the agent is, in its own words."""

_BULLET: Final = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_HEADING: Final = re.compile(r"\s*#{1,6}\s+")


def parse_memory_file(text: str) -> list[str]:
    """The entries of a file, in order, each once: between marks, or else a list's items and the paragraphs."""
    lines = text.replace("\r\n", "\n").split("\n")
    if any(line.strip() == ENTRY_SEPARATOR for line in lines):
        found = re.split(rf"(?m)^\s*{ENTRY_SEPARATOR}\s*$", "\n".join(lines))
    else:
        found = _split_paragraphs(lines)
    return list(dict.fromkeys(part.strip() for part in found if part.strip()))


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
    """A file that reads back as the same entries."""
    return f"\n{ENTRY_SEPARATOR}\n".join(text.strip() for text in texts)


def build_file_entry_key(*, agent: str, names: Iterable[str], file: str, text: str) -> str:
    """What an entry of a file is recognised by when it comes again, in whichever session of one memory session."""
    parts = (agent, *sorted(names), file, text)
    return f"file:{hashlib.sha256(chr(0).join(parts).encode('utf-8', 'surrogatepass')).hexdigest()}"
