from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command_home import CommandHome, GatewayProcess, make_plugin


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_plugin(tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def command_home(tmp_path: Path, plugin: Path) -> Iterator[CommandHome]:
    command_home = CommandHome(tmp_path / "home", plugin)
    yield command_home
    command_home.close()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, plugin: Path) -> Iterator[CommandHome]:
    """A home with a running gateway and a conversation: `hello`, `the dentist is on tuesday`."""
    command_home = CommandHome(tmp_path_factory.mktemp("busy") / "home", plugin)
    command_home.start_gateway()
    command_home.run("send", "hello").ok()
    command_home.run("send", "the dentist is on tuesday").ok()
    yield command_home
    command_home.close()


@pytest.fixture
def gateway(command_home: CommandHome) -> GatewayProcess:
    return command_home.start_gateway()
