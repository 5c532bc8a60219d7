"""A gateway is stopped while a sub-agent works, on both stores: the next process continues, and one result is heard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Called, Heard, Returned, Said, ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply, ModelServerStep, ReceivedModelRequest
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section


class DelegatingScript:
    """The model gives a task away. The sub-agent writes a file, and answers when it is allowed to."""

    may_finish = False

    def __call__(self, received: ReceivedModelRequest) -> ModelServerStep:
        messages = received.json["messages"]
        if "You are a sub-agent" in str(messages[0]["content"]):
            if messages[-1]["role"] != "tool":
                text = {"path": "a.txt", "text": "written once"}
                return ModelServerReply(calls=(ToolCall(id="w", tool="file_write", arguments=text),))
            return ModelServerReply(text="it is written", pause_seconds=0.0 if self.may_finish else 3_600.0)
        last = str(messages[-1]["content"])
        if "Result of sub-agent" in last:
            return ModelServerReply(text="the sub-agent wrote it")
        if messages[-1]["role"] == "tool":
            return ModelServerReply(text="somebody works on it")
        return ModelServerReply(calls=(ToolCall(id="d", tool="delegate", arguments={"task": "write a file"}),))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_sub_agent_continues_in_the_next_process(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    script = DelegatingScript()
    async with ModelServer(key=KEY) as model:
        model.default = script
        config: dict[str, Any] = {
            "models": {"m": make_model_section(model.openai)},
            "defaults": {"memories": [], "model": "m"},
            "agents": {"main": {"tools": ["files", "delegate"]}},
            "policy": {"rules": [{"tool": "file_write", "do": "allow", "via": ["delegate"]}]},
        }
        if kind == "postgres":
            config["store"] = {"url": request.getfixturevalue("postgres_url"), "host_name": "here"}
            config["agents"]["main"]["workspace"] = {"host": "here"}
        home, env = tmp_path / "home", f"MODEL_KEY={KEY}\n"
        async with RunningGateway(home, json.dumps(config), env=env) as first:
            session = (await first.send_message("have a file written")).session

            async def has_written() -> bool:
                return len(await first.read_bodies(session, Returned)) == 2

            await first.wait_until(has_written)
        script.may_finish = True
        async with RunningGateway(home, json.dumps(config), env=env) as second:
            await second.wait_for_replies(session, 2)
            await second.wait_until_idle()
            heard = await second.read_bodies(session, Heard)
            said = await second.read_bodies(session, Said)
            called = await second.read_bodies(session, Called)
            await second.assert_sound()
    assert [body.delegated for body in heard] == ["", "chat"]
    assert [body.text for body in said] == ["somebody works on it", "the sub-agent wrote it"]
    assert [body.call for body in called] == ["w"], "it was not called again"
