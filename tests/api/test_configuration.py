"""config.yaml over HTTP: two operators, invalid texts, comments, and an undo that restores every byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from everhold.api import console_schemas
from everhold.app import build_plugin_check, load_home_settings
from everhold.config.whole_text import MAX_VERSIONS, ConfigText
from everhold.errors import Conflict
from everhold.infra.home import Home
from tests.api.conftest import ADA, LOCAL, MODEL_KEY, OPERATOR, ApiGateway

As = Callable[[str], httpx2.AsyncClient]


async def read_config(client: httpx2.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/api/config")
    assert answer.status_code == 200, answer.text
    msgspec.convert(answer.json(), console_schemas.ConfigResponse)
    found: dict[str, Any] = answer.json()
    return found


async def test_the_text_is_shown_without_a_secret(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    found = await read_config(client)
    assert found["text"] == gateway.home.config.read_text()
    assert found["in_force"]
    assert found["values"]["agents"]["coder"]["persona"] == "You write code."
    for secret in (MODEL_KEY, LOCAL, OPERATOR, ADA):
        assert secret not in str(found)


async def test_a_change_by_keys_keeps_comments_and_is_in_force_at_once(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    gateway.home.config.write_text("# mine\n" + gateway.home.config.read_text())
    before = await read_config(client)
    change = {"values": {"agents.coder.persona": "You write tests.", "timezone": "Asia/Tokyo"}}
    checked = (await client.post("/api/config/check", json=change)).json()
    msgspec.convert(checked, console_schemas.ConfigCheckResponse)
    assert checked["valid"]
    assert [line for line in checked["diff"].splitlines() if line.startswith("+") and "Asia/Tokyo" in line]
    assert gateway.home.config.read_text() == before["text"], "a check writes nothing"
    written = await client.post("/api/config", json={**change, "base": before["digest"]})
    assert written.status_code == 200, written.text
    msgspec.convert(written.json(), console_schemas.ConfigWriteResponse)
    after = await read_config(client)
    assert after["text"].startswith("# mine\n")
    assert after["values"]["timezone"] == "Asia/Tokyo"
    assert (after["digest"], after["revision"]) == (written.json()["digest"], written.json()["revision"])
    assert gateway.running.agents.settings.agents["coder"].persona == "You write tests."
    assert "config.written" in gateway.log.getvalue()


async def test_what_needs_a_restart_is_told(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    checked = (await client.post("/api/config/check", json={"values": {"http.port": 4321}})).json()
    assert checked["restart"] == ["http.port"]


async def test_an_invalid_text_is_explained_by_line_and_never_written(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    before = await read_config(client)
    text = before["text"].replace("persona", "persoma", 1)
    checked = (await client.post("/api/config/check", json={"text": text})).json()
    assert not checked["valid"]
    (problem,) = checked["problems"]
    assert "persoma" in text.splitlines()[problem["line"] - 1]
    assert "persona" in problem["remedy"]
    for wrong in (text, "agents: [", "agents: &a [*a, *a]"):
        refused = await client.post("/api/config", json={"text": wrong, "base": before["digest"]})
        assert refused.status_code == 400, wrong
    assert (await client.post("/api/config", json={"base": before["digest"]})).status_code == 400
    assert (await client.post("/api/config/check", json={"text": "", "values": {}})).status_code == 400
    assert gateway.home.config.read_text() == before["text"]


async def test_of_two_operators_the_second_reads_again(
    gateway: ApiGateway, client: httpx2.AsyncClient, as_: As
) -> None:
    one, two = await read_config(client), await read_config(as_(OPERATOR))
    assert one["digest"] == two["digest"]
    first = {"values": {"timezone": "Asia/Tokyo"}, "base": one["digest"]}
    assert (await client.post("/api/config", json=first)).status_code == 200
    second = await as_(OPERATOR).post("/api/config", json={"text": two["text"] + "\n", "base": two["digest"]})
    assert second.status_code == 409
    assert (await read_config(client))["values"]["timezone"] == "Asia/Tokyo"


async def test_an_undo_restores_every_byte(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    odd = "# größe\r\n" + gateway.home.config.read_text() + "   # the end, without a line break"
    gateway.home.config.write_bytes(odd.encode())
    before = await read_config(client)
    await client.post("/api/config", json={"values": {"timezone": "Asia/Tokyo"}, "base": before["digest"]})
    now = await read_config(client)
    (version,) = (await client.get("/api/config/versions")).json()["versions"]
    assert (version["text"], version["by"].startswith("person:")) == (odd, True)
    undone = await client.post("/api/config/undo", json={"id": version["id"], "base": now["digest"]})
    assert undone.status_code == 200, undone.text
    assert gateway.home.config.read_bytes() == odd.encode()
    again = (await client.get("/api/config/versions")).json()["versions"]
    assert [it["text"] for it in again] == [now["text"], odd], "the undo can be undone"
    assert (await client.post("/api/config/undo", json={"id": 99, "base": undone.json()["digest"]})).status_code == 404


async def test_only_operators_see_or_change_the_configuration(gateway: ApiGateway, as_: As) -> None:
    for method, path in (("GET", "config"), ("POST", "config/check"), ("POST", "config"), ("GET", "config/versions")):
        assert (await as_(ADA).request(method, f"/api/{path}", json={})).status_code == 403, path
    gateway.configure(gateway.home.config.read_text().replace("role: operator}", "role: operator, read_only: true}", 1))
    reader = as_(OPERATOR)
    assert (await reader.get("/api/config")).status_code == 200
    assert (await reader.post("/api/config/check", json={"values": {"timezone": "Asia/Tokyo"}})).status_code == 200
    assert (await reader.post("/api/config", json={"values": {}, "base": ""})).status_code == 403


# -- the texts


@pytest.fixture
def config(tmp_path: Path) -> ConfigText:
    home = Home(tmp_path / "home").create()
    home.config.write_text("timezone: Etc/UTC\n")
    home.config.chmod(0o600)
    return ConfigText(
        home,
        environ={},
        validate_plugin=build_plugin_check(),
        get_start_settings=lambda: load_home_settings(home, environ={}),
        now=lambda: 5.0,
    )


def test_the_last_texts_are_kept(config: ConfigText) -> None:
    for number in range(MAX_VERSIONS + 5):
        _, base = config.read()
        config.replace(f"timezone: Etc/UTC\n# {number}\n", base=base, by="ada")
    found = config.list_versions()
    assert len(found) == MAX_VERSIONS
    assert [it.text[-4:-1].strip() for it in found[:2]] == ["53", "52"]
    assert (config.get_version(found[0].id), found[0].at, found[0].by) == (found[0], 5.0, "ada")


def test_a_text_that_changes_nothing_is_no_version(config: ConfigText) -> None:
    text, base = config.read()
    assert config.replace(text, base=base, by="ada") == base
    assert config.list_versions() == []
    with pytest.raises(Conflict):
        config.replace(text, base="other", by="ada")
