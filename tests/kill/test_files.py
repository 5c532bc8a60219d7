"""A gateway is killed with -9 during the transfer of a file, in either direction: the file is whole and shown once."""

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
    home = CommandHome(path / "home", make_plugin(path / "plugin"))
    access = {"direct": [f"{platform}:1001"]}
    config = {
        "models": {"m": make_model_section(model.openai)},
        "defaults": {"memories": [], "tools": ["attach"]},
        "platforms": {platform: {"main": {"token_env": "TOKEN", "access": access, **account}}},
    }
    (home.path / "config.yaml").write_text(json.dumps(config))
    (home.path / ".env").touch(mode=0o600)
    (home.path / ".env").write_text(f"TOKEN={token}\nMODEL_KEY={KEY}\n")
    return home


def read_heard(home: CommandHome) -> list[dict[str, Any]]:
    """Return the bodies of all `heard` entries."""
    store = sqlite3.connect(f"file:{home.path / 'everhold.db'}?mode=ro", uri=True)
    try:
        rows = store.execute("select body from entries where kind = 'heard' order by pos").fetchall()
    finally:
        store.close()
    return [json.loads(row[0]) for row in rows]


def wait_until_idle(home: CommandHome) -> None:
    wait_until(
        lambda: not json.loads(home.run_in_process("status", "--json").out or '{"waiting": [1]}')["waiting"],
        seconds=60,
    )


def offer_file(model: ModelServer) -> None:
    """Make the model attach a file to its next reply."""
    call = ToolCall(id="c1", tool="attach", arguments={"name": "table.csv", "text": DATA.decode()})
    model.add_steps(ModelServerReply(text="", calls=(call,)), ModelServerReply(text="Here it is."))


def test_an_incoming_file_is_fetched_again_after_a_kill(
    tmp_path: Path, telegram: ThreadedServer[TelegramServer], model: ModelServer
) -> None:
    server = telegram.server
    home = make_home(tmp_path, model, "telegram", remote_telegram.TOKEN, {"base_url": server.url, "poll_seconds": 1})
    gateway = home.start_gateway()
    server.plan_fault("getFile", "hang")
    telegram.run(server.write_message("look at this", user=1001, file=("table.csv", DATA)))
    wait_until(server.held.is_set)
    gateway.kill()
    assert read_heard(home) == [], "nothing was confirmed, nothing is lost"
    home.start_gateway()
    wait_until(lambda: len(server.list_bot_texts(1001)) == 1)
    wait_until_idle(home)
    (body,) = read_heard(home)
    (file,) = body["attachments"]
    assert (file["name"], file["size"]) == ("table.csv", len(DATA))
    assert hashlib.sha256(DATA).hexdigest() in file["blob"]
    home.run_in_process("audit").ok()
    home.close()


def test_an_outgoing_file_on_telegram_is_shown_once_or_counted_after_a_kill(
    tmp_path: Path, telegram: ThreadedServer[TelegramServer], model: ModelServer
) -> None:
    """Telegram cannot be asked whether the file arrived, so the policy resends it and records the doubt."""
    server = telegram.server
    home = make_home(tmp_path, model, "telegram", remote_telegram.TOKEN, {"base_url": server.url, "poll_seconds": 1})
    gateway = home.start_gateway()
    offer_file(model)
    server.plan_fault("sendDocument", "hang")
    telegram.run(server.write_message("as a table, please", user=1001))
    wait_until(server.held.is_set)
    gateway.kill()
    home.start_gateway()
    wait_until(lambda: any(it.file for it in server.list_shown_messages(1001)), seconds=60)
    wait_until_idle(home)
    shown = [it.file or it.text for it in server.list_shown_messages(1001)][1:]
    assert shown == ["Here it is.", ("table.csv", DATA)]
    assert json.loads(home.run_in_process("status", "--json").out)["in_doubt"] == 1
    home.run_in_process("audit").ok()
    home.close()


def test_an_outgoing_file_on_discord_is_not_sent_twice_after_a_kill(
    tmp_path: Path, discord: ThreadedServer[DiscordServer], model: ModelServer
) -> None:
    """Discord recognises a repeated nonce, also with a file."""
    server = discord.server
    home = make_home(tmp_path, model, "discord", remote_discord.TOKEN, {"base_url": server.api})
    gateway = home.start_gateway()
    offer_file(model)
    discord.run(server.write_message("as a table, please", channel="2001", user="1001"))
    wait_until(lambda: any(it["attachments"] for it in server.list_shown_messages("2001")))
    gateway.kill()  # often before the receipt is committed
    home.start_gateway()
    wait_until_idle(home)
    shown = [
        [file["filename"] for file in it["attachments"]] or it["content"] for it in server.list_shown_messages("2001")
    ]
    assert shown == ["Here it is.", ["table.csv"]]
    assert json.loads(home.run_in_process("status", "--json").out)["in_doubt"] == 0
    home.run_in_process("audit").ok()
    home.close()
