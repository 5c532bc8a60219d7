"""The parameters that ranking goes by: one set for everything; nothing here knows a question's kind."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class RankingWeights(Struct, frozen=True, kw_only=True):
    """How much each sign counts, as shares of the best score."""

    words: float = 0.3
    """The very words, as full text finds them."""
    meaning: float = 0.35
    """Nearness of the whole, by the table."""
    alike: float = 0.35
    """Words that are like the question's, one by one."""
    deep: float = 0.0
    """Nearness of the whole, by the stronger model."""
    smooth: float = 0.3
    """What an item gains from each of its neighbours in the conversation."""
    human: float = 0.2
    """What people said against what agents answered."""
    named: float = 0.12
    """What those said whom the question names."""
    noted: float = 0.1
    recent: float = 0.02
    """The newest item against an infinitely old one."""
    half_life_days: float = 30.0


STATIC_WEIGHTS: Final = RankingWeights()
ONNX_WEIGHTS: Final = RankingWeights(words=0.25, meaning=0.125, alike=0.25, deep=0.375)
"""With the stronger model, which takes most of the table's share."""
DAY_SECONDS: Final = 86_400.0
MAX_EXAMINED_ITEMS: Final = 80
"""Items that are looked at closely, with what stands beside them."""
SATURATION, LENGTH = 1.2, 0.75
"""BM25's k1 and b, as everybody has them."""
PREVIOUS_MESSAGE_WEIGHT: Final = 0.5
"""What a word counts that stands in the message before, if the two are read together."""


class RankedItem(Struct, frozen=True):
    """An item, by its first chunk; and its best chunk."""

    first_chunk: int
    score: float
    best_chunk: int
