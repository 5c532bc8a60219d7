"""The suite that every store must pass. A subclass says how a store is opened:

class TestMyStore(StoreContract):
    def open(self, home: Path, now: Callable[[], float]) -> Store:
        return MyStore.open(home, chance=SeededRandom(), now=now)
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from everhold.core.budget import BudgetHold
from everhold.core.entries import EntryDraft, Thought
from everhold.errors import Conflict, InvalidRequest
from everhold.ports.store import BudgetSpend, Step, Store
from everhold.testing.contracts.store_cursors import StoreCursorContract
from everhold.testing.contracts.store_hosts import StoreHostsContract
from everhold.testing.contracts.store_log import StoreLogContract
from everhold.testing.contracts.store_measurements import StoreMeasurementsContract
from everhold.testing.contracts.store_operations import StoreOperationsContract
from everhold.testing.contracts.store_people import PeopleStoreContract
from everhold.testing.contracts.store_scenario import SeededRandom, StoreScenario, store_promise
from everhold.testing.contracts.store_state import StateContract

__all__ = ["SeededRandom", "StoreContract", "StoreScenario"]


class StoreContract(
    StoreLogContract,
    StoreOperationsContract,
    StoreCursorContract,
    StateContract,
    PeopleStoreContract,
    StoreHostsContract,
    StoreMeasurementsContract,
):
    def open(self, home: Path, now: Callable[[], float]) -> Store | Awaitable[Store]:
        """Open a new, empty store that may use the directory `home`. Its clock is `now`."""
        raise NotImplementedError

    @store_promise
    async def test_spending_adds_up_per_budget_and_day(self, scenario: StoreScenario) -> None:
        await scenario.commit(spends=(BudgetSpend(budget="agent:main", day="d1", usd=0.25, tokens=10),))
        await scenario.commit(
            spends=(
                BudgetSpend(budget="agent:main", day="d1", usd=0.5, tokens=5),
                BudgetSpend(budget="agent:main", day="d2", usd=1.0),
                BudgetSpend(budget="person:ada", day="d1", tokens=1),
            )
        )
        spent = await scenario.store.get_spend("agent:main", "d1")
        assert (spent.usd, spent.tokens) == (0.75, 15)
        assert (await scenario.store.get_spend("agent:main", "d2")).usd == 1.0
        assert await scenario.store.get_spend("nobody", "d1") == BudgetSpend(budget="nobody", day="d1")
        assert await scenario.store.list_spends("agent:", "d1") == [spent]
        assert [it.budget for it in await scenario.store.list_spends("", "d1")] == ["agent:main", "person:ada"]
        assert await scenario.store.list_spends("chat:", "d1") == []

    @store_promise
    async def test_a_reservation_counts_until_it_is_released_or_its_lease_ends(self, scenario: StoreScenario) -> None:
        async def reserve(id: str, *budgets: str, usd: float = 1.0, at: float = 1.0) -> str:
            holds = [BudgetHold(budget=it, counted=(it,), usd_limit=2.5, token_limit=25) for it in budgets]
            refusal = await scenario.at(at).reserve_spending(holds, id=id, day="d", usd=usd, tokens=10, lease=60.0)
            return "" if refusal is None else f"{refusal.budget} {refusal.remaining:g} {refusal.unit}"

        assert await reserve("1", "agent:main") == ""
        assert await reserve("1", "agent:main") == "", "a repeat changes nothing"
        assert await reserve("2", "agent:main", "person:ada") == ""
        assert await reserve("3", "person:ada", "agent:main") == "agent:main 0.5 USD"
        assert await reserve("4", "agent:main", usd=0.0) == "agent:main 5 tokens"
        assert await reserve("5", "person:ada", usd=1.5) == "", "a refused reservation holds nothing in any budget"
        await scenario.store.release_reservations(["1", "unknown"])
        assert await reserve("6", "agent:main", at=30.0) == ""
        assert await scenario.at(60.0).renew_reservations(["2", "6", "unknown"], lease=60.0) == 2
        assert await reserve("7", "agent:main", at=119.0) == "agent:main 0.5 USD"
        assert await scenario.at(120.0).renew_reservations(["2", "6"], lease=60.0) == 0, "both have ended"
        assert await reserve("8", "agent:main", at=120.0) == ""

    @store_promise
    async def test_a_reservation_leaves_what_budgets_that_count_together_have_spent(
        self, scenario: StoreScenario
    ) -> None:
        async def reserve(id: str, budget: str, usd: float, *, day: str = "d") -> bool:
            hold = BudgetHold(budget=budget, counted=("a", "b"), usd_limit=3.0)
            refusal = await scenario.store.reserve_spending([hold], id=id, day=day, usd=usd, tokens=1, lease=60.0)
            return refusal is None

        await scenario.commit(
            spends=(BudgetSpend(budget="a", day="d", usd=1.0), BudgetSpend(budget="c", day="d", usd=9))
        )
        assert not await reserve("1", "b", 2.5)
        assert await reserve("1", "b", 1.5)
        assert not await reserve("2", "a", 1.0)
        assert await reserve("2", "a", 0.5)
        assert not await reserve("3", "a", 0.0), "an exhausted budget refuses a call of unknown cost, too"
        assert await reserve("4", "a", 1.0, day="e"), "what was spent on another day does not count"

    @store_promise
    async def test_reservations_at_the_same_time_share_what_is_left(self, scenario: StoreScenario) -> None:
        holds = [BudgetHold(budget="agent:main", counted=("agent:main",), usd_limit=3.0)]
        found = await asyncio.gather(
            *(
                scenario.store.reserve_spending(holds, id=str(n), day="d", usd=1.0, tokens=1, lease=60.0)
                for n in range(9)
            )
        )
        assert found.count(None) == 3

    @store_promise
    async def test_content_is_kept_once_under_its_hash(self, scenario: StoreScenario) -> None:
        digest = hashlib.sha256(b"prompt").hexdigest()
        await scenario.commit(blobs=(b"prompt", b""))
        await scenario.commit(blobs=(b"prompt",))
        assert await scenario.store.get_blob(digest) == b"prompt"
        assert await scenario.store.get_blob(hashlib.sha256(b"").hexdigest()) == b""
        await scenario.commit(drop_blobs=(digest,))
        assert await scenario.store.get_blob(digest) is None

    @store_promise
    async def test_a_record_is_not_kept_if_anything_was_erased_since_its_operation_began(
        self, scenario: StoreScenario
    ) -> None:
        await scenario.open_session("other")
        said = await scenario.commit_heard("a secret", session="other")
        at_work = await scenario.begin_operation(await scenario.commit_heard())
        await scenario.commit(op=at_work, records=(b"first",))
        await scenario.erase_entries(said, session="other")
        await scenario.commit(op=at_work, records=(b"second",), blobs=(b"prompt",))
        await scenario.end_operation(at_work)
        later = await scenario.begin_operation(await scenario.commit_heard())
        await scenario.commit(op=later, records=(b"third",))
        blobs = (b"first", b"second", b"third", b"prompt")
        kept = [await scenario.store.get_blob(hashlib.sha256(blob).hexdigest()) for blob in blobs]
        assert kept == [b"first", None, b"third", b"prompt"]
        with pytest.raises(InvalidRequest):
            await scenario.commit(records=(b"nobody's",))

    @store_promise
    async def test_a_change_is_refused_after_a_newer_thought(self, scenario: StoreScenario) -> None:
        await scenario.open_session("other")
        said = await scenario.commit_heard("a secret", session="other")
        op = await scenario.begin_operation(await scenario.commit_heard())
        read = (await scenario.store.read_feed())[-1].pos
        await scenario.commit_heard()
        thought = EntryDraft(body=Thought(text="hm"), author="agent:main", op=op)
        await scenario.commit(thought, op=op, step=Step.THINK)
        with pytest.raises(Conflict):
            await scenario.erase_entries(said, session="other", read=read)
        assert (await scenario.store.get_entry("other", said)).body is not None
        read = (await scenario.store.read_feed())[-1].pos
        await scenario.commit_heard()
        await scenario.erase_entries(said, session="other", read=read)
