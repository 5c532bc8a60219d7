"""A gateway killed with -9 while a file is on its way, in either direction: it is kept whole, and shown once."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Call
from everhold.testing.modelserver import ModelServer, Reply
from everhold.testing.platforms.discord import DiscordServer
from everhold.testing.platforms.telegram import TelegramServer
from everhold.testing.platforms.threaded import Threaded, threaded
from tests.cli.house import House, make_plugin, until
from tests.e2e.town import KEY, endpoint
from tests.platforms import discord_stage, telegram_stage

pytestmark = [pytest.mark.prove, pytest.mark.timeout(300)]

DATA = b"a,b\n1,2\n"


@pytest.fixture
def model() -> Iterator[ModelServer]:
    server = ModelServer(key=KEY)
    with server.threaded():
        yield server


@pytest.fixture
def telegram() -> Iterator[Threaded[TelegramServer]]:
    with threaded(TelegramServer) as running:
        running.server.bot(telegram_stage.TOKEN)
        yield running


@pytest.fixture
def discord() -> Iterator[Threaded[DiscordServer]]:
    with threaded(DiscordServer) as running:
        running.server.bot(discord_stage.TOKEN)
        running.server.direct("2001", "1001")
        yield running


def house_of(path: Path, model: ModelServer, platform: str, token: str, account: dict[str, Any]) -> House:
    house = House(path / "home", make_plugin(path / "plugin"))
    access = {"direct": [f"{platform}:1001"]}
    config = {
        "models": {"m": endpoint(model.openai)},
        "defaults": {"memories": [], "tools": ["attach"]},
        "platforms": {platform: {"main": {"token_env": "TOKEN", "access": access, **account}}},
    }
    (house.path / "config.yaml").write_text(json.dumps(config))
    (house.path / ".env").touch(mode=0o600)
    (house.path / ".env").write_text(f"TOKEN={token}\nMODEL_KEY={KEY}\n")
    return house


def kept(house: House) -> list[dict[str, Any]]:
    """What was heard, as it stands in the log."""
    store = sqlite3.connect(f"file:{house.path / 'everhold.db'}?mode=ro", uri=True)
    try:
        rows = store.execute("select body from entries where kind = 'heard' order by pos").fetchall()
    finally:
        store.close()
    return [json.loads(row[0]) for row in rows]


def quiet(house: House) -> None:
    until(lambda: not json.loads(house.ask("status", "--json").out or '{"waiting": [1]}')["waiting"], seconds=60)


def give(model: ModelServer) -> None:
    """Whoever asks next gets a file."""
    call = Call(id="c1", tool="attach", arguments={"name": "table.csv", "text": DATA.decode()})
    model.script(Reply(text="", calls=(call,)), Reply(text="Here it is."))


def test_killed_while_a_file_comes_in_it_is_fetched_again(
    tmp_path: Path, telegram: Threaded[TelegramServer], model: ModelServer
) -> None:
    server = telegram.server
    house = house_of(tmp_path, model, "telegram", telegram_stage.TOKEN, {"base_url": server.url, "poll_seconds": 1})
    gateway = house.up()
    server.fault("getFile", "hang")
    telegram.run(server.write("look at this", user=1001, file=("table.csv", DATA)))
    until(server.held.is_set)
    gateway.kill()
    assert kept(house) == [], "nothing was confirmed, nothing is lost"
    house.up()
    until(lambda: len(server.said(1001)) == 1)
    quiet(house)
    (body,) = kept(house)
    (file,) = body["attachments"]
    assert (file["name"], file["size"]) == ("table.csv", len(DATA))
    assert hashlib.sha256(DATA).hexdigest() in file["blob"]
    house.ask("audit").ok()
    house.close()


def test_killed_while_a_file_goes_out_it_is_shown_once_or_counted(
    tmp_path: Path, telegram: Threaded[TelegramServer], model: ModelServer
) -> None:
    """Telegram cannot tell whether it is there: the policy sends it again, and says that it did."""
    server = telegram.server
    house = house_of(tmp_path, model, "telegram", telegram_stage.TOKEN, {"base_url": server.url, "poll_seconds": 1})
    gateway = house.up()
    give(model)
    server.fault("sendDocument", "hang")
    telegram.run(server.write("as a table, please", user=1001))
    until(server.held.is_set)
    gateway.kill()
    house.up()
    until(lambda: any(it.file for it in server.shown(1001)), seconds=60)
    quiet(house)
    shown = [it.file or it.text for it in server.shown(1001)][1:]
    assert shown == ["Here it is.", ("table.csv", DATA)]
    assert json.loads(house.ask("status", "--json").out)["in_doubt"] == 1
    house.ask("audit").ok()
    house.close()


def test_killed_after_a_file_went_out_it_is_not_sent_twice(
    tmp_path: Path, discord: Threaded[DiscordServer], model: ModelServer
) -> None:
    """Discord knows its nonce again, also with a file."""
    server = discord.server
    house = house_of(tmp_path, model, "discord", discord_stage.TOKEN, {"base_url": server.api})
    gateway = house.up()
    give(model)
    discord.run(server.write("as a table, please", channel="2001", user="1001"))
    until(lambda: any(it["attachments"] for it in server.shown("2001")))
    gateway.kill()  # before it was told, as often as not
    house.up()
    quiet(house)
    shown = [[file["filename"] for file in it["attachments"]] or it["content"] for it in server.shown("2001")]
    assert shown == ["Here it is.", ["table.csv"]]
    assert json.loads(house.ask("status", "--json").out)["in_doubt"] == 0
    house.ask("audit").ok()
    house.close()
