"""The gateway as a service: the manager restarts it as the unit says, and a foreign unit is never changed.

`make prove` runs the same under a real systemd, where this machine lets us start one.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from everhold.cli.main import _is_final
from everhold.config import ConfigError
from everhold.errors import (
    HomeBusy,
    Refused,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreNewer,
    StoreOutdated,
)
from tests.cli.command_home import CONFIG, CommandHome, CommandResult, wait_until
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for systemd needs abstract sockets")


REAL = """
group=/sys/fs/cgroup/systemd; test -d $group || group=/sys/fs/cgroup
mkdir $group/everhold-$$ && echo $$ > $group/everhold-$$/cgroup.procs || exit 77
exec unshare --mount sh -c '
    mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && exec /lib/systemd/systemd --user --log-target=console'
"""
"""Starts a systemd for one user, in its own process group."""


@dataclass
class SystemdMachine:
    """A user's machine with systemd: a real one, or the stand-in of `systemctl.py`."""

    home: CommandHome
    root: Path
    shell: pytest.MonkeyPatch
    systemd_process: subprocess.Popen[bytes] | None = None
    watchdog: str = ""

    def set_watchdog(self, seconds: int) -> None:
        """Shorten the unit's timeouts."""
        self.watchdog = str(seconds)
        self.add("watch", f"WatchdogSec={seconds}\n")

    def add(self, name: str, lines: str) -> None:
        """Override settings of the unit, like `systemctl edit`."""
        folder = self.unit.with_name("everhold.service.d")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.conf").write_text(f"[Service]\n{lines}")

    def start_systemd(self) -> None:
        """Start a real systemd, or skip the test."""
        runtime = self.root / "run"
        runtime.mkdir(mode=0o700)
        journal = self.root / "state" / "everhold.service.journal"
        self.add("journal", f"StandardOutput=append:{journal}\nStandardError=append:{journal}\n")
        with open(self.root / "state" / "systemd.log", "wb") as log:
            self.systemd_process = subprocess.Popen(["sh", "-c", REAL], env=self.environ, stdout=log, stderr=log)

        def runs() -> bool:
            assert self.systemd_process is not None
            if self.systemd_process.poll() is not None:
                pytest.skip(f"no systemd here: {(self.root / 'state' / 'systemd.log').read_text()[-300:]}")
            return (runtime / "systemd" / "private").exists()

        wait_until(runs)

    @property
    def unit(self) -> Path:
        return self.root / "config" / "systemd" / "user" / "everhold.service"

    @property
    def kept_units(self) -> list[Path]:
        return sorted(self.unit.parent.glob("*.kept-*"))

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": f"{self.root / 'bin'}:/usr/bin:/bin:/usr/sbin:/sbin",
            "XDG_RUNTIME_DIR": str(self.root / "run"),
            "HOME": str(self.root),
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "FAKE_SYSTEMD": str(self.root / "state"),
            "FAKE_WATCHDOG": self.watchdog,
            "PYTHONPATH": str(self.home.plugin),
        }

    def run(self, *args: str, **env: str) -> CommandResult:
        """Run a command in this process. It starts real processes."""
        with self.shell.context() as shell:
            for name, value in {**self.environ, **env}.items():
                shell.setenv(name, value)
            return self.home.run_in_process(*args)

    def service(self, *args: str, **env: str) -> CommandResult:
        return self.run("service", *args, **env)

    def state(self) -> dict[str, object]:
        found: dict[str, object] = self.service("status", "--json").json
        return found

    def journal(self, name: str = "everhold") -> str:
        return (self.root / "state" / f"{name}.service.journal").read_text("utf-8", "replace")

    def close(self) -> None:
        if self.systemd_process is not None:
            if self.systemd_process.poll() is None:
                self.systemd_process.terminate()  # stop every process that it started
            self.systemd_process.wait(timeout=LIMIT_SECONDS)
            for folder in ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup"):
                for group in sorted(Path(folder).glob(f"everhold-{self.systemd_process.pid}/**/"), reverse=True):
                    with contextlib.suppress(OSError):
                        group.rmdir()
        for pid in (self.root / "state").glob("*.pid"):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                os.kill(int(pid.read_text()), signal.SIGTERM)


@pytest.fixture(params=["stand-in", pytest.param("systemd", marks=pytest.mark.prove)])
def machine(
    request: pytest.FixtureRequest, command_home: CommandHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SystemdMachine]:
    root = tmp_path / "user"
    for folder in ("bin", "state", "config"):
        (root / folder).mkdir(parents=True)
    if request.param == "stand-in":
        calm = root / "bin" / "loginctl"  # do not enable lingering for the user who runs the tests
        calm.write_text("#!/bin/sh\nexit 0\n")
        calm.chmod(0o755)
        program = root / "bin" / "systemctl"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{Path(__file__).with_name("systemctl.py")}" "$@"\n')
        program.chmod(0o755)
    _configure(command_home)
    monkeypatch.syspath_prepend(command_home.plugin)
    made = SystemdMachine(command_home, root, monkeypatch)
    try:
        if request.param == "systemd":
            made.start_systemd()
        yield made
    finally:
        made.close()


def _configure(command_home: CommandHome, more: str = "") -> None:
    (command_home.path / "config.yaml").write_text(f"{CONFIG}http: {{port: 0}}\n{more}")


# -- install to uninstall ----------------------------------------------------------------------------------------------


def test_a_service_is_installed_started_stopped_and_removed(machine: SystemdMachine) -> None:
    missing = machine.service("status")
    assert (missing.code, "everhold service install" in missing.err) == (1, True)
    assert machine.service("status", "--json").json == {"installed": False, "manager": "systemd"}

    installed = machine.service("install").ok()
    assert str(machine.unit) in installed.out
    assert "→ everhold service start" in installed.out
    assert machine.unit.read_text() == machine.service("print").ok().out, "the printed unit equals the written one"
    assert machine.state()["wrong"], "it does not run yet"

    machine.service("start").ok()
    state = machine.state()
    assert (state["wrong"], state["answers"], state["enabled"]) == (False, True, True)
    assert machine.run("send", "hello").ok().out.strip() == "You said: hello"
    assert machine.service().ok().out.startswith("everhold · active (running)")

    machine.service("stop").ok()
    assert machine.service("status").code == 1
    machine.service("uninstall").ok()
    assert not machine.unit.exists()
    assert machine.home.path.exists()
    assert machine.kept_units == []


def test_setup_installs_and_starts_the_service_and_a_second_install_changes_nothing(machine: SystemdMachine) -> None:
    machine.shell.setattr("sys.stdin", io.StringIO("no\n"))
    refused = machine.run("setup", "service")
    assert (refused.code, "nothing was changed" in refused.err) == (1, True)
    assert not machine.unit.exists()
    done = machine.run("setup", "service", "--no-input").ok()
    assert "the doctor finds no problem" in done.out
    state = machine.state()
    assert state["answers"]
    again = machine.service("install").ok()
    assert "everhold service restart" in again.out
    assert machine.state()["pid"] == state["pid"]
    machine.service("restart").ok()
    assert machine.state()["pid"] != state["pid"]


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_a_killed_gateway_is_restarted_and_continues(machine: SystemdMachine, tmp_path: Path) -> None:
    machine.service("install", "--start").ok()
    late = tmp_path / "late"
    assert machine.run("send", f"hold {late}", "--timeout", "0.3").code == 75
    os.kill(int(str(machine.state()["pid"])), signal.SIGKILL)
    wait_until(lambda: machine.state()["restarts"] == 1 and machine.state()["answers"])
    late.touch()
    wait_until(lambda: "Holding is over" in machine.run("sessions", "show", "last").out)


@pytest.mark.prove
def test_a_gateway_that_hangs_logs_where_and_is_restarted(machine: SystemdMachine, tmp_path: Path) -> None:
    machine.set_watchdog(4)
    machine.service("install", "--start").ok()
    free = tmp_path / "free"
    machine.home.start_command("send", f"freeze {free}", **machine.environ)
    wait_until(lambda: "Fatal Python error: Aborted" in machine.journal())
    assert "everhold_obedient.py" in machine.journal(), "the line that hangs"
    free.touch()
    wait_until(lambda: "You said: freeze" in machine.run("sessions", "show", "last").out)


def test_a_permanent_failure_is_not_retried(machine: SystemdMachine) -> None:
    machine.service("install").ok()
    sound = (machine.home.path / "config.yaml").read_text()
    (machine.home.path / "config.yaml").write_text("agents: {main: {modle: m}}\n")
    refused = machine.service("start")
    assert (refused.code, "gave up: " in refused.err, "everhold doctor" in refused.err) == (1, True, True)
    assert "modle" in refused.err, "and why"
    assert "modle" in machine.service("status").out
    assert (machine.state()["restarts"], machine.state()["exit"]) == (0, 78)
    assert "modle" in machine.journal()

    (machine.home.path / "config.yaml").write_text(sound)
    (machine.home.path / "everhold.db").write_bytes(b"this is no database" * 400)
    damaged = machine.service("start")
    assert (damaged.code, "gave up" in damaged.err) == (1, True)
    assert (machine.state()["restarts"], machine.state()["exit"]) == (0, 78)
    assert "everhold.db" in machine.journal()


@pytest.mark.parametrize("code", [0, 78])
def test_a_service_manager_can_choose_the_exit_code_for_giving_up(command_home: CommandHome, code: int) -> None:
    (command_home.path / "everhold.db").write_bytes(b"this is no database" * 400)
    done = command_home.run("up", "--port", "0", "--quiet", "--give-up-with", str(code))
    assert done.code == code
    assert "everhold.db" in done.err
    assert command_home.run("up", "--give-up-with", "300").code == 2


def test_only_temporary_failures_are_retried() -> None:
    for error in (HomeBusy("in use"), StoreBusy("locked"), StoreFull("no room"), StoreError("fsync"), Refused("port")):
        assert not _is_final(error)
    for final in (
        StoreDamaged("torn"),
        StoreMissing("gone"),
        StoreNewer("of tomorrow"),
        StoreOutdated("of the past"),
        ConfigError([]),
    ):
        assert _is_final(final)


def test_a_quiet_gateway_logs_only_to_its_home(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway("--quiet")
    command_home.run_in_process("send", "hello").ok()
    wait_until(lambda: "turn.completed" in (command_home.path / "logs" / "everhold.log").read_text())
    gateway.signal(signal.SIGTERM)
    assert gateway.wait_until_ended() == 0
    assert gateway.log == []


# -- foreign units -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["changed", "another", "link"])
def test_a_foreign_unit_is_not_changed(machine: SystemdMachine, tmp_path: Path, how: str) -> None:
    machine.service("install").ok()
    if how == "changed":
        machine.unit.write_text(machine.unit.read_text().replace("RestartSec=5", "RestartSec=50"))
    elif how == "another":
        machine.unit.write_text(f"[Service]\nExecStart={sys.executable} -m everhold --home {machine.home.path} up\n")
    else:
        machine.unit.rename(tmp_path / "dotfile")
        machine.unit.symlink_to(tmp_path / "dotfile")
    text = machine.unit.read_text()
    for verb in ("install", "uninstall"):
        refused = machine.service(verb)
        assert (refused.code, "stays as it is" in refused.err, "--force" in refused.err) == (1, True, True)
        assert machine.unit.read_text() == text
        assert machine.unit.is_symlink() == (how == "link")
    assert machine.state()["edited"]

    forced = machine.service("install", "--force", "--json").ok().json
    assert Path(forced["kept"]).read_text() == text
    assert Path(forced["kept"]).is_symlink() == (how == "link")
    assert machine.unit.read_text() == machine.service("print").out
    assert not machine.state()["edited"]
    if how == "link":
        assert (tmp_path / "dotfile").read_text() == text
    machine.unit.write_text(text + "# mine\n")
    machine.service("uninstall", "--force").ok()
    assert not machine.unit.exists()
    assert [path.read_text() for path in machine.kept_units] == [text, text + "# mine\n"], "no copy replaces another"


def test_each_home_has_its_own_service(machine: SystemdMachine, tmp_path: Path) -> None:
    machine.service("install", "--start").ok()
    other = CommandHome(tmp_path / "lab home", machine.home.plugin)
    _configure(other)
    there = SystemdMachine(other, machine.root, machine.shell)
    refused = there.service("install")
    assert (refused.code, "starts another home" in refused.err) == (1, True)
    assert "--name everhold-lab-home" in refused.err
    assert there.service("stop").code == 1, "a service of another home is not meant"
    assert machine.state()["answers"]

    there.service("install", "--name", "everhold-lab-home", "--start").ok()
    assert there.state()["name"] == "everhold-lab-home"
    there.service("stop").ok()
    assert machine.state()["answers"]
    machine.service("stop").ok()


# -- frequent mistakes -------------------------------------------------------------------------------------------------


def test_a_gateway_in_a_terminal_is_reported_and_not_replaced(machine: SystemdMachine) -> None:
    machine.service("install").ok()
    gateway = machine.home.start_gateway()
    refused = machine.service("start")
    assert (refused.code, f"kill {gateway.process.pid}" in refused.err) == (1, True)
    assert machine.state()["active"] == "inactive (dead)"


def test_secrets_that_are_set_only_in_this_shell_are_named(machine: SystemdMachine) -> None:
    token = "  - {name: me, token_env: MY_TOKEN, person: ada}"
    people = "people: [{name: ada, identities: []}]"
    (machine.home.path / "config.yaml").write_text(f"{CONFIG}{people}\nhttp:\n  tokens:\n  {token}\n")
    told = machine.service("install", MY_TOKEN="s3cret-s3cret-s3cret-0123456789ab").ok()
    assert "MY_TOKEN is set only in this shell" in told.out
    assert "s3cret" not in told.out + told.err + machine.unit.read_text()
    env = machine.home.path / ".env"
    env.write_text("MY_TOKEN=s3cret-s3cret-s3cret-0123456789ab\n")
    env.chmod(0o600)
    assert "MY_TOKEN" not in machine.service("install", MY_TOKEN="s3cret-s3cret-s3cret-0123456789ab").ok().out


def test_a_refused_configuration_is_not_installed(machine: SystemdMachine) -> None:
    (machine.home.path / "config.yaml").write_text("agents: {main: {modle: m}}\n")
    assert machine.service("install").code == 78
    assert not machine.unit.exists()


def test_nothing_is_written_without_a_service_manager(machine: SystemdMachine) -> None:
    (machine.root / "bin" / "systemctl").unlink(missing_ok=True)
    without = {"PATH": str(machine.root / "bin")}
    refused = machine.service("install", **without)
    assert (refused.code, "there is no systemctl here" in refused.err) == (1, True)
    assert "everhold service print" in refused.err
    assert not machine.unit.exists()
    assert "Type=notify" in machine.service("print", **without).ok().out


# -- what doctor says --------------------------------------------------------------------------------------------------


def _doctor(machine: SystemdMachine, code: int) -> dict[str, str]:
    """Return the doctor's findings about the service, with remedies."""
    done = machine.run("doctor", "--offline", "--json")
    assert done.code == code, done.out + done.err
    return {it["text"]: it["remedy"] for it in done.json["findings"] if it["check"] == "service"}


def test_doctor_checks_the_unit(machine: SystemdMachine, tmp_path: Path) -> None:
    assert _doctor(machine, 0) == {}
    machine.service("install").ok()
    assert [*_doctor(machine, 0).items()] == [
        (f"{machine.unit} is installed, and no gateway answers", "everhold service start; everhold service status")
    ]
    gateway = machine.home.start_gateway()
    assert _doctor(machine, 0) == {}

    text = machine.unit.read_text()
    machine.unit.write_text(text.replace("RestartSec=5", "RestartSec=50"))
    assert any("was changed since everhold wrote it" in it for it in _doctor(machine, 0))
    machine.unit.write_text(text.replace(str(Path(sys.executable).parent), str(tmp_path / "gone")))
    assert any("which does not exist" in it for it in _doctor(machine, 1))
    machine.unit.write_text(text.replace(str(machine.home.path), str(tmp_path / "elsewhere")))
    assert any(f"starts another home: {tmp_path / 'elsewhere'}" in it for it in _doctor(machine, 0))
    gateway.kill()
