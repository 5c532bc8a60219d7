"""`everhold pin`, `unpin` and `pins`, with and without a gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_home import CommandHome, make_plugin

OFFLINE = "models: {m: {provider: offline}}\ndefaults: {model: m, memories: [], tools: []}\n"
TOLD = "Nobody but Hal gets the door code."


@pytest.fixture(params=["alone", "gateway"])
def command_home(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    command_home = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
    (command_home.path / "config.yaml").write_text(OFFLINE)
    if request.param == "gateway":
        command_home.start_gateway()
    command_home.run("send", TOLD).ok()
    yield command_home
    command_home.close()


def test_an_entry_is_pinned_listed_and_unpinned(command_home: CommandHome) -> None:
    assert command_home.run("pins", "last").ok().out == "Nothing is pinned.\n"
    done = command_home.run("pin", "last", "1").ok()
    assert done.out.startswith("Pinned entry 1.")
    again = command_home.run("pin", "last", "1")
    assert (again.code, again.out) == (1, "Entry 1 is already pinned.\n")
    assert TOLD in command_home.run("pins", "last").ok().out
    (pin,) = command_home.run("pins", "last", "--json").ok().json["pins"]
    assert (pin["seq"], pin["by"], pin["body"]["text"]) == (1, "operator", TOLD)
    assert command_home.run("unpin", "last", "1").ok().out == "Removed 1 pin.\n"
    missing = command_home.run("unpin", "last", "--all")
    assert (missing.code, missing.out) == (1, "Nothing is pinned.\n")
    command_home.run("audit").ok()


def test_a_wrong_entry_changes_nothing(command_home: CommandHome) -> None:
    assert command_home.run("pin", "last", "999").code == 1
    assert "there is no session" in command_home.run("pin", "nowhere", "1").err
    assert "say which pin to remove" in command_home.run("unpin", "last").err
    assert command_home.run("pins", "last", "--json").ok().json["pins"] == []
