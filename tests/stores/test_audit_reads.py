"""An audit is one long read. Nothing that is committed meanwhile waits for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from everhold.core.entries import EntryDraft, Erased
from everhold.ports.store import Change, Step
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import StoreScenario
from everhold.testing.seeded_random import SeededRandom
from tests.waiting import LIMIT_SECONDS, wait_until

SECRET = "quokka-4711"


async def test_an_erasure_during_an_audit_does_not_wait_and_leaves_no_text_after_it(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom(), patience=10_000.0)
    scenario = StoreScenario(store)
    await scenario.open_session("s")
    seq = await scenario.commit_heard(f"my secret is {SECRET}")
    is_reading, may_end = threading.Event(), threading.Event()

    def report_progress(done: int, total: int) -> None:
        is_reading.set()
        may_end.wait(LIMIT_SECONDS)

    audit = asyncio.ensure_future(store.audit(None, report_progress))
    await wait_until(is_reading.is_set)
    gone = EntryDraft(body=Erased(seqs=(seq,)), author="operator")
    async with asyncio.timeout(LIMIT_SECONDS):
        await store.commit(Change(step=Step.ERASE, session="s", at=2.0, entries=(gone,), erase=(seq,)))
        await scenario.commit_heard("something else")
    may_end.set()
    found = await audit
    assert found.contradictions == []  # it read the state before the erasure
    assert found.checked.heard == 1
    for path in tmp_path.glob("log.db*"):  # noqa: ASYNC240  # nothing else is waiting
        assert SECRET.encode() not in path.read_bytes(), path
    await store.close()
