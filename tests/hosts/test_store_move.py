"""A store is moved to a database and back: every row is the same, and an interrupted move goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest

from everhold.app import SystemRandomSource
from everhold.errors import StoreBusy, StoreDamaged, StoreError
from everhold.ports.hosts import HostRecord, HostVersion
from everhold.stores import transfer
from everhold.stores.move import move_to_file, move_to_server
from everhold.stores.postgres.shared_store import open_shared_store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.postgres_server import PostgresTestServer
from tests.e2e.running_gateway import RunningGateway

CHANCE = SystemRandomSource()


def ignore(table: str, rows: int) -> None: ...


@pytest.fixture
def lived(tmp_path: Path) -> Path:
    """The store of a home with conversations, budgets and people."""
    return asyncio.run(live(tmp_path))


async def live(path: Path) -> Path:
    async with RunningGateway(path, "") as gateway:
        for number in range(4):
            await gateway.send_and_wait(f"message {number}", chat=f"chat{number % 3}", who=f"person{number % 2}")
        await gateway.wait_until_idle()
        return gateway.home.store


def read_tables(end: transfer.TransferEnd) -> dict[str, list[Any]]:
    try:
        return {
            table.name: [
                [transfer._normalize(it) for it in row]
                for row in transfer._iterate_rows(end, table, sorted(end.list_columns(table.name)))
            ]
            for table in transfer.TABLES
        }
    finally:
        end.close()


def test_a_store_is_the_same_after_a_move_there_and_back(
    tmp_path: Path, lived: Path, postgres_server: PostgresTestServer
) -> None:
    before = read_tables(transfer.FileEnd(lived))
    assert len(before["entries"]) > 10
    with postgres_server.lend_database() as url:
        done = move_to_server(lived, url, set_aside=tmp_path / "old.db", chance=CHANCE, report=ignore)
        assert (done.sessions, done.entries) == (3, len(before["entries"]))
        assert not lived.exists()
        assert (tmp_path / "old.db").exists()
        assert read_tables(transfer.ServerEnd(url)) == before
        asyncio.run(use_store(url))
        back = tmp_path / "back.db"
        assert move_to_file(url, back, chance=CHANCE, report=ignore).entries == len(before["entries"])
        assert read_tables(transfer.FileEnd(back)) == before
        with pytest.raises(StoreError, match="is part of a move: to "):
            asyncio.run(use_store(url))
    store = SqliteStore.open(back, chance=CHANCE)
    assert asyncio.run(audit(store)) == []


async def use_store(url: str) -> None:
    store = await open_shared_store(url, connections=3, chance=CHANCE)
    try:
        found = await store.audit()
        assert not found.contradictions
        assert len(await store.read_feed(limit=500)) > 10, "the feed shows what was moved"
    finally:
        await store.close()


async def audit(store: SqliteStore) -> list[str]:
    try:
        found = await store.audit()
        return [*found.contradictions, *(it.text for it in found.findings if it.level == "broken")]
    finally:
        await store.close()


def test_an_interrupted_move_goes_on_and_half_a_store_is_not_opened(
    tmp_path: Path, lived: Path, postgres_server: PostgresTestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BATCH_ROWS", 2)
    batches = 0

    def stop_soon(table: str, rows: int) -> None:
        nonlocal batches
        batches += 1
        if batches == 5:
            raise KeyboardInterrupt

    before = read_tables(transfer.FileEnd(lived))
    with postgres_server.lend_database() as url:
        with pytest.raises(KeyboardInterrupt):
            move_to_server(lived, url, set_aside=tmp_path / "old.db", chance=CHANCE, report=stop_soon)
        assert lived.exists()
        with pytest.raises(StoreError, match="is part of a move: from "):
            asyncio.run(use_store(url))
        move_to_server(lived, url, set_aside=tmp_path / "old.db", chance=CHANCE, report=ignore)
        assert read_tables(transfer.ServerEnd(url)) == before
        asyncio.run(use_store(url))


def test_a_changed_row_is_found_before_anything_is_switched(
    tmp_path: Path, lived: Path, postgres_server: PostgresTestServer
) -> None:
    with postgres_server.lend_database() as url:

        def damage(table: str, rows: int) -> None:
            if table == "bindings":
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute(
                        "update entries set author = 'somebody' where pos = (select min(pos) from entries)"
                    )

        with pytest.raises(StoreDamaged, match="the copy differs: entries"):
            move_to_server(lived, url, set_aside=tmp_path / "old.db", chance=CHANCE, report=damage)
        assert lived.exists()


def test_a_database_in_use_is_not_moved(tmp_path: Path, postgres_url: str) -> None:
    async def register() -> None:
        store = await open_shared_store(postgres_url, connections=3, chance=CHANCE)
        host = HostRecord(id="one", name="one", version=HostVersion("0.1.0", store.schema_version))
        await store.register_host(host, lease=60.0)
        await store.close()

    asyncio.run(register())
    with pytest.raises(StoreBusy, match=r"hosts use .*: one"):
        move_to_file(postgres_url, tmp_path / "new.db", chance=CHANCE, report=ignore)
    asyncio.run(register())  # it is not marked


def test_every_table_of_both_stores_is_moved_or_named(lived: Path, postgres_url: str) -> None:
    for end in (transfer.FileEnd(lived), transfer.ServerEnd(postgres_url)):
        assert transfer.find_unknown_tables(end) == []
        end.close()
