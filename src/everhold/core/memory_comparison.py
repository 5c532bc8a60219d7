"""Compares what several memories found for the same questions, and which of it the answers used.

It reads the records of turns. A memory that is only compared (`shadow`) was asked as the others, but the model did not
see its hits, so what an answer has in common with them is what they would have contributed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final

from msgspec import Struct

from everhold.core.recall import RecallRecord, RecallTrace

COMPARED_HITS: Final = 10
"""How many of each memory's hits are compared, best first."""
STEM_CHARS: Final = 5
MIN_WORD_CHARS: Final = 4
"""A shorter word tells nothing, unless it has a digit."""
USED_SHARE: Final = 0.34
"""The share of a hit's words that the question does not have, from which on an answer that has them used the hit."""
MIN_USED_WORDS: Final = 2
SAME_SHARE: Final = 0.6
"""Two texts with this share of common words say the same."""
_WORD: Final = re.compile(r"\w+")


class QuestionRecord(Struct, frozen=True, kw_only=True):
    """A question with its answer, and the record of what the memories found."""

    session: str
    seq: int
    """The entry of the answer."""
    at: float
    question: str
    answer: str
    record: RecallRecord
    texts: Mapping[tuple[str, int], str]
    """The texts of the entries that the record cites."""


class MemoryFindings(Struct, frozen=True, kw_only=True):
    """What one memory found for one question."""

    memory: str
    answered: bool
    found: int
    seconds: float
    tokens: int
    used: int
    """How many of its best hits the answer used."""


class ComparedQuestion(Struct, frozen=True, kw_only=True):
    session: str
    seq: int
    at: float
    question: str
    memories: tuple[MemoryFindings, ...]
    used: tuple[str, ...]
    """The texts that the answer used, of any memory."""


class MemorySummary(Struct, frozen=True, kw_only=True):
    """One memory over all questions."""

    memory: str
    mode: str
    """`primary`, `shown` or `shadow`."""
    asked: int
    answered: int
    found_nothing: int
    found: float
    """Hits per question."""
    used: float
    """Hits per question that the answer used."""
    helped: int
    """How many answers used at least one of its hits."""
    alone: int
    """How many answers used a hit of this memory and of no other."""
    seconds_p50: float
    seconds_p95: float
    tokens: float
    """Tokens per question of everything that it found: what it would take to show it."""


class MemoryOverlap(Struct, frozen=True, kw_only=True):
    """The share of hits that two memories have in common, of all hits of both."""

    first: str
    second: str
    share: float


class MemoryComparison(Struct, frozen=True, kw_only=True):
    questions: tuple[ComparedQuestion, ...]
    memories: tuple[MemorySummary, ...]
    overlaps: tuple[MemoryOverlap, ...]


def compare_memories(questions: Sequence[QuestionRecord], *, modes: Mapping[str, str]) -> MemoryComparison:
    """Compare the memories that `modes` names, in its order."""
    compared: list[ComparedQuestion] = []
    used_by: list[dict[str, list[str]]] = []
    shares: dict[tuple[str, str], list[float]] = {pair: [] for pair in combinations(modes, 2)}
    for question in questions:
        hits = {name: _list_hit_texts(question, name) for name in modes if name in question.record.answers}
        used = {name: [text for text in texts if is_used(text, question)] for name, texts in hits.items()}
        used_by.append(used)
        compared.append(_compare_question(question, hits, used))
        for first, second in shares:
            if first in hits and second in hits and (hits[first] or hits[second]):
                shares[first, second].append(measure_overlap(hits[first], hits[second]))
    return MemoryComparison(
        questions=tuple(compared),
        memories=tuple(_summarise(name, mode, compared, used_by) for name, mode in modes.items()),
        overlaps=tuple(
            MemoryOverlap(first=first, second=second, share=round(sum(found) / len(found), 3))
            for (first, second), found in shares.items()
            if found
        ),
    )


def is_used(text: str, question: QuestionRecord) -> bool:
    """Return whether an answer has so much of a text that the question does not have that it probably comes from it."""
    known = _extract_stems(question.question)
    own = _extract_stems(text) - known
    if not own:
        return False
    common = own & _extract_stems(question.answer)
    return len(common) >= min(MIN_USED_WORDS, len(own)) and len(common) >= USED_SHARE * len(own)


def measure_overlap(first: Sequence[str], second: Sequence[str]) -> float:
    """Return the share of texts that both have. Memories may phrase the same fact differently."""
    if not first or not second:
        return 0.0
    words = [_extract_stems(text) for text in second]
    free = set(range(len(words)))
    common = 0
    for text in first:
        own = _extract_stems(text)
        fitting = next((number for number in free if _is_same(own, words[number])), None)
        if fitting is not None:
            free.discard(fitting)
            common += 1
    return common / (len(first) + len(second) - common)


def _is_same(first: frozenset[str], second: frozenset[str]) -> bool:
    if first == second:
        return True
    both = len(first & second)
    return bool(both) and both >= SAME_SHARE * min(len(first), len(second))


def _compare_question(
    question: QuestionRecord, hits: Mapping[str, Sequence[str]], used: Mapping[str, Sequence[str]]
) -> ComparedQuestion:
    record = question.record
    return ComparedQuestion(
        session=question.session,
        seq=question.seq,
        at=question.at,
        question=question.question,
        memories=tuple(
            MemoryFindings(
                memory=name,
                answered=record.answers[name].answered,
                found=record.answers[name].found,
                seconds=record.answers[name].seconds,
                tokens=record.answers[name].tokens,
                used=len(used[name]),
            )
            for name in hits
        ),
        used=tuple(dict.fromkeys(text for texts in used.values() for text in texts)),
    )


def _summarise(
    name: str, mode: str, compared: Sequence[ComparedQuestion], used_by: Sequence[Mapping[str, Sequence[str]]]
) -> MemorySummary:
    found = [it for one in compared for it in one.memories if it.memory == name]
    asked = max(1, len(found))
    seconds = sorted(it.seconds for it in found)
    return MemorySummary(
        memory=name,
        mode=mode,
        asked=len(found),
        answered=sum(it.answered for it in found),
        found_nothing=sum(it.answered and not it.found for it in found),
        found=round(sum(it.found for it in found) / asked, 2),
        used=round(sum(it.used for it in found) / asked, 2),
        helped=sum(it.used > 0 for it in found),
        alone=sum(
            bool(used.get(name)) and not any(texts for it, texts in used.items() if it != name) for used in used_by
        ),
        seconds_p50=_find_percentile(seconds, 0.5),
        seconds_p95=_find_percentile(seconds, 0.95),
        tokens=round(sum(it.tokens for it in found) / asked, 1),
    )


def _find_percentile(ordered: Sequence[float], share: float) -> float:
    return round(ordered[math.ceil(share * len(ordered)) - 1], 4) if ordered else 0.0


def _list_hit_texts(question: QuestionRecord, memory: str) -> list[str]:
    """Return the texts of a memory's best hits that still exist."""
    record = question.record
    traces: Iterable[RecallTrace] = (*record.shown, *record.shadow, *record.left_out)
    found = [_find_text(question, one) for one in traces if one.provider == memory]
    return [text for text in found if text][:COMPARED_HITS]


def _find_text(question: QuestionRecord, trace: RecallTrace) -> str:
    return trace.text or question.texts.get((trace.session, trace.seq), "")


def _extract_stems(text: str) -> frozenset[str]:
    words = _WORD.findall(text.casefold())
    return frozenset(
        word[:STEM_CHARS] for word in words if len(word) >= MIN_WORD_CHARS or any(mark.isdigit() for mark in word)
    )
