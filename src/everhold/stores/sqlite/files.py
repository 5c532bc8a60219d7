"""Notices when the files of an open store are deleted, moved or replaced.

An open file stays usable after its name is gone, so SQLite goes on writing into files that no later process can open.
The names are therefore compared with the files that were opened, once for every group of commits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from everhold.errors import StoreMissing

WAL_HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24


class StoreFiles:
    """The identity of the database, its write-ahead log, its shared memory, and other files that belong to them.

    Only this process writes to the database. A database that became shorter or older was overwritten in place.
    """

    def __init__(self, database: Path, *, watched: Sequence[Path] = ()) -> None:
        self.database = database
        beside = [database.with_name(database.name + suffix) for suffix in ("-wal", "-shm")]
        self._identities = [_identify(path) for path in (database, *beside, *watched)]
        self._database_state: tuple[int, int] | None = None

    def expect_new_state(self) -> None:
        """Accept the next state of the database, because this process has written to it."""
        self._database_state = None

    def find_change(self) -> str:
        """Return what happened to the files, as a sentence; empty if nothing did."""
        database: os.stat_result | None = None
        for path, device, inode in self._identities:
            try:
                found = os.stat(path)
            except OSError as error:
                return f"{path} was deleted, moved or unmounted while everhold used it ({error.strerror})"
            if found.st_ino != inode or found.st_dev != device:
                return f"{path} was replaced by another file while everhold used it"
            database = database or found
        assert database is not None
        return self._compare_state((database.st_size, database.st_mtime_ns))

    def _compare_state(self, state: tuple[int, int]) -> str:
        known, self._database_state = self._database_state, state
        if known is None or state == known:
            return ""
        size, written_at = state
        if size < known[0] or written_at < known[1]:
            return f"{self.database} was overwritten with another copy while everhold used it"
        return ""

    def build_error(self, change: str, *, last_pos: int | None) -> StoreMissing:
        upto = "" if last_pos is None else f" (up to position {last_pos})"
        return StoreMissing(
            f"{change}; nothing was acknowledged since then, and what was acknowledged before{upto} is in the files "
            "that were there",
            remedy=f"put {self.database.parent} back as it was, with everything in it, and start everhold again; "
            "if the files are lost, `everhold restore` takes the last backup",
        )


def compute_wal_bytes(pages: int, page_bytes: int) -> int:
    """The least size of a write-ahead log with so many pages."""
    return WAL_HEADER_BYTES + pages * (FRAME_HEADER_BYTES + page_bytes) if pages else 0


def _identify(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return str(path), found.st_dev, found.st_ino
