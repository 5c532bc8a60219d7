"""How a memory is doing, as far as this process has seen: when it last answered, since when it fails, what it said.

One that fails to find again and again is left alone for a while, so that no turn waits for it; a try now and then shows
whether it is back. What is stored goes on by itself: that is the lane's business, and its waits are in the log.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from everhold.core.retry import retry_delay_seconds
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger

MAX_FAILURES_IN_A_ROW: Final = 3
"""So often in a row, and it is not asked for a while."""
MAX_REST_SECONDS: Final = 60.0


@dataclasses.dataclass
class CallLiveness:
    """One kind of call: storing, or finding. Times are the wall's."""

    last_success_at: float | None = None
    failures: int = 0
    """In a row."""
    failing_since: float | None = None
    """When the first of them was."""
    error: str = ""
    """What the last failure said; it stays to be read after it is over."""
    last_failure_at: float | None = None
    rests_until: float = 0.0
    """Until when it is not asked."""

    @property
    def is_failing(self) -> bool:
        return self.failures > 0


class MemoryLiveness:
    """One memory of one agent. Outlives the object behind it: a new client to a dead service is no sign of life."""

    def __init__(self, *, clock: Clock, log: EventLogger) -> None:
        self.clock = clock
        self.log = log
        self.store_calls = CallLiveness()
        self.find_calls = CallLiveness()
        self.hook_errors: dict[str, str] = {}
        """What went wrong with a hook when it was last called."""

    @property
    def is_failing(self) -> bool:
        return self.store_calls.is_failing or self.find_calls.is_failing

    def record_success(self, beat: CallLiveness) -> None:
        if beat.is_failing:
            what = "storing" if beat is self.store_calls else "finding"
            self.log.info("memory.recovered", what=what, failures=beat.failures, since=beat.failing_since)
        beat.last_success_at, beat.failures, beat.failing_since, beat.rests_until = self.clock.now(), 0, None, 0.0

    def record_failure(self, beat: CallLiveness, error: str) -> None:
        now = self.clock.now()
        beat.failures += 1
        beat.error, beat.last_failure_at = error, now
        if beat.failing_since is None:
            beat.failing_since = now
            what = "storing" if beat is self.store_calls else "finding"
            self.log.warning("memory.failing", what=what, error=error)
        tries = beat.failures - MAX_FAILURES_IN_A_ROW
        if tries >= 0:
            wait = retry_delay_seconds(tries + 3, jitter=0.0)
            beat.rests_until = now + min(MAX_REST_SECONDS, wait or MAX_REST_SECONDS)

    def get_rest_seconds(self, beat: CallLiveness) -> float:
        """Seconds for which it is better left alone; a clock that went back ends that."""
        left = beat.rests_until - self.clock.now()
        return left if 0 < left <= MAX_REST_SECONDS else 0.0
