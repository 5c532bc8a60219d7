"""Two hosts with one store never spend more than a budget allows, however their calls overlap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everhold.core.people import PeopleAction, PeopleEvent
from everhold.engine.budgets import (
    RESERVATION_LEASE_SECONDS,
    BudgetLedger,
    BudgetLimit,
    BudgetReservation,
    SharedReservations,
    WorstCaseCost,
)
from everhold.errors import Refused
from everhold.ports.store import BudgetSpend, Change, Step
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store import SeededRandom
from everhold.testing.contracts.store_scenario import StoreClock

DAY = "2024-05-01"
AGENT = "agent:main"
ONE_DOLLAR = WorstCaseCost(usd=1.0, tokens=10)
Ledgers = tuple[BudgetLedger, BudgetLedger]


def open_ledger(path: Path, clock: StoreClock, *, seed: int) -> BudgetLedger:
    """Return the ledger of a host with a connection of its own."""
    store = SqliteStore.open(path / "log.db", chance=SeededRandom(seed), now=clock, synchronous="OFF")
    shared = SharedReservations(store, chance=SeededRandom(seed))
    return BudgetLedger(store, get_today=lambda: DAY, shared=shared)


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock()


@pytest.fixture
async def ledgers(tmp_path: Path, clock: StoreClock) -> AsyncIterator[Ledgers]:
    opened = open_ledger(tmp_path, clock, seed=0), open_ledger(tmp_path, clock, seed=1)
    yield opened
    for ledger in opened:
        await ledger.store.close()


def limit(usd: float, budget: str = AGENT) -> list[BudgetLimit]:
    return [BudgetLimit(budget=budget, usd=usd)]


async def spend(ledger: BudgetLedger, usd: float, *, budget: str = AGENT) -> None:
    spends = (BudgetSpend(budget=budget, day=DAY, usd=usd, tokens=1),)
    await ledger.store.commit(Change(step=Step.SPEND, session="", at=1.0, spends=spends))


async def reserve(ledger: BudgetLedger, usd: float, *, budget: str = AGENT) -> BudgetReservation | None:
    """Reserve a dollar of a budget; None if it was refused."""
    reservation = ledger.prepare_reservation(limit(usd, budget), ONE_DOLLAR)
    try:
        await reservation.reserve()
    except Refused:
        return None
    return reservation


async def test_parallel_calls_of_two_hosts_share_one_budget(ledgers: Ledgers) -> None:
    found = await asyncio.gather(*(reserve(ledgers[number % 2], 10.0) for number in range(40)))
    assert len([it for it in found if it is not None]) == 10


async def test_calls_that_begin_and_end_at_both_hosts_never_exceed_the_budget(ledgers: Ledgers) -> None:
    running = most = 0

    async def call(number: int) -> None:
        nonlocal running, most
        ledger = ledgers[number % 2]
        for _ in range(3):
            if (reservation := await reserve(ledger, 6.0)) is None:
                continue
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            await spend(ledger, 0.25)
            running -= 1
            reservation.release()

    await asyncio.gather(*(call(number) for number in range(12)))
    spent = await ledgers[0].store.get_spend(AGENT, DAY)
    assert most <= 6
    assert 0 < spent.usd <= 6.0
    while (reservation := await reserve(ledgers[0], 6.0)) is not None:
        await spend(ledgers[0], 1.0)
        reservation.release()
        await asyncio.sleep(0)
    spent = await ledgers[1].store.get_spend(AGENT, DAY)
    assert 5.0 < spent.usd <= 6.0, "nothing stays reserved, and the last dollar is spent once"


async def test_a_cost_counts_until_it_is_committed_and_then_once(ledgers: Ledgers) -> None:
    here, there = ledgers
    mine = await reserve(here, 2.0)
    assert mine is not None
    assert await reserve(there, 1.5) is None, "reserved by the other host"
    await spend(here, 1.0)
    mine.release()
    mine.release()
    await asyncio.sleep(0.01)
    assert await reserve(there, 2.0) is not None
    assert await reserve(there, 2.0) is None


async def test_what_a_dead_host_has_reserved_is_free_after_its_lease(ledgers: Ledgers, clock: StoreClock) -> None:
    here, there = ledgers
    assert await reserve(here, 1.0) is not None
    clock.time += RESERVATION_LEASE_SECONDS - 1
    assert await reserve(there, 1.0) is None
    clock.time += 1
    assert await reserve(there, 1.0) is not None
    await here.renew()
    clock.time += 1
    assert await reserve(there, 1.0) is None, "a reservation that has ended is not renewed"


async def test_a_long_call_keeps_its_reservation(ledgers: Ledgers, clock: StoreClock) -> None:
    here, there = ledgers
    assert await reserve(here, 1.0) is not None
    for _ in range(5):
        clock.time += RESERVATION_LEASE_SECONDS / 2
        await here.renew()
    assert await reserve(there, 1.0) is None


async def test_the_identities_of_one_person_share_a_budget_across_hosts(ledgers: Ledgers) -> None:
    here, there = ledgers
    events = tuple(
        PeopleEvent(action=PeopleAction.LINKED, person="p1", identity=identity, proof="config", at=1.0, by="operator")
        for identity in ("telegram:1", "slack:U1")
    )
    made = PeopleEvent(action=PeopleAction.MADE, person="p1", at=1.0, by="operator")
    await here.store.commit(Change(step=Step.PEOPLE, session="", at=1.0, people=(made, *events), people_epoch=0))
    assert await reserve(here, 1.0, budget="person:telegram:1") is not None
    assert await reserve(there, 1.0, budget="person:slack:U1") is None
    assert await reserve(there, 1.0, budget="person:slack:U2") is not None


async def test_a_call_without_a_limit_reserves_nothing(ledgers: Ledgers) -> None:
    reservation = ledgers[0].prepare_reservation([BudgetLimit(budget=AGENT)], ONE_DOLLAR)
    await reservation.reserve()
    assert await reserve(ledgers[1], 1.0) is not None
