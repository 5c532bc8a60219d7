"""`everhold setup discord` and `everhold setup slack`: connect once, write the configuration, show no token."""

from __future__ import annotations

import pytest

from everhold.testing.platforms.discord import DiscordServer
from everhold.testing.platforms.slack import SlackServer
from everhold.testing.platforms.threaded import serve_in_thread
from tests.cli.command_home import CommandHome
from tests.platforms.remote_discord import TOKEN
from tests.platforms.remote_slack import APP_TOKEN, BOT_TOKEN


def test_a_discord_bot_is_tested_and_written_with_its_invitation_link(command_home: CommandHome) -> None:
    with serve_in_thread(DiscordServer) as running:
        running.server.add_bot(TOKEN, username="my-bot")
        given = ("setup", "discord", "--set", f"base_url={running.server.api}", "--no-input", "--stdin")
        wrong = command_home.run(*given, input="wrong\n")
        assert wrong.code == 1
        assert "developer portal" in wrong.err
        assert not (command_home.path / ".env").exists()
        done = command_home.run(*given, input=f"{TOKEN}\n").ok()
    assert "my-bot" in done.out
    assert "oauth2/authorize" in done.out
    assert TOKEN not in done.out + done.err
    config = (command_home.path / "config.yaml").read_text()
    assert "token_env: DISCORD_MAIN_TOKEN" in config
    assert TOKEN not in config
    assert f"DISCORD_MAIN_TOKEN={TOKEN}" in (command_home.path / ".env").read_text()


@pytest.mark.parametrize("tokens", [f"{BOT_TOKEN}\nwrong\n", f"wrong\n{APP_TOKEN}\n"])
def test_a_slack_app_is_written_only_if_both_tokens_work(command_home: CommandHome, tokens: str) -> None:
    before = (command_home.path / "config.yaml").read_text()
    with serve_in_thread(SlackServer) as running:
        running.server.add_app(BOT_TOKEN, APP_TOKEN, name="my-app")
        given = ("setup", "slack", "--set", f"base_url={running.server.url}/api/", "--no-input", "--stdin")
        wrong = command_home.run(*given, input=tokens)
        assert wrong.code == 1
        assert "does not accept this token" in wrong.err
        assert ((command_home.path / "config.yaml").read_text(), (command_home.path / ".env").exists()) == (
            before,
            False,
        )
        done = command_home.run(*given, input=f"{BOT_TOKEN}\n{APP_TOKEN}\n").ok()
    assert "@my-app" in done.out
    kept = (command_home.path / ".env").read_text()
    assert f"SLACK_MAIN_BOT_TOKEN={BOT_TOKEN}" in kept
    assert f"SLACK_MAIN_APP_TOKEN={APP_TOKEN}" in kept
    for token in (BOT_TOKEN, APP_TOKEN):
        assert token not in done.out + done.err + (command_home.path / "config.yaml").read_text()
