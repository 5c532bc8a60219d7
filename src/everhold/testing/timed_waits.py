"""Counts how long tasks wait for timers. A busy machine does not change these numbers, so a test may limit them.

    with TimedWaits() as waits:
        task = asyncio.create_task(work())
    await task
    assert waits.total_seconds < 1

A wait that something else ended before its time (an answer before its deadline) does not count.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextvars import Context, ContextVar, Token
from typing import Any, Final, Self

_WATCHED: Final[ContextVar[TimedWaits | None]] = ContextVar("everhold_timed_waits", default=None)


class TimedWaits:
    """The waits of all tasks that start inside the `with` block, and of the tasks that those start."""

    def __init__(self) -> None:
        self._seconds_by_task: defaultdict[asyncio.Task[Any] | None, float] = defaultdict(float)
        self._token: Token[TimedWaits | None] | None = None

    def __enter__(self) -> Self:
        _watch_loop(asyncio.get_running_loop())
        self._token = _WATCHED.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _WATCHED.reset(self._token)

    @property
    def total_seconds(self) -> float:
        """What all tasks have waited, added up, also if they waited at the same time."""
        return sum(self._seconds_by_task.values())

    @property
    def longest_seconds(self) -> float:
        """What the task has waited that waited the longest."""
        return max(self._seconds_by_task.values(), default=0.0)

    def reset(self) -> None:
        """Forget what was waited so far."""
        self._seconds_by_task.clear()

    def add_wait(self, task: asyncio.Task[Any] | None, seconds: float) -> None:
        self._seconds_by_task[task] += seconds


def _watch_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Let a loop report the timers that end a wait. `asyncio.sleep`, `wait` and `timeout` use these two methods."""
    if getattr(loop.call_at, "is_watched", False):
        return
    schedule = loop.call_at

    def call_at(
        when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return schedule(when, _count_wait(when - loop.time(), callback), *args, context=context)

    def call_later(
        delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return schedule(loop.time() + delay, _count_wait(delay, callback), *args, context=context)

    call_at.is_watched = True  # type: ignore[attr-defined]
    loop.call_at = call_at  # type: ignore[method-assign,assignment]
    loop.call_later = call_later  # type: ignore[method-assign,assignment]


def _count_wait(seconds: float, callback: Callable[..., object]) -> Callable[..., object]:
    """Return a callback that counts the wait which it ends. Others, such as the heartbeat of a connection, end none."""
    waits = _WATCHED.get()
    if waits is None or not (getattr(callback, "__module__", None) or "").startswith("asyncio"):
        return callback
    task = asyncio.current_task()

    def fire(*args: Any) -> None:
        waits.add_wait(task, max(0.0, seconds))
        callback(*args)

    return fire
