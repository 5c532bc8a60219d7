"""Scores of several arms -> one order. One set of parameters for everything; nothing here knows a question's kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class Knobs(Struct, frozen=True, kw_only=True):
    """How much each sign counts, as shares of the best score."""

    dense: float = 0.4
    """Share of meaning against words."""
    smooth: float = 0.25
    """What an item gains from each of its neighbours in the conversation."""
    human: float = 0.15
    """What people said against what agents answered."""
    named: float = 0.14
    """What those said whom the question names."""
    noted: float = 0.1
    recent: float = 0.02
    """The newest item against an infinitely old one."""
    half_life_days: float = 30.0


KNOBS: Final = Knobs()
DAY: Final = 86_400.0


class Sign(Struct, frozen=True):
    """What is known of a candidate besides its scores."""

    before: int
    human: bool
    named: bool
    noted: bool
    at: float


def fuse(full_text: Mapping[int, float], dense: Mapping[int, float], knobs: Knobs = KNOBS) -> dict[int, float]:
    """Both arms' scores as shares of their best, added."""
    if not dense:
        return _shares(full_text)
    if not full_text:
        return _shares(dense)
    words, meaning = _shares(full_text), _shares(dense)
    return {
        item: (1 - knobs.dense) * words.get(item, 0.0) + knobs.dense * meaning.get(item, 0.0)
        for item in words.keys() | meaning.keys()
    }


def settle(scores: Mapping[int, float], signs: Mapping[int, Sign], knobs: Knobs = KNOBS) -> dict[int, float]:
    """Scores with what neighbours, authors and time add. Every item in `signs` gets one."""
    smoothed = {item: scores.get(item, 0.0) for item in signs}
    for item, sign in signs.items():
        if sign.before in signs:
            smoothed[item] += knobs.smooth * scores.get(sign.before, 0.0)
            smoothed[sign.before] += knobs.smooth * scores.get(item, 0.0)
    best = max(smoothed.values(), default=0.0)
    newest = max((sign.at for sign in signs.values()), default=0.0)
    return {item: smoothed[item] + best * _extra(sign, newest, knobs) for item, sign in signs.items()}


def _extra(sign: Sign, newest: float, knobs: Knobs) -> float:
    age_days = max(0.0, newest - sign.at) / DAY
    recent: float = 0.5 ** (age_days / knobs.half_life_days)
    return knobs.human * sign.human + knobs.named * sign.named + knobs.noted * sign.noted + knobs.recent * recent


def _shares(scores: Mapping[int, float]) -> dict[int, float]:
    best = max(scores.values(), default=0.0)
    return {item: max(0.0, score) / best for item, score in scores.items()} if best > 0 else {}
