"""Random values that are the same in every run."""

from __future__ import annotations

import random


class SeededRandom:
    """A RandomSource with a seed, for salts and ids that are the same in every run."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def bytes(self, n: int, /) -> bytes:
        return self._random.randbytes(n)

    def random(self) -> float:
        return self._random.random()
