"""Many messages, many sessions, long texts: nothing is dropped, and no query scans a table."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from everhold.core.entries import Began, Ended, EntryDraft
from everhold.ports.store import Change, CursorUpdate, Receipt, SessionOpening, StateNamespace, StateWrite, Step, Wakeup
from everhold.stores.sqlite import entries, operations, sessions
from everhold.testing.contracts.store_scenario import get_heard_text, make_heard
from tests.stores.home import open_scenario, open_store, run_coroutine


def test_ten_thousand_messages_wait_in_one_session(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", synchronous="OFF")
        await asyncio.gather(*[scenario.commit_heard(f"m{n}", dedup=f"k{n}") for n in range(10_000)])
        assert await scenario.read_texts() == [f"m{n}" for n in range(10_000)]
        assert (await store.get_session("s")).pending == 10_000
        op = await scenario.begin_operation(*range(1, 10_001))
        assert await scenario.list_pending_seqs() == []
        await scenario.end_operation(op, "released")
        assert await scenario.list_pending_seqs() == list(range(1, 10_001))
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_ten_thousand_sessions_have_one_message_each(tmp_path: Path) -> None:
    async def play() -> None:
        store = open_store(tmp_path / "log.db", synchronous="OFF")
        draft = EntryDraft(body=make_heard(), author="person:ada")

        def change(n: int) -> Change:
            opens = SessionOpening(agent="main", address=f"chat:{n}")
            wakes = (Wakeup(consumer="turn"),)
            return Change(step=Step.ACCEPT, session=f"s{n:05}", at=1.0, opens=opens, entries=(draft,), wakeups=wakes)

        await asyncio.gather(*[store.commit(change(n)) for n in range(10_000)])
        served: list[str] = []
        while claims := await store.claim_cursors(owner="me", lease=60.0, limit=500):
            served += [claim.session for claim in claims]
        assert len(served) == len(set(served)) == 10_000
        assert len(await store.list_sessions(limit=20_000)) == 10_000
        await store.close()

    run_coroutine(play())


def test_due_work_is_found_among_a_hundred_thousand_sessions(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", inline=True, synchronous="OFF")
        fill = """
            with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
            insert into cursors(consumer, session, since, wait, due, owner, lease_since, lease_wait)
            select :consumer, 'x' || i, :since, 0, :since, :owner, 0, 1e12 from n
        """
        db = apsw.Connection(str(tmp_path / "log.db"))
        with db:
            db.execute(fill, {"consumer": "memory:down", "since": 1.0, "owner": ""})  # all due, all skipped
            db.execute(fill, {"consumer": "compression", "since": 1e6, "owner": ""})  # none of them due
            db.execute("update cursors set since = 0, wait = 1e6 where consumer = 'compression'")
            db.execute(fill.replace("100000", "500"), {"consumer": "platform", "since": 1.0, "owner": "busy"})  # held
        db.close()
        times = []
        for _ in range(10):
            await scenario.commit_heard(at=5.0)
            began = time.process_time()
            (claim,) = await scenario.at(5.0).claim_cursors(owner="me", lease=60.0, limit=8, skip=("memory:*",))
            times.append(time.process_time() - began)
            assert claim.session == "s"
            await scenario.update_cursor(claim, idle_at=99, release=True)
            began = time.process_time()
            await scenario.at(5.0).get_next_due(skip=("memory:*",))
            times.append(time.process_time() - began)
        assert min(times[::2]) < 0.001
        assert min(times[1::2]) < 0.001
        await store.close()

    run_coroutine(play())


def test_no_step_of_a_turn_scans_a_table_or_a_whole_session(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", inline=True)
        db = store.writer.db
        ran: dict[str, Any] = {}

        def trace(_cursor: object, sql: str, values: object) -> bool:
            ran[sql] = values
            return True

        db.set_exec_trace(trace)
        write = StateWrite(namespace=StateNamespace.SCHEDULE, key="n", value="v", version=0)
        await scenario.commit_heard(dedup="k", state_writes=(write,))
        claim = await scenario.claim_cursor()
        op = await scenario.begin_operation(1, claim=claim)
        await scenario.commit_heard("more")
        await scenario.take_messages(op, 3, claim=claim)
        await scenario.end_operation(
            op, claim=claim, wakeups=(Wakeup(consumer="platform"),), cursor=CursorUpdate(idle_at=4, release=True)
        )
        delivery = await scenario.claim_cursor("platform")
        receipt = Receipt(consumer="platform", session="s", seq=5)
        update = CursorUpdate(processed_seq=5, clear_in_flight=True, idle_at=5, release=True)
        await scenario.commit(claim=delivery, cursor=update, receipts=(receipt,))
        await store.renew_leases([claim, delivery], owner="me", lease=1.0)
        running, values = operations.build_operations_query(
            "s", types=(), after=0, before=None, states=("running",), newest_first=False, limit=None
        )
        db.execute(running, values)
        db.execute(entries.SELECT_REPLIES.lstrip(), (0, "s"))
        db.execute(sessions.SELECT_SNAPSHOT.lstrip(), ("s",))
        db.set_exec_trace(None)
        statements = [sql for sql in ran if sql.startswith(("select", "insert", "update", "delete", "with"))]
        assert len(statements) > 15
        for sql in statements:
            plan = [row[3] for row in db.execute(f"explain query plan {sql}", ran[sql])]
            short = ("SCAN consumers", "SCAN line", "CONSTANT")  # the consumers, and the ancestors of a branch
            walks = [step for step in plan if "SCAN" in step and not any(it in step for it in short)]
            pending = "SEARCH p USING PRIMARY KEY (session=?)"  # pending messages are counted
            walks += [step for step in plan if "PRIMARY KEY (session=?)" in step and step != pending]
            assert walks == [], sql
        await store.close()

    run_coroutine(play())


@pytest.mark.parametrize("text", ["z" * 1_000_000, "line\n" * 100_000, "\U0001f600" * 100_000])
def test_a_long_message_is_kept_whole(tmp_path: Path, text: str) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard(text)
        assert get_heard_text(await store.get_entry("s", 1)) == text
        await scenario.commit(blobs=(b"\x00\xff" * 10_000_000,))
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_the_write_ahead_log_stays_short(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", synchronous="OFF")
        for n in range(300):
            await asyncio.gather(*[scenario.commit_heard("m" * 2000, wake="", dedup=f"{n}-{m}") for m in range(10)])
            await store.list_entries("s", after=n * 10)
        assert (tmp_path / "log.db-wal").stat().st_size < 12 * 1024 * 1024
        await store.close()

    run_coroutine(play())


def test_a_turn_needs_few_statements(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", inline=True)
        await scenario.commit_heard()
        await scenario.commit_heard()
        ran: list[str] = []

        def trace(_cursor: object, sql: str, _values: object) -> bool:
            ran.append(sql)
            return True

        store.writer.db.set_exec_trace(trace)
        await scenario.commit_heard(dedup="k")
        accept = len(ran)
        claim = await scenario.claim_cursor()
        ran.clear()
        began = EntryDraft(body=Began(type="turn", takes=(1, 2), consumer="turn"), author="agent:main")
        await scenario.commit(began, claim=claim)
        begin = len(ran)
        ran.clear()
        await scenario.commit(EntryDraft(body=Ended(), author="agent:main", op=4), op=4, claim=claim)
        end = len(ran)
        store.writer.db.set_exec_trace(None)
        assert accept <= 8
        assert begin <= 9
        assert end <= 8
        await store.close()

    run_coroutine(play())
