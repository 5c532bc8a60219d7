"""The time of `find` and of indexing, on a log of generated sentences; CPU and wall, because machines are shared."""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path

from msgspec import Struct

from everhold.core.entries import ChatLocation, Entry, EntryKind, Heard, Stamp
from everhold.core.people import PeopleDirectory
from everhold.memories.builtin import MemoryIndex
from everhold.memories.builtin.embeddings import EmbeddingsMode
from everhold.ports.store import EntryPage, Session

AUDIENCE = ("person:ada",)
ASKED = 100
NEW = 9


class Times(Struct, frozen=True, kw_only=True):
    items: int
    take_in_ms: float
    """CPU per item."""
    cold_ms: float
    """The first question."""
    p50_ms: float
    p95_ms: float
    cpu_p50_ms: float
    cpu_p95_ms: float
    fresh_ms: float
    """How much longer a search takes when an item was committed just before it and must be found."""
    turn_ms: float
    """CPU to index one turn, a message and its reply, alone. In a larger batch a turn costs less."""
    file_mb: float


class Feed:
    """The part of a store that the index reads."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    async def read_feed(self, *, after: int = 0, limit: int = 500) -> EntryPage:
        page = EntryPage(entry(pos, text) for pos, text in enumerate(self.texts[after : after + limit], after + 1))
        page.has_more = after + limit < len(self.texts)
        return page

    async def get_session(self, id: str) -> Session:
        return Session(id=id, agent="main", address="", last_seq=0, generation=0, created=0.0)

    async def get_people(self) -> PeopleDirectory:
        return PeopleDirectory()

    async def get_entry(self, session: str, seq: int) -> Entry:
        pos = int(session) * 100 + seq
        return entry(pos, self.texts[pos - 1])


def sentences(count: int, seed: int = 7) -> Iterator[str]:
    """Generate sentences of real and made-up words with the uneven frequencies of real text."""
    chance = random.Random(seed)
    data = resources.files("everhold.memories.builtin") / "data"
    words = [word for word in (data / "vocabulary.txt").read_text(encoding="utf-8").split() if word.isalpha()]
    chance.shuffle(words)
    words += [f"{one}{another}" for one, another in zip(words, words[7:], strict=False)]
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(words))))
    for _ in range(count):
        yield " ".join(chance.choices(words, cum_weights=weights, k=chance.randint(6, 24)))


def entry(pos: int, text: str) -> Entry:
    body = Heard(origin=ChatLocation(platform="bench"), text=text, stamp=Stamp(person="ada", audience=AUDIENCE))
    return Entry(
        session=str((pos - 1) // 100),
        seq=(pos - 1) % 100 + 1,
        pos=pos,
        kind=EntryKind.HEARD,
        op=None,
        author="person:ada",
        at=float(pos),
        version=1,
        body=body,
        digest=b"x",
    )


async def measure(items: int, *, use: EmbeddingsMode) -> Times:
    texts = list(sentences(items + ASKED))
    store = Feed(texts[:items])
    with tempfile.TemporaryDirectory() as home:
        index = MemoryIndex(Path(home) / "index.db", inline=True, embeddings=use)
        started = time.process_time()
        while await index.catch_up(store, 5_000):  # type: ignore[arg-type]  # only what is read
            pass
        take_in = (time.process_time() - started) / items * 1e3

        async def ask(text: str) -> tuple[float, float]:
            wall, cpu = time.perf_counter(), time.process_time()
            await index.search(store, text, agent="main", audience=AUDIENCE)  # type: ignore[arg-type]
            return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3

        questions = [" ".join(text.split()[:8]) for text in texts[items:]]
        cold, _ = await ask(questions[0])
        asked = [await ask(question) for question in questions]
        fresh = sorted([await _sooner(store, ask, number) for number in range(NEW)])[NEW // 2]
        turns = zip(texts[items::2], texts[items + 1 :: 2], strict=True)
        turn = _at(sorted([await _turn(store, index, said) for said in turns]), 50)
        size = _megabytes(Path(home))
        await index.close()
    walls, cpus = sorted(wall for wall, _ in asked), sorted(cpu for _, cpu in asked)
    return Times(
        items=items,
        take_in_ms=take_in,
        cold_ms=cold,
        p50_ms=_at(walls, 50),
        p95_ms=_at(walls, 95),
        cpu_p50_ms=_at(cpus, 50),
        cpu_p95_ms=_at(cpus, 95),
        fresh_ms=fresh,
        turn_ms=turn,
        file_mb=size,
    )


async def _sooner(store: Feed, ask: Callable[[str], Awaitable[tuple[float, float]]], number: int) -> float:
    """Return how many milliseconds longer a search for a just committed item takes than its repetition."""
    store.texts.append(f"a quite unmistakable aardvark {number}")
    first, _ = await ask("aardvark")
    again = min([(await ask("aardvark"))[0] for _ in range(3)])
    return first - again


async def _turn(store: Feed, index: MemoryIndex, said: Sequence[str]) -> float:
    store.texts += said
    started = time.process_time()
    await index.catch_up(store)  # type: ignore[arg-type]
    return (time.process_time() - started) * 1e3


def _megabytes(home: Path) -> float:
    return sum(path.stat().st_size for path in home.iterdir()) / 1e6


def _at(values: Sequence[float], percent: int) -> float:
    return values[min(len(values) - 1, len(values) * percent // 100)]
