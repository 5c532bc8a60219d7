"""The SQLite store passes the store contract, with its writer thread and inline as in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from everhold.ports.store import Store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store import SeededRandom, StoreContract


class TestSqlite(StoreContract):
    def open(self, home: Path, now: Callable[[], float]) -> Store:
        return SqliteStore.open(home / "log.db", chance=SeededRandom(), now=now, synchronous="OFF")


class TestInlineSqlite(StoreContract):
    def open(self, home: Path, now: Callable[[], float]) -> Store:
        return SqliteStore.open(home / "log.db", chance=SeededRandom(), now=now, inline=True, synchronous="OFF")
