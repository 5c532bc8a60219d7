"""How much of the evidence `find` returns: among ten items, and within a budget of tokens."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from msgspec import Struct

from bench.recall import scenario
from bench.recall.data import Conversation
from everhold.memories.builtin import BuiltinMemory, MemoryIndex
from everhold.memories.builtin.embeddings import EmbeddingsMode
from everhold.ports.memory import MemoryQuery

BUDGET = 1_700
DEEP = 80
"""Requested items; each metric uses a part of them."""


class Score(Struct, frozen=True, kw_only=True):
    questions: int
    at_5: float
    at_10: float
    at_20: float
    in_budget: float
    kinds: dict[str, float]


async def measure(talks: Sequence[Conversation], *, use: EmbeddingsMode, models: Path | None = None) -> Score:
    """Store each conversation in its own home, and ask each question through the provider's `find`."""
    shares: dict[str, list[float]] = defaultdict(list)
    kinds: dict[str, list[float]] = defaultdict(list)
    for talk in talks:
        with tempfile.TemporaryDirectory() as home:
            store = scenario.open_store(Path(home))
            places = await scenario.tell(store, talk)
            index = MemoryIndex(Path(home) / "index.db", inline=True, embeddings=use, models=models)
            while await index.catch_up(store):
                pass
            while await index.fill_embeddings(64):
                pass
            memory = BuiltinMemory(index=index, store=store, agent="main")
            for question in talk.questions:
                query = MemoryQuery(
                    text=question.text,
                    agent="main",
                    session="elsewhere",
                    name="bench",
                    audience=scenario.audience(talk),
                    person="asker",
                    limit=DEEP,
                )
                found = await memory.find(query)
                ids = [places[one.session, one.seq] for one in found]
                for count in (5, 10, 20):
                    shares[f"at_{count}"].append(_share(ids[:count], question.evidence))
                texts = [one.text for one in found]
                fits = next((n for n in range(len(texts), 0, -1) if scenario.tokens(texts[:n]) <= BUDGET), 0)
                shares["in_budget"].append(_share(ids[:fits], question.evidence))
                kinds[question.kind].append(shares["at_10"][-1])
            await index.close()
            await store.close()
    return Score(
        questions=len(shares["at_10"]),
        kinds={kind: fmean(values) for kind, values in sorted(kinds.items())},
        **{name: fmean(values) for name, values in shares.items()},
    )


def _share(ids: Sequence[str], evidence: frozenset[str]) -> float:
    return len(evidence & set(ids)) / len(evidence)
