"""The shell tool: what a command may do, and that nothing outside of the workspace can be read, changed or reached."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Stamp
from everhold.core.policy import ToolReach
from everhold.errors import EverholdError
from everhold.infra import child_launcher, child_process
from everhold.infra.child_launcher import SPARE_TASKS
from everhold.infra.child_process import ChildProcesses, SandboxKind, find_cgroup_folder
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult, get_reach
from everhold.tools import shell
from everhold.tools.shell import ShellLimits, ShellTool, find_shell_problem
from tests.hostile.test_tool_server import SANDBOXES, require
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandboxes are for Linux")

SECRET = "the-secret-of-the-home-0123456789"
NEVER_SECONDS = int(6 * LIMIT_SECONDS)
"""Longer than any command here takes on a busy machine."""


class ShellBench:
    """A home with a secret and a socket, and a shell in a workspace of it."""

    def __init__(self, path: Path, kind: SandboxKind, **limits: Any) -> None:
        self.home = path / "home"
        self.root = self.home / "workspaces" / "main" / "p_1"
        self.root.mkdir(parents=True)
        (self.home / ".env").write_text(SECRET)
        (path / "elsewhere").mkdir()
        (path / "elsewhere" / "file").write_text(SECRET)
        self.tool = ShellTool(
            self._find,
            ChildProcesses(self.home),
            ShellLimits(sandbox=kind, **limits),
            {**os.environ, "EVERHOLD_TEST_SECRET": SECRET},
            (self.home / "skills",),
        )

    async def _find(self, context: ToolContext) -> Path:
        return self.root

    async def run(self, command: str, **more: Any) -> ToolResult:
        context = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp())
        return await self.tool.run({"command": command, "seconds": NEVER_SECONDS, **more}, context)


@pytest.fixture(params=SANDBOXES)
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> ShellBench:
    await require(request.param, tmp_path)
    return ShellBench(tmp_path, request.param)


# -- what it does ------------------------------------------------------------------------------------------------------


async def test_a_script_of_a_skill_can_be_run_and_not_changed(bench: ShellBench) -> None:
    skill = bench.home / "skills" / "one"
    skill.mkdir(parents=True)
    (skill / "hello.sh").write_text("echo hello from the skill\n")
    (skill / "leak").symlink_to(bench.home / ".env")
    assert "hello from the skill" in (await bench.run(f"sh {skill}/hello.sh")).text
    done = await bench.run(f"echo changed > {skill}/hello.sh; touch {skill}/new; cat {skill}/leak {bench.home}/.env")
    assert done.error
    assert SECRET not in done.text
    assert (skill / "hello.sh").read_text() == "echo hello from the skill\n"
    assert not (skill / "new").exists()


async def test_a_command_works_in_the_workspace(bench: ShellBench) -> None:
    done = await bench.run("echo hello > a.txt && cat a.txt && mkdir sub && pwd")
    assert not done.error
    assert done.text == f"Exit status 0.\nhello\n{bench.root}"
    assert (bench.root / "a.txt").read_text() == "hello\n"
    assert (await bench.run("pwd", cwd="sub")).text.endswith("/sub")
    failed = await bench.run("echo oops >&2; exit 3")
    assert failed.error
    assert failed.text == "Exit status 3.\noops"
    assert (await bench.run("kill -9 $$")).text.startswith("It was ended by signal 9")


async def test_a_command_has_no_input_and_no_variable_of_the_gateway(bench: ShellBench) -> None:
    assert (await bench.run("cat")).text == "Exit status 0."
    shown = (await bench.run("env")).text
    assert SECRET not in shown
    assert f"HOME={bench.root}" in shown


def test_its_effect_is_once_and_its_reach_follows_the_network(tmp_path: Path) -> None:
    with_network = ShellBench(tmp_path, SandboxKind.AUTO, network=True).tool
    assert with_network.effect is ToolEffect.ONCE
    assert get_reach(with_network, {"command": "ls"}) is ToolReach.CHANGE
    assert get_reach(with_network, {"command": "ls", "network": True}) is ToolReach.OUTSIDE
    assert "network" in with_network.spec.parameters["properties"]


# -- out of the sandbox ------------------------------------------------------------------------------------------------


ESCAPES = [
    "cat {home}/.env",
    "cat ../../../.env",
    "cat {elsewhere}/file",
    "ln -s {home}/.env link; cat link",
    "ln -s / root; cat root{home}/.env",
    "ln {home}/.env hard; cat hard",
    "cat /proc/{gateway}/environ",
    "cat /proc/1/environ | tr '\\0' '\\n'",
    "cat /proc/{gateway}/root{home}/.env",
    "cat /proc/self/root{home}/.env",
    "cat /proc/{gateway}/cwd/.env",
    "cat /proc/{gateway}/mem",
    "grep -r {secret_start} {home} {elsewhere}",
    "find / -name .env -exec cat {{}} + 2>/dev/null",
    "mount --bind {home} . ; cat .env",
    "unshare -rm sh -c 'mount --bind {home} /mnt && cat /mnt/.env'",
    "chroot / cat {home}/.env",
    "nsenter -t {gateway} -m cat {home}/.env",
    "cat < {home}/.env",
]


@pytest.mark.parametrize("escape", ESCAPES)
async def test_no_command_reads_the_home_or_another_folder(bench: ShellBench, escape: str) -> None:
    elsewhere = bench.home.parent / "elsewhere"
    command = escape.format(home=bench.home, elsewhere=elsewhere, gateway=os.getpid(), secret_start=SECRET[:12])
    assert SECRET not in (await bench.run(command)).text


@pytest.mark.parametrize(
    "escape",
    [it for it in ESCAPES if it.startswith(("cat {home}", "cat ..", "cat {else", "ln ", "grep", "cat <"))],
)
async def test_without_a_sandbox_the_same_commands_read_it(tmp_path: Path, escape: str) -> None:
    """The planted weakness: it is the sandbox that stops these commands, and not a mistake in them."""
    bench = ShellBench(tmp_path, SandboxKind.NONE)
    command = escape.format(home=bench.home, elsewhere=tmp_path / "elsewhere", secret_start=SECRET[:12])
    assert SECRET in (await bench.run(command)).text


async def test_no_command_writes_outside_of_the_workspace(bench: ShellBench) -> None:
    outside = bench.home.parent / "elsewhere"
    places = (bench.home / ".env", bench.home / "new", outside / "file", outside / "new")
    commands = [f"echo changed > {place}" for place in places]
    commands += [f"ln -sf {outside / 'file'} link; echo changed > link", f"rm -rf {bench.home} {outside}"]
    commands += [
        f"mv a {bench.home}/a",
        f"chmod 777 {bench.home}",
        "touch /usr/everhold-test",
        "touch /etc/everhold-test",
    ]
    for command in commands:
        await bench.run(command)
    assert (bench.home / ".env").read_text() == SECRET
    assert (outside / "file").read_text() == SECRET
    assert sorted(path.name for path in bench.home.iterdir()) == [".env", "workspaces"]
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert "everhold-test" not in (*os.listdir("/usr"), *os.listdir("/etc"))


class KnockableSocket:
    """A listening socket that counts connections."""

    def __init__(self, family: int, address: Any) -> None:
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.bind(address)
        self.socket.listen()
        self.count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.count += 1
            connection.close()


CONNECT = """
import socket
there = socket.socket(socket.{family})
there.settimeout(5)
there.connect({address!r})
print('con' + 'nected')
"""


@pytest.fixture
def port() -> Iterator[KnockableSocket]:
    listening = KnockableSocket(socket.AF_INET, ("127.0.0.1", 0))
    yield listening
    listening.socket.close()


async def test_no_command_reaches_a_port_or_a_socket_of_this_machine(bench: ShellBench, port: KnockableSocket) -> None:
    api = KnockableSocket(socket.AF_UNIX, str(bench.home / "api.sock"))
    inside = KnockableSocket(socket.AF_UNIX, str(bench.root / "own.sock"))
    try:
        (bench.root / "ip.py").write_text(CONNECT.format(family="AF_INET", address=port.socket.getsockname()))
        (bench.root / "unix.py").write_text(CONNECT.format(family="AF_UNIX", address=str(bench.home / "api.sock")))
        (bench.root / "own.py").write_text(CONNECT.format(family="AF_UNIX", address=str(bench.root / "own.sock")))
        for name in ("ip", "unix", "own"):
            answer = await bench.run(f"{find_python()} {name}.py")
            assert "connected" not in answer.text
            assert answer.error
            assert "Error" in answer.text, "it was tried"
    finally:
        api.socket.close()
        inside.socket.close()
    assert (port.count, api.count, inside.count) == (0, 0, 0)


def find_python() -> str:
    return "/usr/bin/python3" if Path("/usr/bin/python3").exists() else "python3"


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_with_network_a_command_reaches_a_port(tmp_path: Path, kind: SandboxKind, port: KnockableSocket) -> None:
    """Shows that it is the sandbox that refuses the connection above."""
    await require(kind, tmp_path)
    bench = ShellBench(tmp_path, kind, network=True)
    (bench.root / "ip.py").write_text(CONNECT.format(family="AF_INET", address=port.socket.getsockname()))
    assert "connected" in (await bench.run(f"{find_python()} ip.py", network=True)).text
    await wait_until(lambda: port.count == 1)  # a thread counts
    assert "connected" not in (await bench.run(f"{find_python()} ip.py")).text
    assert port.count == 1, "without asking for it there is no network"


async def test_a_shell_without_network_refuses_to_be_asked(bench: ShellBench) -> None:
    with pytest.raises(EverholdError, match="has no network"):
        await bench.run("ls", network=True)


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_a_command_that_takes_too_long_is_ended_and_its_output_kept(bench: ShellBench) -> None:
    done = await bench.run("echo begun; sleep 36000", seconds=3)
    assert done.error
    assert "ended after 3 s" in done.text
    assert "begun" in done.text


async def test_nothing_runs_after_the_call(bench: ShellBench) -> None:
    await bench.run("(sleep 1; echo late > late) & nohup setsid sh -c 'sleep 1; echo late > late2' >/dev/null 2>&1 &")
    await bench.run("sleep 3")
    assert not (bench.root / "late").exists()
    assert not (bench.root / "late2").exists()


MANY_PROCESSES = """
import os, time
made = 0
for _ in range(1000):
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        time.sleep(20)
        os._exit(0)
    made += 1
print("started", made, flush=True)
time.sleep(20)
"""
"""It starts them one by one, so a sandbox that does not limit them harms nobody else."""


async def test_a_command_cannot_start_many_processes_not_even_for_a_moment(tmp_path: Path, bench: ShellBench) -> None:
    limited = ShellBench(tmp_path / "other", bench.tool._limits.sandbox, processes=10)
    (limited.root / "many.py").write_text(MANY_PROCESSES)
    done = await limited.run(f"{find_python()} many.py; echo survived")
    started = re.search(r"started (\d+)", done.text)
    assert started is None or int(started[1]) < 10 * 4 + 64 + SPARE_TASKS
    assert "it started more than 10 processes" in done.text
    assert "survived" not in done.text
    assert (await bench.run("echo fine")).text == "Exit status 0.\nfine"


@pytest.mark.skipif(os.geteuid() != 0, reason="for others the kernel limits the processes of the user")
async def test_where_the_gateway_is_root_a_cgroup_limits_the_processes(
    tmp_path: Path, bench: ShellBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = find_cgroup_folder()
    if folder is None:
        pytest.skip("this machine has no cgroup that we may use")
    limited = ShellBench(tmp_path / "other", bench.tool._limits.sandbox, processes=10)
    (limited.root / "many.py").write_text(MANY_PROCESSES.replace("time.sleep(20)\n", "pass\n").replace("1000", "400"))
    done = await limited.run(f"{find_python()} many.py")
    assert not [path for path in folder.iterdir() if path.name.startswith(f"everhold-{os.getpid()}-")], done.text
    monkeypatch.setattr(child_process, "find_cgroup_folder", lambda: None)
    problem = await find_shell_problem(ChildProcesses(tmp_path), SandboxKind.AUTO)
    assert problem is not None
    assert "runs as root" in problem[0]


async def test_memory_is_limited(tmp_path: Path, bench: ShellBench) -> None:
    limited = ShellBench(tmp_path / "other", bench.tool._limits.sandbox, memory_bytes=300_000_000)
    assert "MemoryError" in (await limited.run(f"{find_python()} -c 'bytearray(10**9)'")).text


async def test_a_large_output_is_cut_off_and_kept_as_a_file(bench: ShellBench, monkeypatch: pytest.MonkeyPatch) -> None:
    done = await bench.run("i=0; while [ $i -lt 3000 ]; do echo line $i of the output; i=$((i+1)); done")
    assert len(done.text) < shell.MAX_SHOWN_BYTES + 500
    assert "line 0 of" in done.text
    assert "line 2999 of" in done.text
    (file,) = done.files
    assert file.data.count(b"\n") == 3000
    monkeypatch.setattr(shell, "MAX_OUTPUT_BYTES", 100_000)
    endless = await bench.run("yes")
    assert "wrote more than 100,000 bytes" in endless.text
    assert endless.error


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": ""},
        {"command": 3},
        {"command": "x" * 20_001},
        {"command": "a\0b"},
        {"command": "ls", "cwd": "../.."},
        {"command": "ls", "cwd": "/"},
        {"command": "ls", "cwd": "missing"},
        {"command": "ls", "seconds": "long"},
    ],
)
async def test_wrong_arguments_get_an_answer(tmp_path: Path, arguments: dict[str, Any]) -> None:
    bench = ShellBench(tmp_path, SandboxKind.AUTO)
    with pytest.raises(EverholdError) as caught:
        await bench.run(**arguments)
    assert caught.value.remedy


def test_the_exit_statuses_are_those_of_the_launcher() -> None:
    ours = (child_process.EXIT_NOT_STARTED, child_process.EXIT_OVER_LIMIT)
    assert ours == (child_launcher.EXIT_NOT_STARTED, child_launcher.EXIT_OVER_LIMIT)


async def test_without_a_sandbox_no_shell_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: ChildProcesses, kind: SandboxKind) -> bool:
        return False

    monkeypatch.setattr(ChildProcesses, "_working", set())
    monkeypatch.setattr(ChildProcesses, "_is_working", fail)
    problem = await find_shell_problem(ChildProcesses(tmp_path), SandboxKind.AUTO)
    assert problem is not None
    assert "no sandbox works here" in problem[0]
    assert "install bubblewrap" in problem[1]
