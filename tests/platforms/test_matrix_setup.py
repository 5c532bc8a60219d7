"""`everhold setup matrix` asks, connects once to a real homeserver, writes what works, and shows no token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.testing.platforms.synapse import MatrixTestMember, SynapseServer
from tests.cli.command_home import CommandHome, make_plugin


@pytest.fixture
def command_home(tmp_path: Path) -> Iterator[CommandHome]:
    command_home = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
    yield command_home
    command_home.close()


@pytest.fixture
def helper(synapse: SynapseServer) -> MatrixTestMember:
    return asyncio.run(synapse.register_member("helper"))


def test_an_account_is_tried_and_written(
    command_home: CommandHome, synapse: SynapseServer, helper: MatrixTestMember
) -> None:
    done = command_home.run("setup", "matrix", input=f"{synapse.url}/\n{helper.token}\n").ok()
    assert helper.token not in done.out + done.err
    assert f"connected to matrix as {helper.id}" in done.out
    assert f"https://matrix.to/#/{helper.id}" in done.out
    config = (command_home.path / "config.yaml").read_text()
    assert "token_env: MATRIX_MAIN_TOKEN" in config
    assert synapse.url in config
    assert helper.token not in config
    assert f"MATRIX_MAIN_TOKEN={helper.token}" in (command_home.path / ".env").read_text()


def test_a_token_that_does_not_work_is_not_written(command_home: CommandHome, synapse: SynapseServer) -> None:
    given = ["--no-input", "--stdin", "--set", f"homeserver={synapse.url}"]
    done = command_home.run("setup", "matrix", *given, input="wrong\n")
    assert done.code != 0
    assert "log in again" in done.err
    assert not (command_home.path / ".env").exists()
    away = command_home.run("setup", "matrix", *given[:2], "--set", "homeserver=http://127.0.0.1:9", input="wrong\n")
    assert "cannot be reached" in away.err
