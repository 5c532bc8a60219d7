"""The store works through a pooler in transaction mode, and leaves nothing in the connections that clients share.

The whole contract runs through it with `make prove PART=hosts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from everhold.ports.store import Store
from everhold.stores.postgres import PostgresStore
from everhold.stores.postgres.server_check import examine_server
from everhold.testing.contracts.store import StoreContract
from everhold.testing.postgres_server import PostgresTestServer
from everhold.testing.seeded_random import SeededRandom
from tests.stores.postgres import pooler
from tests.stores.postgres.scenario import connect, make_message, open_hosts, open_session, read_texts


@pytest.fixture(scope="module")
def pooler_home(postgres_server: PostgresTestServer) -> Iterator[Path]:
    if pooler.find_pgbouncer() is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    with pooler.run_pooler(postgres_server) as home:
        yield home


@pytest.fixture
def pooled_url(pooler_home: Path, postgres_url: str) -> str:
    return pooler.build_pooled_url(pooler_home, postgres_url)


async def test_two_hosts_share_the_connections_of_a_pooler(pooled_url: str) -> None:
    async with open_hosts(pooled_url, 2) as stores:
        assert all(store.notifier._task is None for store in stores)
        sessions = [f"s{number}" for number in range(8)]
        for session in sessions:
            await open_session(stores[0], session)

        async def talk(number: int) -> None:
            store, session = stores[number % 2], sessions[number % 8]
            for count in range(5):
                await store.commit(make_message(session, f"{number}.{count}", dedup=f"{number}.{count}", wake="turn"))
                assert (await store.get_session_snapshot(session)).pending
                await store.list_entries(session)

        await asyncio.gather(*(talk(number) for number in range(16)))
        claimed = await asyncio.gather(*(it.claim_cursors(owner=f"{it}", lease=60.0, limit=8) for it in stores))
        assert sorted(claim.session for claims in claimed for claim in claims) == sessions
        found = [text for session in sessions for text in await read_texts(stores[1], session)]
        assert sorted(found) == sorted(f"{number}.{count}" for number in range(16) for count in range(5))
        assert await stores[0].verify() == []
        for _ in range(2 * pooler.SERVER_CONNECTIONS):
            with connect(pooled_url) as connection:
                left = connection.execute(
                    # the pooler itself sets the name of the application
                    "select name from pg_settings where source = 'session' and name <> 'application_name' union all "
                    "select statement from pg_prepared_statements"
                ).fetchall()
                assert left == [], "another client would inherit it"


async def test_a_pooler_is_recognised(pooled_url: str, postgres_url: str) -> None:
    assert (await examine_server(pooled_url)).is_pooled
    assert not (await examine_server(postgres_url)).is_pooled


@pytest.mark.prove
class TestPooledPostgres(StoreContract):
    url: str

    @pytest.fixture(autouse=True)
    def _use_database(self, pooled_url: str) -> None:
        self.url = pooled_url

    def open(self, home: Path, now: Callable[[], float]) -> Awaitable[Store]:
        return PostgresStore.open(self.url, chance=SeededRandom(), now=now, writers=2, readers=2, exclusive=True)
