"""The locks of a home: one process at a time. The operating system releases them when the process ends.

A lock belongs to a file, not to its name. So a home has several: on its lock file, which moves with the home; on its
directory, which stays when the lock file is replaced; and, for as long as work is done, in a directory of the user on
the home's path and on its id, because the path may get another home and the id may be in a copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from everhold.errors import HomeBusy, Refused

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_LOCK_OFFSET_BYTES: Final = 1 << 20
"""Windows locks bytes, not files. This byte is far after the text, so that the holder's pid stays readable."""


class FileLock:
    """Held from `acquire` to `release`, or until the process ends. A stale lock cannot remain."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def acquire(self) -> Self:
        """Acquire the lock, or raise HomeBusy at once with the holder's pid."""
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            if not _try(handle):
                holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() if sys.platform != "win32" else ""
                os.close(handle)
                raise HomeBusy(
                    f"another everhold{f' (process {holder})' if holder else ''} is using {self.path.parent}",
                    remedy=f"stop it first{f': kill {holder}' if holder else ''}, or name another home",
                )
            if self._is_current_file(handle):
                break
            os.close(handle)  # the file was removed between opening and locking, so this lock is void
        os.chmod(self.path, 0o600)
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        self._handle = handle
        return self

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @property
    def is_held(self) -> bool:
        return self._handle is not None

    def __enter__(self) -> Self:
        return self if self.is_held else self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _is_current_file(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False


class HomeLock(FileLock):
    """The lock of a home's file and directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._directory_handle: int | None = None

    def acquire(self) -> Self:
        super().acquire()
        if sys.platform == "win32":
            return self
        self._directory_handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            is_free = _try(self._directory_handle)
        except OSError:  # some network file systems cannot lock a directory; the lock of the file remains
            is_free = True
        if not is_free:
            self.release()
            raise HomeBusy(
                f"another everhold is using {self.path.parent}, and its lock file was replaced",
                remedy="stop it first, or wait until it has noticed and ended",
            )
        return self

    def release(self) -> None:
        if self._directory_handle is not None:
            os.close(self._directory_handle)
            self._directory_handle = None
        super().release()


@contextlib.contextmanager
def hold_machine_locks(directory: Path, *, home: Path, home_id: str) -> Iterator[None]:
    """Lock the path of a home and its id against all other processes of this user while the block runs. Raises Refused
    if another process holds one of them.

    `directory` holds the locks. They are deleted at the end, because homes come and go.
    """
    path_lock = FileLock(directory / f"home-{hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:32]}.lock")
    id_lock = FileLock(directory / f"copy-{home_id}.lock")
    with contextlib.ExitStack() as held:
        for lock, problem, remedy in (
            (path_lock, f"still uses the home that was at {home}", "wait until it has ended, or stop it"),
            (
                id_lock,
                f"uses the home that {home} is a copy of",
                f"stop it first; to make this copy a home of its own, delete {home / 'home.id'}",
            ),
        ):
            try:
                held.enter_context(lock)
            except HomeBusy as error:
                raise Refused(f"{error.message.partition(' is using')[0]} {problem}", remedy=remedy) from None
            held.callback(_delete_lock, lock.path)
        yield


def _delete_lock(path: Path) -> None:
    """Delete a lock that this process holds. A process that waits for it notices that the file is gone."""
    with contextlib.suppress(OSError):  # Windows does not delete an open file
        path.unlink()


if sys.platform == "win32":

    def _try(handle: int) -> bool:
        os.lseek(handle, _LOCK_OFFSET_BYTES, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(handle, 0, os.SEEK_SET)
        return True

else:

    def _try(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
