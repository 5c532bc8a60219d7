"""Waits for timers are counted, and nothing else is."""

from __future__ import annotations

import asyncio

import pytest

from everhold.testing.timed_waits import TimedWaits


async def test_waits_that_pass_are_counted_by_task() -> None:
    async def work() -> None:
        await asyncio.sleep(0.02)
        await asyncio.gather(asyncio.sleep(0.01), asyncio.sleep(0.01))
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.03)
        await wait_for_event()

    async def wait_for_event() -> None:
        woken = asyncio.Event()
        asyncio.get_running_loop().call_later(0.04, woken.set)
        await woken.wait()

    with TimedWaits() as waits:
        task = asyncio.create_task(work())
    await task
    assert waits.total_seconds == pytest.approx(0.11)
    assert waits.longest_seconds == pytest.approx(0.09)
    waits.reset()
    assert waits.total_seconds == waits.longest_seconds == 0


async def test_a_deadline_that_does_not_pass_a_callback_and_other_tasks_are_not_counted() -> None:
    done = asyncio.Event()

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.01, lambda: done.set())
        async with asyncio.timeout(60):
            await done.wait()

    with TimedWaits() as waits:
        task = asyncio.create_task(work())
    await task
    await asyncio.sleep(0.01)
    assert waits.total_seconds == 0


async def test_two_counts_in_one_loop_are_separate() -> None:
    with TimedWaits() as first:
        one = asyncio.create_task(asyncio.sleep(0.01))
    with TimedWaits() as second:
        two = asyncio.create_task(asyncio.sleep(0.02))
    await asyncio.gather(one, two)
    assert first.total_seconds == pytest.approx(0.01)
    assert second.total_seconds == pytest.approx(0.02)
