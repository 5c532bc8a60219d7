"""Memory over HTTP: one's own, somebody else's only for operators, and what an answer rested on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import httpx2

from everhold.core.entries import Call
from everhold.testing.modelserver import ModelServer, Reply
from tests.web.conftest import ADA, BOB, OPERATOR, Gateway, configuration

As: TypeAlias = Callable[[str], httpx2.AsyncClient]


async def remembering(gateway: Gateway, model: ModelServer) -> None:
    """An agent with its built-in memory, and a fact about Ada in it."""
    gateway.configure(configuration(model.openai).replace("memories: []", "memories: [builtin]"))
    fact = {"action": "add", "target": "user", "content": "likes green tea"}
    model.script(Reply(calls=(Call(id="1", tool="memory", arguments=fact),)), Reply(text="I will."))


async def test_one_sees_ones_own_and_an_operator_anybodys(gateway: Gateway, model: ModelServer, as_: As) -> None:
    await remembering(gateway, model)
    ada, bob, boss = as_(ADA), as_(BOB), as_(OPERATOR)
    where = (await ada.post("/api/messages", json={"chat": "x", "text": "remember that I like green tea"})).json()
    log = await gateway.rested(where["session"])
    assert "(Noted: likes green tea)" in [entry["body"]["text"] for entry in log if entry["kind"] == "told"]
    hers = (await ada.get("/api/memories", params={"q": "tea"})).json()
    assert (hers["agent"], hers["person"], hers["silent"]) == ("main", "ada", [])
    assert [fact["text"] for fact in hers["facts"]] == ["likes green tea"]
    assert "likes green tea" in [item["text"] for item in hers["memories"]]
    assert {item["provider"] for item in hers["memories"]} == {"builtin"}
    his = (await bob.get("/api/memories", params={"q": "tea"})).json()
    assert (his["facts"], his["memories"]) == ([], [])
    assert (await bob.get("/api/memories", params={"q": "tea", "person": "ada"})).status_code == 403
    asked = (await boss.get("/api/memories", params={"q": "tea", "person": "ada"})).json()
    assert asked["facts"] == hers["facts"]
    other = (await boss.get("/api/memories", params={"q": "tea", "person": "ada", "agent": "coder"})).json()
    assert (other["facts"], other["memories"]) == ([], [])
    assert (await boss.get("/api/memories", params={"q": "tea", "agent": "nobody"})).status_code == 404
    assert (await ada.get("/api/memories")).json()["memories"] == []


async def test_an_answer_says_what_it_rested_on(gateway: Gateway, model: ModelServer, as_: As) -> None:
    await remembering(gateway, model)
    ada, bob = as_(ADA), as_(BOB)
    session = (await ada.post("/api/messages", json={"chat": "x", "text": "remember that I like green tea"})).json()[
        "session"
    ]
    await gateway.rested(session)
    await ada.post("/api/messages", json={"chat": "x", "text": "what do I like?"})
    await gateway.rested(session, said=2)
    why = (await ada.get(f"/api/sessions/{session}/why")).json()
    assert [item["text"] for item in why["facts"]] == ["likes green tea"]
    assert why["audience"] == ["person:ada"]
    assert (await bob.get(f"/api/sessions/{session}/why")).status_code == 404
    assert (await ada.get(f"/api/sessions/{session}/why", params={"at": 1})).status_code == 404
