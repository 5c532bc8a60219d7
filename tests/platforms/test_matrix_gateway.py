"""A whole everhold on Matrix, configured by a file: strangers, friends, groups, replies that grow, another login."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.testing.model_server import ModelServer, ModelServerReply
from everhold.testing.platforms.synapse import CLIENT_API_PATH, MatrixTestMember, SynapseServer
from tests.clients import client_of
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section

LONG = "It began on a Tuesday, " + "and it went on and on, " * 900


class MatrixScenario:
    """Ada, the agent's account, and the configuration they talk under."""

    def __init__(
        self, synapse: SynapseServer, model: ModelServer, ada: MatrixTestMember, agent: MatrixTestMember
    ) -> None:
        self.synapse = synapse
        self.model = model
        self.ada = ada
        self.agent = agent

    def config(self, **access: Any) -> str:
        account = {"homeserver": self.synapse.url, "token_env": "AGENT", "poll_seconds": 5, "access": access}
        given = {
            "models": {"m": make_model_section(self.model.openai)},
            "defaults": {"memories": [], "tools": [], "model": "m"},
            "platforms": {"matrix": {"main": account}},
            "people": [{"name": "ada", "identities": [f"matrix:{self.ada.id}"]}],
        }
        return json.dumps(given)

    @property
    def env(self) -> str:
        return f"MODEL_KEY={KEY}\nAGENT={self.agent.token}\n"


@pytest.fixture
async def scene(synapse: SynapseServer) -> AsyncIterator[MatrixScenario]:
    ada, agent = await synapse.find_or_register("ada"), await synapse.register_member("agent")
    async with ModelServer(key=KEY) as model, ada, agent:
        yield MatrixScenario(synapse, model, ada, agent)


async def test_a_stranger_is_told_a_code_and_let_in(tmp_path: Path, scene: MatrixScenario) -> None:
    async with RunningGateway(tmp_path, scene.config(), env=scene.env) as town:
        room = await scene.ada.create_room(scene.agent.id, direct=True)
        told = await scene.ada.wait_for_message(room, "give this code")
        assert told.content["msgtype"] == "m.notice"
        found = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", told.text)
        assert found
        await scene.ada.send_text(room, "hello?")
        await town.wait_until(lambda: town.log.getvalue().count("message.denied") == 2)
        await client_of(town.app).approve_pairing(found[0], person="")
        await scene.ada.wait_for_message(room, "You have access now")
        await scene.ada.send_text(room, "thank you")
        await scene.ada.wait_for_message(room, "You said:")
        await town.wait_until_idle()
        texts = [seen.text for seen in await scene.ada.read_timeline(room) if seen.sender == scene.agent.id]
        assert len(texts) == 3, f"one code, one welcome, one answer: {texts}"
        assert found[0] not in town.log.getvalue()
        assert scene.agent.token not in town.log.getvalue()
        await town.assert_sound()


async def test_a_friend_is_answered_by_a_reply_that_grows_and_comes_in_parts(
    tmp_path: Path, scene: MatrixScenario
) -> None:
    pieces = tuple(LONG[at : at + 400] for at in range(0, len(LONG), 400))
    scene.model.add_steps(ModelServerReply(text=LONG, pieces=pieces, pause_seconds=0.02))
    async with RunningGateway(tmp_path, scene.config(direct=["ada"]), env=scene.env) as town:
        room = await scene.ada.create_room(scene.agent.id, direct=True)
        await scene.ada.send_text(room, "tell me a story")

        async def told() -> bool:
            seen = [it for it in await scene.ada.read_timeline(room) if it.sender == scene.agent.id]
            return "".join(it.text for it in seen) == LONG

        await town.wait_until(told)
        first, *rest = [it for it in await scene.ada.read_timeline(room) if it.sender == scene.agent.id]
        assert first.edits >= 1, "it was seen to grow"
        assert len(rest) == 2
        await town.wait_until_idle()
        assert town.app.describe()["accounts"][0]["listening"]
        await town.assert_sound()


async def test_a_group_is_entered_when_it_is_allowed_and_no_sooner(tmp_path: Path, scene: MatrixScenario) -> None:
    async with RunningGateway(tmp_path, scene.config(direct=["ada"]), env=scene.env) as town:
        room = await scene.ada.create_room(scene.agent.id, name="the office")
        await town.wait_until(lambda: "message.denied" in town.log.getvalue())
        joined = (await scene.ada.call("GET", f"{CLIENT_API_PATH}/rooms/{room}/joined_members"))["joined"]
        assert scene.agent.id not in joined, "in a group a direct friend is nobody"
    async with RunningGateway(tmp_path, scene.config(groups={room: ["ada"]}), env=scene.env) as town:
        mention = {"m.mentions": {"user_ids": [scene.agent.id]}}

        async def entered() -> bool:
            found = (await scene.ada.call("GET", f"{CLIENT_API_PATH}/rooms/{room}/joined_members"))["joined"]
            return scene.agent.id in found

        await town.wait_until(entered)
        eve = await scene.synapse.find_or_register("eve")
        async with eve:
            await scene.ada.call("POST", f"{CLIENT_API_PATH}/rooms/{room}/invite", {"user_id": eve.id})
            await eve.join_room(room)
            await eve.send_text(room, "and me?", **mention)
            await scene.ada.send_text(room, "just talking")
            await scene.ada.send_text(room, "what do you think?", **mention)
            await scene.ada.wait_for_message(room, "You said:")
            await town.wait_until_idle()
        texts = [seen.text for seen in await scene.ada.read_timeline(room) if seen.sender == scene.agent.id]
        assert len(texts) == 1
        assert "what do you think?" in texts[0]


async def test_another_login_takes_over_where_the_last_one_was(tmp_path: Path, scene: MatrixScenario) -> None:
    async with RunningGateway(tmp_path, scene.config(direct=["ada"]), env=scene.env) as town:
        room = await scene.ada.create_room(scene.agent.id, direct=True)
        await scene.ada.send_text(room, "one")
        await scene.ada.wait_for_message(room, "You said:")
        await town.wait_until_idle()
        given = {"type": "m.login.password", "password": "not a secret"}
        who = {"identifier": {"type": "m.id.user", "user": scene.agent.id}}
        again = await scene.ada.call("POST", f"{CLIENT_API_PATH}/login", {**given, **who})
        await scene.agent.call("POST", f"{CLIENT_API_PATH}/logout")
        await town.wait_until(lambda: "account.failing" in town.log.getvalue())
        await scene.ada.send_text(room, "two")
        town.write_secrets(scene.env.replace(scene.agent.token, again["access_token"]))

        async def answered() -> bool:
            seen = [it.text for it in await scene.ada.read_timeline(room) if it.sender == scene.agent.id]
            return len(seen) == 2 and "two" in seen[1]

        await town.wait_until(answered)
        await town.assert_sound()


async def test_whoever_takes_over_a_room_hears_nothing_of_who_was_there_before(
    tmp_path: Path, scene: MatrixScenario
) -> None:
    """While the gateway is away, Ada says one thing more, Eve comes and Ada goes: then Eve is alone with the agent."""
    ada, agent, eve = scene.ada, scene.agent, await scene.synapse.find_or_register("eve")
    config = scene.config(direct=["ada", f"matrix:{eve.id}"])
    async with eve:
        async with RunningGateway(tmp_path, config, env=scene.env) as town:
            room = await ada.create_room(agent.id, direct=True)
            await ada.send_text(room, "the number is 4711")
            await ada.wait_for_message(room, "You said:")
            await town.wait_until_idle()
        await ada.send_text(room, "and the other one 4712")
        await ada.call("POST", f"{CLIENT_API_PATH}/rooms/{room}/invite", {"user_id": eve.id})
        await eve.join_room(room)
        await ada.call("POST", f"{CLIENT_API_PATH}/rooms/{room}/leave")
        await eve.send_text(room, "which number?")
        async with RunningGateway(tmp_path, config, env=scene.env) as town:

            async def answered(who: MatrixTestMember, text: str) -> bool:
                return any(text in it.text for it in await who.read_timeline(room) if it.sender == agent.id)

            await town.wait_until(lambda: answered(eve, "which number?"))
            await town.wait_until_idle()
            asked = [it for it in scene.model.requests if "which number?" in str(it.body)]
            assert asked
            assert not [it for it in asked if "471" in str(it.body)]
            await eve.call("POST", f"{CLIENT_API_PATH}/rooms/{room}/invite", {"user_id": ada.id})
            await ada.join_room(room)
            await eve.call("POST", f"{CLIENT_API_PATH}/rooms/{room}/leave")
            await ada.send_text(room, "I am back")
            await town.wait_until(lambda: answered(ada, "I am back"))
            await town.wait_until_idle()
            heard = {it.address: await town.read_heard(it.id) for it in await town.app.store.list_sessions()}
            theirs = {address: [text for text in texts if "invited" not in text] for address, texts in heard.items()}
            assert sorted(theirs.values()) == [
                ["the number is 4711", "and the other one 4712", "I am back"],
                ["which number?"],
            ]
            await town.assert_sound()
