"""Several hosts on one database: one order, one holder, one clock. Each promise is shown to fail with a planted bug."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import EntryDraft, Erased
from everhold.ports.store import Change, Step
from everhold.stores.postgres import PostgresStore, entries, loading, migrate
from everhold.testing.seeded_random import SeededRandom
from tests.stores.postgres.scenario import (
    connect,
    fetch_value,
    make_message,
    open_hosts,
    open_session,
    read_texts,
)

SESSIONS = [f"s{n}" for n in range(12)]


# -- order -------------------------------------------------------------------------------------------------------------


async def follow_feed_beside_slow_commit(url: str) -> tuple[list[str], list[str]]:
    """Let a transaction begin before another and commit after it. Return what a reader of the feed saw, and the log."""
    async with open_hosts(url, writers=1) as (store,):
        await open_session(store, "slow")
        await open_session(store, "quick")
        seen: list[str] = []
        after = 0

        async def read_on() -> None:
            nonlocal after
            for entry in await store.read_feed(after=after):
                seen.append(entry.session)
                after = entry.pos

        with connect(url) as slow:
            slow.execute("begin")
            ((pos,),) = slow.execute(
                "select (pg_current_xact_id()::text::bigint + pos_base) << 16 from store_info"
            ).fetchall()
            await store.commit(make_message("quick", "hello"))
            await read_on()
            slow.execute(
                "insert into entries(session, seq, pos, kind, author, at, version, body, salt, digest) "
                "values ('slow', 1, %s, 'heard', 'person:ada', 1, 1, null, null, '')",
                (pos,),
            )
            slow.execute("commit")
        await read_on()
        log = [entry.session for session in ("slow", "quick") for entry in await store.list_entries(session)]
        return seen, log


async def test_the_feed_skips_no_slow_commit(postgres_url: str) -> None:
    seen, log = await follow_feed_beside_slow_commit(postgres_url)
    assert seen == ["slow", "quick"] == log


async def test_a_feed_by_position_alone_would_skip_it(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = entries.SELECT_FEED.replace(f"and pos < {entries.FEED_END} ", "")
    assert bare != entries.SELECT_FEED
    monkeypatch.setattr(entries, "SELECT_FEED", bare)
    seen, _ = await follow_feed_beside_slow_commit(postgres_url)
    assert seen == ["quick"]


async def test_hosts_that_write_to_the_same_sessions_agree_on_an_order(postgres_url: str) -> None:
    async with open_hosts(postgres_url, 3, writers=2) as stores:
        for session in SESSIONS[:3]:
            await open_session(stores[0], session)
        await asyncio.gather(
            *(stores[n % 3].commit(make_message(SESSIONS[n % 2], f"{n}", dedup=f"k{n // 2}")) for n in range(120))
        )
        found = [entry for session in SESSIONS[:3] for entry in await stores[1].list_entries(session)]
        assert len(found) == 60, "each dedup key once, whichever host was first"
        for session in SESSIONS[:3]:
            own = [entry for entry in found if entry.session == session]
            assert [entry.seq for entry in own] == list(range(1, len(own) + 1))
            assert [entry.pos for entry in own] == sorted(entry.pos for entry in own)
        assert [entry.pos for entry in await stores[2].read_feed()] == sorted(entry.pos for entry in found)
        assert await stores[2].verify() == []


async def count_deadlocks(url: str) -> int:
    """Let two hosts commit to the same sessions in groups. Return how often the server had to break a circle."""
    async with open_hosts(url, 2, writers=1) as stores:
        for session in SESSIONS:
            await open_session(stores[0], session)
        for round in range(6):
            await asyncio.gather(
                *(store.commit(make_message(session, f"{round}")) for store in stores for session in SESSIONS)
            )
        assert len(await read_texts(stores[0], SESSIONS[0])) == 12
        return sum(store.writer.statistics.repeats for store in stores)


async def test_no_transactions_wait_for_each_other_in_a_circle(postgres_url: str) -> None:
    assert await count_deadlocks(postgres_url) == 0


async def test_locks_out_of_order_would_end_in_circles(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order = "order by md5(id || pg_backend_pid()) limit 99 for update"
    disordered = loading._LOCK_SESSIONS.replace("order by id for update", order)
    disordered = f"select * from ({disordered}) one_by_one where pg_sleep(0.002) is not null"
    assert order in disordered
    monkeypatch.setattr(loading, "_LOCK_SESSIONS", disordered)
    assert await count_deadlocks(postgres_url) > 0


async def test_an_erasure_waits_for_a_commit_that_may_repeat_the_text(postgres_url: str) -> None:
    """A thought that was under way when the erasure was decided makes the erasure decide anew."""
    async with open_hosts(postgres_url, 2, writers=1) as (store, other):
        for session in ("s", "t"):
            await open_session(store, session)
        await store.commit(make_message("s", "secret"))
        read = (await store.read_feed())[-1].pos
        with connect(postgres_url) as slow:
            slow.execute("begin")
            slow.execute("select id from sessions where id = 't' for update")
            xid = slow.execute("select (pg_current_xact_id()::text::bigint + pos_base) << 16 from store_info")
            ((pos,),) = xid.fetchall()
            erased = EntryDraft(body=Erased(seqs=(1,)), author="person:ada")
            change = Change(step=Step.ERASE, session="s", at=2.0, entries=(erased,), erase=(1,), read=read)
            erasing = asyncio.create_task(other.commit(change))
            await asyncio.sleep(0.1)
            assert not erasing.done(), "the thought is not committed yet"
            slow.execute(
                "insert into entries(session, seq, pos, kind, author, at, version, body, salt, digest) "
                "values ('t', 1, %s, 'thought', 'agent:main', 1, 1, null, null, '')",
                (pos,),
            )
            slow.execute("commit")
        with pytest.raises(Exception, match="a `thought` was committed"):
            await erasing


# -- claims and clocks -------------------------------------------------------------------------------------------------


async def test_two_hosts_never_claim_the_same_cursor(postgres_url: str) -> None:
    async with open_hosts(postgres_url, 2, writers=1) as stores:
        for session in SESSIONS:
            await open_session(stores[0], session)
            await stores[0].commit(make_message(session, "hello", wake="turn"))
        taken = await asyncio.gather(
            *(stores[n % 2].claim_cursors(owner=f"host {n % 2}", lease=60.0, limit=3) for n in range(8))
        )
        names = [claim.name for claims in taken for claim in claims]
        assert sorted(names) == sorted(set(names))
        assert len(names) == len(SESSIONS)


async def measure_lease_left(url: str, **options: Any) -> float:
    """Claim a cursor for a minute. Return how long the lease still lasts by the clock of the server."""
    async with open_hosts(url, writers=1, **options) as (store,):
        await open_session(store, "s")
        await store.commit(make_message("s", "hello", wake="turn"))
        assert len(await store.claim_cursors(owner="me", lease=60.0, limit=1)) == 1
        return float(
            fetch_value(url, "select lease_since + lease_wait - extract(epoch from clock_timestamp()) from cursors")
        )


async def test_the_clock_of_the_server_decides(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3_600.0)
    assert 30.0 < await measure_lease_left(postgres_url) <= 60.0


async def test_the_clock_of_a_host_would_lengthen_a_lease(postgres_url: str) -> None:
    assert await measure_lease_left(postgres_url, now=lambda: time.time() + 3_600.0) > 3_000.0


# -- settings ----------------------------------------------------------------------------------------------------------


async def list_changed_settings(url: str) -> set[str]:
    """Use the store, and return the settings that would stay with the connection behind a pooler."""
    async with open_hosts(url, writers=1, readers=1) as (store,):
        await open_session(store, "s")
        await store.commit(make_message("s", "hello", wake="turn", durable=False))
        await store.claim_cursors(owner="me", lease=60.0, limit=1)
        await store.get_session_snapshot("s")
        found: set[str] = set()
        sql = "select name from pg_settings where source = 'session'"
        queue = store.writer.queues[0]
        connections = [queue._connection, *store._claims._idle, *store._reads._idle]
        assert len(connections) == 3
        for connection in connections:
            assert connection is not None
            found.update(row[0] for row in await (await connection.execute(sql)).fetchall())
        return found


async def test_no_setting_outlives_its_transaction(postgres_url: str) -> None:
    assert await list_changed_settings(postgres_url) == set()


async def test_a_setting_of_the_session_would_be_found(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leaking = loading._SETTINGS.replace("true)", "false)")
    assert leaking != loading._SETTINGS
    monkeypatch.setattr(loading, "_SETTINGS", leaking)
    assert "lock_timeout" in await list_changed_settings(postgres_url)


# -- the schema --------------------------------------------------------------------------------------------------------


async def test_hosts_that_start_at_once_make_one_schema(postgres_server: Any) -> None:
    with postgres_server.lend_database() as url:
        stores = await asyncio.gather(*(PostgresStore.open(url, chance=SeededRandom(n)) for n in range(4)))
        assert len({store.information.incarnation for store in stores}) == 1
        assert fetch_value(url, "select count(*) from store_info") == 1
        for store in stores:
            await store.close()


async def test_positions_go_on_in_a_cluster_with_lower_transaction_ids(postgres_url: str) -> None:
    """A dump was restored elsewhere. Local indexes have to notice that positions begin anew."""
    async with open_hosts(postgres_url) as (store,):
        await open_session(store, "s")
        await store.commit(make_message("s", "before"))
        incarnation, last = store.information.incarnation, await store.last_pos()
    with connect(postgres_url) as connection:
        connection.execute("update store_info set cluster = 'another', pos_base = pos_base - 1000000")
    async with open_hosts(postgres_url) as (store,):
        assert store.information.incarnation != incarnation
        await store.commit(make_message("s", "after"))
        assert await store.last_pos() > last
        assert [entry.seq for entry in await store.read_feed(after=last)] == [2]
        known = store.information.incarnation
    async with open_hosts(postgres_url) as (store,):
        assert store.information.incarnation == known, "nothing changed since"


async def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    with connect(postgres_url) as connection:
        connection.execute("update store_info set schema_version = 9, oldest_version = 8")
    with pytest.raises(Exception, match="upgrade everhold"):
        async with open_hosts(postgres_url):
            pass


# -- damage ------------------------------------------------------------------------------------------------------------


async def test_verify_and_audit_notice_a_changed_entry(postgres_url: str) -> None:
    async with open_hosts(postgres_url) as (store,):
        await open_session(store, "s")
        await store.commit(make_message("s", "hello"))
        assert (await store.audit()).contradictions == await store.verify() == []
        with connect(postgres_url) as connection:
            connection.execute("update entries set body = replace(body, 'hello', 'howdy')")
            connection.execute("delete from pending")
        found = await store.verify()
        assert any("its digest does not match" in line for line in found)
        assert any("pending" in line for line in found)
        assert (await store.audit()).contradictions == found


def test_a_migration_names_the_oldest_program_that_may_use_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "migrations"
    folder.mkdir()
    for name, first in (("0001_a", "select 1;\n"), ("0002_b", "-- oldest: 2\nselect 1;\n"), ("0003_c", "select 1;\n")):
        (folder / f"{name}.sql").write_text(first)
    monkeypatch.setattr("everhold.stores.postgres.migrate.resources.files", lambda package: tmp_path)
    assert [(step.version, step.oldest_version) for step in migrate.list_migrations()] == [(1, 1), (2, 2), (3, 2)]
