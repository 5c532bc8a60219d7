"""The memory over MCP: the SDK's client sees what its token may see, and what it stores is the person's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from everhold.api import mcp_server
from everhold.api.request import ApiCall
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.api.conftest import ADA, BOB, LOCAL, TOKENS, ApiGateway, configuration
from tests.waiting import LIMIT_SECONDS

READER = "reader-token-0123456789abcdef0123456789abcdef01"
SERVICE = "service-token-0123456789abcdef0123456789abcdef0"
MORE = TOKENS.replace(
    "people:",
    """\
    - {name: reader, token_env: TOKEN_READER, person: ada, read_only: true}
    - {name: shop, token_env: TOKEN_SERVICE, role: service}
people:""",
)

REMEMBERS = "memories: [builtin], recall: {deadline_seconds: 60}"


@asynccontextmanager
async def connect(gateway: ApiGateway, token: str, *, query: str = "", **headers: str) -> AsyncIterator[ClientSession]:
    """Yield the session of a client that has done the handshake."""
    given = {"authorization": f"Bearer {token}", **headers}
    async with (
        httpx2.AsyncClient(headers=given, timeout=LIMIT_SECONDS, trust_env=False) as http,
        streamable_http_client(f"{gateway.url}/mcp{query}", http_client=http) as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield session


async def call(client: ClientSession, tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """Return the text and the object of a successful call."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.content[0].text, result.structured_content or {}  # type: ignore[union-attr]


async def refuse(client: ClientSession, tool: str, **arguments: Any) -> str:
    """Return the text of a refused call."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.content
    return result.content[0].text  # type: ignore[union-attr]


@pytest.fixture
def remembering(gateway: ApiGateway, model: ModelServer) -> ApiGateway:
    gateway.configure(configuration(model.openai, more=MORE).replace("memories: []", REMEMBERS))
    gateway.home.env.write_text(f"{gateway.home.env.read_text()}TOKEN_READER={READER}\nTOKEN_SERVICE={SERVICE}\n")
    return gateway


async def test_a_client_stores_a_note_and_finds_it(remembering: ApiGateway) -> None:
    async with connect(remembering, ADA) as session:
        tools = (await session.list_tools()).tools
        assert [tool.name for tool in tools] == ["search", "remember", "why", "list"]
        assert all(tool.input_schema["type"] == "object" for tool in tools)
        _, place = await call(session, "remember", text="The boiler is serviced\nby Mr Huber in May.")
        text, found = await call(session, "search", query="who services the boiler?")
        assert "[note by http:ada" in text
        assert "by Mr Huber in May." in text
        assert [item["session"] for item in found["memories"]] == [place["session"]]
        text, listed = await call(session, "list")
        assert [note["text"] for note in listed["notes"]] == ["The boiler is serviced\nby Mr Huber in May."]
        assert "Mr Huber" in text


async def test_a_note_stays_with_its_person(remembering: ApiGateway) -> None:
    async with connect(remembering, ADA) as ada, connect(remembering, BOB) as bob:
        _, place = await call(ada, "remember", text="My canary is called Pavarotti.")
        assert (await call(bob, "search", query="what is the canary called?"))[1]["memories"] == []
        assert (await call(bob, "list"))[1]["notes"] == []
        assert "there is no session" in await refuse(bob, "why", session=place["session"])
    async with connect(remembering, SERVICE, **{"x-everhold-person": "ada"}) as shop:  # an ada of its own
        assert (await call(shop, "search", query="what is the canary called?"))[1]["memories"] == []
        await call(shop, "remember", text="Orders oat milk.")
        assert [note["text"] for note in (await call(shop, "list"))[1]["notes"]] == ["Orders oat milk."]
    async with connect(remembering, ADA, query="?agent=coder") as coder:
        assert (await call(coder, "list"))[1]["notes"] == []


async def test_a_route_that_takes_everybody_for_one_person_is_found(
    remembering: ApiGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ApiCall, "identity", property(lambda call: "http:ada"))
    with pytest.raises((AssertionError, ExceptionGroup)):
        await test_a_note_stays_with_its_person(remembering)


async def test_why_explains_the_newest_answer(remembering: ApiGateway, model: ModelServer) -> None:
    async with connect(remembering, ADA) as session:
        assert "nothing was recalled" in await refuse(session, "why")
        await call(session, "remember", text="The dentist is on Tuesday at nine.")
        model.add_steps(ModelServerReply(text="On Tuesday."))
        async with remembering.client(ADA) as client:
            said = (await client.post("/api/messages", json={"chat": "x", "text": "When is the dentist?"})).json()
        await remembering.wait_until_idle(said["session"])
        text, found = await call(session, "why")
        assert found["session"] == said["session"]
        assert "[recalled by" in text
        assert "The dentist is on Tuesday at nine." in text


async def test_a_read_only_token_cannot_remember(remembering: ApiGateway) -> None:
    async with connect(remembering, READER) as session:
        assert [tool.name for tool in (await session.list_tools()).tools] == ["search", "why", "list"]
        assert "this token may only read" in await refuse(session, "remember", text="no")
        assert (await call(session, "list"))[1]["notes"] == []


async def test_a_request_without_a_valid_token_is_refused(remembering: ApiGateway) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with remembering.client("") as nobody, remembering.client("wrong" * 8) as wrong:
        assert (await nobody.post("/mcp", json=message)).status_code == 401
        assert (await wrong.post("/mcp", json=message)).status_code == 401


async def test_a_quota_refuses_a_note(remembering: ApiGateway) -> None:
    text = remembering.home.config.read_text()
    remembering.configure(
        f"quotas: {{member: {{messages_per_minute: 2}}, stranger: {{messages_per_minute: 2}}}}\n{text}"
    )
    async with connect(remembering, SERVICE, **{"x-everhold-person": "eve"}) as session:
        await call(session, "remember", text="one")
        await call(session, "remember", text="two")
        assert "try again in" in await refuse(session, "remember", text="three")
        assert [note["text"] for note in (await call(session, "list"))[1]["notes"]] == ["two", "one"]


async def test_a_repeated_id_stores_a_note_once(remembering: ApiGateway) -> None:
    async with connect(remembering, ADA) as session:
        first = await call(session, "remember", text="Once.", id="a")
        assert await call(session, "remember", text="Once.", id="a") == first
        assert "another note was stored under this id" in await refuse(session, "remember", text="Twice.", id="a")
        assert [note["text"] for note in (await call(session, "list"))[1]["notes"]] == ["Once."]


async def test_a_forgotten_person_has_no_notes(remembering: ApiGateway) -> None:
    async with connect(remembering, ADA) as session:
        await call(session, "remember", text="Ada's secret is marzipan.")
        async with remembering.client(LOCAL) as boss:
            done = await boss.post(
                "/api/memory/forget", json={"person": "ada", "dry_run": False}, timeout=LIMIT_SECONDS
            )
            assert done.json()["done"]
        assert (await call(session, "search", query="what is Ada's secret?"))[1]["memories"] == []
        assert (await call(session, "list"))[1]["notes"] == []


@pytest.mark.parametrize("asked", mcp_server.PROTOCOL_VERSIONS)
async def test_every_named_revision_is_spoken(remembering: ApiGateway, asked: str) -> None:
    async with remembering.client(ADA) as client:
        message = {"jsonrpc": "2.0", "id": "x", "method": "initialize", "params": {"protocolVersion": asked}}
        assert (await client.post("/mcp", json=message)).json()["result"]["protocolVersion"] == asked


async def test_invalid_messages_get_errors(remembering: ApiGateway) -> None:
    async with remembering.client(ADA) as client:

        async def send(**more: Any) -> httpx2.Response:
            return await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, **more})

        assert (await send(method="no/such")).json()["error"]["code"] == mcp_server.METHOD_NOT_FOUND
        unknown = await send(method="tools/call", params={"name": "rm", "arguments": {}})
        assert unknown.json()["error"]["code"] == mcp_server.INVALID_PARAMS
        wrong = await send(method="tools/call", params={"name": "search", "arguments": {"query": 1}})
        assert wrong.json()["result"]["isError"]
        assert (await client.post("/mcp", content=b"[" * 100_000)).status_code == 400
        told = await client.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (told.status_code, told.content) == (202, b"")
        assert (await client.get("/mcp")).status_code == 405
