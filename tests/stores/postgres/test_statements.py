"""Statements that are sent together, and snapshots that are read together."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from everhold.core.entries import Changed, ChatLocation, EntryDraft, Said, SessionTitled
from everhold.errors import EverholdError, NotFound
from everhold.ports.store import Change, Step
from everhold.stores.postgres import PostgresStore
from everhold.stores.postgres.connections import PostgresConnector
from everhold.stores.postgres.statements import BEGIN, COMMIT, run_statements
from tests.stores.postgres.scenario import connect, make_message, open_hosts, open_session
from tests.waiting import wait_until

TEXTS = ["", "plain", 'say "it"', "back\\slash", "a,b{c}", "NULL", " two\nlines\t", "漢字 🙂", "\x01"]


@pytest.mark.parametrize(
    "type, values",
    [
        ("text", TEXTS),
        ("text", [None, *TEXTS]),
        ("text", [*TEXTS, None]),
        ("text", []),
        ("text", [None]),
        ("bigint", [1, -(2**63), 2**63 - 1]),
        ("bigint", [1, None, 3]),
        ("float8", [0.1, 1e300, -0.0, None]),
        ("float8", [1, 2.5, float("inf")]),
        ("bool", [True, False, None]),
        ("bytea", [b"\x00\xff'\"", b"", None]),
    ],
)
@pytest.mark.parametrize("pooled", [False, True])
async def test_an_array_arrives_as_it_was_sent(postgres_url: str, type: str, values: list[Any], pooled: bool) -> None:
    connector = PostgresConnector(postgres_url)
    connector.is_pooled = pooled
    async with await connector.connect() as connection:
        sql = f"select value from unnest(%s::{type}[]) with ordinality as it(value, n) order by n"
        for _ in range(2):  # the second time a statement is known
            (rows,) = await run_statements(connection, [(sql, (values,))])
            assert [row[0] for row in rows] == values
        ((prepared,),) = (await run_statements(connection, [("select count(*) from pg_prepared_statements", ())]))[0]
        assert prepared == (0 if pooled else 2)


async def test_a_failed_statement_ends_its_group_and_is_named(postgres_url: str) -> None:
    async with await PostgresConnector(postgres_url).connect() as connection:
        await run_statements(connection, [("create table counted(n int)", ())])
        add = ("insert into counted values (%s::int)", (1,))
        with pytest.raises(psycopg.errors.DivisionByZero):
            await run_statements(connection, [(BEGIN, ()), add, ("select 1 / 0", ()), add, (COMMIT, ())])
        await connection.execute("rollback")
        ((count,),) = (await run_statements(connection, [("select count(*) from counted", ())]))[0]
        assert count == 0


@pytest.mark.parametrize("value", ["a\x00b", ["a\x00b"], ["a", "\x00"], ["a\x00b", None]])
async def test_nul_is_refused_before_anything_is_sent(postgres_url: str, value: Any) -> None:
    async with await PostgresConnector(postgres_url).connect() as connection:
        with pytest.raises(psycopg.DataError):
            await run_statements(connection, [("select 1", ()), ("select %s::text", (value,))])
        assert (await run_statements(connection, [("select 1", ())])) == [[(1,)]]


async def open_sessions(store: PostgresStore, *names: str) -> None:
    for name in names:
        await open_session(store, name)
        await store.commit(make_message(name, f"hello from {name}"))


async def test_snapshots_that_are_wanted_at_once_are_read_together(postgres_url: str) -> None:
    async with open_hosts(postgres_url) as (store,):
        names = [f"s{number}" for number in range(40)]
        await open_sessions(store, *names)
        before = store.count_round_trips()
        found = await asyncio.gather(*(store.get_session_snapshot(name) for name in names))
        assert store.count_round_trips() - before == 1
        for name, snapshot in zip(names, found, strict=True):
            assert snapshot.session.id == name
            assert [entry.session for entry in snapshot.pending] == [name]


async def test_replies_that_are_wanted_at_once_are_read_together(postgres_url: str) -> None:
    async with open_hosts(postgres_url) as (store,):
        names = [f"s{number}" for number in range(20)]
        await open_sessions(store, *names)
        for name in names:
            said = [
                EntryDraft(body=Said(text=f"{name} {n}", to=ChatLocation(platform="test")), author="agent:main")
                for n in range(2)
            ]
            await store.commit(Change(step=Step.NOTE, session=name, at=1.0, entries=tuple(said)))
        before = store.count_round_trips()
        wanted = [(name, after) for name in names for after in (0, 2)]
        found = await asyncio.gather(*(store.read_replies(name, after=after) for name, after in wanted))
        assert store.count_round_trips() - before == 1
        for (name, after), replies in zip(wanted, found, strict=True):
            texts = [entry.body.text for entry in replies.entries if isinstance(entry.body, Said)]
            assert texts == [f"{name} 0", f"{name} 1"][0 if after == 0 else 1 :]
            assert replies.last_seq == 3


async def test_a_snapshot_has_what_was_committed_before_it_was_wanted(postgres_url: str) -> None:
    async with open_hosts(postgres_url) as (store,):
        await open_sessions(store, "s")
        for number in range(20):
            other = asyncio.create_task(store.get_session_snapshot("s"))  # it may be under way already
            await asyncio.sleep(0)
            done = await store.commit(make_message("s", "more"))
            late = await store.get_session_snapshot("s")
            assert late.session.last_seq == done.seqs[0] == number + 2
            assert (await other).session.id == "s"


async def test_what_one_caller_wants_does_not_disturb_the_others(postgres_url: str) -> None:
    async with open_hosts(postgres_url) as (store,):
        await open_sessions(store, "s", "t")
        given_up = asyncio.create_task(store.get_session_snapshot("s"))
        wanted = [asyncio.create_task(store.get_session_snapshot(name)) for name in ("s", "nobody", "a\x00b", "t", "t")]
        await asyncio.sleep(0)
        given_up.cancel()
        one, missing, invalid, *two = await asyncio.gather(*wanted, return_exceptions=True)
        assert not isinstance(one, BaseException)
        assert isinstance(missing, NotFound)
        assert isinstance(invalid, EverholdError)
        assert [it.session.id for it in (one, *two) if not isinstance(it, BaseException)] == ["s", "t", "t"]


async def test_a_snapshot_does_not_read_the_whole_session(postgres_url: str) -> None:
    """The server keeps plans that it made while the tables were empty."""
    async with open_hosts(postgres_url, 2) as (reader, writer):
        await open_session(writer, "s")
        for _ in range(3):
            await reader.get_session_snapshot("s")
        titles = [EntryDraft(body=Changed(change=SessionTitled(title="x")), author="system") for _ in range(500)]
        await writer.commit(Change(step=Step.ACCEPT, session="s", at=1.0, entries=tuple(titles)))
        await writer.commit(make_message("s", "hello"))
        for _ in range(10):
            assert len((await reader.get_session_snapshot("s")).pending) == 1

    def count_reads() -> int:
        with connect(postgres_url) as connection:
            row = connection.execute(
                "select idx_tup_fetch + seq_tup_read, n_tup_ins from pg_stat_user_tables where relname = 'entries'"
            ).fetchone()
            assert row is not None
            return int(row[0]) if row[1] == 501 else 0

    await wait_until(lambda: count_reads() > 0)  # a server process reports what it did when it ends
    assert count_reads() < 200
