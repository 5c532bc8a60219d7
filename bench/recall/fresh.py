"""How soon a note is found, with a real log and its index: from its commit to the `find` that returns it."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from bench.recall import scenario
from bench.recall.speed import AUDIENCE, sentences
from everhold.core.entries import ChatLocation, EntryDraft, Heard, Noted, Stamp
from everhold.memories.builtin import BuiltinMemory, MemoryIndex
from everhold.ports.memory import MemoryQuery
from everhold.ports.store import Change, SessionOpening, Step, Store

NOTES = 41
A_SESSION = 100
STAMP = Stamp(person="ada", audience=AUDIENCE, address="agent:main:bench:dm:ada")


class Fresh(Struct, frozen=True, kw_only=True):
    items: int
    p50_ms: float
    """Wall time from the end of the commit to the `find` that returns the note."""
    p95_ms: float
    cpu_ms: float
    again_ms: float
    """Median wall time of the same question again, when nothing is new."""


async def measure(items: int) -> Fresh:
    with tempfile.TemporaryDirectory() as home:
        store = scenario.open_store(Path(home))
        await _fill(store, items)
        index = MemoryIndex(Path(home) / "index.db", embeddings="table")
        while await index.catch_up(store, 5_000):
            pass
        await index.warm_cache()  # as a gateway does after its start
        memory = BuiltinMemory(index=index, store=store, agent="main")
        texts = list(sentences(NOTES + 10, seed=9))
        for text in texts[NOTES:]:
            await memory.find(_query(text))
        found = [await _once(store, memory, text) for text in texts[:NOTES]]
        await index.close()
        await store.close()
    walls, cpus, agains = ([one[column] for one in found] for column in range(3))
    return Fresh(
        items=items, p50_ms=_at(walls, 50), p95_ms=_at(walls, 95), cpu_ms=_at(cpus, 50), again_ms=_at(agains, 50)
    )


async def _fill(store: Store, items: int) -> None:
    texts = sentences(items)
    for number in range(-(-items // A_SESSION)):
        session = f"s{number}"
        bodies = (
            Heard(origin=ChatLocation(platform="bench"), text=text, stamp=STAMP)
            for text in itertools.islice(texts, min(A_SESSION, items - number * A_SESSION))
        )
        await store.commit(
            Change(
                step=Step.ACCEPT,
                session=session,
                at=float(number),
                entries=tuple(EntryDraft(body=body, author="person:ada") for body in bodies),
                opens=SessionOpening(agent="main", address=f"agent:main:bench:dm:{number}"),
            )
        )


async def _once(store: Store, memory: BuiltinMemory, text: str) -> tuple[float, float, float]:
    draft = EntryDraft(body=Noted(text=text, stamp=STAMP), author="person:ada")
    committed = await store.commit(Change(step=Step.NOTE, session="s0", at=time.time(), entries=(draft,)))
    wall, cpu = time.perf_counter(), time.process_time()
    found = await memory.find(_query(text))
    first = (time.perf_counter() - wall) * 1e3
    spent = (time.process_time() - cpu) * 1e3
    assert ("s0", committed.seqs[-1]) in [(one.session, one.seq) for one in found], "the note was not found"
    wall = time.perf_counter()
    await memory.find(_query(text))
    return first, spent, (time.perf_counter() - wall) * 1e3


def _query(text: str) -> MemoryQuery:
    """Build a query with a part of the words, as a turn does."""
    return MemoryQuery(
        text=" ".join(text.split()[:8]),
        agent="main",
        session="elsewhere",
        name="bench",
        audience=AUDIENCE,
        person="ada",
        limit=40,
        tokens=1_700,
    )


def _at(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]
