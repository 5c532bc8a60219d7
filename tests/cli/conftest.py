from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command_home import CommandHome, GatewayProcess, make_plugin


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_plugin(tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def house(tmp_path: Path, plugin: Path) -> Iterator[CommandHome]:
    house = CommandHome(tmp_path / "home", plugin)
    yield house
    house.close()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, plugin: Path) -> Iterator[CommandHome]:
    """A home with a gateway at work and a conversation in it: `hello`, `the dentist is on tuesday`."""
    house = CommandHome(tmp_path_factory.mktemp("busy") / "home", plugin)
    house.start_gateway()
    house.run("send", "hello").ok()
    house.run("send", "the dentist is on tuesday").ok()
    yield house
    house.close()


@pytest.fixture
def gateway(house: CommandHome) -> GatewayProcess:
    return house.start_gateway()
