"""A deadline for code that runs with every message: like `asyncio.timeout`, at a third of its cost."""

from __future__ import annotations

import asyncio
from types import TracebackType


class TaskDeadline:
    """Ends the awaiting code inside with a TimeoutError at this time of the loop, unless it is rescheduled.

    A later time does not schedule a new callback. The callback of the earlier time checks it and schedules the next.
    """

    __slots__ = ("_alarm", "_armed", "_asked", "_at", "_late", "_loop", "_task")

    def __init__(self, at: float) -> None:
        self._at = at
        self._late = False

    def __enter__(self) -> TaskDeadline:
        task = asyncio.current_task()
        assert task is not None, "a deadline needs a task"
        self._task = task
        self._asked = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._arm()
        return self

    def reschedule(self, at: float) -> None:
        self._at = at
        if at < self._armed and not self._late:
            self._alarm.cancel()
            self._arm()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarm.cancel()
        # another cancellation of this task takes precedence over the timeout
        if self._late and self._task.uncancel() <= self._asked and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _arm(self) -> None:
        self._armed = self._at
        self._alarm = self._loop.call_at(self._at, self._on_alarm)

    def _on_alarm(self) -> None:
        if self._at > self._armed:
            self._arm()
        else:
            self._late = True
            self._task.cancel()
