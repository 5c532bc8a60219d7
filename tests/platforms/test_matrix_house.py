"""A whole everhold on Matrix, configured by a file: strangers, friends, groups, replies that grow, another login."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.testing.modelserver import ModelServer, Reply
from everhold.testing.platforms.synapse import V3, Member, Synapse
from tests.clients import client_of
from tests.e2e.town import KEY, Town, endpoint

LONG = "It began on a Tuesday, " + "and it went on and on, " * 900


class Scene:
    """Ada, the agent's account, and the configuration they talk under."""

    def __init__(self, synapse: Synapse, model: ModelServer, ada: Member, agent: Member) -> None:
        self.synapse = synapse
        self.model = model
        self.ada = ada
        self.agent = agent

    def config(self, **access: Any) -> str:
        account = {"homeserver": self.synapse.url, "token_env": "AGENT", "poll_seconds": 5, "access": access}
        given = {
            "models": {"m": endpoint(self.model.openai)},
            "defaults": {"memories": [], "tools": [], "model": "m"},
            "platforms": {"matrix": {"main": account}},
            "people": [{"name": "ada", "identities": [f"matrix:{self.ada.id}"]}],
        }
        return json.dumps(given)

    @property
    def env(self) -> str:
        return f"MODEL_KEY={KEY}\nAGENT={self.agent.token}\n"


@pytest.fixture
async def scene(synapse: Synapse) -> AsyncIterator[Scene]:
    ada, agent = await synapse.resident("ada"), await synapse.register("agent")
    async with ModelServer(key=KEY) as model, ada, agent:
        yield Scene(synapse, model, ada, agent)


async def test_a_stranger_is_told_a_code_and_let_in(tmp_path: Path, scene: Scene) -> None:
    async with Town(tmp_path, scene.config(), env=scene.env) as town:
        room = await scene.ada.create(scene.agent.id, direct=True)
        told = await scene.ada.until(room, "give this code")
        assert told.content["msgtype"] == "m.notice"
        found = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", told.text)
        assert found
        await scene.ada.say(room, "hello?")
        await town.until(lambda: town.log.getvalue().count("message.denied") == 2)
        await client_of(town.app).approve_pairing(found[0], person="")
        await scene.ada.until(room, "You are let in")
        await scene.ada.say(room, "thank you")
        await scene.ada.until(room, "You said:")
        await town.rest()
        texts = [seen.text for seen in await scene.ada.timeline(room) if seen.sender == scene.agent.id]
        assert len(texts) == 3, f"one code, one welcome, one answer: {texts}"
        assert found[0] not in town.log.getvalue()
        assert scene.agent.token not in town.log.getvalue()
        await town.sound()


async def test_a_friend_is_answered_by_a_reply_that_grows_and_comes_in_parts(tmp_path: Path, scene: Scene) -> None:
    pieces = tuple(LONG[at : at + 400] for at in range(0, len(LONG), 400))
    scene.model.script(Reply(text=LONG, pieces=pieces, pause=0.02))
    async with Town(tmp_path, scene.config(direct=["ada"]), env=scene.env) as town:
        room = await scene.ada.create(scene.agent.id, direct=True)
        await scene.ada.say(room, "tell me a story")

        async def told() -> bool:
            seen = [it for it in await scene.ada.timeline(room) if it.sender == scene.agent.id]
            return "".join(it.text for it in seen) == LONG

        await town.until(told)
        first, *rest = [it for it in await scene.ada.timeline(room) if it.sender == scene.agent.id]
        assert first.edits >= 1, "it was seen to grow"
        assert len(rest) == 2
        await town.rest()
        assert town.app.about()["accounts"][0]["listening"]
        await town.sound()


async def test_a_group_is_entered_when_it_is_allowed_and_no_sooner(tmp_path: Path, scene: Scene) -> None:
    async with Town(tmp_path, scene.config(direct=["ada"]), env=scene.env) as town:
        room = await scene.ada.create(scene.agent.id, name="the office")
        await town.until(lambda: "message.denied" in town.log.getvalue())
        joined = (await scene.ada.call("GET", f"{V3}/rooms/{room}/joined_members"))["joined"]
        assert scene.agent.id not in joined, "in a group a direct friend is nobody"
    async with Town(tmp_path, scene.config(groups={room: ["ada"]}), env=scene.env) as town:
        mention = {"m.mentions": {"user_ids": [scene.agent.id]}}

        async def entered() -> bool:
            found = (await scene.ada.call("GET", f"{V3}/rooms/{room}/joined_members"))["joined"]
            return scene.agent.id in found

        await town.until(entered)
        eve = await scene.synapse.resident("eve")
        async with eve:
            await scene.ada.call("POST", f"{V3}/rooms/{room}/invite", {"user_id": eve.id})
            await eve.join(room)
            await eve.say(room, "and me?", **mention)
            await scene.ada.say(room, "just talking")
            await scene.ada.say(room, "what do you think?", **mention)
            await scene.ada.until(room, "You said:")
            await town.rest()
        texts = [seen.text for seen in await scene.ada.timeline(room) if seen.sender == scene.agent.id]
        assert len(texts) == 1
        assert "what do you think?" in texts[0]


async def test_another_login_takes_over_where_the_last_one_was(tmp_path: Path, scene: Scene) -> None:
    async with Town(tmp_path, scene.config(direct=["ada"]), env=scene.env) as town:
        room = await scene.ada.create(scene.agent.id, direct=True)
        await scene.ada.say(room, "one")
        await scene.ada.until(room, "You said:")
        await town.rest()
        given = {"type": "m.login.password", "password": "not a secret"}
        who = {"identifier": {"type": "m.id.user", "user": scene.agent.id}}
        again = await scene.ada.call("POST", f"{V3}/login", {**given, **who})
        await scene.agent.call("POST", f"{V3}/logout")
        await town.until(lambda: "account.trouble" in town.log.getvalue())
        await scene.ada.say(room, "two")
        town.secrets(scene.env.replace(scene.agent.token, again["access_token"]))

        async def answered() -> bool:
            seen = [it.text for it in await scene.ada.timeline(room) if it.sender == scene.agent.id]
            return len(seen) == 2 and "two" in seen[1]

        await town.until(answered)
        await town.sound()


async def test_whoever_takes_over_a_room_hears_nothing_of_who_was_there_before(tmp_path: Path, scene: Scene) -> None:
    """While the gateway is away, Ada says one thing more, Eve comes and Ada goes: then Eve is alone with the agent."""
    ada, agent, eve = scene.ada, scene.agent, await scene.synapse.resident("eve")
    config = scene.config(direct=["ada", f"matrix:{eve.id}"])
    async with eve:
        async with Town(tmp_path, config, env=scene.env) as town:
            room = await ada.create(agent.id, direct=True)
            await ada.say(room, "the number is 4711")
            await ada.until(room, "You said:")
            await town.rest()
        await ada.say(room, "and the other one 4712")
        await ada.call("POST", f"{V3}/rooms/{room}/invite", {"user_id": eve.id})
        await eve.join(room)
        await ada.call("POST", f"{V3}/rooms/{room}/leave")
        await eve.say(room, "which number?")
        async with Town(tmp_path, config, env=scene.env) as town:

            async def answered(who: Member, text: str) -> bool:
                return any(text in it.text for it in await who.timeline(room) if it.sender == agent.id)

            await town.until(lambda: answered(eve, "which number?"))
            await town.rest()
            asked = [it for it in scene.model.requests if "which number?" in str(it.body)]
            assert asked
            assert not [it for it in asked if "471" in str(it.body)]
            await eve.call("POST", f"{V3}/rooms/{room}/invite", {"user_id": ada.id})
            await ada.join(room)
            await eve.call("POST", f"{V3}/rooms/{room}/leave")
            await ada.say(room, "I am back")
            await town.until(lambda: answered(ada, "I am back"))
            await town.rest()
            heard = {it.address: await town.heard(it.id) for it in await town.app.store.list_sessions()}
            theirs = {address: [text for text in texts if "invited" not in text] for address, texts in heard.items()}
            assert sorted(theirs.values()) == [
                ["the number is 4711", "and the other one 4712", "I am back"],
                ["which number?"],
            ]
            await town.sound()
