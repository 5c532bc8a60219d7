"""`everhold mcp`: the SDK's client starts the command and uses the memory, with and without a gateway."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from everhold.cli.commands.mcp import MAX_LINE_BYTES
from tests.cli.command_home import CONFIG, CommandHome

REMEMBERING = CONFIG.replace("memories: [], tools: []", "memories: [builtin]")


@asynccontextmanager
async def start_server(home: CommandHome) -> AsyncIterator[ClientSession]:
    server = StdioServerParameters(command=sys.executable, args=["-m", "everhold", "mcp"], env=home.env())
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def call(session: ClientSession, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await session.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content or {}


async def test_a_client_remembers_without_and_with_a_gateway(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text(REMEMBERING)
    async with start_server(command_home) as session:
        await call(session, "remember", text="The spare key is under the third flower pot.")
        gateway = command_home.start_gateway()  # the home is not held between two messages
        found = await call(session, "search", query="where is the spare key?")
        assert [item["text"] for item in found["memories"]] == ["The spare key is under the third flower pot."]
        await call(session, "remember", text="The bins go out on Monday.")
        gateway.kill()
        notes = (await call(session, "list"))["notes"]
        assert [note["text"] for note in notes] == [
            "The bins go out on Monday.",
            "The spare key is under the third flower pot.",
        ]
    shown = command_home.run("memory", "search", "spare key", "--json").ok().json
    assert shown["memories"][0]["text"] == "The spare key is under the third flower pot."


def test_a_broken_message_gets_an_error_and_the_next_one_an_answer(command_home: CommandHome) -> None:
    ping = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping"})
    long = json.dumps({"jsonrpc": "2.0", "id": 6, "method": "x" * (2 * MAX_LINE_BYTES)})
    done = command_home.run("mcp", input=f"no json\n{long}\n{ping}\n").ok()
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert [answer.get("error", {}).get("code") for answer in answers] == [-32700, -32700, None]
    assert answers[2] == {"jsonrpc": "2.0", "id": 7, "result": {}}


def test_an_unknown_agent_is_an_error_of_the_call(command_home: CommandHome) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list"}}
    done = command_home.run("mcp", "--agent", "nobody", input=f"{json.dumps(call)}\n").ok()
    assert "there is no agent 'nobody'" in json.loads(done.out)["result"]["content"][0]["text"]
