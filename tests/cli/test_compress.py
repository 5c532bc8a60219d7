"""`everhold compress` and `everhold sessions diff`, with and without a gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_home import CommandHome, make_plugin

OFFLINE = "models: {m: {provider: offline}}\ndefaults: {model: m, memories: [], tools: []}\n"


@pytest.fixture(params=["alone", "gateway"])
def command_home(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    command_home = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
    (command_home.path / "config.yaml").write_text(OFFLINE)
    if request.param == "gateway":
        command_home.start_gateway()
    for n in range(5):
        command_home.run(
            "send", f"The locker number {n} belongs to somebody who likes long sentences about nothing much."
        ).ok()
    yield command_home
    command_home.close()


def test_compress_compresses_a_session_given_by_its_id(command_home: CommandHome) -> None:
    before = command_home.run("sessions", "list", "--json").ok().json["sessions"][0]["id"]
    preview = command_home.run("compress", "last", "--preview", "--keep", "1").ok()
    assert "Nothing was changed" in preview.out
    assert command_home.run("sessions", "compressions", "last", "--json").ok().json["compressions"] == []
    done = command_home.run("compress", "last", "--keep", "1", "--focus", "lockers", "--json").ok().json
    assert done["session"] == before
    assert done["message"].startswith("Compressed 4 messages")
    (compression,) = command_home.run("sessions", "compressions", "last", "--json").ok().json["compressions"]
    diff = command_home.run("sessions", "diff", "last", "--compression", str(compression["op"])).ok().out
    assert "- " in diff
    assert any(line.startswith("- ") and "locker number 0" in line for line in diff.splitlines())
    assert any(line.startswith("+ everhold: [Summary") for line in diff.splitlines())
    again = command_home.run("compress", "last", "--keep", "1")
    assert (again.code, again.out) == (1, "There is nothing to compress.\n")
    assert command_home.run("sessions", "list", "--json").ok().json["sessions"][0]["id"] == before
    command_home.run("undo", "last", "compress").ok()
    command_home.run("audit").ok()


def test_a_missing_session_or_compression_is_reported(command_home: CommandHome) -> None:
    assert "there is no session" in command_home.run("compress", "nowhere").err
    assert "no compression 3" in command_home.run("sessions", "diff", "last", "--compression", "3").err
