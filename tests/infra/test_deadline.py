"""A deadline ends a task that takes too long, and does not hide another cancellation."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from everhold.infra.deadline import TaskDeadline
from everhold.testing.sim.loop import SimLoop


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Virtual time: it passes only while all tasks wait."""

    @functools.wraps(test)
    def run() -> None:
        loop = SimLoop(test.__name__, shuffle=0.0)  # type: ignore[abstract]  # it has what virtual worlds need
        try:
            loop.run(test())
        finally:
            loop.close()

    return run


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


@virtual
async def test_a_task_that_takes_too_long_is_ended() -> None:
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(TimeoutError), TaskDeadline(after(0.01)):
        await asyncio.sleep(60)
    assert not task.cancelling()
    await asyncio.sleep(0)


@virtual
async def test_a_task_that_ends_in_time_is_not_affected() -> None:
    with TaskDeadline(after(0.01)):
        await asyncio.sleep(0)
    await asyncio.sleep(0.03)


@virtual
async def test_a_postponed_deadline_applies() -> None:
    async def work() -> None:
        with TaskDeadline(after(0.01)) as limit:
            limit.reschedule(after(0.08))
            await asyncio.sleep(0.04)
            limit.reschedule(after(0.02))
            done.append("so far")
            await asyncio.sleep(60)

    done: list[str] = []
    began = after(0)
    with pytest.raises(TimeoutError):
        await work()
    assert done
    assert after(0) - began == pytest.approx(0.06)


@virtual
async def test_an_advanced_deadline_applies() -> None:
    async def work() -> None:
        with TaskDeadline(after(60)) as limit:
            limit.reschedule(after(0.01))
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    done, _ = await asyncio.wait((task,), timeout=2)
    assert done
    assert isinstance(task.exception(), TimeoutError)


@virtual
async def test_an_error_of_the_task_is_raised_unchanged() -> None:
    with pytest.raises(ValueError, match="mine"), TaskDeadline(after(0.01)):
        raise ValueError("mine")


async def test_another_cancellation_takes_precedence() -> None:
    async def work() -> None:
        with TaskDeadline(after(0.02)):
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def both() -> None:
        me = asyncio.current_task()
        assert me is not None
        with TaskDeadline(after(0.01)):
            asyncio.get_running_loop().call_at(after(0.01), me.cancel)
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(both())


@virtual
async def test_of_two_deadlines_the_expired_one_raises() -> None:
    with TaskDeadline(after(60)):
        with pytest.raises(TimeoutError), TaskDeadline(after(0.01)):
            await asyncio.sleep(60)
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError), TaskDeadline(after(0.01)), TaskDeadline(after(60)):
        await asyncio.sleep(60)
