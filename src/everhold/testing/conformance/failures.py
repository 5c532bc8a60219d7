"""Checks with failures, with the gateway's delivery workers around the provider: nothing is lost or blocked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from everhold.engine.memory_client import MemoryClient
from everhold.errors import EverholdError, InDoubt, Transient
from everhold.ports.platform import DeliveryGuarantee
from everhold.testing.conformance.harness import (
    GatewayHarness,
    delay_store,
    hang_forever,
    lose_answer,
    refuse_connection,
    slow_down_store,
)
from everhold.testing.conformance.scenario import CheckFailed, CheckSkipped, ProviderScenario
from everhold.testing.conformance.storing import IDEMPOTENT_GUARANTEES

TURN_SECONDS: Final = 2.0
TURN_SHARE: Final = 0.25
"""A turn that takes longer, and longer than this share of the deadline, has waited for the memory: the memory does not
answer for at least half of its deadline. A busy machine may take longer than a few seconds."""


@contextlib.asynccontextmanager
async def start_gateway(scenario: ProviderScenario) -> AsyncIterator[GatewayHarness]:
    gateway = await GatewayHarness(scenario).start()
    try:
        yield gateway
    finally:
        await gateway.stop()


async def _check_arrivals(scenario: ProviderScenario, gateway: GatewayHarness, *tokens: str) -> None:
    """Check that each item arrived once.

    With blind delivery it may be repeated, if the repeat is recorded as in doubt.
    """
    if gateway.memory_client.delivery in (*IDEMPOTENT_GUARANTEES, DeliveryGuarantee.PROBE):
        await scenario.assert_found(gateway.memory_client, *tokens)
        return
    for token in tokens:
        if not await scenario.find_hits(gateway.memory_client, token):
            await scenario.assert_found(gateway.memory_client, token)


async def check_lost_answer(scenario: ProviderScenario) -> None:
    """An answer is lost after the work was done: nothing is doubled, unless delivery is blind."""
    async with start_gateway(scenario) as gateway:
        tokens = [scenario.make_token() for _ in range(3)]
        gateway.faulty_provider.faults.extend([lose_answer, lose_answer])
        for token in tokens:
            await gateway.send_message(f"we met {token}")
        await gateway.wait_until_delivered()
        await _check_arrivals(scenario, gateway, *tokens)


async def check_late_answer(scenario: ProviderScenario) -> None:
    """A request takes effect late, after a probe or a resend: nothing is doubled."""
    async with start_gateway(scenario) as gateway:
        begun: list[asyncio.Task[Any]] = []
        it = gateway.memory_client
        if it.delivery is DeliveryGuarantee.PROBE:
            seconds = it.deadline * 0.9  # within its deadline, because a probe may come only after that
        elif it.delivery in IDEMPOTENT_GUARANTEES:
            seconds = it.deadline * 2
        else:
            raise CheckSkipped(f"it declares {it.delivery} delivery, so arrival cannot be checked")
        gateway.faulty_provider.faults.append(delay_store(seconds, begun))
        first, second = scenario.make_token(), scenario.make_token()
        await gateway.send_message(f"we met {first}")
        await gateway.wait_until_delivered()
        await gateway.send_message(f"then came {second}")
        await gateway.wait_until_delivered()
        await asyncio.gather(*begun)
        await asyncio.sleep(it.visible_after)
        await scenario.assert_found(it, first, second)
        if it.delivery is DeliveryGuarantee.PROBE and not gateway.faulty_provider.probe_count:
            raise CheckFailed("`probe` was not called")


async def check_outage(scenario: ProviderScenario) -> None:
    """An outage loses nothing: after it, everything arrives once."""
    async with start_gateway(scenario) as gateway:
        gateway.faulty_provider.default_fault = refuse_connection
        tokens = [scenario.make_token() for _ in range(5)]
        for token in tokens:
            await gateway.send_message(f"we met {token}")
        await asyncio.sleep(0.1)
        for token in tokens:
            await scenario.assert_not_found(gateway.memory_client, token)
        gateway.faulty_provider.default_fault = None
        await gateway.wait_until_delivered()
        await scenario.assert_found(gateway.memory_client, *tokens)


def _find_turn_limit(it: MemoryClient) -> float:
    """Return how many seconds a turn may take."""
    return max(TURN_SECONDS, it.deadline * TURN_SHARE)


async def check_slowness(scenario: ProviderScenario) -> None:
    """A slow provider delays no turn, and receives everything."""
    async with start_gateway(scenario) as gateway:
        gateway.faulty_provider.default_fault = slow_down_store(gateway.memory_client.deadline / 2)
        tokens = [scenario.make_token() for _ in range(3)]
        before = gateway.clock.monotonic()
        for token in tokens:
            await gateway.send_message(f"we met {token}")
        if gateway.clock.monotonic() - before > len(tokens) * _find_turn_limit(gateway.memory_client):
            raise CheckFailed("turns wait for it")
        await gateway.wait_until_delivered()
        await scenario.assert_found(gateway.memory_client, *tokens)


async def check_hanging(scenario: ProviderScenario) -> None:
    """A call that hangs ends at its deadline; no turn waits for it, and later the provider receives everything."""
    async with start_gateway(scenario) as gateway:
        gateway.faulty_provider.faults.extend([hang_forever, hang_forever])

        async def never() -> None:
            await asyncio.get_running_loop().create_future()

        gateway.faulty_provider.before_find = never
        gateway.runtimes.settings |= {"recall_memories": ("it",), "recall_seconds": 0.2}
        tokens = [scenario.make_token() for _ in range(3)]
        before = gateway.clock.monotonic()
        for token in tokens:
            await gateway.send_message(f"we met {token}")
        if gateway.clock.monotonic() - before > len(tokens) * _find_turn_limit(gateway.memory_client):
            raise CheckFailed("turns wait for it")
        gateway.faulty_provider.before_find = None
        await gateway.wait_until_delivered(seconds=30.0)
        await _check_arrivals(scenario, gateway, *tokens)


async def check_cancellation(scenario: ProviderScenario) -> None:
    """A provider works after a call was cancelled at any moment."""
    it = scenario.build_client()
    tokens = [scenario.make_token() for _ in range(6)]
    items = [scenario.make_note(f"once more: {token}") for token in tokens]
    for steps, item in enumerate(items):
        storing = asyncio.ensure_future(it.store(scenario.make_batch(item)))
        finding = asyncio.ensure_future(it.find(scenario.make_query(tokens[0])))
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in (storing, finding):
            task.cancel()
        await asyncio.gather(storing, finding, return_exceptions=True)
    # the cancelled batch may have arrived: its key or a probe tells
    for item in items:
        if it.delivery is DeliveryGuarantee.PROBE:
            await asyncio.sleep(it.visible_after)
            if await it.probe(scenario.make_batch(item)):
                continue
        elif it.delivery not in IDEMPOTENT_GUARANTEES and await scenario.find_hits(it, item.text.rpartition(" ")[2]):
            continue
        try:
            await scenario.store_items(it, item)
        except TimeoutError:
            raise CheckFailed("it does not answer after a call was cancelled") from None
    await scenario.assert_found(it, *tokens)


async def check_provider_switch(scenario: ProviderScenario) -> None:
    """A new object replaces one during a call: the call ends, the new object receives the rest, and nothing is
    doubled."""
    async with start_gateway(scenario) as gateway:
        gateway.faulty_provider.faults.append(slow_down_store(gateway.memory_client.deadline / 2))
        tokens = [scenario.make_token() for _ in range(4)]
        await gateway.send_message(f"we met {tokens[0]}")
        await asyncio.sleep(gateway.memory_client.deadline / 10)
        old = gateway.replace_provider()
        closing = asyncio.ensure_future(old.close())
        for token in tokens[1:]:
            await gateway.send_message(f"we met {token}")
        await gateway.wait_until_delivered()
        async with asyncio.timeout(10):
            await closing
        await scenario.assert_found(gateway.memory_client, *tokens)


async def check_kill(scenario: ProviderScenario) -> None:
    """The process is killed during a call: the next process finishes the batch, without repeats unless delivery is
    blind."""
    async with start_gateway(scenario) as gateway:
        tokens = [scenario.make_token() for _ in range(4)]
        await gateway.send_message(f"we met {tokens[0]}")
        await gateway.wait_until_delivered()
        gateway.faulty_provider.faults.append(slow_down_store(gateway.memory_client.deadline / 2))
        await gateway.send_message(f"we met {tokens[1]}")
        await gateway.send_message(f"we met {tokens[2]}")
        gateway.crash()
        gateway.replace_provider()
        await gateway.start()
        await gateway.send_message(f"we met {tokens[3]}")
        await gateway.wait_until_delivered()
        await _check_arrivals(scenario, gateway, *tokens)


async def check_service_outage(scenario: ProviderScenario) -> None:
    """In an outage it raises one of everhold's errors within the deadline, and works again after the outage."""
    harness = scenario.require_harness()
    it = scenario.build_client()
    first, second = scenario.make_token(), scenario.make_token()
    await scenario.store_items(it, scenario.make_note(f"before: {first}"))
    await harness.disconnect()
    try:
        await _check_outage_error(it.store(scenario.make_batch(scenario.make_note("meanwhile"))), "store", it.deadline)
        await _check_outage_error(it.find(scenario.make_query(first)), "find", it.deadline)
    finally:
        await harness.reconnect()
    await scenario.store_items(it, scenario.make_note(f"after: {second}"))
    await scenario.assert_found(it, first, second)


async def _check_outage_error(call: Any, what: str, deadline: float) -> None:
    try:
        async with asyncio.timeout(deadline + 1):
            await call
    except (Transient, InDoubt):
        return
    except EverholdError as error:
        raise CheckFailed(
            f"`{what}` raises {type(error).__name__} in an outage, so the item would be given up instead of retried"
        ) from None
    except TimeoutError:
        raise CheckFailed(f"`{what}` does not return within its deadline") from None
    raise CheckFailed(f"`{what}` reports no error in an outage")
