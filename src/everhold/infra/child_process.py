"""Starts programs that the gateway does not trust: tool servers and the hosts of memory plug-ins.

Each gets a directory of its own inside the home, only the environment that its entry names, no descriptor of ours, and
a sandbox that hides the home. If no sandbox works on this machine, the program is not started, unless its entry says
`sandbox: none`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final

from everhold.errors import InvalidRequest

LAUNCHER_FILE: Final = Path(__file__).with_name("child_launcher.py")
BUBBLEWRAP: Final = "bwrap"
PROBE_SECONDS: Final = 60.0
"""Time limit of the test whether a kind of sandbox works. It takes a tenth of a second."""
CGROUP_FOLDERS: Final = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
"""Where cgroups with a limit of processes are made: version 1, version 2."""
EXIT_NOT_STARTED: Final = 125
EXIT_OVER_LIMIT: Final = 124
"""The exit statuses of the launcher, which cannot be imported on Windows."""
GRACE_SECONDS: Final = 1.0
"""Time limit for a program to end after its input is closed, and again after it was asked to end."""

PASSED_VARIABLES: Final = ("LANG", "LC_ALL", "LC_CTYPE", "PATH", "TZ", "SYSTEMROOT")
"""Variables that a program gets from our environment. All others may be secrets."""

SYSTEM_PATHS: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/snap",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
)
"""Programs and libraries, which every child may read."""
SYSTEM_FILES: Final = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "group",
    "host.conf",
    "hosts",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki",
    "protocols",
    "resolv.conf",
    "services",
    "ssl",
    "timezone",
)
"""The files of /etc that every child may read. Others contain keys and passwords if the gateway runs as root."""
NETWORK_FILES: Final = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf")
"""/etc/resolv.conf is a link to one of these."""
PROCESS_FILES: Final = (
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/kernel",
    "/proc/sys/vm",
    "/proc/uptime",
    "/proc/version",
)
"""What a child may read of /proc under Landlock. Bubblewrap gives it a /proc with its own processes only."""
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
MAX_MEMORY_FILES_BYTES: Final = 256 << 20
"""How much a child may store in its /tmp, and again in its /dev/shm. Both are in memory."""
PROGRAM_FOLDERS: Final = ("bin", "sbin", "libexec")
SHARED_FOLDERS: Final = frozenset(
    {"/", "/home", "/root", "/etc", "/var", "/run", "/tmp", "/var/tmp", "/srv", "/mnt", "/media"}
)

_PROBE_CODE: Final = """
import socket, sys
for attempt in (lambda: open(sys.argv[1]).read(), lambda: socket.socket(socket.AF_UNIX)):
    try:
        attempt()
    except OSError:
        continue
    sys.exit(3)
open("works", "w").write("yes")
"""
_SHEBANG_PATTERN: Final = re.compile(rb"#!\s*(\S+)(?:[ \t]+(?:-S[ \t]+)?(\S+))?")


class SandboxKind(StrEnum):
    """How a child is kept from the home. The values of the setting `sandbox`."""

    AUTO = "auto"
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


NO_SANDBOX_MEANING: Final = (
    "runs without a sandbox: it can read .env and all conversations, and act as an operator through api.sock"
)


@dataclass(frozen=True, kw_only=True)
class ChildLimits:
    """What a child and everything that it starts may use together. Linux only."""

    memory_bytes: int = 2_000_000_000
    """The kernel also keeps it for each process at once; the sum is checked twice a second."""
    processes: int = 200
    cpu_seconds: int = 600
    """Within a quarter of an hour."""


@dataclass(frozen=True, kw_only=True)
class ChildPolicy:
    """What the entry of a child in the configuration allows."""

    sandbox: SandboxKind = SandboxKind.AUTO
    network: bool = False
    read_paths: tuple[Path, ...] = ()
    write_paths: tuple[Path, ...] = ()
    home_paths: tuple[Path, ...] = ()
    """Folders of the home that the child may read all the same. Only the gateway names them, for skills."""
    limits: ChildLimits = ChildLimits()


class SandboxMissing(InvalidRequest):
    """The child was not started, because nothing would keep it from the home."""


class ChildProcesses:
    """Starts the children of one home, and knows which kinds of sandbox work on this machine."""

    _working: ClassVar[set[tuple[SandboxKind, str]]] = set()
    """Kinds that worked in a test of this process, with their program. Others are tested again, because bubblewrap may
    be installed meanwhile."""

    def __init__(self, home: Path) -> None:
        self.home = home.resolve()
        self._lock = asyncio.Lock()

    async def start(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        environ: Mapping[str, str],
        policy: ChildPolicy,
        also_read: Iterable[Path] = (),
        limit: int,
    ) -> asyncio.subprocess.Process:
        """Start a program in a directory of its own. Raises SandboxMissing if the sandbox does not work here,
        FileNotFoundError if there is no such program, and InvalidRequest if its paths would show the home.
        """
        kind = await self.choose_kind(policy.sandbox)
        return await self._start_in(
            kind, command, directory=directory, environ=environ, policy=policy, also_read=also_read, limit=limit
        )

    async def _start_in(
        self,
        kind: SandboxKind,
        command: Sequence[str],
        *,
        directory: Path,
        environ: Mapping[str, str],
        policy: ChildPolicy,
        also_read: Iterable[Path] = (),
        limit: int,
    ) -> asyncio.subprocess.Process:
        directory = await asyncio.to_thread(make_child_directory, directory)
        environ = {"HOME": str(directory), "TMPDIR": str(directory / "tmp"), **environ}
        found = find_program(command[0], environ)
        words = await self._wrap_command(
            kind, [found, *command[1:]], directory=directory, policy=policy, environ=environ, also_read=also_read
        )
        return await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environ,
            cwd=directory,
            start_new_session=True,  # Ctrl-C in our terminal must not reach the program
            limit=limit,
        )

    async def choose_kind(self, wanted: SandboxKind) -> SandboxKind:
        """Return the kind of sandbox to use. Raises SandboxMissing if none of the wanted kinds works."""
        if wanted is SandboxKind.NONE:
            return wanted
        kinds = (SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK) if wanted is SandboxKind.AUTO else (wanted,)
        async with self._lock:
            for kind in kinds:
                program = (shutil.which(BUBBLEWRAP) or "") if kind is SandboxKind.BUBBLEWRAP else ""
                if (kind, program) in self._working or await self._is_working(kind):
                    self._working.add((kind, program))
                    return kind
        named = " or ".join(kinds)
        raise SandboxMissing(
            f"it was not started, because no sandbox works here ({named}), so it could read .env and use api.sock",
            remedy="install bubblewrap, use Linux 5.13 or later with Landlock, or set `sandbox: none` if you trust it",
        )

    async def _is_working(self, kind: SandboxKind) -> bool:
        """Try it: a child must be able to work, and must not be able to read a file outside or use a Unix socket."""
        if not sys.platform.startswith("linux") or (kind is SandboxKind.BUBBLEWRAP and not shutil.which(BUBBLEWRAP)):
            return False
        with tempfile.TemporaryDirectory(prefix="everhold-sandbox-") as scratch:
            secret, directory = _make_secret(Path(scratch, "hidden")), Path(scratch, "own")
            words = (sys.executable, "-I", "-S", "-c", _PROBE_CODE, str(secret))
            environ = {"PATH": os.defpath}
            try:
                process = await ChildProcesses(secret.parent)._start_in(
                    kind, words, directory=directory, environ=environ, policy=ChildPolicy(), limit=1 << 16
                )
            except OSError:
                return False
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await process.communicate()
            except TimeoutError:
                return False
            finally:
                await end_child(process)
            return process.returncode == 0 and await asyncio.to_thread((directory / "works").exists)

    async def _wrap_command(
        self,
        kind: SandboxKind,
        command: list[str],
        *,
        directory: Path,
        policy: ChildPolicy,
        environ: Mapping[str, str],
        also_read: Iterable[Path],
    ) -> list[str]:
        if not sys.platform.startswith("linux"):
            return command
        spec: dict[str, Any] = {
            "sandbox": kind,
            "network": policy.network,
            "gateway": os.getpid(),
            "command": command,
            "limits": asdict(policy.limits),
            "cgroup": _make_cgroup_name(),
        }
        if kind is not SandboxKind.NONE:
            self._check_paths(policy, directory)
            read = await asyncio.to_thread(self._list_readable, command, policy, environ, tuple(also_read))
            write = [str(path) for path in (directory, *policy.write_paths)]
            if kind is SandboxKind.LANDLOCK:
                spec |= {"read": [*read, *PROCESS_FILES], "write": write, "devices": DEVICES}
            else:
                spec["command"] = build_bubblewrap_command(
                    command, directory=directory, read=read, write=write, network=policy.network
                )
        return [sys.executable, "-I", "-S", str(LAUNCHER_FILE), json.dumps(spec)]

    def _check_paths(self, policy: ChildPolicy, directory: Path) -> None:
        """Refuse paths that would show the home. The child's own directory is part of it and may be shown."""
        if self.home.is_relative_to(directory):
            raise InvalidRequest(
                f"it was not started, because its directory {directory} contains the home",
                remedy="give it a directory of its own",
            )
        for path in (*policy.read_paths, *policy.write_paths):
            real = path.resolve()
            if self.home.is_relative_to(real) or (
                real.is_relative_to(self.home) and not real.is_relative_to(directory)
            ):
                raise InvalidRequest(
                    f"it was not started, because it could read the home through {path}",
                    remedy="remove the path from read_paths and write_paths, or name a folder outside the home",
                )

    def _list_readable(
        self, command: list[str], policy: ChildPolicy, environ: Mapping[str, str], also_read: tuple[Path, ...]
    ) -> list[str]:
        """Return what the child may read: the system, its program, the files in its command, and its `read_paths`."""
        wanted = [Path(path) for path in SYSTEM_PATHS]
        wanted += [Path("/etc", name) for name in SYSTEM_FILES]
        wanted += [Path(path) for path in NETWORK_FILES] if policy.network else []
        wanted += list_program_folders(command[0], environ)
        wanted += [Path(word) for word in command[1:] if os.path.isabs(word) and os.path.isfile(word)]
        wanted += [*also_read, *policy.read_paths]
        wanted += [path.resolve() for path in wanted]  # a link shows its target only if that is shown, too
        shown = {shown for path in wanted if path.exists() for shown in leave_out(path, self.home)}
        shown |= {path.resolve() for path in policy.home_paths if path.is_dir() and not path.is_symlink()}
        return [str(path) for path in sorted(shown) if shown.isdisjoint(path.parents)]


@functools.cache
def find_cgroup_folder() -> Path | None:
    """Return a folder in which cgroups that limit processes can be made; None if there is none, or if none is needed:
    the kernel's limit per user holds for everybody except root.
    """
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return None
    for folder in CGROUP_FOLDERS:
        made = folder / f"everhold-probe-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            (made / "pids.max").write_text("10")
        except OSError:
            continue
        else:
            return folder
        finally:
            with contextlib.suppress(OSError):
                made.rmdir()
    return None


def can_limit_processes() -> bool:
    """Return whether the kernel limits how many processes a child starts. A check from outside comes too late for a
    program that doubles itself in a millisecond.
    """
    return sys.platform.startswith("linux") and (os.geteuid() != 0 or find_cgroup_folder() is not None)


def _make_cgroup_name() -> str:
    folder = find_cgroup_folder()
    return str(folder / f"everhold-{os.getpid()}-{secrets.token_hex(6)}") if folder is not None else ""


def _make_secret(folder: Path) -> Path:
    folder.mkdir()
    file = folder / "secret"
    file.write_text("secret")
    return file


def build_bubblewrap_command(
    command: list[str], *, directory: Path, read: Sequence[str], write: Sequence[str], network: bool
) -> list[str]:
    """Return the command that runs `command` with these paths only, its own /tmp, and no network unless allowed."""
    words = [shutil.which(BUBBLEWRAP) or BUBBLEWRAP, "--unshare-all", "--die-with-parent", "--new-session"]
    words += ["--share-net"] if network else []
    words += ["--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev"]
    for path in ("/tmp", "/dev/shm"):  # nosec B108  # they are folders of the sandbox itself
        words += ["--size", str(MAX_MEMORY_FILES_BYTES), "--perms", "1777", "--tmpfs", path]
    words += ["--remount-ro", "/dev"]
    for path in read:
        words += ["--ro-bind-try", path, path]
    for path in write:
        words += ["--bind", path, path]
    # the folders on the way to these paths are in a root of its own, which nothing may be written to
    return [*words, "--remount-ro", "/", "--chdir", str(directory), "--", *command]


def make_child_directory(directory: Path) -> Path:
    """Make the child's directory and its `tmp`, private to this user. Returns the path without links."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    real = directory.resolve()
    (real / "tmp").mkdir(exist_ok=True, mode=0o700)
    return real


def select_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in PASSED_VARIABLES if name in environ}


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of a program. Raises FileNotFoundError."""
    # also search next to our own Python, because pip installs servers there
    path = os.pathsep.join([environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
    found = shutil.which(name, path=path)
    if found is None:
        raise FileNotFoundError(2, "there is no such program", name)
    return os.path.abspath(found)


def list_program_folders(program: str, environ: Mapping[str, str]) -> list[Path]:
    """Return the folders in which a program and its interpreter are installed.

    For `PREFIX/bin/NAME` that is PREFIX, with its libraries. Links are followed, because a virtual environment has its
    interpreter elsewhere. Of a program in another folder, or if PREFIX holds more than an installation, only the
    program itself is returned.
    """
    found: list[Path] = []
    for path in _list_program_files(Path(program), environ):
        prefix = path.parent.parent
        is_installed = path.parent.name in PROGRAM_FOLDERS and not _is_shared_folder(prefix)
        found.append(prefix if is_installed else path)
    return list(dict.fromkeys(found))


def _list_program_files(program: Path, environ: Mapping[str, str]) -> list[Path]:
    files = [program, program.resolve()]
    for word in _read_shebang(files[-1]):
        interpreter = shutil.which(word, path=environ.get("PATH", os.defpath))
        if interpreter is not None:
            files += [Path(interpreter), Path(interpreter).resolve()]
    for file in list(files):
        # the interpreter of a virtual environment may be a chain of links through several installations
        while file.is_symlink():
            file = file.parent / os.readlink(file)
            files.append(Path(os.path.abspath(file)))
    return list(dict.fromkeys(files))


def _read_shebang(path: Path) -> list[str]:
    """Return the programs in the first line of a script: the interpreter, and for `env` the one that it looks up."""
    try:
        with path.open("rb") as file:
            head = file.readline(512)
    except OSError:
        return []
    match = _SHEBANG_PATTERN.match(head)
    return [os.fsdecode(word) for word in match.groups() if word] if match else []


def _is_shared_folder(folder: Path) -> bool:
    """Return whether a folder holds more than programs: the root, or somebody's own files."""
    return str(folder) in SHARED_FOLDERS or folder.parent == Path("/home") or str(folder) == os.path.expanduser("~")


def leave_out(path: Path, hidden: Path) -> list[Path]:
    """Return `path`, or if it contains `hidden`, everything in it besides `hidden`; nothing if it is inside."""
    real = path.resolve()
    if real.is_relative_to(hidden):
        return []
    if not hidden.is_relative_to(real):
        return [path]
    with contextlib.suppress(OSError):
        return [shown for entry in sorted(real.iterdir()) for shown in leave_out(entry, hidden)]
    return []


# -- ending a child ----------------------------------------------------------------------------------------------------


async def end_child(process: asyncio.subprocess.Process) -> None:
    """Close its input, which ends a well-behaved program; then ask it to end; then kill it and what it started."""
    if process.stdin is not None:
        process.stdin.close()
    for end in (ask_child_to_end, kill_child):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
                return
        end(process)
    await process.wait()


def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close the pipes of an ended program. Otherwise output that was never read keeps them open, because their reader
    is paused. asyncio offers no other way.
    """
    process._transport.close()  # type: ignore[attr-defined]


def ask_child_to_end(process: asyncio.subprocess.Process) -> None:
    _send_signal(process, signal.SIGTERM)


def kill_child(process: asyncio.subprocess.Process) -> None:
    """End the program and everything that it started. On Linux the launcher does that."""
    _send_signal(process, signal.SIGUSR1 if sys.platform.startswith("linux") else signal.SIGKILL)


def _send_signal(process: asyncio.subprocess.Process, number: int) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        elif sys.platform.startswith("linux"):
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)
