"""A picture that a person sends on a platform reaches the model with the same bytes, is stored once, and goes with its
person.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from everhold.core.attachments import build_attachment
from everhold.core.entries import Heard
from everhold.infra.fetch import UrlFetcher
from everhold.testing.model_server import ModelServer
from everhold.testing.platforms.synapse import SynapseServer
from tests.clients import client_of
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section
from tests.e2e.test_provenance import SCENES, DiscordScene, SlackScene, TelegramScene

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4
DATA = base64.b64encode(PNG).decode()


@pytest.fixture(autouse=True)
def allow_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The platforms of these tests are on this machine, to which no file of a message may lead otherwise."""
    defaults = UrlFetcher.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "allows", lambda _: True)


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer(key=KEY) as server:
        yield server


@asynccontextmanager
async def run_gateway(path: Path, model: ModelServer, account: dict[str, Any], platform: str, env: str) -> Any:
    config = {
        "models": {"m": make_model_section(model.openai)},
        "defaults": {"memories": [], "tools": [], "model": "m"},
        "platforms": {platform: {"main": account}},
    }
    async with RunningGateway(path, json.dumps(config), env=f"MODEL_KEY={KEY}\n{env}") as running:
        await running.wait_until(lambda: running.app.describe()["accounts"][0]["listening"])
        yield running


async def check_picture(running: RunningGateway, model: ModelServer, send: Any) -> None:
    """The picture is sent twice; the model is shown it, it is stored once, and nobody has it after the forgetting."""
    for count in (1, 2):
        await send("look at this")
        await running.wait_until(lambda count=count: len(model.requests) >= count)  # type: ignore[misc]
        await running.wait_until_idle()
    assert json.dumps(model.requests[0].json).count(DATA) == 1
    assert json.dumps(model.requests[-1].json).count(DATA) >= 1
    (session,) = await running.app.store.list_sessions()
    heard = [body for body in await running.read_bodies(session.id, Heard) if body.attachments]
    blobs = {file.blob for body in heard for file in body.attachments}
    assert len(heard) == 2
    assert blobs == {build_attachment(PNG).blob}
    assert await running.app.store.get_blob(*blobs) == PNG
    await client_of(running.app).forget_person(heard[0].stamp.person, dry_run=False)
    assert await running.app.store.get_blob(*blobs) is None
    await running.assert_sound()


@pytest.mark.parametrize("name", SCENES)
async def test_a_picture_of_a_chat_reaches_the_model(tmp_path: Path, model: ModelServer, name: str) -> None:
    async with SCENES[name]() as scene:

        async def send(text: str) -> None:
            match scene:
                case TelegramScene(server=server):
                    await server.write_message(text, file=("look.png", PNG), kind="photo")
                case DiscordScene(server=server, remote=remote):
                    await server.write_message(text, channel=remote.chat, files=[("look.png", PNG)])
                case SlackScene(server=server, remote=remote):
                    await server.write_message(text, channel=remote.chat, files=[("look.png", PNG)])

        async with run_gateway(tmp_path, model, scene.account, scene.platform, scene.env) as running:
            await check_picture(running, model, send)


async def test_a_picture_of_a_matrix_room_reaches_the_model(
    tmp_path: Path, model: ModelServer, synapse: SynapseServer
) -> None:
    ada, agent = await synapse.find_or_register("ada"), await synapse.register_member("agent")
    async with ada, agent:
        account = {
            "homeserver": synapse.url,
            "token_env": "AGENT",
            "poll_seconds": 5,
            "access": {"direct": [f"matrix:{ada.id}"]},
        }
        async with run_gateway(tmp_path, model, account, "matrix", f"AGENT={agent.token}\n") as running:
            room = await ada.create_room(agent.id, direct=True)

            async def send(text: str) -> None:
                info = {"size": len(PNG), "mimetype": "image/png"}
                content = {"msgtype": "m.image", "body": text, "filename": "look.png", "url": await ada.upload(PNG)}
                await ada.send_event(room, {**content, "info": info})

            await check_picture(running, model, send)
