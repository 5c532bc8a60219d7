"""Upgrades a database file to the schema of this build, or refuses it. It never changes a file that it refuses."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from everhold.errors import StoreDamaged, StoreError, StoreNewer, StoreOutdated
from everhold.infra.home import check_disk_space, make_private_directory, sync_path
from everhold.stores.sqlite import connect, damage
from everhold.stores.sqlite.errors import build_damaged_error, translate_error

APPLICATION_ID: Final = 0x45564831  # "EVH1"
DEVELOPMENT_APPLICATION: Final = 0x45564844  # "EVHD"
"""The id of stores from before the first release. Nothing migrates them."""
QUICK_CHECK_BYTES: Final = 32 * 1024 * 1024
"""Files up to this size are checked completely when they are opened."""
_FILE_MAGIC: Final = b"SQLite format 3\x00"
_WAL_MAGIC: Final = (0x377F0682, 0x377F0683)


class SchemaMigration(NamedTuple):
    number: int
    name: str
    sql: str


def list_migrations() -> list[SchemaMigration]:
    """The migrations that ship with this build, in order."""
    found = []
    for file in files("everhold.stores.sqlite").joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(SchemaMigration(int(number), name, file.read_text("utf-8")))
    return sorted(found)


@functools.cache
def get_newest_schema() -> int:
    """The newest schema that this build knows."""
    return list_migrations()[-1].number


def open_database(
    path: Path,
    *,
    migrations: Sequence[SchemaMigration],
    backups: Path,
    synchronous: str,
    patience: float = connect.LOCK_WAIT_SECONDS,
    vfs: str | None = None,
    on_backup: Callable[[Path], None] | None = None,
) -> apsw.Connection:
    """Open a writing connection to the database at `path`, after checking it and upgrading its schema. `on_backup`
    receives the path of the copy that is made before an upgrade."""
    if not path.exists():
        _create_database(path, migrations=migrations)
    inspect_header(path, newest=migrations[-1].number)
    for beside in (path, _find_free_path(path, "-wal"), _find_free_path(path, "-shm")):
        if beside.exists():
            beside.chmod(0o600)
    try:
        db = connect.open_for_writing(path, synchronous=synchronous, patience=patience, vfs=vfs)
    except apsw.Error as error:
        raise translate_error(error, path) from error
    try:
        _check_integrity(db, path)
        version = db.pragma("user_version")
        if version < migrations[-1].number:
            saved = copy_database(db, backups / f"{path.stem}-before-{migrations[-1].number:04d}.db")
            if on_backup is not None:
                on_backup(saved)
            _upgrade_schema(db, [migration for migration in migrations if migration.number > version])
        connect.enable_wal(db)
        if version < migrations[-1].number:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.Error as error:
        db.close()
        raise translate_error(error, path) from error
    except StoreError:
        db.close()
        raise
    return db


def copy_database(db: apsw.Connection, target: Path) -> Path:
    """Copy `db` to `target` (or beside it, if that exists), check the copy and return its path."""
    make_private_directory(target.parent)
    check_disk_space(target.parent, db.pragma("page_count") * db.pragma("page_size"))
    count = 1
    chosen = target
    while chosen.exists():
        count += 1
        chosen = target.with_name(f"{target.stem}-{count}{target.suffix}")
    partial = chosen.with_name(chosen.name + ".partial")
    partial.unlink(missing_ok=True)
    connect.make_private(partial)
    copy = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        with copy.backup("main", db, "main") as work:
            while not work.done:
                work.step(-1)
        copy.pragma("journal_mode", "delete")  # a single complete file
        _check_integrity(copy, partial)
    finally:
        copy.close()
    sync_path(partial)
    os.replace(partial, chosen)
    sync_path(chosen.parent)
    return chosen


def _create_database(path: Path, *, migrations: Sequence[SchemaMigration]) -> None:
    """Build the database under another name, so that there is either a complete one at `path` or none.

    Therefore an empty file at `path` can only be a database that lost its contents.
    """
    if _has_contents(_find_free_path(path, "-wal")):
        raise build_damaged_error(path, "the file is gone, but its write-ahead log is still there")
    fresh = _find_free_path(path, ".new")
    for leftover in (fresh, _find_free_path(fresh, "-wal"), _find_free_path(fresh, "-shm")):
        leftover.unlink(missing_ok=True)
    connect.make_private(fresh)
    try:
        db = connect.open_for_writing(fresh, synchronous="FULL")
        try:
            connect.enable_wal(db)
            db.pragma("application_id", APPLICATION_ID)
            _upgrade_schema(db, migrations)
        finally:
            db.close()
    except apsw.Error as error:
        raise translate_error(error, path) from error
    sync_path(fresh)
    os.replace(fresh, path)
    sync_path(path.parent)


def create_schema(db: apsw.Connection) -> None:
    """Give an empty database the schema of this build."""
    db.pragma("application_id", APPLICATION_ID)
    _upgrade_schema(db, list_migrations())


def _upgrade_schema(db: apsw.Connection, migrations: Sequence[SchemaMigration]) -> None:
    db.execute("begin immediate")
    try:
        for migration in migrations:
            db.execute(migration.sql)
            db.execute(f"pragma user_version = {migration.number:d}")
        db.execute("commit")
    except apsw.Error:
        if db.in_transaction:
            db.execute("rollback")
        raise


def inspect_header(path: Path, *, newest: int | None = None) -> None:
    """Refuse a file that is not a store, or too new. It is read as bytes, because SQLite may change what it opens."""
    newest = list_migrations()[-1].number if newest is None else newest
    with path.open("rb") as file:
        header = file.read(100)
    wal = _find_free_path(path, "-wal")
    if not header:
        beside = " beside a write-ahead log" if _has_contents(wal) else ""
        raise build_damaged_error(path, f"the file is empty{beside}")
    if len(header) < 100 or not header.startswith(_FILE_MAGIC):
        raise build_damaged_error(path, "page 1 is not the beginning of a SQLite database")
    (page_size,) = struct.unpack(">H", header[16:18])
    (application,) = struct.unpack(">I", header[68:72])
    if application == DEVELOPMENT_APPLICATION:
        raise StoreOutdated(
            "this home was created by a development version and cannot be opened",
            remedy="start with a new home (`--home`)",
        )
    if application != APPLICATION_ID:
        raise StoreDamaged(f"{path} is not an everhold database", remedy="name another file, or move this one away")
    (version,) = struct.unpack(">i", header[60:64])
    version = max(version, _find_wal_version(wal, 65_536 if page_size == 1 else page_size))
    if version > newest:
        raise StoreNewer(
            f"{path} has schema {version}, but this everhold knows schemas up to {newest}",
            remedy="install the newer everhold again, or restore a backup from before the upgrade",
        )


def refuse_foreign_schema(db: apsw.Connection, path: Path) -> None:
    """Refuse a file that lacks a table or an index of its schema version, or that has triggers, views or virtual
    tables. A store has none of these, and they would run when it is used.
    """
    remedy = "do not use this file: another program changed it"
    active = db.execute(
        "select type, name from sqlite_master where type in ('trigger', 'view') or sql like 'create virtual%'"
    ).fetchone()
    if active is not None:
        raise StoreDamaged(
            f"{path} has a {active[0]} called {str(active[1])[:100]!r}, and a store of everhold has none", remedy=remedy
        )
    version = db.pragma("user_version")
    example = apsw.Connection(":memory:")
    try:
        _upgrade_schema(example, [migration for migration in list_migrations() if migration.number <= version])
        missing = _list_schema_names(example) - _list_schema_names(db)
    finally:
        example.close()
    if missing:
        raise StoreDamaged(f"{path} has no {' '.join(min(missing))}, which schema {version} has", remedy=remedy)


def _list_schema_names(db: apsw.Connection) -> set[tuple[str, str]]:
    return set(db.execute("select type, name from sqlite_master where name not like 'sqlite_%'"))


def _find_wal_version(wal: Path, page_size: int) -> int:
    """The highest schema version in the write-ahead log's copies of page 1, because an upgrade may only be in there.

    If a process is killed between writing a frame's header and its page, older data follows the header. So a page
    counts as page 1 only if it has the expected values before and after the version.
    """
    try:
        file = wal.open("rb")
    except FileNotFoundError:
        return 0
    highest = 0
    with file:
        header = file.read(32)
        if len(header) < 32 or struct.unpack(">I", header[:4])[0] not in _WAL_MAGIC:
            return 0
        salts = header[16:24]
        at = 32
        while len(frame := file.read(24 + 72)) == 24 + 72 and frame[8:16] == salts:
            page = frame[24:]
            whole = page.startswith(_FILE_MAGIC) and struct.unpack(">I", page[68:72])[0] == APPLICATION_ID
            if whole and struct.unpack(">I", frame[:4])[0] == 1:
                highest = max(highest, struct.unpack(">i", page[60:64])[0])
            at += 24 + page_size
            file.seek(at)
    return highest


def _check_integrity(db: apsw.Connection, path: Path) -> None:
    if path.stat().st_size > QUICK_CHECK_BYTES:
        return
    if lines := damage.list_integrity_errors(db, most=5, quick=True):
        raise build_damaged_error(path, " / ".join(part for part in (*lines, damage.name_damaged_sessions(db)) if part))


def _find_free_path(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _has_contents(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
