"""The tools that touch this machine are off until an agent names them, and not offered where they cannot work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everhold.app import get_local_user
from everhold.core.entries import Called, Returned, ToolCall
from everhold.infra.child_process import ChildProcesses, SandboxKind
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section


def config(server: ModelServer, tools: list[str]) -> str:
    agent = {"tools": tools, "memories": [], "model": "m"}
    models = {"m": make_model_section(server.openai)}
    return json.dumps({"models": models, "agents": {"main": agent}, "backup": {"every_hours": 0}})


async def test_files_and_shell_are_offered_to_an_agent_that_names_them(tmp_path: Path) -> None:
    async with ModelServer(key=KEY) as server, RunningGateway(tmp_path, config(server, ["files", "shell"])) as gateway:
        calls = (
            ToolCall(id="1", tool="file_write", arguments={"path": "a.txt", "text": "from the file tool"}),
            ToolCall(id="2", tool="shell", arguments={"command": "cat a.txt; ls ../../../.env"}),
        )
        server.add_steps(ModelServerReply(calls=calls), ModelServerReply(text="done"))
        session = (await gateway.send_message("do it", who=get_local_user())).session
        assert await gateway.wait_for_replies(session) == ["done"]
        written, listed = await gateway.read_bodies(session, Returned)
        assert not written.error
        assert "from the file tool" in listed.text
        assert "ls: cannot access" in listed.text
        called = await gateway.read_bodies(session, Called)
        assert [(it.tool, it.effect, it.because) for it in called] == [
            ("file_write", "probe", "default"),
            ("shell", "once", "default"),
        ]
        offered = {tool["function"]["name"] for tool in server.requests[0].json["tools"]}
        assert offered == {"file_read", "file_list", "file_search", "file_write", "file_edit", "shell"}
        await gateway.assert_sound()


async def test_they_are_off_by_default(tmp_path: Path) -> None:
    async with ModelServer(key=KEY) as server, RunningGateway(tmp_path, config(server, ["attach"])) as gateway:
        await gateway.send_and_wait("hello")
        offered = {tool["function"]["name"] for tool in server.requests[0].json["tools"]}
        assert offered == {"attach"}


async def test_without_a_sandbox_the_shell_is_not_offered_and_status_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: ChildProcesses, kind: SandboxKind) -> bool:
        return False

    monkeypatch.setattr(ChildProcesses, "_working", set())
    monkeypatch.setattr(ChildProcesses, "_is_working", fail)
    async with ModelServer(key=KEY) as server, RunningGateway(tmp_path, config(server, ["attach", "shell"])) as gateway:
        await gateway.send_and_wait("hello")
        assert {tool["function"]["name"] for tool in server.requests[0].json["tools"]} == {"attach"}
        (problem,) = [it for it in gateway.app.describe()["problems"] if it["key"] == "agents.main.shell"]
        assert "no sandbox works here" in problem["message"]
        assert "install bubblewrap" in problem["remedy"]
