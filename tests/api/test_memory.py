"""Memory over HTTP: search, the rights of operators, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import httpx2

from everhold.core.entries import ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.api.conftest import ADA, BOB, OPERATOR, ApiGateway, configuration
from tests.waiting import wait_until

As: TypeAlias = Callable[[str], httpx2.AsyncClient]


async def remembering(gateway: ApiGateway, model: ModelServer) -> None:
    """An agent with its built-in memory, which has a fact about Ada."""
    gateway.configure(configuration(model.openai).replace("memories: []", "memories: [builtin]"))
    fact = {"action": "add", "target": "user", "content": "likes green tea"}
    model.add_steps(
        ModelServerReply(calls=(ToolCall(id="1", tool="memory", arguments=fact),)), ModelServerReply(text="I will.")
    )


async def test_people_search_their_own_memory_and_operators_any_memory(
    gateway: ApiGateway, model: ModelServer, as_: As
) -> None:
    await remembering(gateway, model)
    ada, bob, boss = as_(ADA), as_(BOB), as_(OPERATOR)
    where = (await ada.post("/api/messages", json={"chat": "x", "text": "remember that I like green tea"})).json()
    log = await gateway.wait_until_idle(where["session"])
    assert "(Noted: likes green tea)" in [entry["body"]["text"] for entry in log if entry["kind"] == "notified"]
    hers = (await ada.get("/api/memory/search", params={"q": "tea"})).json()
    assert (hers["agent"], hers["person"], hers["unavailable"]) == ("main", "ada", [])
    assert [fact["text"] for fact in hers["facts"]] == ["likes green tea"]
    assert "likes green tea" in [item["text"] for item in hers["memories"]]
    assert {item["provider"] for item in hers["memories"]} == {"builtin"}
    his = (await bob.get("/api/memory/search", params={"q": "tea"})).json()
    assert (his["facts"], his["memories"]) == ([], [])
    assert (await bob.get("/api/memory/search", params={"q": "tea", "person": "ada"})).status_code == 403
    assert (await bob.get("/api/memory/search", params={"q": "tea", "person": "bob"})).json()["person"] == "bob"
    asked = (await boss.get("/api/memory/search", params={"q": "tea", "person": "ada"})).json()
    assert asked["facts"] == hers["facts"]
    other = (await boss.get("/api/memory/search", params={"q": "tea", "person": "ada", "agent": "coder"})).json()
    assert (other["facts"], other["memories"]) == ([], [])
    assert (await boss.get("/api/memory/search", params={"q": "tea", "agent": "nobody"})).status_code == 404
    assert (await ada.get("/api/memory/search")).json()["memories"] == []


async def test_why_shows_the_sources_of_an_answer(gateway: ApiGateway, model: ModelServer, as_: As) -> None:
    await remembering(gateway, model)
    ada, bob = as_(ADA), as_(BOB)
    session = (await ada.post("/api/messages", json={"chat": "x", "text": "remember that I like green tea"})).json()[
        "session"
    ]
    await gateway.wait_until_idle(session)
    await ada.post("/api/messages", json={"chat": "x", "text": "what do I like?"})
    await gateway.wait_until_idle(session, said=2)
    why = (await ada.get(f"/api/sessions/{session}/why")).json()
    assert [item["text"] for item in why["facts"]] == ["likes green tea"]
    assert why["audience"] == ["person:http:ada"]
    assert (await bob.get(f"/api/sessions/{session}/why")).status_code == 404
    assert (await ada.get(f"/api/sessions/{session}/why", params={"at": 1})).status_code == 404


async def test_no_route_shows_another_persons_memory(gateway: ApiGateway, model: ModelServer, as_: As) -> None:
    """No GET route of the document shows another person's data."""
    await remembering(gateway, model)
    ada, bob = as_(ADA), as_(BOB)
    said = (await ada.post("/api/messages", json={"chat": "x", "text": "remember that I like green tea"})).json()
    await gateway.wait_until_idle(said["session"])
    await ada.post("/api/notes", json={"session": said["session"], "text": "green tea, without sugar"})
    await bob.post("/api/messages", json={"chat": "y", "text": "what do you know about green things?"})
    paths = [path for path, methods in (await ada.get("/openapi.json")).json()["paths"].items() if "get" in methods]
    pages = [path.replace("{id}", said["session"]) for path in paths if path not in ("/api/events", "/static/{name}")]
    wanted = {"q": "tea", "text": "tea", "person": "bob"}
    hers = {path: (await ada.get(path, params={"q": "tea"})).text for path in pages}
    assert sum("green tea" in text for text in hers.values()) >= 3, "there is nothing to hide"
    for path in pages:
        for params in ({}, wanted):
            assert "green tea" not in (await bob.get(path, params=params)).text, path
    # also when Bob asks his agent
    answer = await bob.post(
        "/v1/chat/completions", json={"model": "main", "messages": [{"role": "user", "content": "tea?"}]}
    )
    assert answer.status_code == 200
    assert "likes green tea" not in str(model.requests[-1])


FORGETFUL = """
from agent.memory_provider import MemoryProvider
class Forgetful(MemoryProvider):
    name = "forgetful"
    def initialize(self, session_id, **kwargs): pass
    def get_tool_schemas(self): return []
"""


async def test_an_operator_can_resend_items_to_a_memory(
    gateway: ApiGateway, model: ModelServer, as_: As, tmp_path: Path
) -> None:
    (tmp_path / "forgetful").mkdir()
    (tmp_path / "forgetful" / "__init__.py").write_text(FORGETFUL)
    text = configuration(model.openai).replace("memories: []", "memories: [it]")
    gateway.configure(f"{text}\nmemories: {{it: {{provider: hermes-plugin, path: {tmp_path}/forgetful}}}}\n")
    ada, boss, path = as_(ADA), as_(OPERATOR), "/api/memory/providers/it/resend"
    await ada.post("/api/messages", json={"chat": "x", "text": "hello"})

    async def handed() -> bool:
        return bool((await boss.post(path, json={"since": 0, "dry_run": True})).json()["items"])

    await wait_until(handed)
    assert (await boss.post(path, json={"since": 4_000_000_000})).json()["items"] == 0
    again = (await boss.post(path, json={"since": 0})).json()
    assert (again["memory"], again["begun"], again["sessions"], again["items"]) == ("it", True, 1, 1)
    assert "twice" in again["repeats"]
    assert (await ada.post(path, json={"since": 0})).status_code == 403
    assert (await boss.post(path, json={})).status_code == 400
    assert (await boss.post("/api/memory/providers/nowhere/resend", json={"since": 0})).status_code == 404
