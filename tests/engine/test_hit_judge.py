"""What memories find is judged by the log, at a cost that does not grow with the session."""

from __future__ import annotations

from typing import Any

import pytest

from everhold.core.exchange import build_exchange_key, build_note_key
from everhold.engine.memory.recall import HitJudge
from everhold.ports.memory import MemoryHit
from everhold.testing.gateway import InProcessGateway


class CountingStore:
    """Counts the entries that are read."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.entries_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list_entries(self, *args: Any, **options: Any) -> Any:
        found = await self._store.list_entries(*args, **options)
        self.entries_read += len(found)
        return found


@pytest.mark.parametrize("erased", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_a_hit_costs_no_reading_of_its_whole_session(gateway: InProcessGateway, erased: bool, placed: bool) -> None:
    sessions = [gateway.send_message(f"message {number}").session for number in range(20)]
    session = sessions[0]
    entries = gateway.read_log(session)
    turns = [entry.seq for entry in entries if entry.kind == "began"]
    if erased:
        gateway.run(gateway.control.erase_entries(session, [entries[0].seq]))
    store = CountingStore(gateway.store)
    judge = HitJudge(store, None, agent="main", audience=())
    hits = [
        MemoryHit(text="x", key=build_exchange_key(session, op), session=session if placed else "", seq=0)
        for op in (turns[1], turns[10])
    ]
    judged = gateway.run(judge.judge_hits("mem", hits))
    assert [it.objection for it in judged] == ["", ""]
    assert 0 < store.entries_read < 20, "only the entries of these turns"


def test_keys_of_something_erased_are_refused(gateway: InProcessGateway) -> None:
    session = gateway.send_message("secret").session
    gateway.send_message("public")
    entries = gateway.read_log(session)
    first, second = (entry.seq for entry in entries if entry.kind == "began")
    gateway.run(gateway.control.erase_entries(session, [entries[0].seq]))
    judge = HitJudge(gateway.store, None, agent="main", audience=())
    keys = [build_exchange_key(session, first), build_exchange_key(session, second), build_note_key(session, 999)]
    hits = [MemoryHit(text="x", key=key) for key in (*keys, f"{session}:none")]
    judged = gateway.run(judge.judge_hits("mem", hits))
    assert [it.objection for it in judged] == ["erased", "", "", ""]
