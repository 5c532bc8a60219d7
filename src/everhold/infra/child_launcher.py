"""Starts one child process with fewer rights, and ends everything that it started when it or the gateway ends.

It runs as a program of its own, `python -I -S child_launcher.py SPEC`, on Linux only. So it imports nothing else.
The child either runs under the restrictions that SPEC names, or not at all.

It watches the child and everything that it started, because the kernel's limits hold for a single process. If all of
them together use more than SPEC allows, it ends them.

Landlock decides which files the child may open. It says nothing about three things, which a seccomp filter refuses: to
connect to a Unix socket by its path, to change the mode or owner of a file by its path, and io_uring, which does what
the filter refuses without a system call for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import stat
import struct
import sys
import time
from collections import deque
from typing import Any, Final

EXIT_NOT_STARTED: Final = 125
"""The exit status if the child was not started. The reason is on standard error."""
EXIT_OVER_LIMIT: Final = 124
"""The exit status if the child used more than it may. The last line on standard error says what."""
END_NOW_SIGNAL: Final = signal.SIGUSR1
"""The gateway sends it to end the child and everything that it started, at once."""

PR_SET_PDEATHSIG: Final = 1
PR_SET_SECCOMP: Final = 22
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
SECCOMP_MODE_FILTER: Final = 2
CAPABILITY_VERSION: Final = 0x20080522

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


# -- Landlock ----------------------------------------------------------------------------------------------------------

LANDLOCK_CREATE_RULESET: Final = 444
LANDLOCK_ADD_RULE: Final = 445
LANDLOCK_RESTRICT_SELF: Final = 446
LANDLOCK_CREATE_RULESET_VERSION: Final = 1
LANDLOCK_RULE_PATH_BENEATH: Final = 1

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
REFER: Final = 1 << 13
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15
READ_RIGHTS: Final = EXECUTE | READ_FILE | READ_DIR
FILE_RIGHTS: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""The rights that a rule for a single file may name."""
SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS: Final = 0b11

TRUNCATE_VERSION: Final = 3
NETWORK_VERSION: Final = 4
SCOPE_VERSION: Final = 6


def get_landlock_version() -> int:
    """Return the version of Landlock in this kernel, 0 if it has none."""
    version: int = _LIBC.syscall(
        LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(LANDLOCK_CREATE_RULESET_VERSION)
    )
    return max(0, version)


def list_known_rights(version: int) -> int:
    """Return all rights to files that this version of Landlock can refuse."""
    known = (1 << 13) - 1
    if version >= 2:
        known |= REFER
    if version >= TRUNCATE_VERSION:
        known |= TRUNCATE
    if version >= 5:
        known |= IOCTL_DEV
    return known


def restrict_files(spec: dict[str, Any]) -> None:
    """Let this process open only the files below the paths of `spec`. Raises OSError if the kernel cannot do that."""
    version = get_landlock_version()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    known = list_known_rights(version)
    scoped = SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if version >= SCOPE_VERSION else 0
    attributes = struct.pack("QQQ", known, 0, scoped)
    size = 24 if version >= SCOPE_VERSION else 16 if version >= NETWORK_VERSION else 8
    ruleset = _call_kernel(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    for path in spec["read"]:
        _add_path(ruleset, path, READ_RIGHTS)
    for path in spec["write"]:
        _add_path(ruleset, path, known)
    for path in spec["devices"]:
        _add_path(ruleset, path, (READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV) & known)
    _call_kernel(LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def _add_path(ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not every system has every path, and what is missing grants nothing
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            rights &= FILE_RIGHTS
        rule = struct.pack("=Qi", rights, opened)
        _call_kernel(
            LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(LANDLOCK_RULE_PATH_BENEATH), rule, ctypes.c_uint32(0)
        )
    finally:
        os.close(opened)


# -- seccomp -----------------------------------------------------------------------------------------------------------

AF_INET: Final = 2
AF_INET6: Final = 10
AF_NETLINK: Final = 16
NETWORK_FAMILIES: Final = (AF_INET, AF_INET6, AF_NETLINK)

# machine -> (name of the architecture in a filter, numbers of system calls)
SYSCALLS: Final[dict[str, tuple[int, dict[str, int]]]] = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41,
            "truncate": 76,
            "chmod": 90,
            "chown": 92,
            "lchown": 94,
            "setxattr": 188,
            "lsetxattr": 189,
            "removexattr": 197,
            "lremovexattr": 198,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "fchownat": 260,
            "fchmodat": 268,
            "io_uring_setup": 425,
            "fchmodat2": 452,
            "setxattrat": 463,
            "removexattrat": 466,
            "file_setattr": 469,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "setxattr": 5,
            "lsetxattr": 6,
            "removexattr": 14,
            "lremovexattr": 15,
            "truncate": 45,
            "fchmodat": 53,
            "fchownat": 54,
            "socket": 198,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "io_uring_setup": 425,
            "fchmodat2": 452,
            "setxattrat": 463,
            "removexattrat": 466,
            "file_setattr": 469,
        },
    ),
}
ALWAYS_REFUSED: Final[tuple[str, ...]] = ("io_uring_setup", "add_key", "request_key", "keyctl")
REFUSED_PATH_CALLS: Final = (
    "chmod",
    "chown",
    "lchown",
    "fchownat",
    "fchmodat",
    "fchmodat2",
    "setxattr",
    "lsetxattr",
    "removexattr",
    "lremovexattr",
    "setxattrat",
    "removexattrat",
    "file_setattr",
)
"""They change a file by its path without opening it, so Landlock does not see them."""

FIRST_X32_CALL: Final = 0x40000000
_LOAD: Final = 0x20
_JUMP_EQUAL: Final = 0x15
_JUMP_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_REFUSE: Final = 0x00050000 | errno.EACCES
_NUMBER_OFFSET: Final = 0
_ARCHITECTURE_OFFSET: Final = 4
_FIRST_ARGUMENT_OFFSET: Final = 16
"""The lower half of the first argument, because both machines are little-endian."""


def build_filter(machine: str, *, families: tuple[int, ...], refused: tuple[str, ...]) -> bytes:
    """Return a seccomp filter that allows sockets of these families only, and refuses these calls."""
    architecture, numbers = SYSCALLS[machine]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # 32-bit programs have other numbers
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        (_JUMP_AT_LEAST, 0, 1, FIRST_X32_CALL),
        (_RETURN, 0, 0, _KILL),
    ]
    for name in refused:
        if name in numbers:
            program += [(_JUMP_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _REFUSE)]
    program += [(_JUMP_EQUAL, 0, 2 + 2 * len(families), numbers["socket"]), (_LOAD, 0, 0, _FIRST_ARGUMENT_OFFSET)]
    for family in families:
        program += [(_JUMP_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    program += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in program)


def restrict_calls(spec: dict[str, Any]) -> None:
    """Refuse the system calls that the other restrictions do not see. Raises OSError if that is not possible here."""
    machine = os.uname().machine
    if machine not in SYSCALLS or sys.byteorder != "little":
        raise OSError(errno.ENOSYS, f"there is no filter of system calls for {machine}")
    refused = ALWAYS_REFUSED
    if spec["sandbox"] == "landlock":
        refused += REFUSED_PATH_CALLS
        if get_landlock_version() < TRUNCATE_VERSION:
            refused += ("truncate",)
    # bubblewrap takes the network away by a namespace of its own, in which it needs sockets itself
    families = NETWORK_FAMILIES if spec["network"] or spec["sandbox"] == "bubblewrap" else ()
    steps = build_filter(machine, families=families, refused=refused)
    held = ctypes.create_string_buffer(steps)
    program = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(held))
    _call_prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)


# -- privileges --------------------------------------------------------------------------------------------------------


def drop_privileges() -> None:
    """Give up all capabilities, also those that a program of root would get. No program can bring them back."""
    for capability in range(64):
        if _LIBC.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break  # the kernel knows no more of them, or this process has none to give up
    _LIBC.prctl(PR_CAP_AMBIENT, ctypes.c_ulong(PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0)
    header, nothing = struct.pack("Ii", CAPABILITY_VERSION, 0), bytes(24)
    if _LIBC.capset(header, nothing) != 0:
        _raise_errno("capset")
    _call_prctl(PR_SET_NO_NEW_PRIVS, 1)


def _call_prctl(option: int, value: int, more: Any = 0) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), more, 0, 0) != 0:
        _raise_errno(f"prctl {option}")


def _call_kernel(number: int, *arguments: Any) -> int:
    result: int = _LIBC.syscall(number, *arguments)
    if result < 0:
        _raise_errno(f"system call {number}")
    return result


def _raise_errno(what: str) -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"{what}: {os.strerror(code)}")


# -- limits ------------------------------------------------------------------------------------------------------------

CLONE_NEWPID: Final = 0x20000000
CHECK_SECONDS: Final = 0.5
CPU_WINDOW_SECONDS: Final = 900.0
"""The time in which the processor time of a child is limited."""
MAX_OPEN_FILES: Final = 4_096
SPARE_TASKS: Final = 1_000
THREADS_PER_PROCESS: Final = 4
FEW_TASKS: Final = 64
"""A cgroup limits threads as well, so it allows a few for each process."""
"""How many tasks this user may start elsewhere, and threads the child, before the child cannot start any more."""
NICENESS: Final = 10
"""The child gets the processor after the gateway."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def limit_process(limits: dict[str, int]) -> None:
    """Set the limits that the kernel keeps for each process. They cannot be raised again."""
    # not the address space, of which some runtimes reserve far more than they use
    _lower_limit(resource.RLIMIT_DATA, limits["memory_bytes"])
    _lower_limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    # the kernel counts all tasks of this user, so those that there are now are added
    _lower_limit(resource.RLIMIT_NPROC, count_own_tasks() + limits["processes"] + SPARE_TASKS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would show what the child was sent
    os.nice(NICENESS)


def _lower_limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


def count_own_tasks() -> int:
    """Return how many tasks, processes and their threads, this user has."""
    count, user = 0, os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue  # it has ended
    return count


class ProcessUsage:
    """What one process uses, as /proc/PID/stat shows it."""

    def __init__(self, stat: bytes) -> None:
        fields = stat.rpartition(b")")[2].split()
        # with the time of its children that have ended
        self.cpu_seconds = sum(int(it) for it in fields[11:15]) / _TICKS_PER_SECOND
        self.memory_bytes = int(fields[21]) * _PAGE_BYTES


class ChildWatch:
    """Compares what the child and everything that it started use with the limits."""

    def __init__(self, limits: dict[str, int], *, now: float, keeper: int = 0) -> None:
        """`keeper` is a process of ours that does not count."""
        self._limits = limits
        self._keeper = keeper
        self._cpu_history = deque([(now, 0.0)])
        """(time, processor time until then), oldest first."""

    def find_excess(self, now: float) -> str:
        """Return which limit is exceeded, or an empty text."""
        # so many are started in a moment that only a few more than allowed are counted
        listed = list_children_of(os.getpid(), most=self._limits["processes"] + 1)
        pids = [pid for pid in listed if pid != self._keeper]
        if len(pids) > self._limits["processes"]:
            return f"it started more than {self._limits['processes']} processes"
        usages = {pid: usage for pid in pids if (usage := read_usage(pid)) is not None}
        most = self._limits["memory_bytes"]
        # pages that processes share count once; to find that out takes longer, so it is asked only if it matters
        if sum(usage.memory_bytes for usage in usages.values()) > most and sum(map(read_memory_share, usages)) > most:
            return f"it used more than {most:,} bytes of memory"
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = ended.ru_utime + ended.ru_stime + self._read_kept_seconds()
        spent += sum(usage.cpu_seconds for usage in usages.values())
        if self._count_recent_cpu(now, spent) > self._limits["cpu_seconds"]:
            minutes = f"{CPU_WINDOW_SECONDS / 60:g} minutes"
            return f"it used more than {self._limits['cpu_seconds']} s of processor time in {minutes}"
        return ""

    def _read_kept_seconds(self) -> float:
        """Return the processor time of the keeper and of the processes that it has waited for."""
        usage = read_usage(self._keeper) if self._keeper else None
        return usage.cpu_seconds if usage is not None else 0.0

    def _count_recent_cpu(self, now: float, spent: float) -> float:
        """Return the processor time within the last minutes. One value per second is remembered."""
        history = self._cpu_history
        if now - history[-1][0] >= 1.0:
            history.append((now, spent))
        while len(history) > 1 and history[0][0] < now - CPU_WINDOW_SECONDS:
            history.popleft()
        return spent - history[0][1]


def read_usage(pid: int) -> ProcessUsage | None:
    """Return what a process uses, or None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return ProcessUsage(file.read())
    except (OSError, ValueError, IndexError):
        return None


def read_memory_share(pid: int) -> int:
    """Return the memory of a process, with its share of the pages that it shares with others. A process that hides
    this is counted with all its pages."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    usage = read_usage(pid)
    return usage.memory_bytes if usage is not None else 0


def list_children_of(root: int, *, most: int = sys.maxsize) -> list[int]:
    """Return the processes that a process started, directly or not, without a look at all processes of the machine.
    With more than `most`, the others may be missing."""
    found: list[int] = []
    level = [root]
    while level and len(found) <= most:
        following: list[int] = []
        for pid in level:
            if len(found) + len(following) > most:
                break
            try:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                        following += map(int, file.read().split())
            except FileNotFoundError:
                if pid == root:
                    return list_descendants(root)  # this kernel does not tell
            except (OSError, ValueError):
                continue
        found += following
        level = following
    return found


# -- the child ---------------------------------------------------------------------------------------------------------


def run_child(spec: dict[str, Any], cgroup: ProcessCgroup) -> None:
    """Become the program. Never returns: if a restriction fails, the program is not started."""
    try:
        cgroup.join()
        _call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()  # the kernel may share the processor out by session, and the launcher must not wait for the child
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        limit_process(spec["limits"])
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program inherits that
            signal.signal(number, signal.SIG_DFL)
        if spec["sandbox"] != "none":
            if spec["sandbox"] == "landlock":
                drop_privileges()
                restrict_files(spec)
            else:
                _call_prctl(PR_SET_NO_NEW_PRIVS, 1)  # bubblewrap gives up the capabilities itself
            restrict_calls(spec)
        os.execve(spec["command"][0], spec["command"], dict(os.environ))  # nosec B606  # no shell; the owner configured it
    except OSError as error:
        os.write(2, f"the program was not started: {error}\n".encode())
    finally:
        os._exit(EXIT_NOT_STARTED)


def run_keeper(spec: dict[str, Any], cgroup: ProcessCgroup) -> None:
    """Start the program as the first process of a PID namespace, and end with it. Never returns.

    The kernel does not limit how many processes root may start. When the first process of a namespace ends, the kernel
    ends all others in it at once, and none can be started meanwhile.
    """
    _call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    program = os.fork()
    if program == 0:
        for number in (signal.SIGTERM, END_NOW_SIGNAL, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        run_child(spec, cgroup)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(program, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)  # the gateway has to see the end of the program's output
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == program:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def can_keep(spec: dict[str, Any]) -> bool:
    """Put the next process into a PID namespace of its own, if the kernel allows it and does not limit this user.
    Bubblewrap makes one itself."""
    return spec["sandbox"] == "landlock" and os.getuid() == 0 and _LIBC.unshare(CLONE_NEWPID) == 0


def list_descendants(root: int) -> list[int]:
    """Return the processes that a process started, directly or not, as far as they are not adopted elsewhere."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # it has ended
    found: list[int] = []
    level = [root]
    while level:
        above = frozenset(level)
        level = [pid for pid, parent in parents.items() if parent in above]
        found += level
    return found


class ProcessCgroup:
    """A cgroup that limits the number of processes below the child, also where the gateway runs as root. An empty path
    is none.
    """

    def __init__(self, path: str, processes: int) -> None:
        self.path = path
        if path:
            os.mkdir(path)
            self._write("pids.max", str(THREADS_PER_PROCESS * processes + FEW_TASKS))

    def join(self) -> None:
        """Move this process into the cgroup. What it starts is in it, too."""
        if self.path:
            self._write("cgroup.procs", "0")

    def remove(self) -> None:
        if self.path:
            with contextlib.suppress(OSError):  # a process of it may still be ending; then the empty folder stays
                os.rmdir(self.path)

    def _write(self, name: str, value: str) -> None:
        with open(os.path.join(self.path, name), "w") as file:
            file.write(value)


def end_descendants() -> None:
    """Kill everything below this process. Processes that lost their parent belong to this one, so none escapes.

    A program may start processes faster than all of them can be listed. So only those that belong to this process are
    killed at a time, which one file tells; what they started belongs to this process then.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)  # root may do that, and only root has no limit of the kernel
    while True:
        for pid in list_own_children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def list_own_children() -> list[int]:
    """Return the processes whose parent is this process, and all that they started if the kernel does not tell only
    these."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return list(map(int, file.read().split()))
    except (OSError, ValueError):
        return list_descendants(os.getpid())


def main() -> None:
    spec = json.loads(sys.argv[1])
    _call_prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = 0

    def on_end(number: int, _: object) -> None:
        if number == signal.SIGTERM and os.getppid() == spec["gateway"] and child:
            os.kill(child, signal.SIGTERM)
            return
        leave(128 + number)

    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, END_NOW_SIGNAL))
    for number in (signal.SIGTERM, END_NOW_SIGNAL):
        signal.signal(number, on_end)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    _call_prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != spec["gateway"]:
        os._exit(EXIT_NOT_STARTED)  # the gateway ended before the signal was set
    try:
        cgroup = ProcessCgroup(spec["cgroup"], spec["limits"]["processes"])
    except OSError as error:
        os.write(2, f"the program was not started, because its cgroup cannot be made: {error}\n".encode())
        os._exit(EXIT_NOT_STARTED)

    def leave(status: int) -> None:
        end_descendants()
        cgroup.remove()
        os._exit(status)

    is_kept = can_keep(spec)
    child = os.fork()
    if child == 0 and is_kept:
        run_keeper(spec, cgroup)
    elif child == 0:
        for number in (signal.SIGTERM, END_NOW_SIGNAL, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        run_child(spec, cgroup)
    nowhere = os.open(os.devnull, os.O_RDWR)
    told = os.dup(2)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)  # the gateway has to see the end of the child's output
    watch = ChildWatch(spec["limits"], now=time.monotonic(), keeper=child if is_kept else 0)

    def on_check(number: int, _: object) -> None:
        if not (excess := watch.find_excess(time.monotonic())):
            return
        end_descendants()
        os.set_blocking(told, False)  # nobody may be reading
        try:
            os.write(told, f"\n{excess}\n".encode())
        finally:
            leave(EXIT_OVER_LIMIT)

    signal.signal(signal.SIGALRM, on_check)
    signal.setitimer(signal.ITIMER_REAL, CHECK_SECONDS, CHECK_SECONDS)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, END_NOW_SIGNAL))
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            break
    child = 0
    code = os.waitstatus_to_exitcode(status)
    leave(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
