"""Two gateways never work on what was one home, and a home that lost its store does not begin a new one."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.cli.command_home import CommandHome, CommandResult
from tests.waiting import block_until


def copy_home(home: CommandHome, to: Path) -> CommandHome:
    shutil.copytree(home.path, to, ignore=lambda _, names: [name for name in names if name.endswith(".sock")])
    to.chmod(0o700)
    return CommandHome(to, home.plugin, home.started)


def try_gateway(home: CommandHome) -> CommandResult:
    return home.run("up", "--port", "0")


def test_a_copy_of_a_home_in_use_is_refused(command_home: CommandHome, tmp_path: Path) -> None:
    command_home.run("send", "first").ok()
    gateway = command_home.start_gateway()
    copy = copy_home(command_home, tmp_path / "copy")
    refused = try_gateway(copy)
    assert refused.code == 1
    assert f"process {gateway.process.pid}) uses the home that {copy.path} is a copy of" in refused.err
    assert "home.id" in refused.err
    assert copy.run("send", "answered twice").code == 1
    assert "first" in copy.run("sessions", "show", "last").ok().out, "a copy can be read"
    (copy.path / "home.id").unlink()
    independent = copy.start_gateway()
    independent.signal(signal.SIGTERM)
    assert independent.wait_until_ended() == 0
    command_home.run("send", "second").ok()


def test_a_moved_home_is_used_by_one_gateway_at_both_paths(command_home: CommandHome) -> None:
    """The gateway is stopped, so that it cannot notice the move before the others are started."""
    gateway = command_home.start_gateway()
    config = (command_home.path / "config.yaml").read_text()
    gateway.signal(signal.SIGSTOP)
    try:
        moved = command_home.path.rename(command_home.path.with_name("moved"))
        at_new_path = CommandHome(moved, command_home.plugin, command_home.started)
        refused = try_gateway(at_new_path)
        assert (refused.code, f"process {gateway.process.pid}" in refused.err) == (1, True), refused
        command_home.path.mkdir(0o700)
        (command_home.path / "config.yaml").write_text(config)
        refused = try_gateway(command_home)
        assert refused.code == 1
        assert f"process {gateway.process.pid}) still uses the home that was at {command_home.path}" in refused.err
    finally:
        gateway.signal(signal.SIGCONT)
    assert gateway.wait_until_ended() == 1
    at_new_path.start_gateway()
    command_home.start_gateway()


def test_a_home_that_lost_its_store_begins_no_new_one(command_home: CommandHome) -> None:
    command_home.run("send", "kept").ok()
    command_home.run("backup").ok()
    for path in command_home.path.glob("everhold.db*"):
        path.unlink()
    for command in (("up", "--port", "0"), ("send", "lost"), ("status",)):
        refused = command_home.run(*command)
        assert refused.code == 1
        assert "is gone, although this home had a store" in refused.err
        assert "everhold restore" in refused.err
    assert not (command_home.path / "everhold.db").exists()
    command_home.run("restore", "--yes").ok()
    assert "kept" in command_home.run("sessions", "show", "last").ok().out


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounts need root")
def test_a_home_on_which_something_is_mounted_ends_the_gateway(command_home: CommandHome, tmp_path: Path) -> None:
    gateway = command_home.start_gateway()
    command_home.run("send", "kept").ok()
    other = tmp_path / "other"
    other.mkdir()
    if os.system(f"mount --bind {other} {command_home.path} 2>/dev/null") != 0:
        pytest.skip("this machine allows no mounts")
    try:
        block_until(lambda: gateway.process.poll() is not None)
        assert gateway.wait_until_ended() == 1
        assert any("deleted, moved or unmounted" in line for line in gateway.log), gateway.log
    finally:
        os.system(f"umount {command_home.path}")
    assert "kept" in command_home.run("sessions", "show", "last").ok().out
