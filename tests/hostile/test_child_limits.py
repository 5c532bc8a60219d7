"""A program of somebody else cannot use up the machine: memory, processes, processor time, files in memory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from everhold.infra import child_launcher
from everhold.infra.child_launcher import EXIT_OVER_LIMIT, ChildWatch
from everhold.infra.child_process import ChildLimits, ChildPolicy, ChildProcesses, SandboxKind, end_child
from tests.hostile.test_tool_server import KINDS, is_alive, require
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limits are for Linux")

MB = 1_000_000
PATIENCE_SECONDS = 6 * LIMIT_SECONDS
"""A program has to use a second of processor time, of which a busy machine has little for it."""


async def run_program(home: Path, kind: SandboxKind, code: str, limits: ChildLimits) -> tuple[int, str, str]:
    """Run a program until it ends. Returns its status, and what it wrote to standard output and standard error."""
    await require(kind, home)
    process = await ChildProcesses(home).start(
        [sys.executable, "-I", "-S", "-c", code],
        directory=home / "own",
        environ={},
        policy=ChildPolicy(sandbox=kind, limits=limits),
        limit=1 << 16,
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, told = await process.communicate()
    finally:
        await end_child(process)
    assert process.returncode is not None
    return process.returncode, out.decode(), told.decode()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.mark.parametrize("kind", KINDS)
async def test_one_process_gets_no_more_memory_than_the_limit(home: Path, kind: SandboxKind) -> None:
    code = "try: bytearray(300_000_000)\nexcept MemoryError: print('refused')"
    assert await run_program(home, kind, code, ChildLimits(memory_bytes=200 * MB)) == (0, "refused\n", "")
    assert (await run_program(home, kind, code, ChildLimits(memory_bytes=2_000 * MB)))[1] == "", "the limit refused it"


HOARDERS = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        hoard = bytearray(os.urandom(1 << 20)) * 60
        time.sleep(36000)
time.sleep(36000)
"""


@pytest.mark.parametrize("kind", KINDS)
async def test_the_memory_of_all_its_processes_is_added_up(home: Path, kind: SandboxKind) -> None:
    status, _, told = await run_program(home, kind, HOARDERS, ChildLimits(memory_bytes=150 * MB))
    assert status == EXIT_OVER_LIMIT
    assert told.strip() == "it used more than 150,000,000 bytes of memory"


SHARERS = """
import os, time
hoard = bytearray(os.urandom(1 << 20)) * 60
for _ in range(4):
    if os.fork() == 0:
        time.sleep(3)
        os._exit(0)
for _ in range(4):
    os.wait()
print('shared')
"""


async def test_memory_that_processes_share_counts_once(home: Path) -> None:
    status, out, told = await run_program(home, SandboxKind.NONE, SHARERS, ChildLimits(memory_bytes=150 * MB))
    assert (status, out, told) == (0, "shared\n", "")


CROWD = """
import fcntl, os, time
lock = open('alive', 'w')
fcntl.flock(lock, fcntl.LOCK_EX)
for _ in range(7):
    os.fork()
os.setsid() if os.getpgid(0) != os.getpid() else None
time.sleep(36000)
"""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_program_that_multiplies_is_ended_with_all_its_processes(home: Path, kind: SandboxKind) -> None:
    status, _, told = await run_program(home, kind, CROWD, ChildLimits(processes=40))
    assert status == EXIT_OVER_LIMIT
    assert told.strip() == "it started more than 40 processes"
    await wait_until(lambda: not is_alive(home / "own" / "alive"))


RABBIT = """
import os, time
if os.fork():
    time.sleep(36000)
while True:
    if os.fork():
        os._exit(0)
"""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_process_that_is_always_another_one_is_ended(home: Path, kind: SandboxKind) -> None:
    """Each process starts the next one and ends, so of the listed processes none may run any more."""
    status, _, told = await run_program(home, kind, RABBIT, ChildLimits(cpu_seconds=1))
    assert (status, "processor time" in told) == (EXIT_OVER_LIMIT, True)


async def test_the_kernel_ends_all_processes_of_a_program_of_root_at_once(home: Path) -> None:
    """It does not limit how many processes root may start. So they are in a PID namespace, whose first process is
    ours."""
    if os.getuid() != 0:
        pytest.skip("the kernel limits the processes of this user")
    status, out, _ = await run_program(
        home, SandboxKind.LANDLOCK, "import os; print(os.getpid(), os.getppid())", ChildLimits()
    )
    assert (status, out) == (0, "2 1\n")
    code = "import os, signal, time\nif os.fork(): os.kill(os.getpid(), signal.SIGKILL)\n" + (
        "import fcntl\nlock = open('alive', 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\nos.setsid()\ntime.sleep(36000)"
    )
    assert (await run_program(home, SandboxKind.LANDLOCK, code, ChildLimits()))[0] == 128 + 9
    assert not (home / "own" / "alive").exists() or not is_alive(home / "own" / "alive")


COUNT_LOOKS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import child_launcher
child_launcher._call_prctl(child_launcher.PR_SET_CHILD_SUBREAPER, 1)
for _ in range(20):
    if os.fork() == 0:
        for _ in range(20):
            if os.fork() == 0:
                break
        time.sleep(36000)
while len(child_launcher.list_children_of(os.getpid())) < 420:
    time.sleep(0.01)
looks, opened = 0, open
def count_looks(path, *more):
    global looks
    looks += 1
    return opened(path, *more)
child_launcher.open = count_looks
listed, listdir = 0, os.listdir
def count_lists(path):
    global listed
    listed += path == "/proc"
    return listdir(path)
os.listdir = count_lists
child_launcher.end_descendants()
print(looks, listed, len(child_launcher.list_descendants(os.getpid())))
"""


async def test_many_processes_are_ended_with_few_looks() -> None:
    """A program of root may start processes without a limit of the kernel. Whoever looks at all of them for each one
    that ends is slower than it, and the machine has no process left."""
    code = [sys.executable, "-c", COUNT_LOOKS, str(Path(child_launcher.__file__).parent)]
    process = await asyncio.create_subprocess_exec(*code, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    looks, listed, left = map(int, out.split())
    assert left == 0
    assert looks < 420, f"{looks} files were read to end 420 processes"
    assert listed <= 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_program_that_only_burns_processor_time_is_ended(home: Path, kind: SandboxKind) -> None:
    status, _, told = await run_program(home, kind, "while True: pass", ChildLimits(cpu_seconds=1))
    assert status == EXIT_OVER_LIMIT
    assert told.strip() == "it used more than 1 s of processor time in 15 minutes"


@pytest.mark.parametrize(
    "code", [HOARDERS, CROWD, "while time.process_time() < 0.5: pass"], ids="hoard crowd burn".split()
)
async def test_with_higher_limits_the_attacks_succeed(home: Path, code: str) -> None:
    """Shows that the attacks above are real, and that a program within its limits is left alone."""
    patient = "import os, time\n" + code.replace("time.sleep(36000)", "time.sleep(2)")
    limits = ChildLimits(memory_bytes=4_000 * MB, processes=1_000, cpu_seconds=1_000)
    assert await run_program(home, SandboxKind.NONE, patient, limits) == (0, "", "")


async def test_the_time_of_processes_that_have_ended_counts(home: Path) -> None:
    code = (
        "import os, time\n"
        "while True:\n"
        "    if os.fork() == 0:\n"
        "        while time.process_time() < 0.2: pass\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    status, _, told = await run_program(home, SandboxKind.NONE, code, ChildLimits(cpu_seconds=1))
    assert (status, "processor time" in told) == (EXIT_OVER_LIMIT, True)


def test_processor_time_of_long_ago_does_not_count() -> None:
    watch = ChildWatch({"memory_bytes": 10**12, "processes": 1000, "cpu_seconds": 100}, now=0.0)
    busy = [watch._count_recent_cpu(float(second), second * 0.1) for second in range(5_000)]
    assert max(busy) <= child_launcher.CPU_WINDOW_SECONDS * 0.1 + 0.2
    assert busy[-1] >= child_launcher.CPU_WINDOW_SECONDS * 0.1 - 0.2
    assert len(watch._cpu_history) < 1_000


async def test_a_reader_that_does_not_read_keeps_no_program_alive(home: Path) -> None:
    """The launcher must not wait until somebody reads why it ended the program."""
    code = (
        "import os\nos.set_blocking(2, False)\ntry:\n    while True: os.write(2, b'x' * 65536)\nexcept OSError: pass\n"
    )
    process = await ChildProcesses(home).start(
        [sys.executable, "-I", "-S", "-c", code + "while True: pass"],
        directory=home / "own",
        environ={},
        policy=ChildPolicy(sandbox=SandboxKind.NONE, limits=ChildLimits(cpu_seconds=1)),
        limit=1 << 10,
    )
    try:
        await wait_until(lambda: process.returncode is not None, seconds=PATIENCE_SECONDS)
        assert process.returncode == EXIT_OVER_LIMIT
    finally:
        await end_child(process)
        await process.communicate()


LIMITS = """
import json, os, resource
names = ("RLIMIT_DATA", "RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_NPROC")
print(json.dumps([*(resource.getrlimit(getattr(resource, name)) for name in names), os.nice(0)]))
try: resource.setrlimit(resource.RLIMIT_DATA, (10**12, 10**12))
except (OSError, ValueError): print('fixed')
"""


@pytest.mark.parametrize("kind", [SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK])
async def test_the_kernel_keeps_the_limits_of_each_process(home: Path, kind: SandboxKind) -> None:
    _, out, _ = await run_program(home, kind, LIMITS, ChildLimits(memory_bytes=500 * MB, processes=30))
    first, second = out.splitlines()
    data, files, core, tasks, niceness = json.loads(first)
    assert (data, core) == ([500 * MB] * 2, [0, 0])
    assert 0 < files[1] <= child_launcher.MAX_OPEN_FILES
    assert 30 < tasks[1] < 30 + child_launcher.SPARE_TASKS + 100_000
    assert niceness >= min(19, os.nice(0) + child_launcher.NICENESS)
    assert second == "fixed", "the program raised its own limit"


async def test_files_in_memory_are_limited(home: Path) -> None:
    code = (
        "import os\n"
        "for path in ('/tmp', '/dev/shm'):\n"
        "    room = os.statvfs(path)\n"
        "    print(room.f_blocks * room.f_frsize >> 20)\n"
        "    open(path + '/works', 'w').write('x')\n"
        "open('/dev/null', 'w').write('x')\n"
        "try: open('/dev/hoard', 'w')\n"
        "except OSError: print('refused')\n"
    )
    assert await run_program(home, SandboxKind.BUBBLEWRAP, code, ChildLimits()) == (0, "256\n256\nrefused\n", "")
