"""Converts the Markdown that models write to a plain text and Telegram's entities. Ambiguous marks stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from telegram import MessageEntity

from everhold.core.message_split import count_units

_FENCE_LINE: Final = re.compile(r"^```([\w+#-]*)[ \t]*$", re.MULTILINE)
_HEADING: Final = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)
_BULLET: Final = re.compile(r"^([ \t]*)[-*+][ \t]+(?=\S)", re.MULTILINE)
_MARKS: Final = (
    ("code", re.compile(r"`([^`\n]+)`")),
    ("text_link", re.compile(r"\[([^\[\]\n]+)\]\((https?://[^\s()]+)\)")),
    ("bold", re.compile(r"\*\*(?=[^\s*])((?:[^\n*]|\*(?!\*(?!\*)))+)(?<=\S)\*\*")),
    # a single word may be a name: __init__
    ("bold", re.compile(r"(?<!\w)__(?=[^\s_])((?:[^\s_]|_(?!_))+ (?:[^\n_]|_(?!_))*)(?<=\S)__(?!\w)")),
    ("strikethrough", re.compile(r"~~(?=\S)([^~\n]+?)(?<=\S)~~")),
    ("italic", re.compile(r"(?<![\w*\\])\*(?=[^\s*])([^*\n]+?)(?<=[^\s*])\*(?![\w*])")),
    ("italic", re.compile(r"(?<![\w_\\])_(?=[^\s_])([^_\n]+?)(?<=[^\s_])_(?![\w_])")),
)
_PLAIN: Final = frozenset("*_~`[#-+")
MAX_ENTITIES: Final = 100
"""Telegram ignores further entities."""


def format_markdown(text: str) -> tuple[str, list[MessageEntity]]:
    """Return the text without its marks, and the entities. A text that consists of marks only is returned unchanged."""
    if not _PLAIN & set(text):
        return text, []
    page = _EntityWriter()
    at = 0
    for opened, closed in _find_fences(text):
        page.write_prose(text[at : opened.start()])
        page.write_marked("pre", text[opened.end() + 1 : closed.start()].removesuffix("\n"), language=opened[1] or None)
        at = closed.end()
    page.write_prose(text[at:])
    plain = "".join(page.pieces)
    if not plain.strip() or count_units(plain) > count_units(text) or len(page.entities) > MAX_ENTITIES:
        return text, []
    return plain, page.entities


def _find_fences(text: str) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """Yield the first and the last line of each block of code."""
    opened: re.Match[str] | None = None
    for line in _FENCE_LINE.finditer(text):
        if opened is None:
            opened = line
        elif not line[1]:
            yield opened, line
            opened = None


class _EntityWriter:
    """The length of the text so far, in Telegram's units."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.entities: list[MessageEntity] = []
        self.length = 0

    def write_prose(self, text: str) -> None:
        text = _BULLET.sub(r"\1• ", text)
        at = 0
        for heading in _HEADING.finditer(text):
            self.write_inline(text[at : heading.start()])
            start = self.length
            self.write_inline(heading[1].rstrip("#").rstrip(" \t") or heading[1][:1])
            self._add_entity("bold", start)
            at = heading.end()
        self.write_inline(text[at:])

    def write_inline(self, text: str) -> None:
        """Convert a text with marks: the text before the first mark, the mark, then the rest."""
        at = 0
        nearest = {place: match for place, (_, shape) in enumerate(_MARKS) if (match := shape.search(text))}
        while nearest:
            place = min(nearest, key=lambda it: (nearest[it].start(), it))
            kind, match = _MARKS[place][0], nearest[place]
            self.write(text[at : match.start()])
            start = self.length
            if kind == "code":
                self.write(match[1])
            else:
                self.write_inline(match[1])
            self._add_entity(kind, start, url=match[2] if kind == "text_link" else None)
            at = match.end()
            for other in [it for it, found in nearest.items() if found.start() < at]:  # each text is searched once
                later = _MARKS[other][1].search(text, at)
                if later is None:
                    del nearest[other]
                else:
                    nearest[other] = later
        self.write(text[at:])

    def write_marked(self, kind: str, text: str, *, language: str | None = None) -> None:
        start = self.length
        self.write(text)
        self._add_entity(kind, start, language=language)

    def write(self, text: str) -> None:
        self.pieces.append(text)
        self.length += count_units(text)

    def _add_entity(self, kind: str, start: int, *, url: str | None = None, language: str | None = None) -> None:
        if self.length > start:
            length = self.length - start
            self.entities.append(MessageEntity(kind, offset=start, length=length, url=url, language=language))
