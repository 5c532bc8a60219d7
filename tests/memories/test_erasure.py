"""A person is forgotten at a Honcho that deletes later, or never: through the gateway, its tools and its commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everhold.cli.commands.memory import _choose_exit_code
from everhold.core.entries import Returned, ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply
from everhold.testing.services.honcho import HonchoService
from tests.e2e.running_gateway import RunningGateway, make_model_section
from tests.memories.services import MemoryServices

CANARY = "zanzibar7391"


async def ask_tool(gateway: RunningGateway, server: ModelServer, tool: str, **given: str) -> str:
    """Let the model call a tool, and return what it was shown."""
    server.add_steps(
        ModelServerReply(calls=(ToolCall(id="c1", tool=tool, arguments=given),)), ModelServerReply(text="done")
    )
    accepted = await gateway.send_message("please look")
    await gateway.wait_until_idle()
    return (await gateway.read_bodies(accepted.session, Returned))[-1].text


async def test_the_text_is_shown_nowhere_until_honcho_has_deleted_it(tmp_path: Path, services: MemoryServices) -> None:
    honcho = services.honcho
    honcho.deletes_sessions = False
    async with ModelServer() as server:
        given = json.loads(services.config("honcho", agent={"model": "m"}))
        given["models"] = {"m": make_model_section(server.openai)}
        async with RunningGateway(tmp_path, json.dumps(given)) as t:
            server.add_steps(ModelServerReply(text="I see"))
            session = (await t.send_message(f"my secret is {CANARY}")).session
            await t.wait_until_idle()
            before = (await t.app.store.get_session(session)).names["honcho"]
            assert CANARY in await ask_tool(t, server, "honcho_search", query="my secret")
            person = (await t.app.store.list_entries(session))[0].author.removeprefix("person:")
            report = await t.app.memory_admin.forget_person(person)
            assert (report.state, _choose_exit_code([report.state])) == ("asked", 75)
            assert holds(honcho)
            assert CANARY not in await ask_tool(t, server, "honcho_search", query="my secret")
            for tool in ("honcho_reasoning", "honcho_context"):
                assert "has not confirmed" in await ask_tool(t, server, tool, query="my secret")
            assert CANARY not in str([it async for it in t.app.memory_admin.export_person(person)])
            found = await t.app.memory_admin.search_memories(CANARY, agent="main", person=person)
            assert CANARY not in str(found)
            assert CANARY not in str(server.requests[-1].body)
            # what is said meanwhile goes to a new session
            after = (await t.app.store.get_session(session)).names["honcho"]
            assert after != before
            assert honcho.texts(after)
            honcho.deletes_sessions = True
            honcho.work()
            assert not holds(honcho)
            await t.app.memory_admin.finish_unfinished()
            (listed,) = await t.app.memory_admin.list_erasures()
            assert listed.state == "confirmed"
            assert "has not confirmed" not in await ask_tool(t, server, "honcho_context")


def holds(honcho: HonchoService) -> bool:
    return any(CANARY in row["content"] for row in honcho.state.messages)


@pytest.mark.parametrize(
    "states, code",
    [
        ([], 0),
        (["confirmed"], 0),
        (["confirmed", "asked"], 75),
        (["planned", "cannot"], 75),
        (["unconfirmed"], 1),
        (["confirmed", "cannot"], 1),
    ],
)
def test_the_exit_code_says_whether_waiting_helps(states: list[str], code: int) -> None:
    assert _choose_exit_code(states) == code
