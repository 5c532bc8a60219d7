"""Writes into this host's erasures file what any host of a shared store erases.

A restore of the database brings erased text back, and the database then does not know of it. So every home keeps the
list, and a folder beside the backups as well. A host that starts erases again what is on it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from everhold.admin.erasure_records import ErasureRecords
from everhold.core.entries import Erased
from everhold.core.erasure import is_erasure_line
from everhold.infra.home import add_missing_lines

POLL_SECONDS: Final = 5.0
PAGE_SIZE: Final = 500


class ErasureFollower:
    """One per process. `directory` is where the list is kept as well; None: nowhere."""

    def __init__(self, records: ErasureRecords, *, file: Path, directory: Path | None) -> None:
        self.file = file
        self.directory = directory
        self.log = records.control.gates.log
        self._is_missing = False
        self._records = records
        self._control = records.control
        self._store = records.store
        self._after = 0
        self._listed: set[tuple[str, int]] | None = None
        """Sessions and numbers of the entries that are on the list."""
        self._copied: tuple[int, int] | None = None

    def fetch(self) -> int:
        """Add to the list what other homes have put into the directory. Return the number of lines."""
        if self.directory is None or not self._is_there():
            return 0
        return add_missing_lines(self.directory / self.file.name, self.file, is_valid=is_erasure_line)

    async def run(self) -> None:
        """Follow the store for ever."""
        while True:
            await self.catch_up()
            await asyncio.sleep(POLL_SECONDS)

    async def catch_up(self) -> None:
        """Write what was erased since the last time."""
        await self._follow_entries()
        await self._follow_people()
        self._copy()

    async def _follow_entries(self) -> None:
        if self._listed is None:
            lines = self._control.read_erasures()
            self._listed = {(line["session"], seq) for line in lines for seq in line["seqs"]}
        while page := await self._store.list_notes(after=self._after, limit=PAGE_SIZE):
            for entry in page:
                if not isinstance(entry.body, Erased):
                    continue
                missing = tuple(seq for seq in entry.body.seqs if (entry.session, seq) not in self._listed)
                if missing:
                    await self._control.record_erasure(entry.session, missing)
                    self._listed.update((entry.session, seq) for seq in missing)
            self._after = page[-1].pos

    async def _follow_people(self) -> None:
        erasures = await self._records.load_all()
        filed = {(it.identities, it.at): it for it in self._records.read_file()} if erasures else {}
        for erasure in erasures:
            known = filed.get((erasure.identities, erasure.at))
            if known is None:
                self._records.file_begin(erasure)
            if not erasure.is_open and (known is None or not known.is_done):
                self._records.file_end(erasure)

    def _copy(self) -> None:
        if self.directory is None or not self.file.exists() or not self._is_there():
            return
        found = self.file.stat()
        if self._copied != (found.st_size, found.st_mtime_ns):
            add_missing_lines(self.file, self.directory / self.file.name)
            self._copied = (found.st_size, found.st_mtime_ns)

    def _is_there(self) -> bool:
        """Whether the directory is there. It is not created, because its disk may be away."""
        assert self.directory is not None
        was_missing, self._is_missing = self._is_missing, not self.directory.is_dir()
        if self._is_missing and not was_missing:
            self.log.error("erasures.not_copied", directory=str(self.directory), remedy="mount its disk, or create it")
        return not self._is_missing
