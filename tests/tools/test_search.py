"""An agent finds and reads what everybody present may know, and is told nothing of the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everhold.core.entries import Stamp
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult
from everhold.tools.search import PAGE_CHARS, SessionSearchTool
from tests.memories.builtin.index_scenario import ADA, IndexScenario


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[IndexScenario]:
    stage = IndexScenario(tmp_path, embeddings="table")
    yield stage
    await stage.close()


async def run(
    stage: IndexScenario, *, audience: tuple[str, ...] = ADA, agent: str = "main", **arguments: object
) -> ToolResult:
    tool = SessionSearchTool(stage.provider(agent), stage.log)
    assert tool.effect is ToolEffect.PURE
    context = ToolContext(session="s", agent=agent, op=1, key="k", stamp=Stamp(person="ada", audience=audience))
    return await tool.run(arguments, context)


async def test_results_name_session_and_entry(stage: IndexScenario) -> None:
    seq = await stage.say("the boiler was repaired", at=86_400.0)
    result = await run(stage, query="boiler")
    assert result.text == f"[session s, entry {seq}, by ada, 1970-01-02 00:00 UTC]\nthe boiler was repaired"


async def test_a_long_entry_is_read_in_pages(stage: IndexScenario) -> None:
    seq = await stage.say("a" * PAGE_CHARS + "b" * 10)
    first = await run(stage, session="s", entry=seq)
    second = await run(stage, entry=seq, page=2)
    assert first.text.endswith("page 1 of 2]\n" + "a" * PAGE_CHARS)
    assert second.text.endswith("page 2 of 2]\n" + "b" * 10)
    assert (await run(stage, entry=seq, page=3)).error


async def test_what_may_not_be_known_is_answered_like_what_is_not_there(stage: IndexScenario) -> None:
    seq = await stage.say("private to bob", audience=("person:bob",))
    theirs = await stage.say("of another agent", session="other/1")
    hidden = await run(stage, session="s", entry=seq)
    assert hidden.error
    assert hidden.text == (await run(stage, session="s", entry=seq + 99)).text.replace(str(seq + 99), str(seq))
    assert (await run(stage, session="other/1", entry=theirs)).error
    assert (await run(stage, query="private bob")).text == "Nothing was found."


async def test_an_erased_entry_cannot_be_read(stage: IndexScenario) -> None:
    seq = await stage.say("forget this")
    await stage.erase_entries(seq)
    assert (await run(stage, entry=seq)).error


@pytest.mark.parametrize(
    "arguments", [{}, {"query": "  "}, {"query": 3}, {"query": "x", "session": 4}, {"entry": True}]
)
async def test_nonsense_is_refused_with_a_word(stage: IndexScenario, arguments: dict[str, object]) -> None:
    tool = SessionSearchTool(stage.provider(), stage.log)
    context = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp(person="ada", audience=ADA))
    assert (await tool.run(arguments, context)).error


async def test_with_nobody_known_to_be_present_nothing_is_searched(stage: IndexScenario) -> None:
    await stage.say("something")
    assert (await run(stage, query="something", audience=())).error
