"""Splits text into the word pieces that a model was trained on, without another package."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final, cast

_WORD: Final = re.compile(r"\w+|[^\w\s]")
_IDEOGRAPH: Final = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f])")
_FOREIGN: Final = re.compile(r"[^\x00-\x7f]+")
MAX_WORD_CHARS: Final = 100
"""Longer words are treated as unknown."""
MAX_CACHED_WORDS: Final = 100_000
"""Number of words whose pieces are cached."""


class WordPieceTokenizer:
    """Greedy longest-match tokenizer for BERT's uncased vocabularies."""

    def __init__(self, vocabulary: Sequence[str], *, unknown: int | None = None) -> None:
        self._ids = {piece: id for id, piece in enumerate(vocabulary)}
        self._unknown = [] if unknown is None else [unknown]
        self._words: dict[str, list[int]] = {}

    def tokenize(self, text: str) -> list[int]:
        """Return the piece ids of a text."""
        text = text.lower()
        if not text.isascii():
            text = _FOREIGN.sub(_strip_accents, unicodedata.normalize("NFD", text))
            text = _IDEOGRAPH.sub(r" \1 ", text)
        words = _WORD.findall(text.replace("_", " _ "))
        whole = list(map(self._ids.get, words))  # most words are one piece
        if None not in whole:
            return cast("list[int]", whole)
        found: list[int] = []
        for word, id in zip(words, whole, strict=True):
            if id is None:
                found += self.tokenize_word(word)
            else:
                found.append(id)
        return found

    def tokenize_word(self, word: str) -> list[int]:
        """Return the piece ids of one word in lower case without accents."""
        known = self._words.get(word)
        if known is None:
            known = self._split_word(word)
            if len(self._words) < MAX_CACHED_WORDS:
                self._words[word] = known
        return known

    def _split_word(self, word: str) -> list[int]:
        if len(word) > MAX_WORD_CHARS:
            return self._unknown
        found: list[int] = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                id = self._ids.get(word[start:end] if start == 0 else f"##{word[start:end]}")
                if id is not None:
                    found.append(id)
                    start = end
                    break
            else:
                return self._unknown
        return found


def _strip_accents(found: re.Match[str]) -> str:
    """Return the characters without combining marks."""
    return "".join(mark for mark in found[0] if unicodedata.category(mark) != "Mn")
