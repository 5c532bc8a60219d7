"""The suite that every store must pass. A subclass says how a store is opened:

class TestMyStore(StoreContract):
    def open(self, home: Path, now: Callable[[], float]) -> Store:
        return MyStore.open(home, chance=SeededRandom(), now=now)
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from everhold.core.entries import EntryDraft, Thought
from everhold.errors import Conflict, InvalidRequest
from everhold.ports.store import BudgetSpend, Step, Store
from everhold.testing.contracts.store_cursors import StoreCursorContract
from everhold.testing.contracts.store_hosts import StoreHostsContract
from everhold.testing.contracts.store_log import StoreLogContract
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
