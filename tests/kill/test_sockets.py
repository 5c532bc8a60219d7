"""A real gateway with Discord, Slack or Matrix is killed with -9: every message is heard once and answered once.

These platforms recognise a repeat or can be probed, so no reply may be shown twice.
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


class PlatformUnderTest(Protocol):
    """A platform with three users."""

    name: str

    def account(self) -> dict[str, Any]: ...

    def secrets(self) -> dict[str, str]: ...

    def chat(self, person: int) -> str: ...

    def write(self, text: str, person: int) -> None: ...

    def said(self, person: int) -> list[str]: ...


class DiscordUnderTest:
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


class SlackUnderTest:
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


class MatrixUnderTest:
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
def remote(request: pytest.FixtureRequest) -> Iterator[PlatformUnderTest]:
    match request.param:
        case "discord":
            with serve_in_thread(DiscordServer) as discord:
                yield DiscordUnderTest(discord)
        case "slack":
            with serve_in_thread(SlackServer) as slack:
                yield SlackUnderTest(slack)
        case _:
            yield MatrixUnderTest(request.getfixturevalue("synapse"))


@pytest.fixture
def model() -> Iterator[ModelServer]:
    server = ModelServer(key=KEY, default=answer)
    with server.threaded():
        yield server


@pytest.fixture
def home(tmp_path: Path, remote: PlatformUnderTest, model: ModelServer) -> Iterator[CommandHome]:
    home = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
    config = {
        "models": {"m": make_model_section(model.openai)},
        "defaults": {"memories": [], "tools": []},
        "platforms": {remote.name: {"main": remote.account()}},
    }
    (home.path / "config.yaml").write_text(json.dumps(config))
    (home.path / ".env").touch(mode=0o600)
    secrets = {**remote.secrets(), "MODEL_KEY": KEY}
    (home.path / ".env").write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
    yield home
    home.close()


def answer(received: ReceivedModelRequest) -> ModelServerStep:
    """Answer with the last message, so that a test can tell which message was answered."""
    said = [message["content"] for message in received.json["messages"] if message["role"] == "user"]
    return ModelServerReply(text=f"noted up to: {said[-1]}", stream=False)


def read_heard(home: CommandHome, chat: str) -> list[str]:
    """Return the texts of a chat's `heard` entries in order, while the gateway runs."""
    store = sqlite3.connect(f"file:{home.path / 'everhold.db'}?mode=ro", uri=True)
    try:
        rows = store.execute("select body from entries where kind = 'heard' order by pos").fetchall()
    finally:
        store.close()
    bodies = [json.loads(row[0]) for row in rows]
    return [body["text"] for body in bodies if body["origin"]["chat"] == chat]


def is_answered(remote: PlatformUnderTest, text: str, person: int = 1) -> bool:
    return any(text in said for said in remote.said(person))


def wait_until_idle(home: CommandHome, seconds: float = LIMIT_SECONDS) -> None:
    """Wait until no work is waiting."""
    wait_until(
        lambda: not json.loads(home.run_in_process("status", "--json").out or '{"waiting": [1]}')["waiting"],
        seconds=seconds,
    )


def test_a_gateway_killed_during_a_turn_answers_once(
    home: CommandHome, remote: PlatformUnderTest, model: ModelServer
) -> None:
    remote.write("hello", 1)
    gateway = home.start_gateway()
    wait_until(lambda: is_answered(remote, "hello"))
    wait_until_idle(home)
    model.add_steps(HangingConnection())
    before = len(model.requests)
    remote.write("one", 1)
    wait_until(lambda: len(model.requests) > before)
    gateway.kill()
    remote.write("two, while it was dead", 1)
    gateway = home.start_gateway()
    wait_until(lambda: is_answered(remote, "two, while it was dead"))
    wait_until_idle(home)
    assert read_heard(home, remote.chat(1)) == ["hello", "one", "two, while it was dead"]
    assert Counter(remote.said(1)).most_common(1)[0][1] == 1
    assert is_answered(remote, "one")
    home.run_in_process("audit").ok()
    gateway.kill()


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_a_gateway_killed_at_any_time_loses_and_doubles_nothing(home: CommandHome, remote: PlatformUnderTest) -> None:
    rng = random.Random(int(os.environ.get("EVERHOLD_SEED", "7")))
    kills = max(5, int(os.environ.get("EVERHOLD_KILLS", "20")) // 50)
    sent: dict[int, list[str]] = {person: [f"m{person}, to begin with"] for person in PEOPLE}

    def write_messages(count: int) -> None:
        for _ in range(count):
            person = rng.choice(PEOPLE)
            sent[person].append(f"m{sum(map(len, sent.values()))}.")
            remote.write(sent[person][-1], person)

    gateway: GatewayProcess = home.start_gateway()
    for person in PEOPLE:
        remote.write(sent[person][0], person)
        wait_until(partial(lambda person: read_heard(home, remote.chat(person)) == sent[person], person))
    for _ in range(kills):
        write_messages(rng.randint(1, 6))
        time.sleep(rng.uniform(0.0, 1.5))
        gateway.kill()
        write_messages(rng.randint(0, 3))
        gateway = home.start_gateway()
    write_messages(3)
    for person in PEOPLE:
        wait_until(partial(lambda person: read_heard(home, remote.chat(person)) == sent[person], person))
        wait_until(partial(is_answered, remote, sent[person][-1], person), seconds=3 * LIMIT_SECONDS)
    wait_until_idle(home, seconds=3 * LIMIT_SECONDS)
    for person in PEOPLE:
        assert Counter(remote.said(person)).most_common(1)[0][1] == 1, "a reply was shown twice"
    assert json.loads(home.run_in_process("status", "--json").out)["in_doubt"] == 0
    home.run_in_process("audit").ok()
