"""Audit a store with a million entries: seconds, and the memory that it takes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import apsw
import msgspec

from bench.in_process import open_store, temporary_directory
from bench.table import Row, at_most
from everhold.core.budget import list_turn_budgets
from everhold.core.entries import (
    OWN_OPERATION,
    Began,
    ChatLocation,
    Ended,
    EntryBody,
    EntryDraft,
    Heard,
    ModelUsage,
    Said,
    Stamp,
    Thought,
)
from everhold.core.recall import RecallRecord, RecallTarget, RecallTrace
from everhold.ports.store import BudgetSpend, Change, Receipt, SessionOpening, Step, Wakeup
from everhold.stores.sqlite import commit
from everhold.testing.seeded_random import SeededRandom

ENTRIES = 1_000_000
TURN_ENTRIES = 5
LIMIT_SECONDS = 60.0
LIMITS_MB = {2_000: 150.0, 1: 450.0}
"""By the number of sessions. The state of one session is in memory while its log is read."""
SHOWN_ENTRIES = 5
"""Recalled entries in each turn."""

_AUDIT = """
import asyncio, json, sys, time
from pathlib import Path
from bench.draining import read_peak_kib
from everhold.stores.sqlite import SqliteStore
from everhold.testing.seeded_random import SeededRandom

async def main():
    store = SqliteStore.open(Path(sys.argv[1]), chance=SeededRandom())
    idle = read_peak_kib()
    reports = 0
    def count(done, total):
        nonlocal reports
        reports += 1
    started, cpu = time.monotonic(), time.process_time()
    found = await store.audit(None, count)
    broken = [it.text for it in found.findings if it.level == "broken"] + found.contradictions
    print(json.dumps({
        "wall": time.monotonic() - started, "cpu": time.process_time() - cpu,
        "mb": (read_peak_kib() - idle) / 1024,
        "entries": found.checked.entries, "recalled": found.checked.recalled,
        "items": found.checked.memory_items, "reports": reports, "broken": broken[:3],
    }))
    await store.close()

asyncio.run(main())
"""


def audit_rows(rounds: int) -> list[Row]:
    rows = []
    for sessions, limit in LIMITS_MB.items():
        with temporary_directory() as directory:
            write_store(directory, sessions=sessions, entries=ENTRIES)
            found = measure_audit(directory)
        words = f"audit of {ENTRIES:,} entries in {sessions:,} session{'s' if sessions > 1 else ''}"
        beside = f"{found['cpu']:.1f} s CPU, {found['recalled']:,} recalled entries"
        rows.append(at_most(f"{words}, wall", found["wall"], "s", LIMIT_SECONDS, beside=beside))
        rows.append(at_most(f"{words}, memory above idle", found["mb"], "MB", limit))
    return rows


def measure_audit(directory: Path) -> dict[str, float]:
    """Audit the store in a process of its own, because only that shows the memory it takes."""
    done = subprocess.run(
        [sys.executable, "-c", _AUDIT, str(directory / "log.db")], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    assert not found["broken"], found["broken"]
    assert found["reports"] > 1
    return found


def write_store(directory: Path, *, sessions: int, entries: int) -> None:
    """Write sound sessions with the store's own code, many changes in one transaction."""
    store = open_store(directory, synchronous="OFF")
    store.writer.db.execute("begin")
    cur = store.writer.db.cursor()
    chance = SeededRandom()
    for number in range(sessions):
        for turn in range(entries // sessions // TURN_ENTRIES):
            commit.apply_change(cur, _build_turn(f"s{number:05}", turn), chance, now=0.0)
    # The receipts are stored with the turns, so the cursors are at the end.
    cur.execute(
        "update cursors set since = null, due = null, "
        "processed_seq = (select next_seq - 1 from sessions where id = session)"
    )
    store.writer.db.execute("commit")
    store.writer.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    asyncio.run(store.close())


def _build_turn(session: str, turn: int) -> Change:
    """Return a message, its answer, and the receipts of its deliveries, as one change."""
    first = turn * TURN_ENTRIES + 1
    place = ChatLocation(platform="table", account="main", chat=session, message=str(turn))
    stamp = Stamp(person=f"table:{session}", audience=(f"person:table:{session}",), address=f"table:{session}")
    usage = ModelUsage(input=900, output=100, usd=0.001)
    earlier = range(max(1, first - SHOWN_ENTRIES * TURN_ENTRIES), first, TURN_ENTRIES)
    record = msgspec.json.encode(
        RecallRecord(
            asked=RecallTarget(session=session, generation=0, takes=(first,)),
            audience=stamp.audience,
            shown=tuple(RecallTrace(provider="mem", session=session, seq=seq) for seq in earlier),
        )
    )
    why = hashlib.sha256(record).hexdigest()
    text = f"message {turn} of {session}, " + "some words that a person would write in a chat " * 3
    bodies: tuple[EntryBody, ...] = (
        Heard(origin=place, text=text, sender="ada", stamp=stamp),
        Began(type="turn", takes=(first,), consumer="turn"),
        Thought(text=text, usage=usage, why=why),
        Said(text=text, to=place, parts=(text,), stamp=stamp),
        Ended(usage=usage),
    )
    key = msgspec.json.encode((place.platform, place.account, place.chat, place.message, "message", "")).decode()
    drafts = tuple(
        EntryDraft(body=body, author="person:x" if number == 0 else "agent:main", op=OWN_OPERATION if number else None)
        for number, body in enumerate(bodies)
    )
    return Change(
        step=Step.END,
        session=session,
        at=1_700_000_000.0 + first,
        opens=None if turn else SessionOpening(agent="main", address=f"table:{session}"),
        entries=(msgspec.structs.replace(drafts[0], dedup=key), *drafts[1:]),
        wakeups=(Wakeup(consumer="platform:table:main"), Wakeup(consumer="memory:mem")),
        receipts=(
            Receipt(consumer="platform:table:main", session=session, seq=first + 3, part=0, key=f"{session}:{first}"),
            Receipt(consumer="memory:mem", session=session, seq=first + 4, part=0, key=f"{session}:{first}:m"),
        ),
        spends=tuple(
            BudgetSpend(budget=budget, day="2026-11-18", usd=usage.usd, tokens=usage.input + usage.output)
            for budget in list_turn_budgets("main", stamp)
        ),
        blobs=(record,),
    )
