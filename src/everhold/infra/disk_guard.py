"""Reserves disk space and notices when the disk is full, so that work in progress can finish."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

from everhold.errors import StoreFull
from everhold.ports.log import EventLogger

RESERVE_BYTES: Final = 32 * 1024 * 1024
SMALL_DISK_DIVISOR: Final = 16
"""On a small disk the reserve is this fraction of the disk, because a larger reserve might never fit."""
SPACE_POLL_SECONDS: Final = 1.0
"""How often the guard checks a full disk for free space."""


class DiskReserve:
    """A file of allocated blocks without data. It is deleted when the disk is full, because even deleting rows needs
    space.
    """

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
        """Allocate the file if twice its size is free. Return whether the reserve exists afterwards."""
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
        """Delete the file. Return False if it was not allocated."""
        was_allocated = self.is_allocated
        self.path.unlink(missing_ok=True)
        return was_allocated

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


class DiskGuard:
    """Tracks whether the disk is full: from the first commit that found no space until the reserve is allocated again.

    The space that the reserve frees is for work in progress, so nothing new is accepted while the disk is full.
    """

    def __init__(self, reserve: DiskReserve, *, log: EventLogger) -> None:
        self.reserve = reserve
        self._log = log
        self._full_event = asyncio.Event()
        self._space_event = asyncio.Event()
        self._space_event.set()

    @property
    def is_full(self) -> bool:
        return self._full_event.is_set()

    def require_space(self) -> None:
        """Raise StoreFull while the disk is full, because a new message would use the space for finishing a turn."""
        if self.is_full:
            raise StoreFull(f"the disk of {self.reserve.path.parent} is full", remedy=self._remedy)

    def report_full(self) -> None:
        """Release the reserve, because a commit found no space."""
        if not self.is_full:
            self._full_event.set()
            self._space_event.clear()
            self.reserve.release()
            self._log.error("store.full", remedy=self._remedy)

    async def wait_for_space(self) -> None:
        await self._space_event.wait()

    async def watch_space(self) -> None:
        """Allocate the reserve again within a second or two after space becomes free. Runs until cancelled."""
        while True:
            await self._full_event.wait()
            await asyncio.sleep(SPACE_POLL_SECONDS)
            if self.reserve.allocate():
                self._full_event.clear()
                self._space_event.set()
                self._log.info("store.space_recovered")

    @property
    def _remedy(self) -> str:
        return f"free space on the disk of {self.reserve.path.parent}"
