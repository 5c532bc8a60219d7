"""The clock goes back: what waits is looked for among all that wait, but only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.ports.store import RetryDelay
from everhold.stores.sqlite.cursors import find_latest_wait_start
from tests.stores.home import open_scenario, open_store, run_coroutine


@pytest.mark.parametrize("anew", [False, True], ids=["seen", "while nobody ran"])
def test_what_began_to_wait_in_the_future_is_due(tmp_path: Path, anew: bool) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.commit_heard(at=1_000.0)
        claim = await scene.claim_cursor(at=1_000.0)
        await scene.update_cursor(
            claim, at=1_000.0, attempts=1, error="down", wait=RetryDelay(seconds=600.0), release=True
        )
        if anew:
            await store.close()
            store = open_store(tmp_path / "log.db")
        assert await store.get_next_due(at=400.0) == 0.0
        (again,) = await store.claim_cursors(owner="me", at=400.0, lease=60.0, limit=8)
        assert again.session == claim.session
        await store.close()

    run_coroutine(play())


def test_whoever_takes_over_knows_by_which_clock_the_other_went(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", inline=True)
        mine = open_store(tmp_path / "log.db", inline=True)
        await scene.commit_heard(at=1_000.0)
        claim = await scene.claim_cursor(at=1_000.0, owner="other")
        await scene.update_cursor(claim, at=1_000.0, attempts=1, wait=RetryDelay(seconds=600.0))
        assert await mine.revoke_leases(owner="me", at=400.0) == 1
        assert await mine.get_next_due(at=400.0) == 0.0
        (again,) = await mine.claim_cursors(owner="me", at=400.0, lease=60.0, limit=8)
        assert again.session == claim.session
        await mine.close()
        await store.close()

    run_coroutine(play())


def test_nobody_looks_for_it_again_once_all_of_it_was_found(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.commit_heard(at=1_000.0)
        (claim,) = await store.claim_cursors(owner="me", at=400.0, lease=60.0, limit=8)
        assert store._latest == 1_000.0
        await scene.update_cursor(claim, at=401.0, idle_at=99, release=True)
        assert await store.claim_cursors(owner="me", at=402.0, lease=60.0, limit=8) == []
        assert store._latest == 402.0
        assert find_latest_wait_start(store._cursor) == float("-inf")
        await store.close()

    run_coroutine(play())
