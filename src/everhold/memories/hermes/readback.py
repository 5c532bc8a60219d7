"""Was something kept? What to ask a plug-in for, and what in its answer shows that it was.

Seeing it proves that it is there; not seeing it proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from everhold.ports.memory import Exchange, Memory, Note

MOST_WORDS: Final = 12
"""Of a question, and of what has to be seen."""
LEAST_WORDS: Final = 2
LEAST_CHARACTERS: Final = 12
"""What is shorter may be anybody's."""


class Question(Struct, frozen=True, kw_only=True):
    words: str
    evidence: str
    """Words that do not stand in the question: answers often repeat what was asked."""


def question(item: Memory) -> Question | None:
    """None: nothing in it would tell it from others."""
    match item:
        case Exchange(heard=heard, said=said):
            texts = [*(each.text for each in heard), *(each.text for each in said)]
        case Note(text=text):
            texts = [text]
        case _:
            return None
    for text in texts:
        words = _plain(text).split()
        half = len(words) // 2
        asked, evidence = " ".join(words[:half][-MOST_WORDS:]), " ".join(words[half:][:MOST_WORDS])
        if asked and _tells(evidence) and evidence not in asked:
            return Question(words=asked, evidence=evidence)
    return None


def shows(question: Question, answer: Sequence[str]) -> bool:
    return any(question.evidence in _plain(text) for text in answer)


def _tells(evidence: str) -> bool:
    return len(evidence.split()) >= LEAST_WORDS and len(evidence) >= LEAST_CHARACTERS


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()
