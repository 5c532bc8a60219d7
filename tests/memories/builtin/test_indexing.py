"""The indexer's cache matches the file after writes by other processes and after failures. A transaction writes no more
than it must.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import apsw
import pytest

from everhold.memories.builtin import MemoryIndex
from everhold.memories.builtin.embeddings import ChunkEmbeddings
from everhold.memories.builtin.indexing import MAX_CACHED_NAMES, ChunkText
from tests.memories.builtin.index_scenario import ADA, IndexScenario
from tests.memories.builtin.test_index import contents

COMPANIES = (ADA, ("person:bob",), ("person:ada", "person:bob"), ("person:bob", "person:ada"))


@pytest.mark.parametrize("seed", range(6))
async def test_two_writers_of_one_file_write_the_same_as_one_writer(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two transactions another process may have added or erased entries, or have failed."""
    chance = random.Random(seed)
    scenario = IndexScenario(tmp_path)
    writers = [scenario.index, MemoryIndex(scenario.path, inline=True, embeddings="table")]
    embed = ChunkEmbeddings.embed_chunks

    def full(meaning: ChunkEmbeddings, db: apsw.Connection, pieces: Collection[ChunkText]) -> None:
        embed(meaning, db, pieces)
        raise apsw.FullError("no room")

    said: list[tuple[str, int]] = []
    for number in range(60):
        session = chance.choice("stuv")
        if said and chance.random() < 0.2:
            session, seq = said.pop(chance.randrange(len(said)))
            await scenario.erase_entries(seq, session=session)
        else:
            text = f"pear {number} " + "and more of it " * chance.choice((0, 0, 18, 80))
            company = COMPANIES["stuv".index(session)] if chance.random() < 0.7 else chance.choice(COMPANIES)
            who = chance.choice(("ada", "bob", f"guest{number}"))
            said.append(
                (session, await scenario.say(text, session=session, audience=company, who=who, name=who.title()))
            )
        scenario.index = chance.choice(writers)
        if chance.random() < 0.25:
            with monkeypatch.context() as patched:
                patched.setattr(ChunkEmbeddings, "embed_chunks", full)
                with pytest.raises(apsw.FullError):
                    await scenario.index.catch_up(scenario.log)
        elif chance.random() < 0.6:
            await scenario.index.catch_up(scenario.log)
    await scenario.index.catch_up(scenario.log)
    by_turns = await contents(scenario)
    for writer in writers:
        await writer.close()
    scenario.path.unlink()
    scenario.index = MemoryIndex(scenario.path, inline=True, embeddings="table")
    while await scenario.index.catch_up(scenario.log):
        pass
    assert await contents(scenario) == by_turns
    await scenario.close()


async def test_the_entry_after_an_erased_message_is_indexed_without_it(tmp_path: Path) -> None:
    scenario = IndexScenario(tmp_path)
    await scenario.say("which fruit do you like?")
    erased = await scenario.say("I like the durian")
    await scenario.index.catch_up(scenario.log)
    await scenario.erase_entries(erased)
    await scenario.index.catch_up(scenario.log)
    await scenario.say("and you?", who="agent")
    await scenario.index.catch_up(scenario.log)
    bit_by_bit = await contents(scenario)
    await scenario.index.rebuild()
    await scenario.index.catch_up(scenario.log)
    assert await contents(scenario) == bit_by_bit
    await scenario.close()


async def test_a_batch_writes_one_segment_of_the_full_text_index(tmp_path: Path) -> None:
    """Every search reads each segment, so a statement that writes one segment per message slows down both."""
    scenario = IndexScenario(tmp_path)
    for number in range(40):
        await scenario.say(f"kettle number {number}", session=f"s{number % 3}", who=f"p{number % 5}", name="Guest")
    assert await scenario.index.catch_up(scenario.log) == 40
    assert scenario.index._writer.execute("select count(distinct segid) from words_idx").get == 1
    await scenario.close()


async def test_the_cache_does_not_exceed_its_limit(tmp_path: Path) -> None:
    scenario = IndexScenario(tmp_path)
    intake = scenario.index._index_writer
    intake._authors = {f"person:{number}": number for number in range(MAX_CACHED_NAMES + 1)}
    await scenario.say("one red apple")
    await scenario.index.catch_up(scenario.log)
    await scenario.say("and a pear")
    await scenario.index.catch_up(scenario.log)
    assert len(intake._authors) == 1
    await scenario.close()


async def test_a_search_reuses_its_prepared_statements(tmp_path: Path) -> None:
    """Full text looks up each word in every segment and would prepare that statement again where plans depend on the
    word.
    """
    scenario = IndexScenario(tmp_path)
    for number in range(6):
        await scenario.say(f"kettle number {number} is loud", session=f"s{number}")
        await scenario.index.catch_up(scenario.log)
    await scenario.find("which kettle is loud?")
    plans: dict[str, int] = {}

    def count(event: dict[str, Any]) -> None:
        plans[event["sql"]] = event["stmt_status"]["SQLITE_STMTSTATUS_REPREPARE"]

    scenario.index._reader.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)
    await scenario.find("which kettle is loud?")
    before = dict(plans)
    await scenario.find("is the number of a kettle loud?")
    assert plans == {**plans, **before}
    assert len(plans) > 5
    await scenario.close()
