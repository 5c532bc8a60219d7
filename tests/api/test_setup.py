"""Setting up a home over HTTP: models, accounts and invitations, each tested before it is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import msgspec
import pytest

from everhold.api import console_schemas
from everhold.core.pairing import INVITATION_LIFETIME_SECONDS, WELCOME
from everhold.ports.store import StateNamespace
from everhold.testing.model_server import ModelServer
from everhold.testing.platforms.telegram import TelegramServer
from tests.api.conftest import ADA, MODEL_KEY, ApiGateway
from tests.platforms.remote_telegram import TOKEN
from tests.waiting import wait_until

As = Callable[[str], httpx2.AsyncClient]


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        server.add_bot(TOKEN, username="my_bot")
        yield server


def read_home(gateway: ApiGateway) -> tuple[str, str]:
    return gateway.home.config.read_text(), gateway.home.env.read_text()


async def post(client: httpx2.AsyncClient, path: str, body: dict[str, Any], shape: type) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    msgspec.convert(answer.json(), shape)
    found: dict[str, Any] = answer.json()
    return found


async def test_a_model_that_works_is_written_and_used_at_once(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer
) -> None:
    gateway.configure("# mine\nhttp: {port: 0}\n")
    found = (await client.get("/api/setup")).json()
    msgspec.convert(found, console_schemas.SetupResponse)
    assert found["is_offline"]
    body = {"provider": "openai", "url": model.openai, "name": "clever", "key": MODEL_KEY}
    tested = await post(client, "/api/setup/model", body, console_schemas.ModelTestResponse)
    assert (tested["works"], tested["written"]) == (True, False)
    assert gateway.home.config.read_text() == "# mine\nhttp: {port: 0}\n"
    done = await post(client, "/api/setup/model", {**body, "write": True}, console_schemas.ModelTestResponse)
    assert done["written"]
    config, env = read_home(gateway)
    assert config.startswith("# mine\n")
    assert MODEL_KEY not in config
    assert f"LOCAL_API_KEY={MODEL_KEY}" in env
    assert not (await client.get("/api/setup")).json()["is_offline"]
    (used,) = [it for it in (await client.get("/api/models")).json()["models"] if it["agents"]]
    assert (used["model"], used["key_env"], used["missing"]) == ("clever", "LOCAL_API_KEY", [])
    again = await post(client, f"/api/models/{used['name']}/test", {}, console_schemas.ModelTestResponse)
    assert (again["works"], again["message"]) == (True, "")
    (version,) = (await client.get("/api/config/versions")).json()["versions"]
    assert version["text"] == "# mine\nhttp: {port: 0}\n", "it can be undone"


@pytest.mark.parametrize(
    "change, cause, remedy",
    [
        ({"key": "sk-wrong-wrong-wrong"}, "401", "key"),
        ({"name": "stupid"}, "does not exist", "name"),
        ({"url": "http://127.0.0.1:9/v1"}, "", "runs"),
    ],
)
async def test_a_model_that_fails_is_not_written_and_says_why(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer, change: dict[str, str], cause: str, remedy: str
) -> None:
    model.models = ("clever",)
    before = read_home(gateway)
    body = {"provider": "openai", "url": model.openai, "name": "clever", "key": MODEL_KEY, "write": True, **change}
    found = await post(client, "/api/setup/model", body, console_schemas.ModelTestResponse)
    assert (found["works"], found["written"]) == (False, False)
    assert cause in found["message"]
    assert remedy in found["remedy"], found
    assert str(body["key"]) not in str(found)
    assert read_home(gateway) == before


async def test_the_key_of_one_service_is_not_sent_to_another(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer
) -> None:
    gateway.home.env.write_text(gateway.home.env.read_text() + "OPENAI_API_KEY=sk-of-openai-0123456789\n")
    body = {"provider": "openai", "url": model.openai, "name": "clever"}
    await post(client, "/api/setup/model", body, console_schemas.ModelTestResponse)
    assert "authorization" not in model.last_request.headers


async def test_a_bot_is_connected_and_a_person_invited_by_a_link(
    gateway: ApiGateway, client: httpx2.AsyncClient, telegram: TelegramServer
) -> None:
    values = {"token": TOKEN, "base_url": telegram.url}
    body = {"platform": "telegram", "account": "main", "values": values, "write": True}
    wrong = {**body, "values": {**values, "token": "1:wrong"}}
    found = await post(client, "/api/setup/account", wrong, console_schemas.AccountTestResponse)
    assert (found["works"], "BotFather" in found["remedy"]) == (False, True)
    assert "1:wrong" not in gateway.home.env.read_text()
    found = await post(client, "/api/setup/account", body, console_schemas.AccountTestResponse)
    assert (found["works"], found["name"], found["written"]) == (True, "@my_bot", True)
    config, env = read_home(gateway)
    assert TOKEN not in config
    assert f"TELEGRAM_MAIN_TOKEN={TOKEN}" in env
    invitation = {"platform": "telegram", "account": "main", "person": "bob"}
    made = await post(client, "/api/invitations", invitation, console_schemas.InvitationResponse)
    address, _, code = made["link"].partition("?start=")
    assert address == "https://t.me/my_bot"
    assert code not in str(await gateway.running.store.list_state_records(StateNamespace.INVITATION))
    await telegram.write_message(f"/start {code}", user=77, chat=77)
    await wait_until(lambda: telegram.list_bot_texts(77) == [WELCOME])
    people = (await client.get("/api/people")).json()["people"]
    (bob,) = [it for it in people if it["name"] == "bob"]
    assert "telegram:77" in [it["identity"] for it in bob["identities"]]
    await telegram.write_message("hello", user=77, chat=77)
    await wait_until(lambda: len(telegram.list_bot_texts(77)) == 2)
    assert "hello" in telegram.list_bot_texts(77)[1]
    await telegram.write_message(f"/start {code}", user=78, chat=78)  # a second person with the same link
    await wait_until(lambda: telegram.list_bot_texts(78))
    assert "I do not know you yet" in telegram.list_bot_texts(78)[0]
    again = {**body, "values": {}}
    found = await post(client, "/api/setup/account", again, console_schemas.AccountTestResponse)
    assert found["works"], "the settings and the token that are there will do"


async def test_an_invitation_ends(gateway: ApiGateway) -> None:
    pairing = gateway.running.api_context.gateway.pairing
    code, until = await pairing.create_invitation("telegram", "main")
    clock = gateway.running.clock
    assert 0 < until - clock.now() <= INVITATION_LIFETIME_SECONDS
    assert not await pairing.accept_invitation("telegram", "other", "1", name="x", code=code), "another account"
    assert await pairing.accept_invitation("telegram", "main", "1", name="x", code=code)
    assert not await pairing.accept_invitation("telegram", "main", "2", name="y", code=code)


async def test_members_set_nothing_up(as_: As) -> None:
    assert (await as_(ADA).get("/api/setup")).status_code == 403
    assert (await as_(ADA).post("/api/setup/model", json={"provider": "offline"})).status_code == 403
    assert (await as_(ADA).post("/api/invitations", json={"platform": "x", "account": "y"})).status_code == 403
