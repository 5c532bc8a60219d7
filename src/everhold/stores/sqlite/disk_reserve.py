"""Room set aside on the disk, so that a full one still has space for a last word. It never holds data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

RESERVE_BYTES: Final = 32 * 1024 * 1024
SMALL_DISK_DIVISOR: Final = 16
"""A small disk gives one part in so many: what never fits would never be there, and never be back."""


class DiskReserve:
    """A file of really allocated blocks. Even deleting rows needs room, so this is thrown out first."""

    def __init__(self, path: Path, size_bytes: int | None = None) -> None:
        self.path = path
        self.size_bytes = (
            min(RESERVE_BYTES, shutil.disk_usage(path.parent).total // SMALL_DISK_DIVISOR)
            if size_bytes is None
            else size_bytes
        )

    @property
    def is_allocated(self) -> bool:
        try:
            return self.path.stat().st_size >= self.size_bytes
        except FileNotFoundError:
            return False

    def allocate(self) -> bool:
        """Set the room aside, if the disk has twice as much to give: taking the last of it would help nobody."""
        if self.is_allocated:
            return True
        if not self._has_space():
            return False
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.chmod(self.path, 0o600)
            self._write_blocks(handle)
        except OSError:
            self.path.unlink(missing_ok=True)
            return False
        finally:
            os.close(handle)
        return True

    def release(self) -> bool:
        """Give the room back; False when there was none left to give."""
        was_aboard = self.is_allocated
        self.path.unlink(missing_ok=True)
        return was_aboard

    def _has_space(self) -> bool:
        return shutil.disk_usage(self.path.parent).free >= 2 * self.size_bytes

    def _write_blocks(self, handle: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, self.size_bytes)
            return
        block = b"\0" * (1 << 20)
        left = self.size_bytes
        while left > 0:
            left -= os.write(handle, block[: min(left, len(block))])
