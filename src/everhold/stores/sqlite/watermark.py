"""Stores in a file beside the database up to which pos commits were acknowledged. It only serves to detect losses.

SQLite cannot distinguish a write-ahead log that lost its end from one that never had it. The watermark is written after
every commit and not synced. After a power cut it may be lower than the log's last pos, but if it is higher, entries
were lost. Its second line is the id of the machine's boot, which tells whether there may have been a power cut since.
"""

from __future__ import annotations

import os
from pathlib import Path

from everhold.errors import StoreDamaged


def build_watermark_path(database: Path) -> Path:
    return database.with_name(database.name + ".mark")


def check_watermark(path: Path, pos: int) -> None:
    """Raise StoreDamaged if the watermark at `path` is higher than `pos`, the end of the log."""
    acknowledged = read_watermark(path)
    if acknowledged > pos:
        raise StoreDamaged(
            f"the log ends at position {pos}, but everything up to {acknowledged} was acknowledged ({path}): "
            f"the write-ahead log lost its end, or the database was lost or replaced by an older copy",
            remedy=f"bring the missing files back, or replace them with the last backup (`everhold restore`); "
            f"if you want to continue with this older or new store, delete {path}",
        )


def read_watermark(path: Path) -> int:
    """The pos up to which the log beside `path` was acknowledged, as far as is known."""
    text = _read_lines(path)[0]
    return int(text) if text.isdigit() else 0


def is_same_boot(path: Path) -> bool:
    """Return whether the machine has not restarted since the log was written. Then no write is lost."""
    return _read_lines(path)[1] == read_boot_id() != b""


def read_boot_id() -> bytes:
    """The id of the machine's present boot; empty on systems without one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""


def _read_lines(path: Path) -> list[bytes]:
    try:
        return [*path.read_bytes().splitlines(), b"", b""][:2]
    except FileNotFoundError:
        return [b"", b""]


class WatermarkFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.chmod(path, 0o600)
        self._pos = read_watermark(path)
        self._write(b"%020d\n%s\n" % (self._pos, read_boot_id()))

    def advance(self, pos: int) -> bool:
        """Store that everything up to `pos` was acknowledged. Return False if more was: the log has lost its end."""
        if pos == self._pos:
            return True
        if pos < self._pos:
            return False
        if self._write(b"%020d\n" % pos):
            self._pos = pos
        return True

    def _write(self, line: bytes) -> bool:
        try:
            os.lseek(self._handle, 0, os.SEEK_SET)
            os.write(self._handle, line)
        except OSError:
            return False  # the disk is full; a watermark that is too low is allowed
        return True

    def close(self) -> None:
        os.close(self._handle)
