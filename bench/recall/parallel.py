"""How well facts are found in each language: the same facts in eleven languages, one question each.

The sentences in `languages/` are our own. A line has a fact and a question. Each language has a log of its own, and a
fact is a message of its own session, so that nothing but its words says where it is. The questions of the first
hundred lines were tuned on; the others were written afterwards, and nothing was changed for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from bench.recall import scenario
from bench.recall.used import Interval, compute_interval
from everhold.core.entries import ChatLocation, EntryDraft, Heard, Stamp
from everhold.memories.builtin import BuiltinMemory, MemoryIndex
from everhold.memories.builtin.embeddings import EmbeddingsMode
from everhold.ports.memory import MemoryQuery
from everhold.ports.store import Change, SessionOpening, Step

FOLDER: Final = Path(__file__).parent / "languages"
TUNING_PAIRS: Final = 100
AUDIENCE: Final = ("person:ada",)
FIRST_DAY: Final = 1_700_000_000.0
DAY_SECONDS: Final = 86_400


class LanguageScore(Struct, frozen=True, kw_only=True):
    language: str
    questions: int
    at_1: Interval
    at_5: Interval
    at_10: Interval
    missed: tuple[str, ...]
    """The questions whose fact is not among the first five."""


def list_languages() -> list[str]:
    """Return the languages with a file, English first."""
    return sorted((path.stem for path in FOLDER.glob("*.txt")), key=lambda name: (name != "en", name))


def read_pairs(language: str) -> list[tuple[str, str]]:
    """Return the facts of a language, each with a question."""
    lines = (FOLDER / f"{language}.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition(" | ") for line in lines]
    return [(fact, question) for fact, _, question in pairs]


def select_half(pairs: Sequence[tuple[str, str]], half: str) -> dict[int, str]:
    """Return the questions to tune on, or those to validate on, each with the number of its fact."""
    questions = {number: question for number, (_, question) in enumerate(pairs)}
    return {n: q for n, q in questions.items() if half == "all" or (half == "tuning") == (n < TUNING_PAIRS)}


async def measure(
    language: str, *, use: EmbeddingsMode, models: Path | None = None, half: str = "all"
) -> LanguageScore:
    """Store all facts of a language and ask the questions of a half."""
    pairs = read_pairs(language)
    questions = select_half(pairs, half)
    with tempfile.TemporaryDirectory() as home:
        store = scenario.open_store(Path(home))
        for number, (fact, _) in enumerate(pairs):
            body = Heard(origin=ChatLocation(platform="bench"), text=fact, stamp=Stamp(person="ada", audience=AUDIENCE))
            await store.commit(
                Change(
                    step=Step.ACCEPT,
                    session=f"s{number}",
                    at=FIRST_DAY + number * DAY_SECONDS,
                    entries=(EntryDraft(body=body, author="person:ada"),),
                    opens=SessionOpening(agent="main", address=f"agent:main:bench:dm:{number}"),
                )
            )
        index = MemoryIndex(Path(home) / "index.db", inline=True, embeddings=use, models=models)
        while await index.catch_up(store, 500):
            pass
        while await index.fill_embeddings(64):
            pass
        memory = BuiltinMemory(index=index, store=store, agent="main")
        ranks = [await _find_rank(memory, number, question) for number, question in questions.items()]
        await index.close()
        await store.close()
    shares = {k: compute_interval([float(rank < k) for rank in ranks]) for k in (1, 5, 10)}
    return LanguageScore(
        language=language,
        questions=len(questions),
        at_1=shares[1],
        at_5=shares[5],
        at_10=shares[10],
        missed=tuple(question for rank, question in zip(ranks, questions.values(), strict=True) if rank >= 5),
    )


async def _find_rank(memory: BuiltinMemory, number: int, question: str) -> float:
    found = await memory.find(
        MemoryQuery(
            text=question,
            agent="main",
            session="now",
            name="n",
            audience=AUDIENCE,
            person="ada",
            tokens=1_700,
            limit=40,
            asked_at=FIRST_DAY + 200 * DAY_SECONDS,
        )
    )
    places = [hit.session for hit in found]
    return places.index(f"s{number}") if f"s{number}" in places else float("inf")
