"""No tool of a memory shows the model what was erased, undone or taken back, whether or not the service knows yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Returned, ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.e2e.running_gateway import RunningGateway, make_model_section
from tests.memories.services import MemoryServices

CANARY = "zanzibar7391"
TOOLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "honcho": [
        ("honcho_profile", {}),
        ("honcho_search", {"query": "my secret"}),
        ("honcho_reasoning", {"query": "my secret"}),
        ("honcho_context", {}),
        ("honcho_conclude", {"list": True}),
        ("honcho_conclude", {"list": True, "query": "my secret"}),
    ],
    "hindsight": [("hindsight_recall", {"query": "my secret"}), ("hindsight_reflect", {"query": "my secret"})],
    "supermemory": [("supermemory_search", {"query": "my secret"}), ("supermemory_profile", {})],
    "mem0": [("mem0_search", {"query": "my secret"})],
}
CASES = [(memory, tool, given) for memory, tools in TOOLS.items() for tool, given in tools]


def keep_everything(services: MemoryServices, memory: str) -> None:
    """From now on the service refuses to delete and to change anything."""
    for method in ("DELETE", "PUT", "PATCH"):
        services[memory].plan_fault("refuse", method=method, status=503, times=None)


@pytest.mark.parametrize("memory, tool, given", CASES, ids=[f"{tool}-{len(given)}" for _, tool, given in CASES])
@pytest.mark.parametrize("how", ["erased", "undone", "taken back"])
@pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "deletes"])
async def test_no_tool_shows_it(
    tmp_path: Path, services: MemoryServices, memory: str, tool: str, given: dict[str, Any], how: str, refuses: bool
) -> None:
    concludes = memory == "honcho"
    services.honcho.derives = concludes
    more: dict[str, Any] = {"supermemory": {"namespace": "{agent}-{person}"}}
    async with ModelServer() as server:
        config = json.loads(services.config(memory, agent={"model": "m"}, **more))
        config["models"] = {"m": make_model_section(server.openai)}
        async with RunningGateway(tmp_path, json.dumps(config)) as t:
            if how == "taken back":
                session = (await t.send_message(f"/memory note my secret is {CANARY}")).session
            else:
                server.add_steps(ModelServerReply(text="I see"))
                session = (await t.send_message(f"my secret is {CANARY}")).session
            await t.wait_until_idle()
            person = (await t.app.store.list_entries(session))[0].author.removeprefix("person:")
            before = await ask_tool(t, server, tool, given)
            if refuses:
                keep_everything(services, memory)
            if how == "erased":
                report = await t.app.memory_admin.forget_person(person)
                assert report.done is not refuses
            elif how == "undone":
                await t.send_and_wait("/undo 2")
            else:
                await t.send_and_wait(f"/memory forget {CANARY}")
            if not refuses:
                await t.wait_until_idle()
            after = await ask_tool(t, server, tool, given)
            assert CANARY not in after
            if tool not in ("honcho_profile", "honcho_reasoning", "honcho_conclude") or (
                concludes and tool != "honcho_profile"  # only Honcho itself writes a card
            ):
                assert CANARY in before, "the tool shows it as long as it may"


async def ask_tool(gateway: RunningGateway, server: ModelServer, tool: str, given: dict[str, Any]) -> str:
    """Let the model call a tool, and return what it was shown."""
    call = ToolCall(id="c1", tool=tool, arguments=given)
    server.add_steps(ModelServerReply(calls=(call,)), ModelServerReply(text="done"))
    await gateway.send_and_wait("please look")
    return (await list_results(gateway))[-1]


async def list_results(gateway: RunningGateway) -> list[str]:
    sessions = await gateway.app.store.list_sessions()
    return [it.text for session in sessions for it in await gateway.read_bodies(session.id, Returned)]
