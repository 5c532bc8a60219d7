"""Two hosts on one PostgreSQL database decide as two hosts on one file do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from everhold.engine.budgets import BudgetLedger, SharedReservations
from everhold.ports.store import StateNamespace, StateWrite, Step
from everhold.stores.postgres import PostgresStore
from everhold.testing.contracts.store import SeededRandom, StoreScenario
from everhold.testing.contracts.store_scenario import StoreClock
from tests.hosts import test_budgets as budgets


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock()


@pytest.fixture
async def stores(postgres_url: str, clock: StoreClock) -> AsyncIterator[list[PostgresStore]]:
    opened = [
        await PostgresStore.open(postgres_url, chance=SeededRandom(seed), now=clock, writers=2, readers=2)
        for seed in range(2)
    ]
    yield opened
    for store in opened:
        await store.close()


@pytest.fixture
def ledgers(stores: list[PostgresStore]) -> budgets.Ledgers:
    here, there = (
        BudgetLedger(
            store,
            get_today=lambda: budgets.DAY,
            shared=SharedReservations(store, chance=SeededRandom(seed)),
        )
        for seed, store in enumerate(stores)
    )
    return here, there


@pytest.mark.parametrize(
    "test",
    [
        budgets.test_parallel_calls_of_two_hosts_share_one_budget,
        budgets.test_calls_that_begin_and_end_at_both_hosts_never_exceed_the_budget,
        budgets.test_the_identities_of_one_person_share_a_budget_across_hosts,
    ],
)
async def test_two_hosts_share_a_budget(
    test: Callable[[budgets.Ledgers], Awaitable[None]], ledgers: budgets.Ledgers
) -> None:
    await test(ledgers)


async def test_what_a_dead_host_has_reserved_is_free_after_its_lease(
    ledgers: budgets.Ledgers, clock: StoreClock
) -> None:
    await budgets.test_what_a_dead_host_has_reserved_is_free_after_its_lease(ledgers, clock)


async def test_no_message_is_accepted_by_an_outdated_copy(stores: list[PostgresStore], clock: StoreClock) -> None:
    """Messages of one host race with a halt of another. Each that was accepted was accepted before the halt."""
    here, there = (StoreScenario(store, clock) for store in stores)
    await here.open_session("s")
    for number in range(10):
        seen = await there.store.get_state_version()
        halt = StateWrite(namespace=StateNamespace.CHAT_HALT, key=str(number), value="{}", version=0)
        heard = [there.commit_heard(f"{number} {n}", bound=("test:s", ""), state_seen=seen, wake="") for n in range(5)]
        order = here.commit(session="", step=Step.STATE, state_writes=(halt,))
        await asyncio.gather(*heard[:3], order, *heard[3:], return_exceptions=True)
        with pytest.raises(Exception, match="version"):
            await there.commit_heard("late", bound=("test:s", ""), state_seen=seen, wake="")
        assert await there.store.get_state_version() == seen + 1
    assert "late" not in await here.read_texts()
