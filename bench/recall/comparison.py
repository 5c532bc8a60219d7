"""The same conversations and questions in one run: everhold's built-in memory, bare FTS5, and mem0ai in this process.

mem0ai stores every message unchanged (`infer=False`) and uses everhold's static embeddings, so that only the search is
compared. It calls no model and sends nothing to the network.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any, Protocol

import apsw
from msgspec import Struct

from bench.recall import scenario
from bench.recall.data import Conversation, Question, Said
from bench.recall.speed import sentences
from everhold.memories.builtin import BuiltinMemory, MemoryIndex, static_embeddings
from everhold.memories.builtin.tokenizing import extract_content_words
from everhold.ports.memory import MemoryQuery

DEEP = 80
BUDGET = 1_700
ITEMS = 3_000
"""Items of the speed comparison. mem0ai's file store is too slow for more."""
ASKED = 40


class Memory(Protocol):
    async def add(self, message: Said) -> None: ...

    async def find(self, text: str, limit: int) -> list[tuple[str, str]]:
        """Ids and texts, best first."""

    async def close(self) -> None: ...


class Everhold:
    """A real log, and the built-in provider as a turn calls it."""

    def __init__(self, home: Path, talk: Conversation) -> None:
        self.talk = talk
        self.store = scenario.open_store(home)
        self.index = MemoryIndex(home / "index.db", inline=True, embeddings="table")
        self.memory = BuiltinMemory(index=self.index, store=self.store, agent="main")
        self.places: dict[tuple[str, int], str] = {}
        self.opened: set[str] = set()

    async def add(self, message: Said) -> None:
        one = Conversation(self.talk.name, (message,), ())
        self.places |= await scenario.tell(self.store, one, opened=self.opened)
        self.opened.add(f"{self.talk.name}.{message.part}")
        await self.index.catch_up(self.store)

    async def find(self, text: str, limit: int) -> list[tuple[str, str]]:
        query = MemoryQuery(
            text=text,
            agent="main",
            session="elsewhere",
            name="bench",
            audience=scenario.audience(self.talk),
            person="asker",
            limit=limit,
        )
        return [(self.places[one.session, one.seq], one.text) for one in await self.memory.find(query)]

    async def close(self) -> None:
        await self.index.close()
        await self.store.close()


class Bare:
    """Plain FTS5 with stemming and BM25, queried with all content words."""

    def __init__(self, home: Path, talk: Conversation) -> None:
        self.db = apsw.Connection(str(home / "bare.db"))
        self.db.pragma("journal_mode", "wal")
        self.db.pragma("synchronous", "off")  # like everhold's log in this bench
        self.db.execute("create virtual table said using fts5 (id unindexed, text, tokenize='porter unicode61')")

    async def add(self, message: Said) -> None:
        self.db.execute("insert into said values (?, ?)", (message.id, message.text))

    async def find(self, text: str, limit: int) -> list[tuple[str, str]]:
        words = " OR ".join(f'"{word}"' for word in extract_content_words(text))
        if not words:
            return []
        found: list[Any] = self.db.execute(
            "select id, text from said where said match ? order by rank limit ?", (words, limit)
        ).fetchall()
        return found

    async def close(self) -> None:
        self.db.close()


class Mem0:
    """mem0ai, open source, with a file store."""

    def __init__(self, home: Path, talk: Conversation) -> None:
        os.environ["MEM0_TELEMETRY"] = "False"
        os.environ["MEM0_DIR"] = str(home / "mem0")
        import mem0

        logging.disable(logging.WARNING)  # it logs missing extras at every search
        key = {"api_key": "none is asked"}
        vectors = {"path": str(home / "vectors"), "on_disk": True, "embedding_model_dims": static_embeddings.DIMENSIONS}
        self.memory: Any = mem0.Memory.from_config(
            {
                "vector_store": {"provider": "qdrant", "config": vectors},
                "llm": {"provider": "openai", "config": key},
                "embedder": {"provider": "openai", "config": {**key, "embedding_dims": static_embeddings.DIMENSIONS}},
                "history_db_path": str(home / "history.db"),
            }
        )
        self.memory.embedding_model = Embedder()

    async def add(self, message: Said) -> None:
        self.memory.add(
            f"{message.speaker}: {message.text}", user_id="asker", metadata={"said": message.id}, infer=False
        )

    async def find(self, text: str, limit: int) -> list[tuple[str, str]]:
        found = self.memory.search(text, filters={"user_id": "asker"}, top_k=limit, threshold=0.0)
        return [(one["metadata"]["said"], one["memory"]) for one in found["results"]]

    async def close(self) -> None:
        self.memory.close()
        self.memory.vector_store.client.close()


class Embedder:
    """everhold's static embeddings with mem0ai's interface."""

    class config:  # the name that mem0ai reads
        embedding_dims = static_embeddings.DIMENSIONS

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        found: list[float] = static_embeddings.load_static_embeddings().embed_question(text).tolist()
        return found

    def embed_batch(self, texts: Sequence[str], memory_action: str | None = None) -> list[list[float]]:
        return [self.embed(text) for text in texts]


MEMORIES: dict[str, Callable[[Path, Conversation], Memory]] = {
    "everhold, by the table": Everhold,
    "bare FTS5": Bare,
    "mem0ai, by the same table": Mem0,
}


class Quality(Struct, frozen=True, kw_only=True):
    at_5: float
    at_10: float
    in_budget: float


async def quality(talks: Sequence[Conversation], make: Callable[[Path, Conversation], Memory]) -> Quality:
    shares: dict[str, list[float]] = {"at_5": [], "at_10": [], "in_budget": []}
    for talk in talks:
        with tempfile.TemporaryDirectory() as home:
            memory = make(Path(home), talk)
            for message in talk.messages:
                await memory.add(message)
            for question in talk.questions:
                found = await memory.find(question.text, DEEP)
                ids = [id for id, _ in found]
                fits = next((n for n in range(len(found), 0, -1) if _weight(found[:n]) <= BUDGET), 0)
                for name, some in (("at_5", ids[:5]), ("at_10", ids[:10]), ("in_budget", ids[:fits])):
                    shares[name].append(len(question.evidence & set(some)) / len(question.evidence))
            await memory.close()
    return Quality(**{name: fmean(values) for name, values in shares.items()})


def _weight(found: Sequence[tuple[str, str]]) -> int:
    return scenario.tokens([text for _, text in found])


class Pace(Struct, frozen=True, kw_only=True):
    add_ms: float
    """CPU for each item."""
    p50_ms: float
    p95_ms: float
    cpu_ms: float
    """CPU of a question, the mean."""


async def pace(make: Callable[[Path, Conversation], Memory], items: int = ITEMS) -> Pace:
    talk = Conversation("pace", tuple(_made_up(items)), ())
    asked = [Question(" ".join(text.split()[:8]), "", frozenset()) for text in sentences(ASKED, seed=9)]
    with tempfile.TemporaryDirectory() as home:
        memory = make(Path(home), talk)
        started = time.process_time()
        for message in talk.messages:
            await memory.add(message)
        add = (time.process_time() - started) / items * 1e3
        await memory.find(asked[0].text, 10)
        walls: list[float] = []
        started = time.process_time()
        for question in asked:
            before = time.perf_counter()
            await memory.find(question.text, 10)
            walls.append((time.perf_counter() - before) * 1e3)
        cpu = (time.process_time() - started) / len(asked) * 1e3
        await memory.close()
    cuts = quantiles(walls, n=20)
    return Pace(add_ms=add, p50_ms=cuts[9], p95_ms=cuts[18], cpu_ms=cpu)


def _made_up(items: int) -> Iterator[Said]:
    for number, text in enumerate(sentences(items)):
        yield Said(str(number), "1", "ada", False, text, float(number))
