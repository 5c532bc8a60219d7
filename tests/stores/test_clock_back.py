"""After the clock went back, delays that began in the future are searched in all cursors, and only then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everhold.errors import Conflict
from everhold.ports.store import Change, RetryDelay, StateNamespace, StateWrite, Step
from everhold.stores.sqlite.cursors import find_latest_wait_start
from tests.stores.home import open_scenario, open_store, run_coroutine


@pytest.mark.parametrize("reopened", [False, True], ids=["noticed", "while no process ran"])
def test_a_delay_that_began_in_the_future_is_due(tmp_path: Path, reopened: bool) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard(at=1_000.0)
        claim = await scenario.claim_cursor(at=1_000.0)
        await scenario.update_cursor(
            claim, at=1_000.0, attempts=1, error="down", wait=RetryDelay(seconds=600.0), release=True
        )
        if reopened:
            await store.close()
            store = open_store(tmp_path / "log.db", now=scenario.clock)
        scenario.at(400.0)
        assert await store.get_next_due() == 0.0
        (again,) = await store.claim_cursors(owner="me", lease=60.0, limit=8)
        assert again.session == claim.session
        await store.close()

    run_coroutine(play())


def test_a_process_that_revokes_leases_detects_the_former_clock(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", inline=True)
        mine = open_store(tmp_path / "log.db", inline=True, now=scenario.clock)
        await scenario.commit_heard(at=1_000.0)
        claim = await scenario.claim_cursor(at=1_000.0, owner="other")
        await scenario.update_cursor(claim, at=1_000.0, attempts=1, wait=RetryDelay(seconds=600.0))
        scenario.at(400.0)
        assert await mine.revoke_leases(owner="me") == 1
        assert await mine.get_next_due() == 0.0
        (again,) = await mine.claim_cursors(owner="me", lease=60.0, limit=8)
        assert again.session == claim.session
        await mine.close()
        await store.close()

    run_coroutine(play())


def test_the_search_ends_once_all_cursors_were_found(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard(at=1_000.0)
        (claim,) = await scenario.at(400.0).claim_cursors(owner="me", lease=60.0, limit=8)
        assert store._latest == 1_000.0
        await scenario.update_cursor(claim, at=401.0, idle_at=99, release=True)
        assert await scenario.at(402.0).claim_cursors(owner="me", lease=60.0, limit=8) == []
        assert store._latest == 402.0
        assert find_latest_wait_start(store._cursor) == float("-inf")
        await store.close()

    run_coroutine(play())


def test_a_claim_that_runs_again_notices_again_that_the_clock_went_back(tmp_path: Path) -> None:
    """A batch with a failing job is rolled back, and its jobs run again one by one."""

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard(at=1_000.0)
        claim = await scenario.claim_cursor(at=1_000.0)
        wait = RetryDelay(seconds=600.0, mandatory=True)
        await scenario.update_cursor(claim, at=1_000.0, attempts=1, error="later", wait=wait, release=True)
        stale = StateWrite(namespace=StateNamespace.QUOTA, key="k", value="{}", version=7)
        kept = StateWrite(namespace=StateNamespace.QUOTA, key="other", value="{}", version=0)
        # The first commit waits in the queue, so the claim joins its batch.
        scenario.at(400.0)
        _, claimed, failed = await asyncio.gather(
            store.commit(Change(step=Step.STATE, session="", at=400.0, state_writes=(kept,))),
            store.claim_cursors(owner="me", lease=60.0, limit=8),
            store.commit(Change(step=Step.STATE, session="", at=400.0, state_writes=(stale,))),
            return_exceptions=True,
        )
        assert claimed == []
        assert isinstance(failed, Conflict)
        (again,) = await scenario.at(1_000.0).claim_cursors(owner="me", lease=60.0, limit=8)
        assert again.session == claim.session
        await store.close()

    run_coroutine(play())
