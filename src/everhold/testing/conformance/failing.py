"""When things go wrong on the way, with the gateway's own lanes around the provider: nothing is lost or held up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from everhold.errors import EverholdError, InDoubt, Transient
from everhold.ports.platform import Delivery
from everhold.testing.conformance.doing import KNOWN_BY_KEY
from everhold.testing.conformance.scene import Failed, Scene, Skipped
from everhold.testing.conformance.stage import Stage, hang, late, lose, refuse_to_connect, slow

TURN_SECONDS: Final = 2.0
"""A turn that takes longer has waited for the memory."""


@contextlib.asynccontextmanager
async def staged(scene: Scene) -> AsyncIterator[Stage]:
    stage = await Stage(scene).start()
    try:
        yield stage
    finally:
        await stage.stop()


async def _arrived(scene: Scene, stage: Stage, *tokens: str) -> None:
    """Each once; where nobody can tell, at least once, and twice only with the doubt on record."""
    if stage.attached.delivery in (*KNOWN_BY_KEY, Delivery.PROBE):
        await scene.finds(stage.attached, *tokens)
        return
    for token in tokens:
        if not await scene.look(stage.attached, token):
            await scene.finds(stage.attached, token)


async def lost_answer(scene: Scene) -> None:
    """An answer that is lost after the work was done: nothing is doubled, where it can be told."""
    async with staged(scene) as stage:
        tokens = [scene.token() for _ in range(3)]
        stage.between.faults.extend([lose, lose])
        for token in tokens:
            await stage.say(f"we met {token}")
        await stage.delivered()
        await _arrived(scene, stage, *tokens)


async def late_answer(scene: Scene) -> None:
    """A request that is carried out late, after it was asked for or sent again: nothing is doubled."""
    async with staged(scene) as stage:
        begun: list[asyncio.Task[Any]] = []
        it = stage.attached
        if it.delivery is Delivery.PROBE:
            seconds = it.deadline * 0.9  # within its deadline: nobody may ask before that has passed
        elif it.delivery in KNOWN_BY_KEY:
            seconds = it.deadline * 2
        else:
            raise Skipped(f"it declares {it.delivery} delivery: nobody can tell")
        stage.between.faults.append(late(seconds, begun))
        first, second = scene.token(), scene.token()
        await stage.say(f"we met {first}")
        await stage.delivered()
        await stage.say(f"then came {second}")
        await stage.delivered()
        await asyncio.gather(*begun)
        await asyncio.sleep(it.visible_after)
        await scene.finds(it, first, second)
        if it.delivery is Delivery.PROBE and not stage.between.probed:
            raise Failed("nobody asked it what had arrived")


async def outage(scene: Scene) -> None:
    """While it is away nothing is lost, and when it is back everything comes, once."""
    async with staged(scene) as stage:
        stage.between.always = refuse_to_connect
        tokens = [scene.token() for _ in range(5)]
        for token in tokens:
            await stage.say(f"we met {token}")
        await asyncio.sleep(0.1)
        for token in tokens:
            await scene.lacks(stage.attached, token)
        stage.between.always = None
        await stage.delivered()
        await scene.finds(stage.attached, *tokens)


async def slowness(scene: Scene) -> None:
    """A slow provider holds nobody up, and gets everything."""
    async with staged(scene) as stage:
        stage.between.always = slow(stage.attached.deadline / 2)
        tokens = [scene.token() for _ in range(3)]
        before = stage.clock.monotonic()
        for token in tokens:
            await stage.say(f"we met {token}")
        if stage.clock.monotonic() - before > len(tokens) * TURN_SECONDS:
            raise Failed("turns wait for it")
        await stage.delivered()
        await scene.finds(stage.attached, *tokens)


async def hanging(scene: Scene) -> None:
    """One that hangs is given up after its deadline; no turn waits for it, and later it gets everything."""
    async with staged(scene) as stage:
        stage.between.faults.extend([hang, hang])

        async def never() -> None:
            await asyncio.get_running_loop().create_future()

        stage.between.finding = never
        stage.furniture.settings |= {"recalls": ("it",), "recall_seconds": 0.2}
        tokens = [scene.token() for _ in range(3)]
        before = stage.clock.monotonic()
        for token in tokens:
            await stage.say(f"we met {token}")
        if stage.clock.monotonic() - before > len(tokens) * TURN_SECONDS:
            raise Failed("turns wait for it")
        stage.between.finding = None
        await stage.delivered(seconds=30.0)
        await _arrived(scene, stage, *tokens)


async def cancellation(scene: Scene) -> None:
    """A call that is broken off at any moment leaves a provider that works."""
    it = scene.build()
    tokens = [scene.token() for _ in range(6)]
    items = [scene.note(f"once more: {token}") for token in tokens]
    for steps, item in enumerate(items):
        storing = asyncio.ensure_future(it.store(scene.batch(item)))
        finding = asyncio.ensure_future(it.find(scene.query(tokens[0])))
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in (storing, finding):
            task.cancel()
        await asyncio.gather(storing, finding, return_exceptions=True)
    # what was broken off may have arrived: it is told by its key, or looked for, as everywhere
    for item in items:
        if it.delivery is Delivery.PROBE:
            await asyncio.sleep(it.visible_after)
            if await it.probe(scene.batch(item)):
                continue
        elif it.delivery not in KNOWN_BY_KEY and await scene.look(it, item.text.rpartition(" ")[2]):
            continue
        try:
            await scene.put(it, item)
        except TimeoutError:
            raise Failed("after a call was broken off, it does not answer any more") from None
    await scene.finds(it, *tokens)


async def switch(scene: Scene) -> None:
    """Another object takes over while one is at work: the call ends, the rest goes the new way, nothing twice."""
    async with staged(scene) as stage:
        stage.between.faults.append(slow(stage.attached.deadline / 2))
        tokens = [scene.token() for _ in range(4)]
        await stage.say(f"we met {tokens[0]}")
        await asyncio.sleep(stage.attached.deadline / 10)
        old = stage.replace()
        closing = asyncio.ensure_future(old.close())
        for token in tokens[1:]:
            await stage.say(f"we met {token}")
        await stage.delivered()
        async with asyncio.timeout(10):
            await closing
        await scene.finds(stage.attached, *tokens)


async def kill(scene: Scene) -> None:
    """The process is killed in the middle of a call: the next one finishes what it began, once where it can be told."""
    async with staged(scene) as stage:
        tokens = [scene.token() for _ in range(4)]
        await stage.say(f"we met {tokens[0]}")
        await stage.delivered()
        stage.between.faults.append(slow(stage.attached.deadline / 2))
        await stage.say(f"we met {tokens[1]}")
        await stage.say(f"we met {tokens[2]}")
        stage.crash()
        stage.replace()
        await stage.start()
        await stage.say(f"we met {tokens[3]}")
        await stage.delivered()
        await _arrived(scene, stage, *tokens)


async def far_side_outage(scene: Scene) -> None:
    """When its service is away, it says so in time and in our words, and goes on by itself once that is back."""
    harness = scene.needs_harness()
    it = scene.build()
    first, second = scene.token(), scene.token()
    await scene.put(it, scene.note(f"before: {first}"))
    await harness.down()
    try:
        await _says(it.store(scene.batch(scene.note("meanwhile"))), "store", it.deadline)
        await _says(it.find(scene.query(first)), "find", it.deadline)
    finally:
        await harness.up()
    await scene.put(it, scene.note(f"after: {second}"))
    await scene.finds(it, first, second)


async def _says(call: Any, what: str, deadline: float) -> None:
    try:
        async with asyncio.timeout(deadline + 1):
            await call
    except (Transient, InDoubt):
        return
    except EverholdError as error:
        raise Failed(
            f"`{what}` says {type(error).__name__} about an outage: that would be given up, not tried again"
        ) from None
    except TimeoutError:
        raise Failed(f"`{what}` says nothing within its deadline") from None
    raise Failed(f"`{what}` does as if nothing was wrong")
