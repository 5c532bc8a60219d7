"""A gateway killed with -9 while a file is on its way, in either direction: it is kept whole, and shown once."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply
from everhold.testing.platforms.discord import DiscordServer
from everhold.testing.platforms.telegram import TelegramServer
from everhold.testing.platforms.threaded import ThreadedServer, serve_in_thread
from tests.cli.command_home import CommandHome, make_plugin, wait_until
from tests.e2e.running_gateway import KEY, make_model_section
from tests.platforms import remote_discord, remote_telegram

pytestmark = [pytest.mark.prove, pytest.mark.timeout(300)]

DATA = b"a,b\n1,2\n"


@pytest.fixture
def model() -> Iterator[ModelServer]:
    server = ModelServer(key=KEY)
    with server.threaded():
        yield server


@pytest.fixture
def telegram() -> Iterator[ThreadedServer[TelegramServer]]:
    with serve_in_thread(TelegramServer) as running:
        running.server.add_bot(remote_telegram.TOKEN)
        yield running


@pytest.fixture
def discord() -> Iterator[ThreadedServer[DiscordServer]]:
    with serve_in_thread(DiscordServer) as running:
        running.server.add_bot(remote_discord.TOKEN)
        running.server.add_direct_channel("2001", "1001")
        yield running


def make_home(path: Path, model: ModelServer, platform: str, token: str, account: dict[str, Any]) -> CommandHome:
    house = CommandHome(path / "home", make_plugin(path / "plugin"))
    access = {"direct": [f"{platform}:1001"]}
    config = {
        "models": {"m": make_model_section(model.openai)},
        "defaults": {"memories": [], "tools": ["attach"]},
        "platforms": {platform: {"main": {"token_env": "TOKEN", "access": access, **account}}},
    }
    (house.path / "config.yaml").write_text(json.dumps(config))
    (house.path / ".env").touch(mode=0o600)
    (house.path / ".env").write_text(f"TOKEN={token}\nMODEL_KEY={KEY}\n")
    return house


def read_heard(house: CommandHome) -> list[dict[str, Any]]:
    """What was heard, as it stands in the log."""
    store = sqlite3.connect(f"file:{house.path / 'everhold.db'}?mode=ro", uri=True)
    try:
        rows = store.execute("select body from entries where kind = 'heard' order by pos").fetchall()
    finally:
        store.close()
    return [json.loads(row[0]) for row in rows]


def wait_until_idle(house: CommandHome) -> None:
    wait_until(
        lambda: not json.loads(house.run_in_process("status", "--json").out or '{"waiting": [1]}')["waiting"],
        seconds=60,
    )


def offer_file(model: ModelServer) -> None:
    """Whoever asks next gets a file."""
    call = ToolCall(id="c1", tool="attach", arguments={"name": "table.csv", "text": DATA.decode()})
    model.add_steps(ModelServerReply(text="", calls=(call,)), ModelServerReply(text="Here it is."))


def test_killed_while_a_file_comes_in_it_is_fetched_again(
    tmp_path: Path, telegram: ThreadedServer[TelegramServer], model: ModelServer
) -> None:
    server = telegram.server
    house = make_home(tmp_path, model, "telegram", remote_telegram.TOKEN, {"base_url": server.url, "poll_seconds": 1})
    gateway = house.start_gateway()
    server.plan_fault("getFile", "hang")
    telegram.run(server.write_message("look at this", user=1001, file=("table.csv", DATA)))
    wait_until(server.held.is_set)
    gateway.kill()
    assert read_heard(house) == [], "nothing was confirmed, nothing is lost"
    house.start_gateway()
    wait_until(lambda: len(server.list_bot_texts(1001)) == 1)
    wait_until_idle(house)
    (body,) = read_heard(house)
    (file,) = body["attachments"]
    assert (file["name"], file["size"]) == ("table.csv", len(DATA))
    assert hashlib.sha256(DATA).hexdigest() in file["blob"]
    house.run_in_process("audit").ok()
    house.close()


def test_killed_while_a_file_goes_out_it_is_shown_once_or_counted(
    tmp_path: Path, telegram: ThreadedServer[TelegramServer], model: ModelServer
) -> None:
    """Telegram cannot tell whether it is there: the policy sends it again, and says that it did."""
    server = telegram.server
    house = make_home(tmp_path, model, "telegram", remote_telegram.TOKEN, {"base_url": server.url, "poll_seconds": 1})
    gateway = house.start_gateway()
    offer_file(model)
    server.plan_fault("sendDocument", "hang")
    telegram.run(server.write_message("as a table, please", user=1001))
    wait_until(server.held.is_set)
    gateway.kill()
    house.start_gateway()
    wait_until(lambda: any(it.file for it in server.list_shown_messages(1001)), seconds=60)
    wait_until_idle(house)
    shown = [it.file or it.text for it in server.list_shown_messages(1001)][1:]
    assert shown == ["Here it is.", ("table.csv", DATA)]
    assert json.loads(house.run_in_process("status", "--json").out)["in_doubt"] == 1
    house.run_in_process("audit").ok()
    house.close()


def test_killed_after_a_file_went_out_it_is_not_sent_twice(
    tmp_path: Path, discord: ThreadedServer[DiscordServer], model: ModelServer
) -> None:
    """Discord knows its nonce again, also with a file."""
    server = discord.server
    house = make_home(tmp_path, model, "discord", remote_discord.TOKEN, {"base_url": server.api})
    gateway = house.start_gateway()
    offer_file(model)
    discord.run(server.write_message("as a table, please", channel="2001", user="1001"))
    wait_until(lambda: any(it["attachments"] for it in server.list_shown_messages("2001")))
    gateway.kill()  # before it was told, as often as not
    house.start_gateway()
    wait_until_idle(house)
    shown = [
        [file["filename"] for file in it["attachments"]] or it["content"] for it in server.list_shown_messages("2001")
    ]
    assert shown == ["Here it is.", ["table.csv"]]
    assert json.loads(house.run_in_process("status", "--json").out)["in_doubt"] == 0
    house.run_in_process("audit").ok()
    house.close()
