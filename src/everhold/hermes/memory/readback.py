"""Builds the query that checks whether a plug-in stored an item, and evaluates the answer.

An item that is shown is stored. An item that is not shown may still be stored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from everhold.ports.memory import Exchange, JobResult, MemoryItem, MemoryNote

MAX_WORDS: Final = 12
"""Characters of a query."""
MIN_WORDS: Final = 4
MIN_CHARS: Final = 20
"""Shorter texts occur too often to identify one item."""


class ReadbackQuery(Struct, frozen=True, kw_only=True):
    words: str
    evidence: str
    """The whole text. The query contains at most half of it, because answers often repeat the query."""


def build_readback_query(item: MemoryItem | JobResult) -> ReadbackQuery | None:
    """Return the query for an item; None if its text does not distinguish it from others."""
    match item:
        case Exchange(heard=heard, said=said):
            texts = [*(each.text for each in heard), *(each.text for each in said)]
        case MemoryNote(text=text):
            texts = [text]
        case JobResult(task=task, result=result):
            texts = [result, task]
        case _:
            return None
    for text in texts:
        words = (plain := _normalize_text(text)).split()
        if len(words) >= MIN_WORDS and len(plain) >= MIN_CHARS:
            return ReadbackQuery(words=" ".join(words[: len(words) // 2][:MAX_WORDS]), evidence=plain)
    return None


def is_evidence_shown(question: ReadbackQuery, answer: Sequence[str]) -> bool:
    return any(question.evidence in _normalize_text(text) for text in answer)


def _normalize_text(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()
