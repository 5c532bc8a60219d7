"""An agent finds and reads entries whose audience includes everybody present, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everhold.core.entries import Stamp
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult
from everhold.tools.search import PAGE_CHARS, SessionSearchTool
from tests.memories.builtin.index_scenario import ADA, IndexScenario


@pytest.fixture
async def index_scenario(tmp_path: Path) -> AsyncIterator[IndexScenario]:
    index_scenario = IndexScenario(tmp_path, embeddings="table")
    yield index_scenario
    await index_scenario.close()


async def run(
    index_scenario: IndexScenario, *, audience: tuple[str, ...] = ADA, agent: str = "main", **arguments: object
) -> ToolResult:
    tool = SessionSearchTool(index_scenario.provider(agent), index_scenario.log)
    assert tool.effect is ToolEffect.PURE
    context = ToolContext(session="s", agent=agent, op=1, key="k", stamp=Stamp(person="ada", audience=audience))
    return await tool.run(arguments, context)


async def test_results_name_session_and_entry(index_scenario: IndexScenario) -> None:
    seq = await index_scenario.say("the boiler was repaired", at=86_400.0)
    result = await run(index_scenario, query="boiler")
    assert result.text == f"[session s, entry {seq}, by ada, 1970-01-02 00:00 UTC]\nthe boiler was repaired"


async def test_a_long_entry_is_read_in_pages(index_scenario: IndexScenario) -> None:
    seq = await index_scenario.say("a" * PAGE_CHARS + "b" * 10)
    first = await run(index_scenario, session="s", entry=seq)
    second = await run(index_scenario, entry=seq, page=2)
    assert first.text.endswith("page 1 of 2]\n" + "a" * PAGE_CHARS)
    assert second.text.endswith("page 2 of 2]\n" + "b" * 10)
    assert (await run(index_scenario, entry=seq, page=3)).error


async def test_an_entry_outside_the_audience_gets_the_answer_for_a_missing_one(index_scenario: IndexScenario) -> None:
    seq = await index_scenario.say("private to bob", audience=("person:bob",))
    theirs = await index_scenario.say("of another agent", session="other/1")
    hidden = await run(index_scenario, session="s", entry=seq)
    assert hidden.error
    assert hidden.text == (await run(index_scenario, session="s", entry=seq + 99)).text.replace(str(seq + 99), str(seq))
    assert (await run(index_scenario, session="other/1", entry=theirs)).error
    assert (await run(index_scenario, query="private bob")).text == "Nothing was found."


async def test_an_erased_entry_cannot_be_read(index_scenario: IndexScenario) -> None:
    seq = await index_scenario.say("forget this")
    await index_scenario.erase_entries(seq)
    assert (await run(index_scenario, entry=seq)).error


@pytest.mark.parametrize(
    "arguments", [{}, {"query": "  "}, {"query": 3}, {"query": "x", "session": 4}, {"entry": True}]
)
async def test_invalid_arguments_are_refused_with_a_reason(
    index_scenario: IndexScenario, arguments: dict[str, object]
) -> None:
    tool = SessionSearchTool(index_scenario.provider(), index_scenario.log)
    context = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp(person="ada", audience=ADA))
    assert (await tool.run(arguments, context)).error


async def test_without_a_known_audience_nothing_is_searched(index_scenario: IndexScenario) -> None:
    await index_scenario.say("something")
    assert (await run(index_scenario, query="something", audience=())).error
