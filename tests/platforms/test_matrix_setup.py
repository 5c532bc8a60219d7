"""`everhold setup matrix`: asks, connects once to a real homeserver, writes what works, shows no token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.testing.platforms.synapse import Member, Synapse
from tests.cli.house import House, make_plugin


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "home", make_plugin(tmp_path / "plugin"))
    yield house
    house.close()


@pytest.fixture
def helper(synapse: Synapse) -> Member:
    return asyncio.run(synapse.register("helper"))


def test_an_account_is_tried_and_written(house: House, synapse: Synapse, helper: Member) -> None:
    done = house.run("setup", "matrix", input=f"{synapse.url}/\n{helper.token}\n").ok()
    assert helper.token not in done.out + done.err
    assert f"matrix knows it as {helper.id}" in done.out
    assert f"https://matrix.to/#/{helper.id}" in done.out
    config = (house.path / "config.yaml").read_text()
    assert "token_env: MATRIX_MAIN_TOKEN" in config
    assert synapse.url in config
    assert helper.token not in config
    assert f"MATRIX_MAIN_TOKEN={helper.token}" in (house.path / ".env").read_text()


def test_a_token_that_does_not_work_is_not_written(house: House, synapse: Synapse) -> None:
    given = ["--no-input", "--stdin", "--set", f"homeserver={synapse.url}"]
    done = house.run("setup", "matrix", *given, input="wrong\n")
    assert done.code != 0
    assert "log in again" in done.err
    assert not (house.path / ".env").exists()
    away = house.run("setup", "matrix", *given[:2], "--set", "homeserver=http://127.0.0.1:9", input="wrong\n")
    assert "cannot be reached" in away.err
