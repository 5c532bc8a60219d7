"""Unmodified clients: openai-python, curl, llm, openai-node and the Vercel AI SDK."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from everhold.core.entries import ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply, make_rate_limit_failure
from tests.api.conftest import ADA, ELSEWHERE, LOCAL, ApiGateway
from tests.api.programs import run_program
from tests.waiting import LIMIT_SECONDS

IN_SESSION = pytest.mark.parametrize("session", ["", "a conversation"], ids=["without a session", "in a session"])


# -- openai-python -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def python(gateway: ApiGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=LOCAL, timeout=LIMIT_SECONDS) as client:
        yield client


def headers(session: str) -> dict[str, str]:
    return {"X-Everhold-Session": session} if session else {}


@IN_SESSION
async def test_openai_python(gateway: ApiGateway, python: openai.AsyncOpenAI, session: str) -> None:
    client = python.with_options(default_headers=headers(session))
    assert [model.id async for model in client.models.list()] == ["coder", "main"]
    messages: Any = [{"role": "user", "content": "hello"}]
    whole = await client.chat.completions.create(model="main", messages=messages)
    assert whole.choices[0].message.content == "You said: hello"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.total_tokens > 0
    text = ""
    stream = await client.chat.completions.create(
        model="main", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    assert text == "You said: hello"
    response = await client.responses.create(model="main", input="hello")
    assert response.output_text == "You said: hello"
    text = ""
    async with client.responses.stream(model="main", input="hello") as events:
        async for event in events:
            text += event.delta if event.type == "response.output_text.delta" else ""
        final = await events.get_final_response()
    assert text == final.output_text == "You said: hello"
    assert bool(await gateway.running.store.read_feed(limit=1)) == bool(session), "kept if and only if it has a session"


async def test_openai_python_calls_tools_through_the_agent_s_model(
    python: openai.AsyncOpenAI, model: ModelServer
) -> None:
    model.add_steps(ModelServerReply(calls=(ToolCall(id="c1", tool="add", arguments={"a": 1}),)))
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    messages: Any = [{"role": "user", "content": "add"}]
    answer = await python.chat.completions.create(model="main", messages=messages, tools=tools)
    made = (answer.choices[0].message.tool_calls or [])[0]
    assert made.type == "function"
    assert (made.function.name, json.loads(made.function.arguments)) == ("add", {"a": 1})


async def test_a_retry_of_openai_python_adds_no_second_message(
    gateway: ApiGateway, python: openai.AsyncOpenAI, model: ModelServer
) -> None:
    model.add_steps(make_rate_limit_failure("1"))
    client = python.with_options(default_headers=headers("x"), max_retries=4)
    answer = await client.chat.completions.create(model="main", messages=[{"role": "user", "content": "once"}])
    assert answer.choices[0].message.content == "You said: once"
    kinds = [str(entry.kind) for entry in await gateway.running.store.read_feed()]
    assert (kinds.count("heard"), kinds.count("said")) == (1, 1)


async def test_openai_python_parses_our_error_responses(gateway: ApiGateway, python: openai.AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.NotFoundError, match="there is no agent 'nobody'"):
        await python.chat.completions.create(model="nobody", messages=messages)
    outside = python.with_options(api_key="none", default_headers=ELSEWHERE, max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="needs a credential"):
        await outside.chat.completions.create(model="main", messages=messages)
    known = outside.with_options(api_key=ADA)
    assert (await known.chat.completions.create(model="main", messages=messages)).choices


# -- programs ----------------------------------------------------------------------------------------------------------


async def test_curl(gateway: ApiGateway) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl on this machine")
    body = json.dumps({"model": "main", "messages": [{"role": "user", "content": "hello"}]})
    credential = ("-H", f"Authorization: Bearer {LOCAL}")
    whole = await run_program(curl, "-sS", *credential, "-d", body, f"{gateway.url}/v1/chat/completions")
    assert json.loads(whole)["choices"][0]["message"]["content"] == "You said: hello"
    streamed = await run_program(
        curl,
        "-sSN",
        *credential,
        "-H",
        "X-Everhold-Session: x",
        "-d",
        body.replace("{", '{"stream":true,', 1),
        f"{gateway.url}/v1/chat/completions",
    )
    assert streamed.rstrip().endswith("data: [DONE]")
    again = '{"chat":"x","text":"again"}'
    accepted = await run_program(curl, "-sS", *credential, "-d", again, f"{gateway.url}/api/messages")
    assert set(json.loads(accepted)) == {"session", "seq"}


@pytest.mark.slow
@IN_SESSION
async def test_llm(gateway: ApiGateway, tmp_path: Path, session: str) -> None:
    named = f'\n  headers: {{X-Everhold-Session: "{session}"}}' if session else ""
    (tmp_path / "extra-openai-models.yaml").write_text(
        f'- model_id: everhold\n  model_name: main\n  api_base: "{gateway.url}/v1"\n  api_key_name: everhold{named}\n'
    )
    (tmp_path / "keys.json").write_text(json.dumps({"everhold": LOCAL}))
    env = {"LLM_USER_PATH": str(tmp_path)}
    llm = [sys.executable, "-m", "llm", "-m", "everhold"]
    assert (await run_program(*llm, "hello", env=env)).strip() == "You said: hello"
    assert (await run_program(*llm, "--no-stream", "hello", env=env)).strip() == "You said: hello"
    assert bool(await gateway.running.store.read_feed(limit=1)) == bool(session)


# -- node --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_openai_node_and_the_ai_sdk(gateway: ApiGateway, node: Path) -> None:
    for session in ("", "a conversation"):
        given = (f"{gateway.url}/v1", LOCAL, session)
        got = json.loads(await run_program("node", str(node / "openai.mjs"), *given))
        assert got["models"] == ["coder", "main"]
        for name in ("whole", "streamed", "response", "grown", "completed"):
            assert got[name] == "You said: hello from node", name
        assert got["tokens"] > 0
        assert got["events"][0] == "response.created"
        assert got["events"][-1] == "response.completed"
        assert got["error"]["status"] == 404
        got = json.loads(await run_program("node", str(node / "ai-sdk.mjs"), *given))
        assert got == dict.fromkeys(("whole", "streamed"), "You said: hello from the sdk")
        assert bool(await gateway.running.store.read_feed(limit=1)) == bool(session)
