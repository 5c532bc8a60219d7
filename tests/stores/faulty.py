"""A disk that fails on request: a layer between SQLite and the file system. It passes everything else on as it is."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import apsw


@dataclass
class Disk:
    """What goes wrong, and where: `only` is the end of the names of the files it happens to."""

    fsync_fails: bool = False
    reads_fail: bool = False
    room: int | None = None
    """Bytes that may still be added to files; None for any number."""
    only: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    syncs: int = 0
    waiting: set[int] = field(default_factory=set)
    """The threads that waited for it."""

    def concerns(self, name: str) -> bool:
        return name.endswith(self.only)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, base: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__(base, name, flags)
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name or ""

    def xSync(self, flags: int) -> None:
        self._disk.syncs += 1
        self._disk.waiting.add(threading.get_ident())
        if self._disk.fsync_fails and self._disk.concerns(self._name):
            raise apsw.IOError("the disk did not take it")
        super().xSync(flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        if self._disk.reads_fail and self._disk.concerns(self._name):
            raise apsw.IOError("the disk cannot be read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        disk = self._disk
        if disk.concerns(self._name):
            size = max(disk.sizes.get(self._name, 0), super().xFileSize())
            grows = max(0, offset + len(data) - size)
            if disk.room is not None:
                if grows > disk.room:
                    raise apsw.FullError("no room left on the disk")
                disk.room -= grows
            disk.sizes[self._name] = size + grows
        super().xWrite(data, offset)


class FaultyVFS(apsw.VFS):
    """Register with a `with`; connections opened under `name` live on `disk`."""

    def __init__(self, name: str = "faulty") -> None:
        self.name = name
        self.disk = Disk()
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _File(self.disk, "", name, flags)
