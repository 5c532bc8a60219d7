"""The systemd units take rights away from the gateway, and leave it those that it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from everhold.service import unit

SYSTEMD_ANALYZE = shutil.which("systemd-analyze")
MAX_SYSTEM_EXPOSURE = 3.0
MAX_USER_EXPOSURE = 7.5

WANTED = unit.ServiceSpec(
    home=Path("/var/lib/everhold"), program=("/opt/everhold/bin/everhold",), search_path="/usr/bin", version="1.2.3"
)


def measure_exposure(text: str, directory: Path, *words: str) -> float:
    assert SYSTEMD_ANALYZE is not None
    path = directory / "everhold.service"
    path.write_text(text)
    done = subprocess.run(
        [SYSTEMD_ANALYZE, *words, "security", "--offline=true", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(directory)},
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stderr
    return float(found[1])


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd-analyze is missing: apt install systemd runs this")
def test_systemd_itself_finds_the_units_safe(tmp_path: Path) -> None:
    text = unit.render_system_unit(WANTED)
    assert measure_exposure(text, tmp_path) <= MAX_SYSTEM_EXPOSURE
    assert measure_exposure(text.replace("ProtectSystem=strict\n", ""), tmp_path) > measure_exposure(text, tmp_path)
    assert measure_exposure(unit.render_systemd(WANTED), tmp_path, "--user") <= MAX_USER_EXPOSURE


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd-analyze is missing: apt install systemd runs this")
@pytest.mark.parametrize("user", [True, False])
def test_systemd_knows_every_line(tmp_path: Path, user: bool) -> None:
    assert SYSTEMD_ANALYZE is not None
    render = unit.render_systemd if user else unit.render_system_unit
    path = tmp_path / "everhold.service"
    # verify also looks for the program and for the user
    path.write_text(render(WANTED).replace("/opt/everhold/bin/everhold", "/bin/true").replace("User=everhold", ""))
    words = [SYSTEMD_ANALYZE, *(["--user"] if user else []), "verify", str(path)]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environ)
    assert done.stderr == ""


@pytest.mark.parametrize("render", [unit.render_systemd, unit.render_system_unit])
def test_the_units_leave_what_the_gateway_needs(render: object) -> None:
    """The sandboxes were tried under a real systemd 252 with each of these lines, as an ordinary user."""
    assert callable(render)
    lines = str(render(WANTED)).splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert {"user", "mnt", "pid", "net", "ipc", "uts"} <= set(found["RestrictNamespaces"].split()), "for bubblewrap"
    assert {"@system-service", "@mount", "landlock_restrict_self", "seccomp"} <= set(found["SystemCallFilter"].split())
    assert {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"} == set(found["RestrictAddressFamilies"].split())
    for name in ("ProtectKernelTunables", "ProtectKernelLogs", "ProcSubset"):
        assert name not in found, "with it the kernel refuses bubblewrap a /proc"
    assert "MemoryDenyWriteExecute" not in found, "Node.js compiles while it runs"
    assert "PrivateNetwork" not in found
    assert found["NoNewPrivileges"] == "yes"


@pytest.mark.parametrize(
    "home, program, protect",
    [
        ("/var/lib/everhold", "/opt/everhold/bin/everhold", "yes"),
        ("/home/ada/.everhold", "/opt/everhold/bin/everhold", "read-only"),
        ("/var/lib/everhold", "/home/ada/.local/bin/everhold", "read-only"),
    ],
)
def test_the_system_unit_can_reach_its_home_and_its_program(home: str, program: str, protect: str) -> None:
    text = unit.render_system_unit(
        unit.ServiceSpec(home=Path(home), program=(program,), search_path="", version="1", user="ada")
    )
    lines = text.splitlines()
    assert f"ReadWritePaths={home}" in lines
    assert f"ProtectHome={protect}" in lines
    assert "User=ada" in lines
    assert unit.parse_systemd(text, user_home=Path("/home/ada")).home == Path(home)
