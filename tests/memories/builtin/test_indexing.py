"""What taking in remembers of the file between two transactions is what stands there, whoever else wrote, whatever
failed; and a transaction writes no more than it must.
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
async def test_two_that_write_one_file_by_turns_write_what_one_would_have(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two transactions the other one may have added, erased, or failed."""
    chance = random.Random(seed)
    stage = IndexScenario(tmp_path)
    writers = [stage.index, MemoryIndex(stage.path, inline=True, embeddings="table")]
    embed = ChunkEmbeddings.embed_chunks

    def full(meaning: ChunkEmbeddings, db: apsw.Connection, pieces: Collection[ChunkText]) -> None:
        embed(meaning, db, pieces)
        raise apsw.FullError("no room")

    said: list[tuple[str, int]] = []
    for number in range(60):
        session = chance.choice("stuv")
        if said and chance.random() < 0.2:
            session, seq = said.pop(chance.randrange(len(said)))
            await stage.erase_entries(seq, session=session)
        else:
            text = f"pear {number} " + "and more of it " * chance.choice((0, 0, 18, 80))
            company = COMPANIES["stuv".index(session)] if chance.random() < 0.7 else chance.choice(COMPANIES)
            who = chance.choice(("ada", "bob", f"guest{number}"))
            said.append((session, await stage.say(text, session=session, audience=company, who=who, name=who.title())))
        stage.index = chance.choice(writers)
        if chance.random() < 0.25:
            with monkeypatch.context() as patched:
                patched.setattr(ChunkEmbeddings, "embed_chunks", full)
                with pytest.raises(apsw.FullError):
                    await stage.index.catch_up(stage.log)
        elif chance.random() < 0.6:
            await stage.index.catch_up(stage.log)
    await stage.index.catch_up(stage.log)
    by_turns = await contents(stage)
    for writer in writers:
        await writer.close()
    stage.path.unlink()
    stage.index = MemoryIndex(stage.path, inline=True, embeddings="table")
    while await stage.index.catch_up(stage.log):
        pass
    assert await contents(stage) == by_turns
    await stage.close()


async def test_what_follows_an_erased_message_is_not_read_with_it(tmp_path: Path) -> None:
    stage = IndexScenario(tmp_path)
    await stage.say("which fruit do you like?")
    erased = await stage.say("I like the durian")
    await stage.index.catch_up(stage.log)
    await stage.erase_entries(erased)
    await stage.index.catch_up(stage.log)
    await stage.say("and you?", who="agent")
    await stage.index.catch_up(stage.log)
    bit_by_bit = await contents(stage)
    await stage.index.rebuild()
    await stage.index.catch_up(stage.log)
    assert await contents(stage) == bit_by_bit
    await stage.close()


async def test_the_words_of_a_batch_are_one_segment_of_the_full_text(tmp_path: Path) -> None:
    """Each segment is looked through by every search: a statement that makes one of each message costs both."""
    stage = IndexScenario(tmp_path)
    for number in range(40):
        await stage.say(f"kettle number {number}", session=f"s{number % 3}", who=f"p{number % 5}", name="Guest")
    assert await stage.index.catch_up(stage.log) == 40
    assert stage.index._writer.execute("select count(distinct segid) from words_idx").get == 1
    await stage.close()


async def test_no_more_is_remembered_than_there_is_room_for(tmp_path: Path) -> None:
    stage = IndexScenario(tmp_path)
    intake = stage.index._index_writer
    intake._authors = {f"person:{number}": number for number in range(MAX_CACHED_NAMES + 1)}
    await stage.say("one red apple")
    await stage.index.catch_up(stage.log)
    await stage.say("and a pear")
    await stage.index.catch_up(stage.log)
    assert len(intake._authors) == 1
    await stage.close()


async def test_no_search_makes_a_plan_that_was_made_before(tmp_path: Path) -> None:
    """Full text looks every word up in every segment, and would plan that anew where plans depend on the word."""
    stage = IndexScenario(tmp_path)
    for number in range(6):
        await stage.say(f"kettle number {number} is loud", session=f"s{number}")
        await stage.index.catch_up(stage.log)
    await stage.find("which kettle is loud?")
    plans: dict[str, int] = {}

    def count(event: dict[str, Any]) -> None:
        plans[event["sql"]] = event["stmt_status"]["SQLITE_STMTSTATUS_REPREPARE"]

    stage.index._reader.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)
    await stage.find("which kettle is loud?")
    before = dict(plans)
    await stage.find("is the number of a kettle loud?")
    assert plans == {**plans, **before}
    assert len(plans) > 5
    await stage.close()
