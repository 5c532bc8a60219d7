"""Room set aside on the disk, so that a full one still has space for a last word. It never holds data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

SIZE: Final = 32 * 1024 * 1024
SHARE: Final = 16
"""A small disk gives one part in so many: what never fits would never be there, and never be back."""


class Ballast:
    """A file of really allocated blocks. Even deleting rows needs room, so this is thrown out first."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self.size = min(SIZE, shutil.disk_usage(path.parent).total // SHARE) if size is None else size

    @property
    def aboard(self) -> bool:
        try:
            return self.path.stat().st_size >= self.size
        except FileNotFoundError:
            return False

    def take_aboard(self) -> bool:
        """Set the room aside, if the disk has twice as much to give: taking the last of it would help nobody."""
        if self.aboard:
            return True
        if not self._has_room():
            return False
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.chmod(self.path, 0o600)
            self._allocate(handle)
        except OSError:
            self.path.unlink(missing_ok=True)
            return False
        finally:
            os.close(handle)
        return True

    def release(self) -> bool:
        """Give the room back; False when there was none left to give."""
        was_aboard = self.aboard
        self.path.unlink(missing_ok=True)
        return was_aboard

    def _has_room(self) -> bool:
        return shutil.disk_usage(self.path.parent).free >= 2 * self.size

    def _allocate(self, handle: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, self.size)
            return
        block = b"\0" * (1 << 20)
        left = self.size
        while left > 0:
            left -= os.write(handle, block[: min(left, len(block))])
