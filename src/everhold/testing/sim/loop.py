"""A seeded event loop in virtual time, without a real clock, threads or I/O.

It implements the methods of `asyncio.AbstractEventLoop` that asyncio needs. Time passes only when no callback can run.
Callbacks mostly run in order, and sometimes in another order that the seed decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SHUFFLE_PROBABILITY: Final = 0.2
"""The probability that a callback other than the first one runs."""
MAX_STEPS: Final = 2_000_000
MAX_STEPS_AT_ONCE: Final = 30_000
"""More callbacks than this at one moment of virtual time count as an endless loop."""


class LoopStuck(Exception):
    """No callback can ever run again, or the callbacks run in an endless loop."""


class SimLoop(asyncio.AbstractEventLoop):
    """Runs one coroutine and everything it starts, without waiting for real time."""

    def __init__(self, seed: object, *, shuffle: float = SHUFFLE_PROBABILITY) -> None:
        self.steps = 0
        self.max_steps = MAX_STEPS
        self.errors: list[str] = []
        """What asyncio reports to a loop: exceptions that were not retrieved, tasks that were not awaited."""
        self._chance = random.Random(f"{seed}/loop")
        self._shuffle = shuffle
        self._now = 0.0
        self._since_steps = 0
        self._ready: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._tasks: list[asyncio.Task[Any]] = []
        """All tasks. A task that waits for ever must not be garbage-collected, because its `finally` would run."""
        self._closed = False

    # -- methods that asyncio needs

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], *, name: str | None = None, **options: Any
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, **options)
        self._tasks.append(task)
        return task

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing, because a cancelled timer is skipped at its time."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    # -- running

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end. Tasks that it started may remain unfinished."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main)
            while not task.done():
                self._run_step()
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def _run_step(self) -> None:
        self.steps += 1
        if self._ready:
            if self.steps - self._since_steps > MAX_STEPS_AT_ONCE or self.steps > self.max_steps:
                raise LoopStuck(f"endless loop at {self._now:.3f} s, after {self.steps} steps")
            handle = self._pick_handle()
            if not handle.cancelled():
                handle._run()
            return
        while self._timers:
            when, _, timer = heapq.heappop(self._timers)
            if timer.cancelled():
                continue
            if when > self._now:
                self._now = when
                self._since_steps = self.steps
            self._ready.append(timer)
            return
        raise LoopStuck(f"no callback can run and no timer is set at {self._now:.3f} s")

    def _pick_handle(self) -> asyncio.Handle:
        ready = self._ready
        if len(ready) > 1 and self._chance.random() < self._shuffle:
            return ready.pop(int(self._chance.random() * len(ready)))
        return ready.pop(0)

    def close(self) -> None:
        """Discard the unfinished tasks. Their `finally` blocks run now, when no check follows."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        asyncio._set_running_loop(self)
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio itself does
                    _close_coroutine(task.get_coro())
        finally:
            asyncio._set_running_loop(None)
            self._tasks.clear()
            self._ready.clear()
            self._timers.clear()


def _close_coroutine(coro: object) -> None:
    if isinstance(coro, Coroutine):
        with contextlib.suppress(RuntimeError):  # its `finally` block waits for something
            coro.close()
