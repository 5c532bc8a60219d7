"""Makes and inspects copies of the store: opens a copy, checks every page and compares every entry with its digest."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import apsw

from everhold.errors import StoreDamaged, StoreError
from everhold.ports.store_files import CopyEnd, IncrementFile, StoreCopy
from everhold.stores.sqlite import connect, damage, migrate, snapshot
from everhold.stores.sqlite.errors import build_damaged_error, translate_error

MAX_UNUSED_POSITIONS: Final = 1_000_000
"""How many positions of an increment may have no entry. A position that was never used is rare."""
MOVE_INCREMENT: Final = "nothing was changed; move this increment away, then try again to restore up to it"


def make_copy(db: apsw.Connection, target: Path) -> StoreCopy:
    """Copy everything committed into one file at `target`, or beside it if that exists, and inspect the copy."""
    return inspect_copy(migrate.copy_database(db, target))


def inspect_copy(path: Path) -> StoreCopy:
    """Report the contents of the store at `path` and whether it is sound. Raises StoreError if it cannot be opened."""
    if not path.is_file():
        raise StoreError(f"there is no {path}", remedy="`everhold restore` lists the backups")
    migrate.inspect_header(path)
    try:
        db = connect.open_for_reading(path)
        try:
            migrate.refuse_foreign_schema(db, path)
            return _inspect_connection(db, path)
        finally:
            db.close()
    except apsw.Error as error:
        raise translate_error(error, path) from error
    except UnicodeDecodeError as error:
        raise build_damaged_error(path, f"a text in it is no UTF-8: {error}") from error


def open_increment(it: IncrementFile) -> apsw.Connection:
    """Open an increment for reading. Raises StoreError if it is not what its name says, or may not be read.

    A restore reads each position up to the last one, so a position without an end would never be reached.
    """
    if not it.path.is_file():
        raise StoreError(f"{it.path} is not a file", remedy=MOVE_INCREMENT)
    try:
        migrate.inspect_header(it.path)
        db = connect.open_for_reading(it.path)
        try:
            migrate.refuse_foreign_schema(db, it.path)
            _refuse_wrong_positions(db, it)
        except BaseException:
            db.close()
            raise
    except apsw.Error as error:
        raise StoreDamaged(f"the increment {it.path} cannot be read: {error}", remedy=MOVE_INCREMENT) from error
    except UnicodeDecodeError as error:
        raise StoreDamaged(f"a text in the increment {it.path} is no UTF-8", remedy=MOVE_INCREMENT) from error
    return db


def find_copy_end(db: apsw.Connection, path: Path) -> CopyEnd | None:
    """Return where a copy or an increment of the store `db` ends; None if its last entry is none of this store.

    The file may be anything, because only its name is known.
    """
    if not path.is_file():
        return None
    try:
        migrate.inspect_header(path)
        copy = connect.open_for_reading(path)
        try:
            migrate.refuse_foreign_schema(copy, path)
            last = copy.execute("select pos, session, seq from entries order by pos desc limit 1").get
            row: int = copy.execute("select coalesce(max(rowid), 0) from blobs").get
        finally:
            copy.close()
    except (apsw.Error, StoreError, OSError, UnicodeDecodeError):
        return None
    if last is None:
        return CopyEnd(0, row)
    own = db.execute("select pos, session, seq from entries where pos = ?", last[:1]).get
    return CopyEnd(last[0], row) if own == last else None


def _refuse_wrong_positions(db: apsw.Connection, it: IncrementFile) -> None:
    if pages := damage.list_integrity_errors(db):
        raise StoreDamaged(f"the increment {it.path} is damaged: {' / '.join(pages[:5])}", remedy=MOVE_INCREMENT)
    first, last, count = db.execute("select min(pos), max(pos), count(*) from entries").get
    if last != it.upto_pos or first <= it.after_pos:
        raise StoreDamaged(
            f"the increment {it.path} has the positions {first} to {last}, and its name says otherwise",
            remedy=MOVE_INCREMENT,
        )
    if last - it.after_pos - count > MAX_UNUSED_POSITIONS:
        raise StoreDamaged(
            f"the increment {it.path} has {count} entries for {last - it.after_pos} positions", remedy=MOVE_INCREMENT
        )


def _inspect_connection(db: apsw.Connection, path: Path) -> StoreCopy:
    if pages := damage.list_integrity_errors(db):
        raise build_damaged_error(
            path, " / ".join(part for part in (*pages[:5], damage.name_damaged_sessions(db)) if part)
        )
    cur = db.cursor()
    audited = snapshot.audit_snapshot(db)
    broken = [f"{it.session}: {it.promise}: {it.text}" for it in audited.findings if it.level == "broken"]
    pos, count, newest = cur.execute("select max(pos), count(*), max(at) from entries").get
    return StoreCopy(
        path=path,
        size_bytes=path.stat().st_size,
        pos=pos or 0,
        sessions=cur.execute("select count(*) from sessions").get,
        entries=count,
        newest_at=newest or 0.0,
        contradictions=audited.contradictions,
        broken_promises=broken,
    )


def read_last_seqs(path: Path) -> dict[str, int]:
    """The last seq of each session, from a file that may be damaged."""
    if not path.is_file():
        return {}
    try:
        db = connect.open_for_reading(path)
    except apsw.Error:
        return {}
    try:
        return damage.read_last_seqs(db)
    finally:
        db.close()
