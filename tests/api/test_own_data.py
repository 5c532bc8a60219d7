"""A member, and each user of a service, can get their own data and be forgotten, and nobody else's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everhold.ports.store import StateNamespace
from everhold.testing.model_server import ModelServer
from tests.api.conftest import ADA, BOB, OPERATOR, SECRETS, ApiGateway, configuration

SERVICE = "service-token-0123456789abcdef0123456789abcdef"
OTHER_SERVICE = "other-service-token-0123456789abcdef0123456789ab"
SCOPED = "scoped-token-0123456789abcdef0123456789abcdef0"
TOKENS = """\
http:
  port: 0
  tokens:
    - {name: boss, token_env: TOKEN_BOSS, role: operator}
    - {name: laptop, token_env: TOKEN_ADA, person: ada}
    - {name: bob, token_env: TOKEN_BOB, person: bob}
    - {name: shop, token_env: TOKEN_SHOP, role: service}
    - {name: shop2, token_env: TOKEN_SHOP2, role: service}
    - {name: scoped, token_env: TOKEN_SCOPED, person: ada, agents: [coder]}
people:
  - {name: ada, identities: ["telegram:1001"]}
  - {name: bob, identities: ["telegram:1002"]}
"""


@pytest.fixture
async def gateway(tmp_path: Path, model: ModelServer) -> AsyncIterator[ApiGateway]:
    made = ApiGateway(tmp_path, model)
    made.configure(configuration(model.openai, more=TOKENS))
    made.home.env.write_text(f"{SECRETS}TOKEN_SHOP={SERVICE}\nTOKEN_SHOP2={OTHER_SERVICE}\nTOKEN_SCOPED={SCOPED}\n")
    yield await made.start()
    await made.stop()


async def say(gateway: ApiGateway, token: str, text: str, **more: str) -> str:
    async with gateway.client(token) as client:
        sent = await client.post("/api/messages", json={"chat": "x", "text": text, **more})
        assert sent.status_code == 202, sent.text
        session: str = sent.json()["session"]
    await gateway.wait_until_idle(session)
    return session


def read_lines(response: httpx2.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def find_state(report: dict[str, Any], place: str) -> str:
    return next(str(it["state"]) for it in report["places"] if it["place"] == place)


async def read_log(gateway: ApiGateway, session: str) -> str:
    return json.dumps(await gateway.entries(session))


async def test_a_member_gets_their_own_data_and_no_other(gateway: ApiGateway) -> None:
    await say(gateway, ADA, "ada's secret")
    await say(gateway, BOB, "bob's secret")
    async with gateway.client(ADA) as client:
        found = read_lines(await client.get("/api/me/export"))
        assert (await client.get("/api/memory/export?person=bob")).status_code == 403
        named = read_lines(await client.get("/api/me/export?person=bob", headers={"x-everhold-person": "bob"}))
    assert [it["body"]["text"] for it in found] == ["ada's secret", "You said: ada's secret"]
    assert named == found, "a member is nobody else, whatever the request says"


async def test_a_member_is_forgotten_only_after_a_confirmation(gateway: ApiGateway) -> None:
    session, other = await say(gateway, ADA, "ada's secret"), await say(gateway, BOB, "bob's secret")
    async with gateway.client(ADA) as client:
        plan = (await client.post("/api/me/forget", json={})).json()
        assert (plan["confirm"], plan["state"], plan["entries"]) == ("ada", "planned", plan["entries"])
        assert plan["entries"] >= 2
        for wrong in ("bob", "laptop", "http:ada", " ada"):
            assert (await client.post("/api/me/forget", json={"confirm": wrong})).status_code == 400
        assert (await client.post("/api/me/forget", json={"person": "bob", "confirm": "ada"})).status_code == 400
        assert "ada's secret" in await read_log(gateway, session)
        done = (await client.post("/api/me/forget", json={"confirm": plan["confirm"]})).json()
        assert (done["confirm"], done["entries"]) == ("", plan["entries"])
        assert find_state(done, "log") == "confirmed"
        assert {"http:ada", "telegram:1001"} <= set(done["names"]), "all identities of the person"
        assert read_lines(await client.get("/api/me/export")) == []
    assert "secret" not in await read_log(gateway, session)
    assert "bob's secret" in await read_log(gateway, other)
    async with gateway.client(OPERATOR) as client:
        recorded = (await client.get("/api/memory/erasures")).json()["erasures"]
    assert [(it["by"], it["identities"]) for it in recorded] == [("person:http:ada", done["names"])]
    assert "forgetting.requested by=token:laptop" in gateway.log.getvalue()


async def test_a_service_sees_no_users_of_one_with_a_longer_name(gateway: ApiGateway) -> None:
    own = await say(gateway, SERVICE, "an order", person="ada")
    other = await say(gateway, OTHER_SERVICE, "another order", person="ada")
    for token, seen, unseen in ((SERVICE, own, other), (OTHER_SERVICE, other, own)):
        async with gateway.client(token) as client:
            assert (await client.get(f"/api/sessions/{seen}")).status_code == 200
            assert (await client.get(f"/api/sessions/{unseen}")).status_code == 404


async def test_a_user_of_a_service_is_forgotten_alone(gateway: ApiGateway) -> None:
    first = await say(gateway, SERVICE, "first secret", person="ada")
    second = await say(gateway, SERVICE, "second secret", person="adam")
    member = await say(gateway, ADA, "ada's secret")
    async with gateway.client(SERVICE) as client:
        assert (await client.get("/api/me/export")).status_code == 400
        assert (await client.post("/api/me/forget", json={})).status_code == 400
        ada = {"x-everhold-person": "ada"}
        found = read_lines(await client.get("/api/me/export", headers=ada))
        assert [it["body"]["text"] for it in found if it["kind"] == "heard"] == ["first secret"]
        plan = (await client.post("/api/me/forget", json={}, headers=ada)).json()
        assert plan["names"] == ["http:shop/ada"]
        assert (await client.post("/api/me/forget", json={"confirm": "shop/adam"}, headers=ada)).status_code == 400
        done = await client.post("/api/me/forget", json={"confirm": plan["confirm"]}, headers=ada)
        assert find_state(done.json(), "log") == "confirmed"
    assert "secret" not in await read_log(gateway, first)
    assert "second secret" in await read_log(gateway, second)
    assert "ada's secret" in await read_log(gateway, member)


async def test_a_service_reaches_no_person_whom_an_operator_linked_to_its_user(gateway: ApiGateway) -> None:
    session = await say(gateway, BOB, "bob's secret")
    await say(gateway, SERVICE, "an order", person="zoe")
    async with gateway.client(OPERATOR) as client:
        link = {"identity": "http:shop/zoe", "person": "bob"}
        assert (await client.post("/api/people/link", json=link)).status_code == 200
    zoe = {"x-everhold-person": "zoe"}
    async with gateway.client(SERVICE) as client:
        assert (await client.get("/api/me/export", headers=zoe)).status_code == 403
        assert (await client.post("/api/me/forget", json={}, headers=zoe)).status_code == 403
        assert (await client.post("/api/me/forget", json={"confirm": "shop/zoe"}, headers=zoe)).status_code == 403
    assert "bob's secret" in await read_log(gateway, session)


async def test_a_token_for_some_agents_reaches_no_data_of_the_others(gateway: ApiGateway) -> None:
    session = await say(gateway, ADA, "ada's secret")
    async with gateway.client(SCOPED) as client:
        assert (await client.get("/api/me/export")).status_code == 403
        assert (await client.post("/api/me/forget", json={"confirm": "ada"})).status_code == 403
    assert "ada's secret" in await read_log(gateway, session)


async def test_personal_data_cannot_be_asked_for_all_the_time(gateway: ApiGateway) -> None:
    async with gateway.client(SERVICE) as client:
        found = [
            (await client.post("/api/me/forget", json={}, headers={"x-everhold-person": f"user{number}"})).status_code
            for number in range(12)
        ]
    assert found == [200] * 10 + [429] * 2
    async with gateway.client(ADA) as client:
        assert (await client.get("/api/me/export")).status_code == 200


async def test_a_forgotten_person_leaves_no_quota_record(gateway: ApiGateway) -> None:
    await say(gateway, ADA, "hello")
    await say(gateway, BOB, "hello")
    store = gateway.running.store
    before = {record.key for record in await store.list_state_records(StateNamespace.QUOTA)}
    assert {key for key in before if "ada" in key} == {"sender:http:ada", "chat:http::ada"}
    async with gateway.client(ADA) as client:
        done = await client.post("/api/me/forget", json={"confirm": "ada"})
        assert find_state(done.json(), "log") == "confirmed"
    left = {record.key for record in await store.list_state_records(StateNamespace.QUOTA)}
    assert left == {key for key in before if "ada" not in key}
