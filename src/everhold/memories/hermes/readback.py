"""Was something kept? What to ask a plug-in for, and what in its answer shows that it was.

Seeing it proves that it is there; not seeing it proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from everhold.ports.memory import Exchange, Job, Memory, Note

MOST_WORDS: Final = 12
"""Of a question."""
LEAST_WORDS: Final = 4
LEAST_CHARACTERS: Final = 20
"""What is shorter is said too often to tell one time from another."""


class Question(Struct, frozen=True, kw_only=True):
    words: str
    evidence: str
    """The whole text, of which the question holds a half at most: answers often repeat what was asked."""


def question(item: Memory | Job) -> Question | None:
    """None: nothing in it would tell it from others."""
    match item:
        case Exchange(heard=heard, said=said):
            texts = [*(each.text for each in heard), *(each.text for each in said)]
        case Note(text=text):
            texts = [text]
        case Job(task=task, result=result):
            texts = [result, task]
        case _:
            return None
    for text in texts:
        words = (plain := _plain(text)).split()
        if len(words) >= LEAST_WORDS and len(plain) >= LEAST_CHARACTERS:
            return Question(words=" ".join(words[: len(words) // 2][:MOST_WORDS]), evidence=plain)
    return None


def shows(question: Question, answer: Sequence[str]) -> bool:
    return any(question.evidence in _plain(text) for text in answer)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()
