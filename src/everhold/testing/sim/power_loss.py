"""A power cut: all processes end, and the disk has the state of the last durable commit.

A commit with `durable=False` is written and visible to all processes, but it may not be on the disk yet. The simulator
checks that its loss breaks no promise.
"""

from __future__ import annotations

import functools
from pathlib import Path

import apsw

from everhold.errors import EverholdError
from everhold.stores.sqlite.writer import InlineWriter, T, WriteJob


class DiskPower:
    """The contents of the disk after a power cut at this moment."""

    def __init__(self, disk: Path, *, fails: bool) -> None:
        self.files = (disk, disk.with_name(disk.name + "-wal"))
        self.index = disk.with_name(disk.name + "-shm")
        self.fails = fails
        """Whether this seed has power cuts. If not, no copy of the files is needed."""
        self._synced_contents: list[bytes] | None = None

    def mark_unsynced(self) -> None:
        """Copy the files before the first write that is not synced."""
        if self.fails and self._synced_contents is None:
            self._synced_contents = [file.read_bytes() if file.exists() else b"" for file in self.files]

    def mark_synced(self) -> None:
        """Drop the copy, because a sync wrote everything to the disk."""
        self._synced_contents = None

    def cut(self) -> bool:
        """Restore the synced contents; return whether anything was lost. The files must be closed."""
        kept, self._synced_contents = self._synced_contents, None
        if kept is None:
            return False
        self.index.unlink(missing_ok=True)
        for file, content in zip(self.files, kept, strict=True):
            file.write_bytes(content)
        return True


class PowerCutWriter(InlineWriter):
    """Writes to a disk that may lose its power. Every second plain message takes the way of many messages at once."""

    def __init__(self, db: apsw.Connection, path: Path, power: DiskPower) -> None:
        super().__init__(db, path)
        self._power = power

    async def write(
        self, job: WriteJob[T], *, urgent: bool = False, light: bool = False, durable: bool = True, alike: object = None
    ) -> T:
        if not durable:
            self._power.mark_unsynced()
        in_bulk = alike is not None and self.bulk_writer is not None and self.jobs % 2 == 1
        result = await super().write(functools.partial(self._write_in_bulk, job, alike) if in_bulk else job)
        if durable:
            self._power.mark_synced()
        return result

    def _write_in_bulk(self, job: WriteJob[T], alike: object, cursor: apsw.Cursor) -> T:
        """Run a job as a bulk of one. If that is not possible, run it alone, as the real writer does."""
        assert self.bulk_writer is not None
        cursor.execute("savepoint bulk")
        try:
            result: T = self.bulk_writer(cursor, [alike])[0]
        except (apsw.Error, EverholdError):
            cursor.execute("rollback to bulk")
            result = job(cursor)
        cursor.execute("release bulk")
        return result
