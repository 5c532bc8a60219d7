"""A power cut: everything that runs ends at once, and the disk is as the last commit left it that was waited for.

A commit that need not be durable is written, and everybody reads it from then on, but it may not be on the disk yet.
That nothing is lost with it is a promise of its own, and this is what puts it to the test.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from everhold.stores.sqlite.writer import InlineWriter, T, WriteJob


class DiskPower:
    """What would be on the disk if the power went now."""

    def __init__(self, disk: Path, *, fails: bool) -> None:
        self.files = (disk, disk.with_name(disk.name + "-wal"))
        self.index = disk.with_name(disk.name + "-shm")
        self.fails = fails
        """Whether it ever does: nothing needs to be remembered otherwise."""
        self._synced_contents: list[bytes] | None = None

    def mark_unsynced(self) -> None:
        """Something is about to be written that the disk may not get in time."""
        if self.fails and self._synced_contents is None:
            self._synced_contents = [file.read_bytes() if file.exists() else b"" for file in self.files]

    def mark_synced(self) -> None:
        """The disk has everything there is."""
        self._synced_contents = None

    def cut(self) -> bool:
        """Leave the disk as it is found afterwards; nobody may have it open. Whether anything was lost."""
        kept, self._synced_contents = self._synced_contents, None
        if kept is None:
            return False
        self.index.unlink(missing_ok=True)
        for file, content in zip(self.files, kept, strict=True):
            file.write_bytes(content)
        return True


class PowerCutWriter(InlineWriter):
    """Writes to a disk whose power may go."""

    def __init__(self, db: apsw.Connection, path: Path, power: DiskPower) -> None:
        super().__init__(db, path)
        self._power = power

    async def write(
        self, job: WriteJob[T], *, urgent: bool = False, light: bool = False, durable: bool = True, alike: object = None
    ) -> T:
        if not durable:
            self._power.mark_unsynced()
        result = await super().write(job)
        if durable:
            self._power.mark_synced()
        return result
