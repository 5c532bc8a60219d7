"""What the kernel refuses to a program in a sandbox, whatever the program does: capabilities, system calls, sockets."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from everhold.config import McpSettings
from everhold.infra import child_launcher
from everhold.infra.child_process import (
    ChildLimits,
    ChildProcesses,
    SandboxKind,
    SandboxMissing,
)
from everhold.tools.mcp import build_policy
from tests.hostile.test_child_limits import run_program
from tests.hostile.test_tool_server import SANDBOXES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandboxes are for Linux")

MACHINE = os.uname().machine
NUMBERS = child_launcher.SYSCALLS.get(MACHINE, (0, {}))[1]
KEYS_AND_RINGS = ("io_uring_setup", "add_key", "request_key", "keyctl")
"""They reach keys of our user, or do what the filter refuses without a system call for it."""
CHANGES_BY_PATH = (
    "chmod chown lchown fchownat fchmodat fchmodat2 setxattr lsetxattr removexattr lremovexattr setxattrat "
    "removexattrat file_setattr"
).split()
FAMILIES = {"unix": 1, "packet": 17, "alg": 38, "vsock": 40}

RIGHTS = """
import ctypes, json, os, sys
numbers, families = json.loads(sys.argv[1]), json.loads(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *given):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(number, *given) < 0 else 0
found = {}
found["calls"] = {name: call(number, 0, 0, 0, 0, 0) for name, number in numbers.items() if name != "socket"}
found["sockets"] = {name: call(numbers["socket"], family, 3, 0) for name, family in families.items()}
with open("/proc/self/status") as file:
    found["status"] = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
if os.uname().machine == "x86_64":
    child = os.fork()
    if child == 0:
        libc.syscall(0x40000000 + 39)
        os._exit(0)
    found["x32"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(found))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


async def find_rights(home: Path, kind: SandboxKind) -> dict[str, Any]:
    given = f"import sys\nsys.argv = ['', {json.dumps(NUMBERS)!r}, {json.dumps(FAMILIES)!r}]\n"
    status, out, told = await run_program(home, kind, given + RIGHTS, ChildLimits())
    assert (status, told) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_a_program_in_a_sandbox_has_no_right_that_goes_around_it(home: Path, kind: SandboxKind) -> None:
    found = await find_rights(home, kind)
    status = found["status"]
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    refused = (*KEYS_AND_RINGS, *(CHANGES_BY_PATH if kind is SandboxKind.LANDLOCK else ()))
    calls = {name: found["calls"][name] for name in refused if name in NUMBERS}
    assert calls == dict.fromkeys(calls, errno.EACCES)
    assert len(calls) >= 4
    assert found["sockets"] == dict.fromkeys(FAMILIES, errno.EACCES)
    if MACHINE == "x86_64":
        assert found["x32"] < 0, "a call under its other number was not ended"


async def test_without_a_sandbox_the_kernel_refuses_none_of_it(home: Path) -> None:
    """Shows that it is the sandbox that refuses the calls above."""
    found = await find_rights(home, SandboxKind.NONE)
    assert errno.EACCES not in [found["calls"][name] for name in (*KEYS_AND_RINGS, *CHANGES_BY_PATH) if name in NUMBERS]
    assert found["sockets"]["unix"] == 0
    assert found["status"]["Seccomp"] == "0"
    if MACHINE == "x86_64":
        assert found["x32"] == 0


async def test_if_no_sandbox_works_auto_starts_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: ChildProcesses, kind: SandboxKind) -> bool:
        return False

    monkeypatch.setattr(ChildProcesses, "_working", set())
    monkeypatch.setattr(ChildProcesses, "_is_working", fail)
    with pytest.raises(SandboxMissing, match="bubblewrap or landlock"):
        await ChildProcesses(home).choose_kind(SandboxKind.AUTO)


def test_the_limits_of_an_entry_are_those_of_its_program() -> None:
    given = {"max_memory_bytes": 70_000_001, "max_processes": 7, "max_cpu_seconds": 11}
    policy = build_policy(McpSettings.model_validate({"command": ("x",), **given}))
    assert policy.limits == ChildLimits(memory_bytes=70_000_001, processes=7, cpu_seconds=11)
    assert build_policy(McpSettings.model_validate({"command": ("x",)})).sandbox is SandboxKind.AUTO
