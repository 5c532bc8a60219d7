"""How a memory is doing, as far as this process has seen: when it last answered, since when it fails, what it said.

One that fails to find again and again is left alone for a while, so that no turn waits for it; a try now and then shows
whether it is back. What is stored goes on by itself: that is the lane's business, and its waits are in the log.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from everhold.core.retry import wait_seconds
from everhold.ports.clock import Clock
from everhold.ports.log import Log

MOST_FAILURES: Final = 3
"""So often in a row, and it is not asked for a while."""
LONGEST_REST_SECONDS: Final = 60.0


@dataclasses.dataclass
class Beat:
    """One kind of call: storing, or finding. Times are the wall's."""

    succeeded: float | None = None
    failures: int = 0
    """In a row."""
    since: float | None = None
    """When the first of them was."""
    error: str = ""
    """What the last failure said; it stays to be read after it is over."""
    failed: float | None = None
    rests: float = 0.0
    """Until when it is not asked."""

    @property
    def failing(self) -> bool:
        return self.failures > 0


class Pulse:
    """One memory of one agent. Outlives the object behind it: a new client to a dead service is no sign of life."""

    def __init__(self, *, clock: Clock, log: Log) -> None:
        self.clock = clock
        self.log = log
        self.storing = Beat()
        self.finding = Beat()
        self.hooks: dict[str, str] = {}
        """What went wrong with a hook when it was last called."""

    @property
    def failing(self) -> bool:
        return self.storing.failing or self.finding.failing

    def well(self, beat: Beat) -> None:
        if beat.failing:
            what = "storing" if beat is self.storing else "finding"
            self.log.info("memory.well", what=what, failures=beat.failures, since=beat.since)
        beat.succeeded, beat.failures, beat.since, beat.rests = self.clock.now(), 0, None, 0.0

    def ill(self, beat: Beat, error: str) -> None:
        now = self.clock.now()
        beat.failures += 1
        beat.error, beat.failed = error, now
        if beat.since is None:
            beat.since = now
            what = "storing" if beat is self.storing else "finding"
            self.log.warning("memory.failing", what=what, error=error)
        tries = beat.failures - MOST_FAILURES
        if tries >= 0:
            wait = wait_seconds(tries + 3, jitter=0.0)
            beat.rests = now + min(LONGEST_REST_SECONDS, wait or LONGEST_REST_SECONDS)

    def resting(self, beat: Beat) -> float:
        """Seconds for which it is better left alone; a clock that went back ends that."""
        left = beat.rests - self.clock.now()
        return left if 0 < left <= LONGEST_REST_SECONDS else 0.0
