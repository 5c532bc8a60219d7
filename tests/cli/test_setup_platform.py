"""`everhold setup telegram`: asks, connects once, writes the configuration, and never shows a token."""

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


def setup(command_home: CommandHome, server: TelegramServer, *more: str, input: str = f"{TOKEN}\n") -> CommandResult:
    done = command_home.run("setup", "telegram", "--set", f"base_url={server.url}", *more, input=input)
    assert TOKEN not in done.out + done.err
    return done


def config(command_home: CommandHome) -> str:
    return (command_home.path / "config.yaml").read_text()


def test_a_bot_is_tested_and_written_with_next_steps(command_home: CommandHome, server: TelegramServer) -> None:
    before = "# mine, and it stays\n" + config(command_home)
    (command_home.path / "config.yaml").write_text(before)
    done = setup(command_home, server, "--no-input", "--stdin").ok()
    assert "@my_bot" in done.out
    assert "everhold up" in done.out
    assert "https://t.me/my_bot" in done.out
    assert "pairing approve" in done.out
    assert "the doctor finds no problem" in done.out
    assert "token_env: TELEGRAM_MAIN_TOKEN" in config(command_home)
    assert "# mine, and it stays" in config(command_home)
    assert TOKEN not in config(command_home)
    assert f"TELEGRAM_MAIN_TOKEN={TOKEN}" in (command_home.path / ".env").read_text()
    assert (command_home.path / ".env").stat().st_mode & 0o077 == 0
    again = setup(command_home, server, "--no-input", input="").ok()
    assert "@my_bot" in again.out, "the token that is there will do"


def test_doctor_reports_a_token_that_stopped_working(command_home: CommandHome, server: TelegramServer) -> None:
    setup(command_home, server, "--no-input", "--stdin").ok()
    command_home.run("doctor").ok()
    (command_home.path / ".env").write_text("TELEGRAM_MAIN_TOKEN=123456:wrong\n")
    told = command_home.run("doctor", "--json")
    assert told.code == 1
    (finding,) = told.json["findings"]
    assert (finding["check"], "telegram/main" in finding["text"]) == ("platform", True)
    assert "BotFather" in finding["remedy"]
    command_home.run("doctor", "--offline").ok()


def test_setup_asks_for_missing_values(command_home: CommandHome, server: TelegramServer) -> None:
    done = setup(command_home, server, "--account", "coder").ok()
    assert "BotFather" in done.err
    assert "TELEGRAM_CODER_TOKEN" in config(command_home)


def test_an_invalid_token_is_not_written(command_home: CommandHome, server: TelegramServer) -> None:
    before = config(command_home)
    done = setup(command_home, server, "--no-input", "--stdin", input="123456:wrong\n")
    assert done.code == 1
    assert "BotFather" in done.err
    assert (config(command_home), (command_home.path / ".env").exists()) == (before, False)
    asked = setup(command_home, server, input="123456:wrong\nyes\n" + TOKEN + "\n").ok()
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
def test_invalid_arguments_are_refused(
    command_home: CommandHome, server: TelegramServer, more: list[str], told: str
) -> None:
    done = setup(command_home, server, *more)
    assert done.code != 0
    assert told in done.err
