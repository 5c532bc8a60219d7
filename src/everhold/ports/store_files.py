"""What a store in files offers besides the port of every store: copies of the file, increments and their restore.

A store on a database server has none of this, because the server's own tools make its backups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from everhold.errors import StoreError
from everhold.ports.store import Store


class StoreCopy(NamedTuple):
    """The contents of a store's file, its contradictions, and the promises that an audit finds broken in it. A copy of
    a store with broken promises has them, too."""

    path: Path
    size_bytes: int
    pos: int
    sessions: int
    entries: int
    newest_at: float
    """When the last entry was written."""
    contradictions: list[str]
    broken_promises: list[str]

    @property
    def is_sound(self) -> bool:
        return not self.contradictions


class StoreIncrement(NamedTuple):
    """What an increment holds."""

    after_pos: int
    upto_pos: int
    entries: int
    blob_row: int
    """The last row of the files that were copied."""


class BackupFile(NamedTuple):
    """A copy in the home's `backups/`, as described by its file name."""

    path: Path
    at: float
    pos: int
    is_sound: bool


class CopyEnd(NamedTuple):
    """Where a copy of a store ends."""

    pos: int
    blob_row: int


class IncrementFile(NamedTuple):
    """What was committed between two positions, as described by its file name."""

    path: Path
    after_pos: int
    upto_pos: int
    blob_row: int
    at: float


@dataclass(frozen=True)
class RestorePlan:
    """What a restore would do. `upto_pos` is the pos to roll back to, None for everything in the source."""

    source: Path
    source_copy: StoreCopy
    upto_pos: int | None
    current_copy: StoreCopy | None
    """The present store, None if there is none or it cannot be read."""
    damage: str = ""
    """Why the present store cannot be read."""
    source_identity: tuple[int, ...] = ()
    """The file that was inspected, so that another one in its place is noticed."""
    lost_entries: int = 0
    """Entries of the present store that the restored one will not contain. They are counted, because positions have
    gaps after a power cut."""
    chain: tuple[IncrementFile, ...] = ()
    """The increments that are added to the source."""

    @property
    def last_pos(self) -> int:
        return self.chain[-1].upto_pos if self.chain else self.source_copy.pos

    @property
    def is_rollback(self) -> bool:
        """Whether the source is rolled back. Data that is not derived from entries stays as in the source."""
        return self.upto_pos is not None and self.upto_pos < self.last_pos


@dataclass(frozen=True)
class RestoreResult:
    """What a restore did."""

    pos: int
    set_aside: Path | None
    """The copy of the replaced store."""
    stopped_operations: int
    skipped_seqs: int
    """Seqs of removed entries, which are not used again."""
    salvaged: int
    """Entries after the copy that were taken from the damaged store."""
    left_out: list[str]
    """What could not be taken from it."""


class ConsumerDelay(NamedTuple):
    """The cursors of one consumer that fail, or wait for too long."""

    consumer: str
    cursors: int
    since: float
    attempts: int
    error: str


class GivenUpItems(NamedTuple):
    """How many items one consumer gave up on, and one of the reasons."""

    consumer: str
    items: int
    reason: str


class StoreCheckup(NamedTuple):
    """What `everhold doctor` finds in a store."""

    copy: StoreCopy
    notes: tuple[tuple[str, str], ...]
    """Texts and remedies of what is no problem."""
    delays: tuple[ConsumerDelay, ...]
    given_up: tuple[GivenUpItems, ...]


class ServerCheckup(NamedTuple):
    """What `everhold doctor` finds in a database server."""

    place: str
    """User, host and database, without the password."""
    version: str
    is_version_supported: bool
    is_pooled: bool
    """A pooler gives each transaction another connection, so hints of other hosts do not arrive."""
    is_durable: bool
    """A commit is on the server's disk before it is acknowledged."""
    has_synchronous_standby: bool
    """A commit is on a second server before it is acknowledged."""
    clock_difference_seconds: float
    """How far this machine's clock is ahead of the server's."""
    schema_version: int
    """0: the database is empty."""
    is_schema_too_new: bool


class SupportsFileCopies(Protocol):
    """The copies of a store that is a file."""

    async def make_copy(self, target: Path) -> StoreCopy:
        """Copy everything committed, and inspect the copy."""

    async def write_increment(
        self, target: Path, *, after_pos: int, recent_pos: int, blob_row: int
    ) -> StoreIncrement | None:
        """Write what was committed after `after_pos` to a file; None if there is nothing."""

    async def find_copy_end(self, copy: Path) -> CopyEnd | None:
        """Where a copy or an increment of this store ends; None if the file is none of this store.

        Anybody who may write to the directory can give a file any name, so the content decides.
        """


class OpenStore(Store, Protocol):
    """A store that this process opened, and may watch and close."""

    on_full: Callable[[], None]
    """Called when a commit finds no space."""

    @property
    def files(self) -> SupportsFileCopies | None:
        """How to copy it; None if it is on a server."""

    @property
    def upgrade_backup(self) -> Path | None:
        """The copy that was made before an upgrade of the schema."""

    def find_fault(self) -> StoreError | None:
        """Why nothing can be written any more. The process has to restart."""

    async def ping_writer(self) -> None:
        """Commit nothing, and return when the writer has done it."""
