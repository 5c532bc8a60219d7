"""`everhold setup matrix`: asks, connects once to a real homeserver, writes what works, shows no token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.testing.platforms.synapse import MatrixTestMember, SynapseServer
from tests.cli.command_home import CommandHome, make_plugin


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CommandHome]:
    house = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
    yield house
    house.close()


@pytest.fixture
def helper(synapse: SynapseServer) -> MatrixTestMember:
    return asyncio.run(synapse.register_member("helper"))


def test_an_account_is_tried_and_written(house: CommandHome, synapse: SynapseServer, helper: MatrixTestMember) -> None:
    done = house.run("setup", "matrix", input=f"{synapse.url}/\n{helper.token}\n").ok()
    assert helper.token not in done.out + done.err
    assert f"connected to matrix as {helper.id}" in done.out
    assert f"https://matrix.to/#/{helper.id}" in done.out
    config = (house.path / "config.yaml").read_text()
    assert "token_env: MATRIX_MAIN_TOKEN" in config
    assert synapse.url in config
    assert helper.token not in config
    assert f"MATRIX_MAIN_TOKEN={helper.token}" in (house.path / ".env").read_text()


def test_a_token_that_does_not_work_is_not_written(house: CommandHome, synapse: SynapseServer) -> None:
    given = ["--no-input", "--stdin", "--set", f"homeserver={synapse.url}"]
    done = house.run("setup", "matrix", *given, input="wrong\n")
    assert done.code != 0
    assert "log in again" in done.err
    assert not (house.path / ".env").exists()
    away = house.run("setup", "matrix", *given[:2], "--set", "homeserver=http://127.0.0.1:9", input="wrong\n")
    assert "cannot be reached" in away.err
