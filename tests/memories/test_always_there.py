"""The built-in memory is there for every agent: `memories` says only which memories a turn asks."""

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


async def shown(t: RunningGateway, chat: str) -> list[tuple[str, str]]:
    """Ask about the garden somewhere else; what the answer rested on, and who found it."""
    verdict = await t.send_message("where does the tea garden lie?", chat=chat)
    await t.wait_for_replies(verdict.session)
    try:
        why = await t.app.memory_admin.explain_answer(verdict.session)
    except NotFound:
        return []
    return [(item["provider"], item["text"]) for item in why.get("shown", ())]


async def test_nothing_needs_to_be_configured(tmp_path: Path, ledger_service: LedgerService) -> None:
    async with RunningGateway(tmp_path, config(None)) as t:
        await t.send_and_wait(GARDEN, chat="past")
        assert ("builtin", GARDEN) in await shown(t, "now")


@pytest.mark.parametrize("listed", [["ledger"], []], ids=["a-service", "none"])
async def test_a_list_without_it_keeps_it_out_of_turns_and_of_nothing_else(
    tmp_path: Path, ledger_service: LedgerService, listed: list[str]
) -> None:
    async with RunningGateway(tmp_path, config(listed)) as t:
        await t.send_and_wait(GARDEN, chat="past")
        assert await shown(t, "now") == []  # lists replace
        found = await t.app.memory_admin.search_memories("tea garden", agent="main", person="ada")
        assert (found["memories"][0]["provider"], found["memories"][0]["text"]) == ("builtin", GARDEN)
        assert found["unavailable"] == []
        assert GARDEN in await t.send_and_wait("/memory search tea garden", chat="now")
        verdict = await t.send_message('use tool session_search {"query": "tea garden"}', chat="tool")
        await t.wait_for_replies(verdict.session)
        assert any(GARDEN in body.text for body in await t.read_bodies(verdict.session, Returned))
        assert "builtin" in [row["memory"] for row in (await t.app.memory_admin.collect_status())["memories"]]
        t.configure(config(["builtin", *listed]))
        await t.wait_until(lambda: "builtin" in t.app.agents.get_runtime("main", {}).recall_memories)
        assert ("builtin", GARDEN) in await shown(t, "later")  # it has taken in all there is, without being told to
        await t.assert_sound()
