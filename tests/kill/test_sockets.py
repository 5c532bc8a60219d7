"""A real gateway behind Discord, Slack and Matrix, killed with -9: what was written is heard once and answered once.

All of them can tell whether a reply is there, so nothing may be there twice, whenever the process died.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from everhold.testing.model_server import (
    HangingConnection,
    ModelServer,
    ModelServerReply,
    ModelServerStep,
    ReceivedModelRequest,
)
from everhold.testing.platforms.discord import DiscordServer
from everhold.testing.platforms.slack import SlackServer
from everhold.testing.platforms.synapse import MatrixTestMember, MatrixTimelineMessage, SynapseServer
from everhold.testing.platforms.threaded import ThreadedServer, serve_in_thread
from tests.cli.command_home import CommandHome, GatewayProcess, make_plugin, wait_until
from tests.e2e.running_gateway import KEY, make_model_section
from tests.platforms.remote_discord import TOKEN
from tests.platforms.remote_slack import APP_TOKEN, BOT_TOKEN
from tests.waiting import LIMIT_SECONDS

PEOPLE = (1, 2, 3)


class TestedPlatform(Protocol):
    """A platform with three people on it."""

    name: str

    def account(self) -> dict[str, Any]: ...

    def secrets(self) -> dict[str, str]: ...

    def chat(self, person: int) -> str: ...

    def write(self, text: str, person: int) -> None: ...

    def said(self, person: int) -> list[str]: ...


class TestedDiscord:
    name = "discord"

    def __init__(self, running: ThreadedServer[DiscordServer]) -> None:
        self.running = running
        running.server.add_bot(TOKEN)
        for person in PEOPLE:
            running.server.add_direct_channel(self.chat(person), f"100{person}")

    def account(self) -> dict[str, Any]:
        access = {"direct": [f"discord:100{person}" for person in PEOPLE]}
        return {"token_env": "TOKEN", "base_url": self.running.server.api, "access": access}

    def secrets(self) -> dict[str, str]:
        return {"TOKEN": TOKEN}

    def chat(self, person: int) -> str:
        return f"200{person}"

    def write(self, text: str, person: int) -> None:
        self.running.run(self.running.server.write_message(text, channel=self.chat(person), user=f"100{person}"))

    def said(self, person: int) -> list[str]:
        return [it["content"] for it in self.running.server.list_shown_messages(self.chat(person))]


class TestedSlack:
    name = "slack"

    def __init__(self, running: ThreadedServer[SlackServer]) -> None:
        self.running = running
        running.server.add_app(BOT_TOKEN, APP_TOKEN)

    def account(self) -> dict[str, Any]:
        access = {"direct": [f"slack:U{person}" for person in PEOPLE]}
        url = f"{self.running.server.url}/api/"
        return {"bot_token_env": "BOT", "app_token_env": "APP", "base_url": url, "access": access}

    def secrets(self) -> dict[str, str]:
        return {"BOT": BOT_TOKEN, "APP": APP_TOKEN}

    def chat(self, person: int) -> str:
        return f"D{person}"

    def write(self, text: str, person: int) -> None:
        self.running.run(self.running.server.write_message(text, channel=self.chat(person), user=f"U{person}"))

    def said(self, person: int) -> list[str]:
        return [it["text"] for it in self.running.server.list_shown_messages(self.chat(person))]


class TestedMatrix:
    """Rooms on a real homeserver, which outlive their test and meet no other."""

    name = "matrix"

    def __init__(self, synapse: SynapseServer) -> None:
        self.synapse = synapse
        self.members: dict[int, MatrixTestMember] = {}
        self.rooms: dict[int, str] = {}
        asyncio.run(self._settle())

    async def _settle(self) -> None:
        self.agent = await self.synapse.register_member("agent")
        for person in PEOPLE:
            self.members[person] = await self.synapse.register_member(f"person{person}")
            async with self.members[person] as who, self._again(self.agent) as agent:
                self.rooms[person] = await who.create_room(agent.id, direct=True)
                await agent.join_room(self.rooms[person])

    def _again(self, who: MatrixTestMember) -> MatrixTestMember:
        """The same account: a connection belongs to one event loop."""
        return MatrixTestMember(who.url, who.id, who.token)

    def account(self) -> dict[str, Any]:
        access = {"direct": [f"matrix:{who.id}" for who in self.members.values()]}
        return {"homeserver": self.synapse.url, "token_env": "AGENT", "poll_seconds": 2, "access": access}

    def secrets(self) -> dict[str, str]:
        return {"AGENT": self.agent.token}

    def chat(self, person: int) -> str:
        return self.rooms[person]

    def write(self, text: str, person: int) -> None:
        async def say() -> None:
            async with self._again(self.members[person]) as who:
                await who.send_text(self.rooms[person], text)

        asyncio.run(say())

    def said(self, person: int) -> list[str]:
        async def look() -> list[MatrixTimelineMessage]:
            async with self._again(self.members[person]) as who:
                return await who.read_timeline(self.rooms[person])

        return [it.text for it in asyncio.run(look()) if it.sender == self.agent.id]


@pytest.fixture(params=["discord", "slack", pytest.param("matrix", marks=pytest.mark.prove)])
def side(request: pytest.FixtureRequest) -> Iterator[TestedPlatform]:
    match request.param:
        case "discord":
            with serve_in_thread(DiscordServer) as discord:
                yield TestedDiscord(discord)
        case "slack":
            with serve_in_thread(SlackServer) as slack:
                yield TestedSlack(slack)
        case _:
            yield TestedMatrix(request.getfixturevalue("synapse"))


@pytest.fixture
def model() -> Iterator[ModelServer]:
    server = ModelServer(key=KEY, default=answer)
    with server.threaded():
        yield server


@pytest.fixture
def house(tmp_path: Path, side: TestedPlatform, model: ModelServer) -> Iterator[CommandHome]:
    house = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
    config = {
        "models": {"m": make_model_section(model.openai)},
        "defaults": {"memories": [], "tools": []},
        "platforms": {side.name: {"main": side.account()}},
    }
    (house.path / "config.yaml").write_text(json.dumps(config))
    (house.path / ".env").touch(mode=0o600)
    secrets = {**side.secrets(), "MODEL_KEY": KEY}
    (house.path / ".env").write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
    yield house
    house.close()


def answer(received: ReceivedModelRequest) -> ModelServerStep:
    """Names the last message it was shown, so that what was answered can be told."""
    said = [message["content"] for message in received.json["messages"] if message["role"] == "user"]
    return ModelServerReply(text=f"noted up to: {said[-1]}", stream=False)


def read_heard(house: CommandHome, chat: str) -> list[str]:
    """What the log has of a chat, in its order; looked at while others write."""
    store = sqlite3.connect(f"file:{house.path / 'everhold.db'}?mode=ro", uri=True)
    try:
        rows = store.execute("select body from entries where kind = 'heard' order by pos").fetchall()
    finally:
        store.close()
    bodies = [json.loads(row[0]) for row in rows]
    return [body["text"] for body in bodies if body["origin"]["chat"] == chat]


def is_answered(side: TestedPlatform, text: str, person: int = 1) -> bool:
    return any(text in said for said in side.said(person))


def wait_until_idle(house: CommandHome, seconds: float = LIMIT_SECONDS) -> None:
    """Wait until nothing waits any more."""
    wait_until(
        lambda: not json.loads(house.run_in_process("status", "--json").out or '{"waiting": [1]}')["waiting"],
        seconds=seconds,
    )


def test_killed_while_it_thinks_it_answers_once(house: CommandHome, side: TestedPlatform, model: ModelServer) -> None:
    side.write("hello", 1)
    gateway = house.start_gateway()
    wait_until(lambda: is_answered(side, "hello"))
    wait_until_idle(house)
    model.add_steps(HangingConnection())
    before = len(model.requests)
    side.write("one", 1)
    wait_until(lambda: len(model.requests) > before)
    gateway.kill()
    side.write("two, while it was dead", 1)
    gateway = house.start_gateway()
    wait_until(lambda: is_answered(side, "two, while it was dead"))
    wait_until_idle(house)
    assert read_heard(house, side.chat(1)) == ["hello", "one", "two, while it was dead"]
    assert Counter(side.said(1)).most_common(1)[0][1] == 1
    assert is_answered(side, "one")
    house.run_in_process("audit").ok()
    gateway.kill()


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_killed_at_any_moment_it_loses_nothing_and_says_nothing_twice(house: CommandHome, side: TestedPlatform) -> None:
    chance = random.Random(int(os.environ.get("EVERHOLD_SEED", "7")))
    kills = max(5, int(os.environ.get("EVERHOLD_KILLS", "20")) // 50)
    sent: dict[int, list[str]] = {person: [f"m{person}, to begin with"] for person in PEOPLE}

    def crowd(count: int) -> None:
        for _ in range(count):
            person = chance.choice(PEOPLE)
            sent[person].append(f"m{sum(map(len, sent.values()))}.")
            side.write(sent[person][-1], person)

    gateway: GatewayProcess = house.start_gateway()
    for person in PEOPLE:
        side.write(sent[person][0], person)
        wait_until(partial(lambda person: read_heard(house, side.chat(person)) == sent[person], person))
    for _ in range(kills):
        crowd(chance.randint(1, 6))
        time.sleep(chance.uniform(0.0, 1.5))
        gateway.kill()
        crowd(chance.randint(0, 3))
        gateway = house.start_gateway()
    crowd(3)
    for person in PEOPLE:
        wait_until(partial(lambda person: read_heard(house, side.chat(person)) == sent[person], person))
        wait_until(partial(is_answered, side, sent[person][-1], person), seconds=3 * LIMIT_SECONDS)
    wait_until_idle(house, seconds=3 * LIMIT_SECONDS)
    for person in PEOPLE:
        assert Counter(side.said(person)).most_common(1)[0][1] == 1, "somebody was told something twice"
    assert json.loads(house.run_in_process("status", "--json").out)["in_doubt"] == 0
    house.run_in_process("audit").ok()
