"""Service descriptions: managers can read them, they are parsed back, and a changed one is recognized."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from everhold.errors import InvalidRequest, Refused
from everhold.infra.home import Home
from everhold.service import installation, unit
from everhold.service.manager import LaunchdBackend, SystemdBackend, detect_service_backend

USER = Path("/home/ada")
HOMES = ["/home/ada/.everhold", "/srv/a b", "/srv/50%h", "/srv/$HOME", '/srv/"q"', "/srv/it's", "/srv/bä\\ck"]


def wanted(home: str = HOMES[0], program: str = "/opt/everhold/bin/everhold") -> unit.ServiceSpec:
    return unit.ServiceSpec(home=Path(home), program=(program,), search_path="/opt/bin:/usr/bin", version="1.2.3")


# -- systemd -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize(
    "text, read", [(unit.render_systemd, unit.parse_systemd), (unit.render_launchd, unit.parse_launchd)]
)
def test_a_rendered_description_can_be_parsed(home: str, text: object, read: object) -> None:
    assert callable(text)
    assert callable(read)
    found = read(text(wanted(home, "/opt/my programs/100%/everhold")), user_home=USER)
    assert found == unit.ServiceDescription("1.2.3", False, "/opt/my programs/100%/everhold", Path(home))


@pytest.mark.parametrize("home", HOMES)
def test_systemd_analyze_accepts_the_unit(tmp_path: Path, home: str) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not here: Debian's package systemd has it")
    path = tmp_path / "everhold.service"

    def verify(text: str) -> str:
        path.write_text(text)
        environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        words = [program, "--user", "verify", str(path)]
        return subprocess.run(words, env=environ, capture_output=True, text=True, check=False).stderr

    text = unit.render_systemd(wanted(home, sys.executable))
    assert verify(text) == ""
    assert "Unknown key" in verify(text.replace("WatchdogSec=", "WatchDogSeconds=")), "it does look"


def test_systemd_expands_nothing_in_a_path() -> None:
    """systemd replaces $HOME and %h also inside of quotes."""
    text = unit.render_systemd(wanted("/srv/$HOME/50%h", "/opt/$x/everhold"))
    assert 'ExecStart="/opt/$x/everhold" --home "/srv/$$HOME/50%%h" up' in text
    assert "Description=everhold gateway (/srv/$HOME/50%%h)" in text


def test_a_watchdog_kill_writes_no_core_dump() -> None:
    lines = unit.render_systemd(wanted()).splitlines()
    assert "LimitCORE=0" in lines, "a core dump would contain messages and keys"
    assert "UMask=0077" in lines


@pytest.mark.parametrize(
    "line, home, program",
    [
        ("ExecStart=%h/.local/bin/everhold up", "/home/ada/.everhold", "/home/ada/.local/bin/everhold"),
        ("ExecStart=-/usr/bin/everhold --home=/srv/x up", "/srv/x", "/usr/bin/everhold"),
        ("Environment=A=1 EVERHOLD_HOME=/srv/y\nExecStart=/usr/bin/everhold up", "/srv/y", "/usr/bin/everhold"),
    ],
)
def test_a_unit_of_an_administrator_is_parsed_as_foreign(line: str, home: str, program: str) -> None:
    found = unit.parse_systemd(f"[Service]\n{line}\n", user_home=USER)
    assert found == unit.ServiceDescription("", True, program, Path(home))


@pytest.mark.parametrize("text", ["", "nonsense", '[Service]\nExecStart="unfinished', "<plist><dict>", "\0"])
def test_an_invalid_unit_has_no_home(text: str) -> None:
    for read in (unit.parse_systemd, unit.parse_launchd):
        assert read(text, user_home=USER) == unit.ServiceDescription("", True, "", None)


@pytest.mark.parametrize("text", [unit.render_systemd(wanted()), unit.render_launchd(wanted())])
def test_every_edit_of_a_unit_is_detected(text: str) -> None:
    read = unit.parse_launchd if text.startswith("<?xml") else unit.parse_systemd
    lines = text.splitlines(keepends=True)
    changed = [text + "# mine\n", "# mine\n" + text, text.replace("\n", "\r\n")]
    changed += ["".join(lines[:n] + lines[n + 1 :]) for n in range(len(lines))]
    changed += ["".join([*lines[:n], "# mine\n", *lines[n:]]) for n in range(len(lines))]
    assert not read(text, user_home=USER).edited
    assert [read(it, user_home=USER).edited for it in changed] == [True] * len(changed)


@pytest.mark.parametrize("bad", ["a\nExecStartPre=/bin/evil", "a\0b"])
def test_a_path_cannot_add_lines(bad: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be used"):
        wanted(f"/srv/{bad}")
    with pytest.raises(InvalidRequest, match="cannot name a service"):
        unit.ServiceSpec(home=Path("/x"), program=("/y",), search_path="", version="1", name="../../evil")


# -- the others --------------------------------------------------------------------------------------------------------


def test_launchd_restarts_the_gateway_after_a_failure() -> None:
    properties = plistlib.loads(unit.render_launchd(wanted("/srv/a & b")).encode())
    assert properties["ProgramArguments"] == [
        "/opt/everhold/bin/everhold",
        "--home",
        "/srv/a & b",
        "up",
        "--give-up-with",
        "0",
        "--quiet",
    ]
    assert properties["KeepAlive"] == {"SuccessfulExit": False}
    assert properties["ExitTimeOut"] >= 60
    assert properties["Umask"] == 0o077


def test_windows_gets_a_description_for_a_wrapper() -> None:
    root = ElementTree.fromstring(unit.render_winsw(wanted('/srv/a & "b"')))
    arguments = root.findtext("arguments")
    assert arguments is not None
    assert arguments.startswith("--home ")
    assert root.findtext("executable") == "/opt/everhold/bin/everhold"
    assert root.findtext("stoptimeout") == "60 sec"
    with pytest.raises(Refused, match="Windows"):
        detect_service_backend({}, platform="win32")


LAUNCHCTL = """#!/bin/sh
# Loads and unloads like launchctl, and records its arguments.
echo "$@" >> "$FAKE/asked"
case "$1 $2" in
"print gui/"*/*) test -e "$FAKE/loaded" || exit 113; cat "$FAKE/loaded";;
"bootstrap "*) printf 'it = {\\n\\tstate = running\\n\\tpid = 4711\\n\\tlast exit code = 0\\n}\\n' > "$FAKE/loaded";;
"bootout "*) rm "$FAKE/loaded";;
esac
"""


def test_launchctl_is_called_with_its_own_commands(tmp_path: Path) -> None:
    program = tmp_path / "launchctl"
    program.write_text(LAUNCHCTL)
    program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "FAKE": str(tmp_path), "HOME": str(tmp_path)}
    before, os.environ["PATH"] = (
        os.environ["PATH"],
        environ["PATH"],
    )  # this process's PATH finds the program
    try:
        manager = detect_service_backend(environ, platform="darwin")
        assert isinstance(manager, LaunchdBackend)
        manager.check_available()
        found, _ = installation.install_service(manager, Home(tmp_path / "home"), environ, name="", force=False)
        assert found.path == tmp_path / "Library" / "LaunchAgents" / "everhold.plist"
        manager.register("everhold")
        assert not manager.get_state("everhold").running
        manager.start("everhold")
        state = manager.get_state("everhold")
        assert (state.running, state.pid, state.exit) == (True, 4711, None)
        manager.unregister("everhold")
        installation.remove_service(found, force=False)
    finally:
        os.environ["PATH"] = before
    me = f"gui/{os.getuid()}"
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if not line.startswith("print")]
    assert asked == [
        f"enable {me}/everhold",
        f"bootstrap {me} {found.path}",
        f"kickstart {me}/everhold",
        f"bootout {me}/everhold",
    ]
    assert not found.path.exists()


# -- installed services ------------------------------------------------------------------------------------------------


def test_units_are_in_the_directory_of_systemd() -> None:
    assert SystemdBackend({}, USER).get_path("everhold") == USER / ".config/systemd/user/everhold.service"
    assert SystemdBackend({"XDG_CONFIG_HOME": "/c"}, USER).get_path("x") == Path("/c/systemd/user/x.service")
    assert SystemdBackend({"XDG_CONFIG_HOME": "c"}, USER).description_directory.is_relative_to(USER), (
        "a relative one is not meant"
    )


def test_the_runtime_directory_is_found_without_its_variable(tmp_path: Path) -> None:
    assert "XDG_RUNTIME_DIR" not in SystemdBackend({}, USER, runtimes=tmp_path).environ
    (tmp_path / str(os.getuid())).mkdir()
    assert SystemdBackend({}, USER, runtimes=tmp_path).environ["XDG_RUNTIME_DIR"] == str(tmp_path / str(os.getuid()))
    assert SystemdBackend({"XDG_RUNTIME_DIR": "/x"}, USER, runtimes=tmp_path).environ["XDG_RUNTIME_DIR"] == "/x"


def test_only_absolute_paths_are_in_a_service_s_path() -> None:
    spec = installation.build_service_spec(Home(Path("/srv/x")), {"PATH": f".:/usr/bin::bin:/usr/bin:/bin{os.pathsep}"})
    assert spec.search_path == "/usr/bin:/bin"


@pytest.mark.parametrize(
    "changes, level, text",
    [
        ({}, "", ""),
        ({"version": "0.0.1"}, "note", "written by everhold 0.0.1"),
        ({"program": ("/nowhere/everhold",)}, "wrong", "/nowhere/everhold, which does not exist"),
        ({"program": ("/bin/sh",)}, "note", "starts /bin/sh; this is"),
    ],
)
def test_problems_of_a_description_are_reported(
    tmp_path: Path, changes: Mapping[str, object], level: str, text: str
) -> None:
    manager = SystemdBackend({}, tmp_path)
    home = Home(tmp_path / "home")
    now = installation.build_service_spec(home, os.environ)
    old = unit.ServiceSpec(**{**now.__dict__, **changes})
    path = manager.get_path("everhold")
    path.parent.mkdir(parents=True)
    path.write_text(unit.render_systemd(old))
    found = installation.find_service_of_home(manager, home)
    assert found is not None
    complaints = installation.list_complaints(found)
    assert [it[0] for it in complaints] == ([level] if level else [])
    assert all(text in it[1] and it[2] == "everhold service install" for it in complaints)
