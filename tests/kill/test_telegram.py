"""A real gateway with Telegram is killed with -9: every message is in the log once, in order, and is answered.

Telegram recognises no repeat, so a reply that was in flight at the kill may be shown twice. Then it is recorded as in
doubt. No reply is missing.
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
def home(tmp_path: Path, telegram: ThreadedServer[TelegramServer], model: ModelServer) -> Iterator[CommandHome]:
    home = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
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
    (home.path / "config.yaml").write_text(json.dumps(config))
    (home.path / ".env").touch(mode=0o600)
    (home.path / ".env").write_text(f"BOT={TOKEN}\nMODEL_KEY={KEY}\n")
    yield home
    home.close()


def answer(received: ReceivedModelRequest) -> ModelServerStep:
    """Answer with the last message, so that a test can tell which message was answered."""
    said = [message["content"] for message in received.json["messages"] if message["role"] == "user"]
    return ModelServerReply(text=f"noted up to: {said[-1]}", stream=False)


def write(telegram: ThreadedServer[TelegramServer], text: str, user: int = 1001) -> None:
    telegram.run(telegram.server.write_message(text, user=user))


def read_heard(home: CommandHome, user: int = 1001) -> list[str]:
    """Return the texts of a person's `heard` entries in order, while the gateway runs."""
    store = sqlite3.connect(f"file:{home.path / 'everhold.db'}?mode=ro", uri=True)
    try:
        rows = store.execute("select body from entries where kind = 'heard' order by pos").fetchall()
    finally:
        store.close()
    bodies = [json.loads(row[0]) for row in rows]
    return [body["text"] for body in bodies if body["origin"]["chat"] == str(user)]


def is_answered(telegram: ThreadedServer[TelegramServer], text: str, user: int = 1001) -> bool:
    return any(text in said for said in telegram.server.list_bot_texts(user))


def wait_until_idle(home: CommandHome) -> None:
    """Wait until no work is waiting."""
    wait_until(lambda: not json.loads(home.run_in_process("status", "--json").out or '{"waiting": [1]}')["waiting"])


def test_a_gateway_killed_during_a_turn_answers_once(
    home: CommandHome, telegram: ThreadedServer[TelegramServer], model: ModelServer
) -> None:
    model.add_steps(HangingConnection())
    gateway = home.start_gateway()
    write(telegram, "one")
    wait_until(lambda: bool(model.requests))
    gateway.kill()
    write(telegram, "two, while it was dead")
    gateway = home.start_gateway()
    wait_until(lambda: is_answered(telegram, "two, while it was dead"))
    wait_until_idle(home)
    assert read_heard(home) == ["one", "two, while it was dead"]
    said = telegram.server.list_bot_texts(1001)
    assert len(said) == len(set(said)), "nothing was in flight, so nothing may be shown twice"
    assert any("one" in text for text in said)
    home.run_in_process("audit").ok()
    gateway.kill()


@pytest.mark.prove
def test_a_gateway_killed_before_the_confirmation_hears_nothing_twice(
    home: CommandHome, telegram: ThreadedServer[TelegramServer]
) -> None:
    gateway = home.start_gateway()
    write(telegram, "hello")
    wait_until(lambda: is_answered(telegram, "hello"))
    # the poll that would confirm it never comes through
    telegram.server.plan_fault("getUpdates", "hang", times=1)
    write(telegram, "again")
    wait_until(telegram.server.held.is_set)
    gateway.kill()
    home.start_gateway()
    wait_until(lambda: is_answered(telegram, "again"))
    wait_until_idle(home)
    assert read_heard(home) == ["hello", "again"]
    assert Counter(telegram.server.list_bot_texts(1001)).most_common(1)[0][1] == 1


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_a_gateway_killed_at_any_time_loses_nothing_and_counts_blind_resends(
    home: CommandHome, telegram: ThreadedServer[TelegramServer], model: ModelServer
) -> None:
    rng = random.Random(int(os.environ.get("EVERHOLD_SEED", "7")))
    kills = max(5, int(os.environ.get("EVERHOLD_KILLS", "20")) // 50)
    sent: dict[int, list[str]] = {user: [] for user in PEOPLE}

    def write_messages(count: int) -> None:
        for _ in range(count):
            user = rng.choice(PEOPLE)
            sent[user].append(f"m{sum(map(len, sent.values()))}.")
            write(telegram, sent[user][-1], user)

    gateway: GatewayProcess | None = None
    for _ in range(kills):
        gateway = home.start_gateway()
        write_messages(rng.randint(1, 6))
        time.sleep(rng.uniform(0.0, 1.5))
        gateway.kill()
        write_messages(rng.randint(0, 3))
    home.start_gateway()
    write_messages(3)
    for user in PEOPLE:
        wait_until(partial(lambda user: read_heard(home, user) == sent[user], user))
        if sent[user]:
            wait_until(partial(is_answered, telegram, sent[user][-1], user), seconds=3 * LIMIT_SECONDS)
    wait_until(
        lambda: not json.loads(home.run_in_process("status", "--json").out or '{"waiting": [1]}')["waiting"],
        seconds=3 * LIMIT_SECONDS,
    )
    status = json.loads(home.run_in_process("status", "--json").out)
    doubles = sum(count - 1 for user in PEOPLE for count in Counter(telegram.server.list_bot_texts(user)).values())
    assert doubles <= status["in_doubt"], "a repeated reply was not recorded as in doubt"
    home.run_in_process("audit").ok()
