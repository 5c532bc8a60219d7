"""The state of a file, for detecting later changes. Reads no file."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class FileMark(NamedTuple):
    """Identifies one state of a file. Compare for equality only, because clocks can jump."""

    size: int = -1
    modified_ns: int = 0
    changed_ns: int = 0
    inode: int = 0
    device: int = 0
    mode: int = 0
    owner: int = 0


def read_file_mark(path: Path) -> FileMark | None:
    """Return the mark of a file, None if the file does not exist or cannot be inspected. Does not read the file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if stat.S_ISDIR(found.st_mode):  # its times change with every file in it
        return FileMark(inode=found.st_ino, device=found.st_dev, mode=found.st_mode, owner=found.st_uid)
    return FileMark(
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_ino,
        found.st_dev,
        found.st_mode,
        found.st_uid,
    )


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file as it was when it was read."""

    mark: FileMark | None
    digest: bytes


def compute_file_digest(data: bytes | None) -> bytes:
    """Return the digest of a file's content, or empty bytes for a missing file."""
    return b"" if data is None else hashlib.blake2b(data, digest_size=16).digest()
