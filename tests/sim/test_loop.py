"""The simulator's event loop: asyncio in virtual time, with equal runs for equal seeds."""

from __future__ import annotations

import asyncio

import pytest

from everhold.testing.sim.loop import LoopStuck, SimLoop


def loop(seed: int = 0, **options: float) -> SimLoop:
    return SimLoop(seed, **options)  # type: ignore[abstract]  # it lacks sockets and signals


def test_time_passes_only_when_no_callback_can_run() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert loop().run(main()) == 3600


def test_asyncio_primitives_work_unchanged() -> None:
    async def main() -> list[object]:
        bell = asyncio.Event()
        queue: asyncio.Queue[int] = asyncio.Queue()
        lock = asyncio.Lock()

        async def set_event() -> str:
            await asyncio.sleep(5)
            async with lock:
                bell.set()
                await queue.put(7)
            return "rang"

        async def late() -> str:
            try:
                async with asyncio.timeout(2):
                    await bell.wait()
            except TimeoutError:
                return f"late at {asyncio.get_running_loop().time():g}"
            return "in time"

        found = await asyncio.gather(set_event(), late(), asyncio.wait_for(queue.get(), 60))
        task = asyncio.create_task(asyncio.sleep(1000))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [*found, asyncio.get_running_loop().time()]

    assert loop().run(main()) == ["rang", "late at 2", 7, 5.0]


def test_a_seed_determines_the_order() -> None:
    async def main() -> str:
        seen: list[str] = []

        async def say(word: str) -> None:
            for _ in range(4):
                await asyncio.sleep(0)
                seen.append(word)

        await asyncio.gather(*(say(word) for word in "abcd"))
        return "".join(seen)

    orders = {seed: loop(seed).run(main()) for seed in range(20)}
    assert len(set(orders.values())) > 10
    assert orders == {seed: loop(seed).run(main()) for seed in range(20)}
    assert loop(1, shuffle=0.0).run(main()) == "abcd" * 4


def test_a_wait_that_never_ends_is_detected() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(LoopStuck, match="no callback can run"):
        loop().run(main())


def test_an_endless_loop_is_detected() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110  # an endless loop on purpose
            await asyncio.sleep(0)

    with pytest.raises(LoopStuck, match="endless loop"):
        loop().run(main())


def test_a_task_that_waits_for_ever_runs_its_finally_only_at_close() -> None:
    ran: list[str] = []

    async def dead() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ran.append("finally")

    async def main() -> None:
        asyncio.get_running_loop().create_task(dead())  # only the loop keeps a reference
        await asyncio.sleep(1)

    mine = loop()
    mine.run(main())
    assert ran == []
    mine.close()
    assert ran == ["finally"]
    assert mine.errors == []
