"""Every agent has the built-in memory. `memories` only says which memories a turn asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Returned
from everhold.errors import NotFound
from tests.e2e.running_gateway import RunningGateway
from tests.memories.ledger import LedgerService

GARDEN = "the tea garden lies in Assam"


def config(listed: list[str] | None) -> str:
    given: dict[str, Any] = {} if listed is None else {"memories": listed}
    agent = {"tools": ["session_search"], "recall": {"deadline_seconds": 60}, **given}
    return json.dumps({"agents": {"main": agent}, "memories": {"ledger": {}}})


async def ask_about_garden(t: RunningGateway, chat: str) -> list[tuple[str, str]]:
    """Ask about the garden in another chat; return the recalled texts and their memories."""
    verdict = await t.send_message("where does the tea garden lie?", chat=chat)
    await t.wait_for_replies(verdict.session)
    try:
        why = await t.app.memory_admin.explain_answer(verdict.session)
    except NotFound:
        return []
    return [(item["provider"], item["text"]) for item in why.get("shown", ())]


async def test_the_builtin_memory_needs_no_configuration(tmp_path: Path, ledger_service: LedgerService) -> None:
    async with RunningGateway(tmp_path, config(None)) as t:
        await t.send_and_wait(GARDEN, chat="past")
        assert ("builtin", GARDEN) in await ask_about_garden(t, "now")


@pytest.mark.parametrize("listed", [["ledger"], []], ids=["a-service", "none"])
async def test_a_list_without_builtin_excludes_it_from_turns_only(
    tmp_path: Path, ledger_service: LedgerService, listed: list[str]
) -> None:
    async with RunningGateway(tmp_path, config(listed)) as t:
        await t.send_and_wait(GARDEN, chat="past")
        assert await ask_about_garden(t, "now") == []  # lists replace
        found = await t.app.memory_admin.search_memories("tea garden", agent="main", person="local:ada")
        assert (found["memories"][0]["provider"], found["memories"][0]["text"]) == ("builtin", GARDEN)
        assert found["unavailable"] == []
        assert GARDEN in await t.send_and_wait("/memory search tea garden", chat="now")
        verdict = await t.send_message('use tool session_search {"query": "tea garden"}', chat="tool")
        await t.wait_for_replies(verdict.session)
        assert any(GARDEN in body.text for body in await t.read_bodies(verdict.session, Returned))
        assert "builtin" in [row["memory"] for row in (await t.app.memory_admin.collect_status())["memories"]]
        t.configure(config(["builtin", *listed]))
        await t.wait_until(lambda: "builtin" in t.app.agents.get_runtime("main", {}).recall_memories)
        assert ("builtin", GARDEN) in await ask_about_garden(
            t, "later"
        )  # it has indexed everything without being asked
        await t.assert_sound()
