"""The fake model server: scripted, strict, and usable from a thread or a process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from everhold.models.openai import OpenAIModel
from everhold.ports.model import ModelMessage, ModelRequest
from everhold.testing.model_server import (
    ModelServer,
    ModelServerReply,
    ModelServerStatus,
    ModelServerStep,
    ReceivedModelRequest,
)
from tests.models.conftest import Connect
from tests.waiting import LIMIT_SECONDS


def post(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


HI = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "note", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "t1", "name": "note", "input": {}}


@pytest.mark.parametrize(
    "path, body, words",
    [
        ("/v1/chat/completions", {"model": "m", "messages": []}, "empty array"),
        ("/v1/chat/completions", {"model": "m", "messages": [HI, {"role": "robot", "content": "x"}]}, "robot"),
        ("/v1/chat/completions", {"model": "m", "messages": [HI, {"role": "assistant", "content": None}]}, "null"),
        (
            "/v1/chat/completions",
            {"model": "m", "messages": [HI, {"role": "assistant", "tool_calls": [CALL]}, HI]},
            "did not have response messages: c1",
        ),
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "tool", "tool_call_id": "c"}]}, "preceeding"),
        ("/v1/messages", {"model": "m", "messages": [HI]}, "max_tokens: Field required"),
        ("/v1/messages", {"model": "m", "max_tokens": 1, "messages": [HI, HI]}, "roles must alternate"),
        (
            "/v1/messages",
            {"model": "m", "max_tokens": 1, "messages": [HI, {"role": "assistant", "content": [USE]}, HI]},
            "without `tool_result` blocks",
        ),
        (
            "/v1/messages",
            {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": " "}]}]},
            "must be non-empty",
        ),
        ("/v1/messages", {"model": "m", "max_tokens": 1, "messages": [{"role": "assistant", "content": "x"}]}, "first"),
    ],
)
def test_the_fake_refuses_what_real_servers_refuse(path: str, body: Any, words: str) -> None:
    with ModelServer().threaded() as server:
        status, refused = post(server.url + path, body, **{"anthropic-version": "2023-06-01"})
    assert status == 400
    assert words in refused["error"]["message"]


def test_the_fake_serves_from_a_thread() -> None:
    with ModelServer(models=["fake"]).threaded() as server:
        status, answer = post(f"{server.openai}/chat/completions", {"model": "fake", "messages": [HI]})
        assert status == 200
        assert answer["choices"][0]["message"]["content"] == "You said: hi"
        status, answer = post(f"{server.openai}/chat/completions", {"model": "other", "messages": [HI]})
        assert status == 404
        assert post(f"{server.url}/v1/elsewhere", {})[0] == 404
        assert [received.path for received in server.requests][:1] == ["/v1/chat/completions"]


def test_the_fake_serves_from_a_process() -> None:
    command = [sys.executable, "-m", "everhold.testing.model_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"openai (\S+)", process.stdout.readline())
            assert found
            assert post(f"{found[1]}/chat/completions", {"model": "m", "messages": [HI]})[0] == 200
        finally:
            process.terminate()


async def test_steps_can_inspect_the_request(server: ModelServer, openai: Connect) -> None:
    def step(received: ReceivedModelRequest) -> ModelServerStep:
        return ModelServerReply(text="long") if len(received.body) > 2000 else ModelServerStatus(status=503)

    server.default = step
    model = openai()
    assert isinstance(model, OpenAIModel)
    long = ModelRequest(system="x" * 2000, messages=(ModelMessage(role="user", text="hi"),))
    assert (await model.answer(long)).text == "long"
    assert server.last_request.body == await model.encode_request(long), "the exact bytes are kept"
