"""Time and chance as arguments: nobody below app.py asks the machine for either."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """`now` is wall time in seconds and may jump; `monotonic` never goes back and means nothing across processes."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...


class RandomSource(Protocol):
    """Where ids, salts and jitter come from."""

    def bytes(self, n: int, /) -> bytes: ...

    def random(self) -> float: ...
