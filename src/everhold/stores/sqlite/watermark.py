"""Remembers beside the database how far it was acknowledged. It is a witness only: nothing is ever read back from it.

SQLite cannot tell a write-ahead log that lost its tail from one that never had it. The mark is written after every
commit and not synced: it may lag behind the log after a power cut, but when it is ahead of it, something was lost.
Its second line says since which start of the machine: whether there can have been a power cut since.
"""

from __future__ import annotations

import os
from pathlib import Path

from everhold.errors import StoreDamaged


def build_watermark_path(database: Path) -> Path:
    return database.with_name(database.name + ".mark")


def check_watermark(path: Path, pos: int) -> None:
    """Refuse a log that ends at `pos` if the mark at `path` says that more than that was acknowledged."""
    acknowledged = read_watermark(path)
    if acknowledged > pos:
        raise StoreDamaged(
            f"the log ends at position {pos}, but everything up to {acknowledged} was acknowledged ({path}): "
            f"the write-ahead log lost its tail, or the database was lost or replaced by an older copy",
            remedy=f"bring the missing files back, or `everhold restore` puts the last backup in their place; "
            f"if you meant to go back or to begin anew, delete {path}",
        )


def read_watermark(path: Path) -> int:
    """How far the log beside `path` was acknowledged, as far as is known."""
    text = _read_lines(path)[0]
    return int(text) if text.isdigit() else 0


def is_same_boot(path: Path) -> bool:
    """Whether the machine has been up ever since the log was written: then nothing that was written is lost."""
    return _read_lines(path)[1] == read_boot_id() != b""


def read_boot_id() -> bytes:
    """What tells one start of the machine from the next; nothing where nobody says."""
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

    def advance(self, pos: int) -> None:
        if pos == self._pos:
            return
        if self._write(b"%020d\n" % pos):
            self._pos = pos

    def _write(self, line: bytes) -> bool:
        try:
            os.lseek(self._handle, 0, os.SEEK_SET)
            os.write(self._handle, line)
        except OSError:
            return False  # a full disk: the mark lags, which says less but nothing wrong
        return True

    def close(self) -> None:
        os.close(self._handle)
