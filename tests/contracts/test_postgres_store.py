"""The PostgreSQL store passes the store contract on a real server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from everhold.ports.store import Store
from everhold.stores.postgres import PostgresStore
from everhold.testing.contracts.store import SeededRandom, StoreContract


class TestPostgres(StoreContract):
    url: str

    @pytest.fixture(autouse=True)
    def _use_database(self, postgres_url: str) -> None:
        self.url = postgres_url

    def open(self, home: Path, now: Callable[[], float]) -> Awaitable[Store]:
        return PostgresStore.open(self.url, chance=SeededRandom(), now=now, writers=2, readers=2, exclusive=True)
