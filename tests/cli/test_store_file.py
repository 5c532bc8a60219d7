"""Commands with a store of another version, or a damaged one: they print the remedy and do not change it."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from everhold.app import SystemRandomSource
from everhold.stores.sqlite import SqliteStore, migrate
from tests.cli.command_home import CommandHome
from tests.stores.home import fingerprint_files, run_coroutine

NEXT_BUILD = """\
from everhold.stores.sqlite import migrate
shipped = migrate.list_migrations
def list_migrations():
    found = shipped()
    return [*found, migrate.SchemaMigration(found[-1].number + 1, "moods", "create table moods(session text);")]
migrate.list_migrations = list_migrations
"""
"""Makes a process behave like the next build, whose schema has one more table."""


@pytest.fixture
def next_build(command_home: CommandHome, tmp_path: Path) -> str:
    """The PYTHONPATH of the next build, in a home whose store has this build's schema."""
    run_coroutine(SqliteStore.open(command_home.path / "everhold.db", chance=SystemRandomSource()).close())
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NEXT_BUILD)
    return os.pathsep.join(map(str, (tmp_path / "site", command_home.plugin, Path(__file__).parents[2])))


def test_an_upgrade_prints_the_backup_of_the_older_store(command_home: CommandHome, next_build: str) -> None:
    done = command_home.run("status", PYTHONPATH=next_build)
    (saved,) = (command_home.path / "backups").iterdir()
    assert str(saved) in done.err
    schema = migrate.list_migrations()[-1].number
    assert apsw.Connection(str(saved), flags=apsw.SQLITE_OPEN_READONLY).pragma("user_version") == schema
    assert str(saved) not in command_home.run("status", PYTHONPATH=next_build).err, "once"
    assert "hello" in command_home.run("send", "hello", PYTHONPATH=next_build).ok().out


def test_a_gateway_logs_the_upgrade(command_home: CommandHome, next_build: str) -> None:
    gateway = command_home.start_gateway(PYTHONPATH=next_build)
    assert any("store.upgraded" in line and "before-" in line for line in gateway.log), gateway.log


@pytest.mark.parametrize("command", [("status",), ("send", "hello"), ("up",)])
def test_a_home_of_a_development_version_is_refused_and_stays_as_it_is(
    command_home: CommandHome, command: tuple[str, ...]
) -> None:
    path = command_home.path / "everhold.db"
    run_coroutine(SqliteStore.open(path, chance=SystemRandomSource()).close())
    db = apsw.Connection(str(path))
    db.pragma("application_id", migrate.DEVELOPMENT_APPLICATION)
    db.close()
    before = fingerprint_files(command_home.path)
    done = command_home.run(*command)
    assert done.code != 0
    assert "this home was created by a development version and cannot be opened" in done.err
    assert "--home" in done.err
    assert fingerprint_files(command_home.path)["everhold.db"] == before["everhold.db"]


FAILING = """\
import os, pathlib
from tests.stores.faulty_disk import FaultyVFS
vfs = FaultyVFS(default=True)
vfs.disk.only = "everhold.db-wal"
vfs.disk.fsync_fails_with = pathlib.Path(os.environ["TROUBLE"])
"""


def test_a_gateway_whose_disk_fails_to_sync_exits_with_a_message(command_home: CommandHome, tmp_path: Path) -> None:
    """After a failed sync the process ends, because a later successful sync would prove nothing."""
    trouble = tmp_path / "trouble"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FAILING)
    found = os.pathsep.join(map(str, (tmp_path / "site", command_home.plugin, Path(__file__).parents[2])))
    gateway = command_home.start_gateway(PYTHONPATH=found, TROUBLE=str(trouble))
    command_home.run("send", "kept").ok()
    trouble.touch()
    refused = command_home.run("send", "not kept")
    assert (refused.code, "disk" in refused.err) == (1, True), refused
    assert gateway.wait_until_ended() == 1
    assert "the disk failed" in gateway.log[-1], gateway.log
    trouble.unlink()
    command_home.start_gateway()
    command_home.run_in_process("audit").ok()
    shown = command_home.run_in_process("sessions", "show", "last", "--json").json["entries"]
    assert [entry["body"]["text"] for entry in shown if entry["kind"] == "heard"][:1] == ["kept"]


@pytest.mark.parametrize("command", [("send", "hello"), ("up", "--port", "0"), ("status",), ("backup",)])
def test_a_store_of_a_later_version_is_not_changed(command_home: CommandHome, command: tuple[str, ...]) -> None:
    command_home.run("send", "first").ok()
    db = apsw.Connection(str(command_home.path / "everhold.db"))
    db.pragma("user_version", migrate.list_migrations()[-1].number + 1)
    db.close()
    before = (command_home.path / "everhold.db").read_bytes()
    done = command_home.run(*command)
    assert done.code == 1
    assert "install the newer everhold" in done.err
    assert (command_home.path / "everhold.db").read_bytes() == before


def test_a_damaged_store_is_refused_with_page_session_and_restore_command(command_home: CommandHome) -> None:
    """The suggested command restores the last backup and keeps the damaged store."""
    for text in ("first", "second"):
        command_home.run("send", "--session", text, f"{text} " + "m" * 3000).ok()
    command_home.run("backup").ok()
    store = command_home.path / "everhold.db"
    data = bytearray(store.read_bytes())
    at = data.index(b"second mmm") // 4096 * 4096
    data[at : at + 4096] = bytes(byte ^ 0x5A for byte in data[at : at + 4096])
    store.write_bytes(data)
    before = fingerprint_files(command_home.path / "backups")
    for command in (("up", "--port", "0"), ("send", "hello")):
        done = command_home.run(*command)
        assert done.code == 1
        assert "page" in done.err
        assert "cannot be read completely: session 01" in done.err
        assert "everhold restore" in done.err
    assert store.read_bytes() == bytes(data)
    assert fingerprint_files(command_home.path / "backups") == before
    assert "damaged" in command_home.run("restore").ok().out
    command_home.run("restore", "--yes").ok()
    assert "second mmm" in command_home.run("sessions", "show", "last").ok().out
    command_home.run("audit").ok()
