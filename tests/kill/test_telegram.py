"""A real gateway behind Telegram, killed with -9: all that was written is heard once and in order, and answered.

Telegram recognises no repeat, so a reply that was on its way when the process died may be there twice. Then it is
counted, and never is one missing.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from everhold.testing.model_server import (
    HangingConnection,
    ModelServer,
    ModelServerReply,
    ModelServerStep,
    ReceivedModelRequest,
)
from everhold.testing.platforms.telegram import TelegramServer
from everhold.testing.platforms.threaded import ThreadedServer, serve_in_thread
from tests.cli.command_home import CommandHome, GatewayProcess, make_plugin, wait_until
from tests.e2e.running_gateway import KEY, make_model_section
from tests.platforms.remote_telegram import TOKEN
from tests.waiting import LIMIT_SECONDS

PEOPLE = (1001, 1002, 1003)


@pytest.fixture
def telegram() -> Iterator[ThreadedServer[TelegramServer]]:
    with serve_in_thread(TelegramServer) as running:
        running.server.add_bot(TOKEN)
        yield running


@pytest.fixture
def model() -> Iterator[ModelServer]:
    server = ModelServer(key=KEY, default=answer)
    with server.threaded():
        yield server


@pytest.fixture
def house(tmp_path: Path, telegram: ThreadedServer[TelegramServer], model: ModelServer) -> Iterator[CommandHome]:
    house = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
    account = {
        "token_env": "BOT",
        "base_url": telegram.server.url,
        "poll_seconds": 1,
        "access": {"direct": [f"telegram:{id}" for id in PEOPLE]},
    }
    config = {
        "models": {"m": make_model_section(model.openai)},
        "defaults": {"memories": [], "tools": []},
        "platforms": {"telegram": {"main": account}},
    }
    (house.path / "config.yaml").write_text(json.dumps(config))
    (house.path / ".env").touch(mode=0o600)
    (house.path / ".env").write_text(f"BOT={TOKEN}\nMODEL_KEY={KEY}\n")
    yield house
    house.close()


def answer(received: ReceivedModelRequest) -> ModelServerStep:
    """Names every message it was shown, so that what was answered can be told."""
    said = [message["content"] for message in received.json["messages"] if message["role"] == "user"]
    return ModelServerReply(text=f"noted up to: {said[-1]}", stream=False)


def write(telegram: ThreadedServer[TelegramServer], text: str, user: int = 1001) -> None:
    telegram.run(telegram.server.write_message(text, user=user))


def read_heard(house: CommandHome, user: int = 1001) -> list[str]:
    """What the log has of somebody, in its order; looked at while others write."""
    store = sqlite3.connect(f"file:{house.path / 'everhold.db'}?mode=ro", uri=True)
    try:
        rows = store.execute("select body from entries where kind = 'heard' order by pos").fetchall()
    finally:
        store.close()
    bodies = [json.loads(row[0]) for row in rows]
    return [body["text"] for body in bodies if body["origin"]["chat"] == str(user)]


def is_answered(telegram: ThreadedServer[TelegramServer], text: str, user: int = 1001) -> bool:
    return any(text in said for said in telegram.server.list_bot_texts(user))


def wait_until_idle(house: CommandHome) -> None:
    """Wait until nothing waits any more."""
    wait_until(lambda: not json.loads(house.run_in_process("status", "--json").out or '{"waiting": [1]}')["waiting"])


def test_killed_while_it_thinks_it_answers_once(
    house: CommandHome, telegram: ThreadedServer[TelegramServer], model: ModelServer
) -> None:
    model.add_steps(HangingConnection())
    gateway = house.start_gateway()
    write(telegram, "one")
    wait_until(lambda: bool(model.requests))
    gateway.kill()
    write(telegram, "two, while it was dead")
    gateway = house.start_gateway()
    wait_until(lambda: is_answered(telegram, "two, while it was dead"))
    wait_until_idle(house)
    assert read_heard(house) == ["one", "two, while it was dead"]
    said = telegram.server.list_bot_texts(1001)
    assert len(said) == len(set(said)), "nothing was in flight: nothing may be there twice"
    assert any("one" in text for text in said)
    house.run_in_process("audit").ok()
    gateway.kill()


@pytest.mark.prove
def test_killed_before_it_confirms_it_hears_nothing_twice(
    house: CommandHome, telegram: ThreadedServer[TelegramServer]
) -> None:
    gateway = house.start_gateway()
    write(telegram, "hello")
    wait_until(lambda: is_answered(telegram, "hello"))
    # the poll that would confirm it never comes through
    telegram.server.plan_fault("getUpdates", "hang", times=1)
    write(telegram, "again")
    wait_until(telegram.server.held.is_set)
    gateway.kill()
    house.start_gateway()
    wait_until(lambda: is_answered(telegram, "again"))
    wait_until_idle(house)
    assert read_heard(house) == ["hello", "again"]
    assert Counter(telegram.server.list_bot_texts(1001)).most_common(1)[0][1] == 1


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_killed_at_any_moment_it_loses_nothing_and_counts_what_it_cannot_know(
    house: CommandHome, telegram: ThreadedServer[TelegramServer], model: ModelServer
) -> None:
    chance = random.Random(int(os.environ.get("EVERHOLD_SEED", "7")))
    kills = max(5, int(os.environ.get("EVERHOLD_KILLS", "20")) // 50)
    sent: dict[int, list[str]] = {user: [] for user in PEOPLE}

    def crowd(count: int) -> None:
        for _ in range(count):
            user = chance.choice(PEOPLE)
            sent[user].append(f"m{sum(map(len, sent.values()))}.")
            write(telegram, sent[user][-1], user)

    gateway: GatewayProcess | None = None
    for _ in range(kills):
        gateway = house.start_gateway()
        crowd(chance.randint(1, 6))
        time.sleep(chance.uniform(0.0, 1.5))
        gateway.kill()
        crowd(chance.randint(0, 3))
    house.start_gateway()
    crowd(3)
    for user in PEOPLE:
        wait_until(partial(lambda user: read_heard(house, user) == sent[user], user))
        if sent[user]:
            wait_until(partial(is_answered, telegram, sent[user][-1], user), seconds=3 * LIMIT_SECONDS)
    wait_until(
        lambda: not json.loads(house.run_in_process("status", "--json").out or '{"waiting": [1]}')["waiting"],
        seconds=3 * LIMIT_SECONDS,
    )
    status = json.loads(house.run_in_process("status", "--json").out)
    doubles = sum(count - 1 for user in PEOPLE for count in Counter(telegram.server.list_bot_texts(user)).values())
    assert doubles <= status["in_doubt"], "a double that nobody counted"
    house.run_in_process("audit").ok()
