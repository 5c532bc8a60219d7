"""A model writes ten conclusions at once, curates its facts and searches: everything is stored once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from everhold.core.entries import ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.e2e.running_gateway import RunningGateway, make_model_section
from tests.memories.services import MemoryServices, every_write

FACTS = [f"fact {number}" for number in range(10)]
ASKED = "please note: likes tea, lives in Oslo; no, likes coffee"  # only what a person said becomes a fact
KEPT = "Stored; it will be delivered to Honcho."


def make_tool_calls(*wanted: tuple[str, dict[str, str]]) -> ModelServerReply:
    return ModelServerReply(
        calls=tuple(ToolCall(id=f"c{at}", tool=tool, arguments=given) for at, (tool, given) in enumerate(wanted))
    )


@every_write
@pytest.mark.parametrize("down", [False, True], ids=["being created", "down"])
async def test_conclusions_facts_and_searches_in_one_turn_are_stored_once(
    tmp_path: Path, services: MemoryServices, write: str | int, down: bool
) -> None:
    honcho = services.honcho
    if down:
        await honcho.stop()
    else:
        honcho.plan_fault("slow", "/sessions$", seconds=0.5)  # the session is still being created during all this
        honcho.plan_fault("after", "/conclusions$")
    async with ModelServer() as server:
        given = json.loads(services.config("honcho", write=write, agent={"model": "m", "tools": ["memory"]}))
        given["models"] = {"m": make_model_section(server.openai)}
        async with RunningGateway(tmp_path, json.dumps(given)) as t:
            server.add_steps(
                make_tool_calls(
                    *(("honcho_conclude", {"conclusion": fact}) for fact in FACTS),
                    ("memory", {"action": "add", "content": "likes tea"}),
                    ("memory", {"action": "add", "content": "lives in Oslo"}),
                    ("honcho_search", {"query": "tea"}),
                    ("honcho_context", {}),
                    ("honcho_profile", {}),
                ),
                make_tool_calls(
                    ("memory", {"action": "replace", "old_text": "likes tea", "content": "likes coffee"}),
                    ("memory", {"action": "remove", "old_text": "lives in Oslo"}),
                    ("honcho_conclude", {"conclusion": "fact 10"}),
                ),
                ModelServerReply(text="all done"),
            )
            session = (await t.send_message(ASKED)).session
            noted = [t.app.session_admin.add_note(session, f"thing {number}") for number in range(10)]
            assert all(await asyncio.gather(*noted))
            await t.wait_for_replies(session)
            results = [it["content"] for it in server.last_request.json["messages"] if it["role"] == "tool"]
            assert results.count(KEPT) == 11, results
            await t.send_and_wait("and more")
            if down:
                await honcho.start()
            await t.send_message("/new")  # a session switch sends pending items
            wanted = sorted([*FACTS, "fact 10", "likes coffee", *(f"thing {number}" for number in range(10))])
            await t.wait_until(lambda: sorted(honcho.list_conclusion_texts()) == wanted)
            await t.wait_until(lambda: services.said_texts("honcho") == [ASKED, "and more"])
            await t.wait_until_idle()
            assert sorted(honcho.list_conclusion_texts()) == wanted
            await t.assert_sound()
    assert len(honcho.state.created) == 1
