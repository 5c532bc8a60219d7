"""The liveness of a memory, as this process has seen it: the last success, since when it fails, and the last error.

A memory whose searches fail repeatedly is paused for a while, so that no turn waits for it; a call now and then shows
whether it is back. Storing is not paused, because its retry delays are in its cursor.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from everhold.core.retry import retry_delay_seconds
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger

MAX_FAILURES_IN_A_ROW: Final = 3
"""After so many failures in a row it is paused."""
MAX_REST_SECONDS: Final = 60.0


@dataclasses.dataclass
class CallLiveness:
    """The outcomes of one kind of call: storing, or finding. Times are wall-clock times."""

    last_success_at: float | None = None
    failures: int = 0
    """Failures in a row."""
    failing_since: float | None = None
    """The time of the first of them."""
    error: str = ""
    """The last error. It stays readable after a recovery."""
    last_failure_at: float | None = None
    rests_until: float = 0.0
    """Until when no call is made."""

    @property
    def is_failing(self) -> bool:
        return self.failures > 0


class MemoryLiveness:
    """The liveness of one memory of one agent. It outlives the client, because a new client does not mean that the
    service is back.
    """

    def __init__(self, *, clock: Clock, log: EventLogger) -> None:
        self.clock = clock
        self.log = log
        self.store_calls = CallLiveness()
        self.find_calls = CallLiveness()
        self.hook_errors: dict[str, str] = {}
        """Hook -> the error of its last call."""

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
        """Return for how many seconds no call should be made. A clock that went back ends the pause."""
        left = beat.rests_until - self.clock.now()
        return left if 0 < left <= MAX_REST_SECONDS else 0.0
