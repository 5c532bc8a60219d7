"""A disk that fails on request: a VFS between SQLite and the file system, which passes everything else on."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import apsw


@dataclass
class FaultyDisk:
    """What fails, and where: `only` is the suffix of the names of the affected files."""

    fsync_fails: bool = False
    fsync_fails_with: Path | None = None
    """Or as soon as this file exists, for a disk in another process."""
    reads_fail: bool = False
    free_bytes: int | None = None
    """How many bytes may still be added to files; None: any number."""
    only: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    syncs: int = 0
    waiting: set[int] = field(default_factory=set)
    """The threads that waited for it."""

    def applies_to(self, name: str) -> bool:
        return name.endswith(self.only)

    def has_space(self, name: str) -> bool:
        fails = self.fsync_fails or (self.fsync_fails_with is not None and self.fsync_fails_with.exists())
        return not (fails and self.applies_to(name))


class _FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, base: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__(base, name, flags)
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name or ""

    def xSync(self, flags: int) -> None:
        self._disk.syncs += 1
        self._disk.waiting.add(threading.get_ident())
        if not self._disk.has_space(self._name):
            raise apsw.IOError("the disk did not take it")
        super().xSync(flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        if self._disk.reads_fail and self._disk.applies_to(self._name):
            raise apsw.IOError("the disk cannot be read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        disk = self._disk
        if disk.applies_to(self._name):
            size = max(disk.sizes.get(self._name, 0), super().xFileSize())
            grows = max(0, offset + len(data) - size)
            if disk.free_bytes is not None:
                if grows > disk.free_bytes:
                    raise apsw.FullError("no space left on the disk")
                disk.free_bytes -= grows
            disk.sizes[self._name] = size + grows
        super().xWrite(data, offset)


class FaultyVFS(apsw.VFS):
    """Connections with the VFS `name` use `disk`. As the `default`, so do all that name no other VFS."""

    def __init__(self, name: str = "faulty", *, default: bool = False) -> None:
        self.name = name
        self.disk = FaultyDisk()
        self._base = apsw.vfs_names()[0]
        super().__init__(name, self._base, default)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _FaultyFile(self.disk, self._base, name, flags)
