"""Commands that read work with a store on a server, which has no file in the home."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_home import CommandHome


@pytest.fixture
def home(tmp_path: Path, postgres_url: str) -> CommandHome:
    home = CommandHome(tmp_path / "home", tmp_path / "plugin")
    (home.path / "config.yaml").write_text(f"store: {{url: '{postgres_url}'}}\n")
    home.run("send", "hello").ok()
    return home


@pytest.mark.parametrize("had_a_file", [False, True], ids=["new", "moved"])
def test_the_log_is_read_without_a_file(home: CommandHome, had_a_file: bool) -> None:
    if had_a_file:
        (home.path / "home.id").write_text(f"{'0' * 32}\n")
    assert "agent:main:terminal" in home.run("sessions", "list").ok().out
    assert "5 entries, 1 message, 1 turn" in home.run("audit").ok().out
    assert not (home.path / "everhold.db").exists()


def test_an_invalid_configuration_is_named_and_the_log_is_read_as_before(home: CommandHome) -> None:
    with (home.path / "config.yaml").open("a") as file:
        file.write("unknown_key: 1\n")
    found = home.run("audit").ok()
    assert "unknown_key" in found.err
    assert "5 entries, 1 message, 1 turn" in found.out
