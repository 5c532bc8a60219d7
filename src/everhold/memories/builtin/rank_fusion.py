"""The parameters of ranking. One set serves all questions."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class RankingWeights(Struct, frozen=True, kw_only=True):
    """The weight of each signal, as a share of the best score."""

    words: float = 0.3
    """Full-text matches."""
    meaning: float = 0.35
    """Similarity of the whole chunk by the static table."""
    alike: float = 0.35
    """Similarity word by word."""
    deep: float = 0.0
    """Similarity of the whole chunk by the stronger model."""
    smooth: float = 0.25
    """What an item gains from each of its neighbours in the conversation."""
    occasion: float = 0.6
    """What an item gains from the best items of the same session and day."""
    human: float = 0.3
    """What people said and what agents answered briefly, relative to long answers."""
    named: float = 0.12
    """What was said by people whom the question names."""
    dated: float = 0.4
    """What was said at a date that the question names, or soon after. It rises to three times as much for a question
    that has hardly any other words.
    """
    personal: float = 1.0
    """What people said about themselves, and notes, if the question is about the person who asks."""
    noted: float = 0.1
    recent: float = 0.01
    """The newest item, relative to an infinitely old one."""
    half_life_days: float = 90.0


STATIC_WEIGHTS: Final = RankingWeights()
ONNX_WEIGHTS: Final = RankingWeights(words=0.25, meaning=0.125, alike=0.25, deep=0.375)
"""With the stronger model, which takes over most of the table's weight."""
FOREIGN_WEIGHTS: Final = RankingWeights(words=0.6, meaning=0.2, alike=0.2)
"""Of a question in another language than English, of which the table knows little."""
FOREIGN_ONNX_WEIGHTS: Final = RankingWeights(words=0.5, meaning=0.1, alike=0.2, deep=0.2)
DAY_SECONDS: Final = 86_400.0
MIN_SCORE_SHARE: Final = 0.25
"""The share of the best score that an item needs to be recalled in a turn."""
MIN_LIKENESS: Final = 0.3
"""The share of the question's words that something in an item must resemble, if it has no word of the question."""
MIN_SIMILARITY: Final = 0.25
"""The similarity that an item must have to the question, if no single word shows that it belongs there."""
OCCASION_ITEMS: Final = 3
"""The best items of an occasion that count for it."""
DATE_HALF_LIFE_DAYS: Final = 3.0
"""How fast the weight of a date falls after it. People tell of a day on the days after it."""
MAX_WANTED_ITEMS: Final = 120
"""Items of the named dates, or of people about themselves, that are candidates whatever their words are."""
MAX_EXAMINED_ITEMS: Final = 80
"""Items that are ranked in detail, together with their neighbours."""
SATURATION, LENGTH = 1.2, 0.75
"""BM25's k1 and b, with their usual values."""
PREVIOUS_MESSAGE_WEIGHT: Final = 0.5
"""The weight of a word in the previous message, if the two messages are read together."""


class RankedItem(Struct, frozen=True):
    """An item, named by its first chunk, and its best chunk."""

    first_chunk: int
    score: float
    best_chunk: int


def choose_weights(*, english: bool, deep: bool) -> RankingWeights:
    """Return the weights for a question, with or without the stronger model."""
    if english:
        return ONNX_WEIGHTS if deep else STATIC_WEIGHTS
    return FOREIGN_ONNX_WEIGHTS if deep else FOREIGN_WEIGHTS
