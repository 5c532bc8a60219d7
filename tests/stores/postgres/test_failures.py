"""After a lost connection, a killed server process or a crash nothing acknowledged is lost, and nothing comes twice."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from everhold.errors import OutcomeUnknown
from everhold.ports.store import Change, CursorUpdate, RetryDelay, Step
from everhold.stores.postgres import PostgresStore
from everhold.testing.postgres_server import DURABLE_SETTINGS, PostgresTestServer, run_postgres_server
from everhold.testing.seeded_random import SeededRandom
from tests.stores.postgres.scenario import (
    CuttingProxy,
    connect,
    fetch_value,
    make_message,
    open_hosts,
    open_session,
    read_texts,
)

SLOW_WAL_SETTINGS = {**DURABLE_SETTINGS, "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
"""A commit that nobody waits for is not written for ten seconds."""


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_message_whose_commit_was_cut_is_in_the_log_once(postgres_url: str, cut: str) -> None:
    async with CuttingProxy(postgres_url) as proxy, open_hosts(proxy.url, writers=1) as (store,):
        await open_session(store, "s")
        proxy.cut = cut
        done = await store.commit(make_message("s", "hello", dedup="k"))
        assert (done.seqs, done.duplicate) == ((1,), False)
        assert await read_texts(store, "s") == ["hello"]
        assert store.writer.statistics.unknown == 1
        assert store.writer.statistics.repeats == (1 if cut == "before" else 0)
        assert await store.verify() == []


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_an_update_whose_commit_was_cut_is_applied_once(postgres_url: str, cut: str) -> None:
    """A change without entries is found by the server's record of transactions."""
    async with CuttingProxy(postgres_url) as proxy, open_hosts(proxy.url, writers=1) as (store,):
        await open_session(store, "s")
        await store.commit(make_message("s", "hello", wake="turn"))
        (claim,) = await store.claim_cursors(owner="me", lease=60.0, limit=1)
        proxy.cut = cut
        update = CursorUpdate(attempts=3, wait=RetryDelay(seconds=5.0), release=True)
        await store.commit(Change(step=Step.CURSOR_SETTLE, session="s", at=2.0, claim=claim, cursor=update))
        cursor = await store.get_cursor("turn", "s")
        assert cursor is not None
        assert (cursor.attempts, cursor.owner, cursor.fence) == (3, "", 1)
        assert store.writer.statistics.unknown == 1


async def test_an_outcome_that_nobody_knows_is_reported(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby took over, so transaction ids may mean something else, and there is no entry to look for."""
    async with CuttingProxy(postgres_url) as proxy, open_hosts(proxy.url, writers=1) as (store,):
        await open_session(store, "s")
        await store.commit(make_message("s", "hello", wake="turn"))
        (claim,) = await store.claim_cursors(owner="me", lease=60.0, limit=1)
        for queue in store.writer.queues:
            monkeypatch.setattr(queue, "_timeline", "another server")
        proxy.cut = "after"
        change = Change(
            step=Step.CURSOR_SETTLE, session="s", at=2.0, claim=claim, cursor=CursorUpdate(release=True, idle_at=1)
        )
        with pytest.raises(OutcomeUnknown, match="unknown whether it was committed"):
            await store.commit(change)


async def test_killed_server_processes_lose_and_double_nothing(postgres_url: str) -> None:
    sessions = [f"s{n}" for n in range(4)]
    async with open_hosts(postgres_url, 2, writers=2) as stores:
        for session in sessions:
            await open_session(stores[0], session)

        async def send(store: PostgresStore, sender: int) -> list[str]:
            sent = []
            for number in range(40):
                text = f"{sender}-{number}"
                await store.commit(make_message(sessions[number % 4], text, dedup=text))
                sent.append(text)
            return sent

        async def kill(ended: asyncio.Event) -> int:
            killed = 0
            with connect(postgres_url) as connection:
                while not ended.is_set():
                    rows = connection.execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity "
                        "where datname = current_database() and pid <> pg_backend_pid() order by random() limit 1"
                    ).fetchall()
                    killed += len(rows)
                    await asyncio.sleep(0.1)
            return killed

        ended = asyncio.Event()
        killer = asyncio.create_task(kill(ended))
        try:
            senders = await asyncio.gather(*(send(stores[n % 2], n) for n in range(6)))
        finally:
            ended.set()
        assert await killer > 0
        found = [text for session in sessions for text in await read_texts(stores[0], session)]
        assert sorted(found) == sorted(text for sent in senders for text in sent)
        for session in sessions:
            seqs = [entry.seq for entry in await stores[0].list_entries(session)]
            assert seqs == list(range(1, len(seqs) + 1))
        assert await stores[0].verify() == []


async def crash_after_mixed_commits(server: PostgresTestServer) -> list[str]:
    """Commit a message that need not be waited for together with one that must, crash the server, and read the log."""
    with server.lend_store_database() as url:
        store = await PostgresStore.open(url, chance=SeededRandom(), writers=1)
        await open_session(store, "s")
        await store.commit(make_message("s", "first"))
        quick = make_message("s", "quick", durable=False)
        await asyncio.gather(store.commit(quick), store.commit(make_message("s", "kept")))
        server.kill()
        with contextlib.suppress(Exception):
            await store.close()
        server.start()
        async with open_hosts(url) as (again,):
            return await read_texts(again, "s")


def test_a_crash_keeps_what_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_postgres_server(SLOW_WAL_SETTINGS) as server:
        assert asyncio.run(crash_after_mixed_commits(server)) == ["first", "quick", "kept"]
        # planted: the first change of a batch decides for all
        monkeypatch.setattr("everhold.stores.postgres.writer.is_durable", lambda changes: changes[0].durable)
        assert asyncio.run(crash_after_mixed_commits(server)) == ["first"]


async def test_a_stalled_transaction_ends_and_frees_its_session(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that stalls between its two round trips holds locks, and entries of others wait before the feed."""
    monkeypatch.setattr("everhold.stores.postgres.loading.IDLE_LIMIT", "300ms")
    async with open_hosts(postgres_url, 2, writers=1) as (stalled, other):
        await open_session(other, "s")
        reached, go_on = asyncio.Event(), asyncio.Event()
        write = stalled.writer.queues[0]._write

        async def stall(*args: object, **options: object) -> None:
            reached.set()
            await go_on.wait()
            await write(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(stalled.writer.queues[0], "_write", stall)
        late = asyncio.create_task(stalled.commit(make_message("s", "late")))
        await reached.wait()
        await other.commit(make_message("s", "first"))
        assert [entry.seq for entry in await other.read_feed()] == [1]
        go_on.set()
        assert (await late).seqs == (2,), "it was repeated"
        assert await read_texts(other, "s") == ["first", "late"]
        assert fetch_value(postgres_url, "select count(*) from entries") == 2
