"""`everhold setup telegram`: asks, connects once, writes what works, shows no token, and says what comes next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from everhold.testing.platforms.telegram import TelegramServer
from everhold.testing.platforms.threaded import serve_in_thread
from tests.cli.command_home import CommandHome, CommandResult
from tests.platforms.remote_telegram import TOKEN


@pytest.fixture
def server() -> Iterator[TelegramServer]:
    with serve_in_thread(TelegramServer) as running:
        running.server.add_bot(TOKEN, username="my_bot")
        yield running.server


def setup(house: CommandHome, server: TelegramServer, *more: str, input: str = f"{TOKEN}\n") -> CommandResult:
    done = house.run("setup", "telegram", "--set", f"base_url={server.url}", *more, input=input)
    assert TOKEN not in done.out + done.err
    return done


def config(house: CommandHome) -> str:
    return (house.path / "config.yaml").read_text()


def test_a_bot_is_tried_written_and_told_what_to_do_next(house: CommandHome, server: TelegramServer) -> None:
    before = "# mine, and it stays\n" + config(house)
    (house.path / "config.yaml").write_text(before)
    done = setup(house, server, "--no-input", "--stdin").ok()
    assert "@my_bot" in done.out
    assert "everhold up" in done.out
    assert "https://t.me/my_bot" in done.out
    assert "pairing approve" in done.out
    assert "the doctor finds nothing wrong" in done.out
    assert "token_env: TELEGRAM_MAIN_TOKEN" in config(house)
    assert "# mine, and it stays" in config(house)
    assert TOKEN not in config(house)
    assert f"TELEGRAM_MAIN_TOKEN={TOKEN}" in (house.path / ".env").read_text()
    assert (house.path / ".env").stat().st_mode & 0o077 == 0
    again = setup(house, server, "--no-input", input="").ok()
    assert "@my_bot" in again.out, "the token that is there will do"


def test_a_token_that_stopped_working_is_told_by_the_doctor(house: CommandHome, server: TelegramServer) -> None:
    setup(house, server, "--no-input", "--stdin").ok()
    house.run("doctor").ok()
    (house.path / ".env").write_text("TELEGRAM_MAIN_TOKEN=123456:wrong\n")
    told = house.run("doctor", "--json")
    assert told.code == 1
    (finding,) = told.json["findings"]
    assert (finding["check"], "telegram/main" in finding["text"]) == ("platform", True)
    assert "BotFather" in finding["remedy"]
    house.run("doctor", "--offline").ok()


def test_it_asks_for_what_it_is_not_told(house: CommandHome, server: TelegramServer) -> None:
    done = setup(house, server, "--account", "coder").ok()
    assert "BotFather" in done.err
    assert "TELEGRAM_CODER_TOKEN" in config(house)


def test_a_token_that_does_not_work_is_not_written(house: CommandHome, server: TelegramServer) -> None:
    before = config(house)
    done = setup(house, server, "--no-input", "--stdin", input="123456:wrong\n")
    assert done.code == 1
    assert "BotFather" in done.err
    assert (config(house), (house.path / ".env").exists()) == (before, False)
    asked = setup(house, server, input="123456:wrong\nyes\n" + TOKEN + "\n").ok()
    assert "@my_bot" in asked.out, "and one may try again"


@pytest.mark.parametrize(
    "more, told",
    [
        (["--no-input"], "--stdin"),
        (["--set", "token=123:abc", "--no-input"], "cannot be set like this"),
        (["--no-input", "--stdin", "--agent", "nobody"], "there is no agent of this name"),
        (["--no-input", "--stdin", "--set", "colour=red"], "colour"),
    ],
)
def test_what_makes_no_sense_is_said(house: CommandHome, server: TelegramServer, more: list[str], told: str) -> None:
    done = setup(house, server, *more)
    assert done.code != 0
    assert told in done.err
