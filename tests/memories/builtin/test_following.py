"""Whoever follows the log reads up to its present end, also while it grows faster than it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from everhold.admin.session_overview import SessionOverview
from everhold.memories.builtin import MemoryIndex
from everhold.ports.store import EntryPage
from tests.memories.builtin.index_scenario import IndexScenario

Follower = MemoryIndex | SessionOverview
MESSAGES = 1_100
"""More than two pages."""


def build_index(home: Path) -> MemoryIndex:
    return MemoryIndex(home / "other.db", inline=True, embeddings="table")


def build_overview(home: Path) -> SessionOverview:
    return SessionOverview(home / "other.db", get_day=str)


@pytest.mark.parametrize("build", [build_index, build_overview])
async def test_a_log_that_grows_meanwhile_is_read_to_its_present_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[[Path], Follower]
) -> None:
    scenario, follower = IndexScenario(tmp_path), build(tmp_path)
    for number in range(MESSAGES):
        await scenario.say(f"kettle {number}")
    read, log = scenario.log.read_feed, scenario.log
    upto: list[int] = []

    async def read_while_it_grows(*, after: int = 0, limit: int = 500) -> EntryPage:
        page = await read(after=after, limit=limit)
        if len(upto) < 20:
            await scenario.say("one more")
        upto.append(page[-1].pos if page else after)
        return page

    monkeypatch.setattr(log, "read_feed", read_while_it_grows)
    end = await log.last_pos()
    await follower.catch_up_to_end(log)
    assert upto[-1] >= end, "it has read what was there"
    assert len(upto) == 3, "two whole pages, and one that is not"
    await follower.close()
    await scenario.close()
