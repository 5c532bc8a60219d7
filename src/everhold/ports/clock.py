"""Time and randomness as arguments. Only app.py takes them from the machine, so that tests can control both."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """`now` is wall time in seconds and may jump; `monotonic` never goes back and means nothing across processes."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...


class RandomSource(Protocol):
    """The source of ids, salts and jitter."""

    def bytes(self, n: int, /) -> bytes: ...

    def random(self) -> float: ...
