"""The SQLite store passes the store contract, with its writer thread and inline as in the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from everhold.errors import InvalidRequest
from everhold.ports.store import Store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store import SeededRandom, StoreContract, StoreScenario
from everhold.testing.contracts.store_pair import StorePairContract


class TestSqlite(StoreContract):
    def open(self, home: Path, now: Callable[[], float]) -> Store:
        return SqliteStore.open(home / "log.db", chance=SeededRandom(), now=now, synchronous="OFF")


class TestInlineSqlite(StoreContract):
    def open(self, home: Path, now: Callable[[], float]) -> Store:
        return SqliteStore.open(home / "log.db", chance=SeededRandom(), now=now, inline=True, synchronous="OFF")


def test_leases_of_others_are_ended_only_in_an_exclusive_store(tmp_path: Path) -> None:
    async def play() -> None:
        own = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
        shared = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom(), exclusive=False)
        scenario = StoreScenario(own)
        await scenario.open_session("s")
        await scenario.commit_heard()
        claim = await scenario.claim_cursor(owner="other")
        with pytest.raises(InvalidRequest):
            await shared.revoke_leases(owner="me")
        assert (await scenario.read_cursor()).owner == claim.cursor.owner
        assert await scenario.claim_consumers(owner="me") == []
        assert await own.revoke_leases(owner="me") == 1
        assert (own.is_exclusive, shared.is_exclusive) == (True, False)
        await own.close()
        await shared.close()

    asyncio.run(play())


class TestSqlitePair(StorePairContract):
    """As in the simulator. A store with a writer thread takes it for damage if another one empties the log file."""

    def open_pair(self, home: Path, now: Callable[[], float]) -> tuple[Store, Store]:
        return open_shared_store(home, now), open_shared_store(home, now)


def open_shared_store(home: Path, now: Callable[[], float]) -> SqliteStore:
    return SqliteStore.open(
        home / "log.db", chance=SeededRandom(), now=now, inline=True, synchronous="OFF", exclusive=False
    )
