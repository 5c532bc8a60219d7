"""A commit is acknowledged when the standby has it, however the wait for the standby ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from everhold.errors import OutcomeUnknown
from everhold.ports.store import CommitResult
from everhold.stores.postgres import PostgresStore, outcomes
from everhold.stores.postgres.writer import CommitQueue
from everhold.testing.postgres_pair import PostgresPair, run_postgres_pair
from everhold.testing.postgres_server import find_obstacle
from tests.stores.postgres.scenario import make_message, open_hosts, open_session, read_texts

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgresPair]:
    if obstacle := find_obstacle():
        pytest.skip(obstacle)
    with run_postgres_pair() as pair:
        yield pair


@pytest.fixture(autouse=True)
def _replicate(pair: PostgresPair) -> None:
    """Give every test a standby that runs and replicates."""
    if not pair.has_standby():
        pair.attach_standby()


def make_database(pair: PostgresPair) -> str:
    """Return the DSN of an empty database on both servers."""
    name = f"everhold_{next(_numbers)}"
    pair.primary.run_sql(f"create database {name}")
    return pair.build_dsn(name)


@asynccontextmanager
async def begin_commit_without_standby(
    pair: PostgresPair,
) -> AsyncIterator[tuple[PostgresStore, asyncio.Task[CommitResult], int]]:
    """Let a commit wait for a standby that has gone. Yield the store, the commit and its server process."""
    url = make_database(pair)
    async with open_hosts(url, writers=1) as (store,):
        await open_session(store, "s")
        pair.standby.kill()
        commit = asyncio.create_task(store.commit(make_message("s", "hello", dedup="k")))
        try:
            yield store, commit, await asyncio.to_thread(pair.wait_for_waiting_commit)
        finally:
            if not commit.done() and not pair.standby.is_running:
                pair.standby.start()
            await asyncio.gather(commit, return_exceptions=True)


async def test_a_cancelled_wait_for_the_standby_is_not_acknowledged(pair: PostgresPair) -> None:
    async with begin_commit_without_standby(pair) as (store, commit, pid):
        pair.primary.run_sql(f"select pg_cancel_backend({pid})")
        with pytest.raises(OutcomeUnknown, match="without a confirmation of its standby"):
            await commit
        again = asyncio.create_task(store.commit(make_message("s", "hello", dedup="k")))
        await asyncio.to_thread(pair.wait_for_waiting_commit)
        assert not again.done(), "the repeated message is in the log, but not on the standby"
        pair.standby.start()
        assert (await again).duplicate
        assert await read_texts(store, "s") == ["hello"]


async def test_a_commit_whose_server_process_was_ended_waits_for_the_standby(pair: PostgresPair) -> None:
    """The server then shows the transaction as committed, although no standby has it."""
    async with begin_commit_without_standby(pair) as (store, commit, pid):
        pair.primary.run_sql(f"select pg_terminate_backend({pid})")
        assert await asyncio.to_thread(pair.wait_for_waiting_commit) != pid
        assert not commit.done(), "the message is in the log, but not on the standby"
        pair.standby.start()
        assert (await commit).seqs == (1,)
        assert await read_texts(store, "s") == ["hello"]


async def end_wait_and_fail_over(pair: PostgresPair, how: str) -> tuple[bool, list[str]]:
    """End the wait of a commit, and let the standby take over, which does not have it. Return whether the commit was
    acknowledged, and the log."""
    async with begin_commit_without_standby(pair) as (store, commit, pid):
        pair.primary.run_sql(f"select {how}({pid})")
        await asyncio.wait((commit,), timeout=3.0)
        was_acknowledged = commit.done() and commit.exception() is None
        pair.primary.kill_hard()
        pair.standby.start()
        pair.promote()
        texts = await read_texts(store, "s")
        outcome = (await asyncio.gather(commit, return_exceptions=True))[0]
        if not was_acknowledged and isinstance(outcome, CommitResult):
            texts = await read_texts(store, "s")  # the commit was repeated on the new primary
        return was_acknowledged, texts


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_what_was_acknowledged_survives_a_failover(
    pair: PostgresPair, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged, texts = await end_wait_and_fail_over(pair, how)
    assert not acknowledged
    assert texts == ([] if how == "pg_cancel_backend" else ["hello"])
    # planted: the warning of the server is not read, and what is visible counts as committed
    pair.attach_standby()

    async def trust_what_is_visible(connection: psycopg.AsyncConnection[object]) -> bool:
        return True

    monkeypatch.setattr(CommitQueue, "_on_notice", lambda self, notice: None)
    monkeypatch.setattr(outcomes, "_is_confirmed", trust_what_is_visible)
    assert await end_wait_and_fail_over(pair, how) == (True, []), "acknowledged and lost"
