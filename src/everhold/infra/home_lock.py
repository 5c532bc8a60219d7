"""The lock of a home: one process at a time. The operating system releases it when the process ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Final

from everhold.errors import HomeBusy

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_LOCK_OFFSET_BYTES: Final = 1 << 20
"""Windows locks bytes, not files. This byte is far after the text, so that the holder's pid stays readable."""


class HomeLock:
    """Held from `acquire` to `release`, or until the process ends. A stale lock cannot remain."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def acquire(self) -> HomeLock:
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

    def __enter__(self) -> HomeLock:
        return self if self.is_held else self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _is_current_file(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False


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
