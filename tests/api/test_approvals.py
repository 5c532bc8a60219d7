"""Requests for permission and the rules that answers made, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everhold.core.entries import ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.api.conftest import ADA, BOB, OPERATOR, SECRETS, ApiGateway, configuration
from tests.waiting import wait_until

SCOPED = "scoped-token-0123456789abcdef0123456789abcdef0123"
SETTINGS = """\
http:
  port: 0
  tokens:
    - {name: boss, token_env: TOKEN_BOSS, role: operator}
    - {name: laptop, token_env: TOKEN_ADA, person: ada}
    - {name: bob, token_env: TOKEN_BOB, person: bob}
    - {name: scoped, token_env: TOKEN_SCOPED, role: operator, agents: [coder]}
people:
  - {name: ada, identities: ["telegram:1001"]}
  - {name: bob, identities: ["telegram:1002"]}
access: {owners: [ada]}
policy: {rules: [{tool: schedule, do: ask}]}
"""
REMINDER = {"action": "create", "when": "in 20m", "text": "tea"}
Connect = Callable[[str], httpx2.AsyncClient]


@pytest.fixture
async def gateway(tmp_path: Path, model: ModelServer) -> AsyncIterator[ApiGateway]:
    made = ApiGateway(tmp_path, model)
    made.configure(configuration(model.openai, more=SETTINGS))
    made.home.env.write_text(f"{SECRETS}TOKEN_SCOPED={SCOPED}\n")
    yield await made.start()
    await made.stop()


async def ask(gateway: ApiGateway, token: str, text: str = "remind me") -> dict[str, Any]:
    """Let somebody ask for a call that needs permission; return the request."""
    call = ToolCall(id="c", tool="schedule", arguments=REMINDER)
    gateway.model.add_steps(ModelServerReply(calls=(call,)), ModelServerReply(text="I asked."))
    async with gateway.client(token) as client:
        sent = await client.post("/api/messages", json={"chat": "x", "text": text})
        await gateway.wait_until_idle(sent.json()["session"])
    async with gateway.client(OPERATOR) as client:
        found: list[dict[str, Any]] = (await client.get("/api/approvals")).json()["approvals"]
    return found[-1]


async def list_ids(client: httpx2.AsyncClient) -> list[str]:
    return [it["id"] for it in (await client.get("/api/approvals")).json()["approvals"]]


async def wait_until_settled(client: httpx2.AsyncClient, id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def look() -> bool:
        nonlocal found
        found = (await client.get(f"/api/approvals/{id}")).json()
        return bool(found["state"] == "settled")

    await wait_until(look)
    return found


async def test_a_request_is_shown_and_answered_once(gateway: ApiGateway, as_: Connect) -> None:
    asked, boss = await ask(gateway, ADA), as_(OPERATOR)
    assert asked["arguments"] == "  action: create\n  when: in 20m\n  text: tea"
    assert (asked["asked_by"], asked["because"], asked["state"]) == ("ada", "config:1", "open")
    path = f"/api/approvals/{asked['id']}"
    wrong = await boss.post(path, json={"decision": "once", "digest": "0" * 64})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (409, "changed")
    given = {"decision": "once", "digest": asked["digest"]}
    done = await boss.post(path, json=given)
    assert done.status_code == 200, done.text
    assert f"Allowed: request {asked['id']} runs now, once." in done.json()["text"]
    settled = await wait_until_settled(boss, asked["id"])
    assert (settled["decision"]["outcome"], settled["decision"]["by"]) == ("allowed", "operator boss")
    assert len((await boss.get("/api/schedules")).json()["schedules"]) == 1
    assert (await boss.post(path, json=given)).status_code == 200, "the answer to a repeat is the same"
    late = await as_(ADA).post(path, json={"decision": "deny"})
    assert (late.status_code, late.json()["error"]["type"]) == (409, "already_answered")
    assert "allowed by operator boss" in late.json()["error"]["message"]
    assert len((await boss.get("/api/schedules")).json()["schedules"]) == 1
    assert await list_ids(boss) == []


async def test_an_owner_answers_the_requests_of_others_and_a_member_does_not(gateway: ApiGateway, as_: Connect) -> None:
    own = await ask(gateway, ADA)
    bob = as_(BOB)
    assert await list_ids(bob) == []
    for response in (
        await bob.get(f"/api/approvals/{own['id']}"),
        await bob.post(f"/api/approvals/{own['id']}", json={"decision": "once"}),
    ):
        assert response.status_code == 404, "a stranger does not learn of it"
    of_bob = await ask(gateway, BOB)
    seen = (await bob.get(f"/api/approvals/{of_bob['id']}")).json()
    assert not seen["can_answer"], "whoever asks sees it, and may not answer it"
    refused = await bob.post(f"/api/approvals/{of_bob['id']}", json={"decision": "once"})
    assert refused.status_code == 403
    assert "an owner of this chat may" in refused.json()["error"]["message"]
    ada = as_(ADA)
    assert set(await list_ids(ada)) == {own["id"], of_bob["id"]}
    assert (await ada.post(f"/api/approvals/{of_bob['id']}", json={"decision": "deny"})).status_code == 200
    assert (await wait_until_settled(ada, of_bob["id"]))["decision"]["by"] == "ada"
    assert not (await ada.get("/api/schedules")).json()["schedules"]


async def test_a_rule_is_listed_and_revoked(gateway: ApiGateway, as_: Connect) -> None:
    asked, ada = await ask(gateway, ADA), as_(ADA)
    done = await ada.post(f"/api/approvals/{asked['id']}", json={"decision": "always"})
    assert done.status_code == 200, done.text
    await wait_until_settled(ada, asked["id"])
    [rule] = (await ada.get("/api/rules")).json()["rules"]
    assert (rule["tool"], rule["arguments"], rule["by"]) == ("schedule", asked["arguments"], "ada")
    assert (await as_(BOB).get("/api/rules")).json()["rules"] == []
    assert (await as_(BOB).post(f"/api/rules/{rule['id']}/revoke", json={})).status_code == 404
    assert (await ada.post(f"/api/rules/{rule['id']}/revoke", json={})).json() == {"revoked": rule["id"]}
    assert (await ada.get("/api/rules")).json()["rules"] == []
    assert (await ask(gateway, ADA, "again"))["id"] != asked["id"], "it is asked about again"


async def test_a_token_for_some_agents_reaches_no_requests_of_the_others(gateway: ApiGateway, as_: Connect) -> None:
    asked, scoped = await ask(gateway, ADA), as_(SCOPED)
    assert await list_ids(scoped) == []
    assert (await scoped.post(f"/api/approvals/{asked['id']}", json={"decision": "once"})).status_code == 404
    assert await list_ids(as_(ADA)) == [asked["id"]]
