"""Recognises repeated requests with an idempotency key that belong to no session, and gives them the same answer.

The tasks are kept in memory for a limited time. Repeated messages of a session are recognised from its log instead.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, NamedTuple, TypeVar

from everhold.errors import Conflict, Transient

KEEP_SECONDS: Final = 600.0
MAX_TASKS: Final = 256
MAX_RUNNING_TASKS: Final = 64
"""The limit of one account, because a task goes on after its caller has left."""

T = TypeVar("T")


class TaskKey(NamedTuple):
    """Whose key it is. The users of one service token choose their keys without knowing of each other."""

    account: str
    sender: str
    key: str


class IdempotentTasks(Generic[T]):
    """One task per key, shared by all requests of one sender with that key."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._tasks: OrderedDict[TaskKey, tuple[bytes, float, asyncio.Task[T]]] = OrderedDict()

    def start(self, key: TaskKey, digest: bytes, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Return the task of `key` that was started for the same `digest`, or start a new one."""
        self._forget_oldest(lambda since: self._monotonic() - since >= KEEP_SECONDS)
        if key in self._tasks:
            known, _, task = self._tasks[key]
            if known != digest:
                raise Conflict(f"key {key.key!r} was used for another request", remedy="give a new request a new key")
            if not (task.done() and (task.cancelled() or task.exception() is not None)):
                return task
            del self._tasks[key]
        self._forget_oldest(lambda _: len(self._tasks) >= MAX_TASKS)
        running = sum(it.account == key.account and not task.done() for it, (_, _, task) in self._tasks.items())
        if len(self._tasks) >= MAX_TASKS or running >= MAX_RUNNING_TASKS:
            raise Transient("too many requests with a key are being answered", retry_after=1.0, remedy="try again")
        task = asyncio.get_running_loop().create_task(work())
        self._tasks[key] = (digest, self._monotonic(), task)
        return task

    def _forget_oldest(self, whether: Callable[[float], bool]) -> None:
        """Forget the oldest tasks that are done. A running task stays because a request may wait for it."""
        for key, (_, since, task) in list(self._tasks.items()):
            if not whether(since):
                return
            if task.done():
                del self._tasks[key]
