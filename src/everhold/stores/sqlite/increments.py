"""Incremental copies: a small file with what was committed after a given pos. The log only grows, so this is cheap.

An increment has the schema of a store, and `salvage.add_newer_entries` adds it to a copy. It contains the entries with
their sessions and files. Of the rows that do not follow from entries it has those of sessions that changed lately.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from everhold.ports.store_files import StoreIncrement
from everhold.stores.sqlite import connect, migrate
from everhold.stores.sqlite.errors import translate_error

_WHOLE_TABLES: Final = ("state_records", "state_floor", "spending", "people_log", "persons", "identities", "peers")
_LATE_SESSIONS: Final = "(select distinct session from store.entries where pos > :recent)"


def write_increment(
    store: Path, target: Path, *, after_pos: int, recent_pos: int, blob_row: int
) -> StoreIncrement | None:
    """Write what `store` has after `after_pos` to a new file at `target`; None if there is nothing.

    The rows of sessions with entries after `recent_pos` are included, too, because deliveries come later than entries.
    It runs in SQLite, so other threads are not delayed.
    """
    target.unlink(missing_ok=True)
    connect.make_private(target)
    try:
        db = apsw.Connection(
            str(target), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_CREATE
        )
        try:
            return _fill(db, store, after_pos=after_pos, recent_pos=recent_pos, blob_row=blob_row)
        finally:
            db.close()
    except apsw.Error as error:
        raise translate_error(error, target) from error


def _fill(db: apsw.Connection, store: Path, *, after_pos: int, recent_pos: int, blob_row: int) -> StoreIncrement | None:
    db.set_busy_timeout(int(connect.LOCK_WAIT_SECONDS * 1000))
    db.pragma("synchronous", "off")  # the file is synced when it is complete
    migrate.create_schema(db)
    db.execute("attach ? as store", (f"file:{quote(str(store))}?mode=ro",))
    db.execute("begin immediate")
    upto: int = db.execute("select coalesce(max(pos), 0) from store.entries").get
    last_blob: int = db.execute("select coalesce(max(rowid), 0) from store.blobs").get
    if upto <= after_pos:
        db.execute("rollback")
        return None
    values = {"after": after_pos, "recent": recent_pos, "blob": blob_row if last_blob >= blob_row else 0}
    for table, where in (
        ("entries", "pos > :after"),
        ("sessions", "id in (select distinct session from store.entries where pos > :after)"),
        ("cursors", f"due is not null or session in {_LATE_SESSIONS}"),
        ("receipts", f"session in {_LATE_SESSIONS}"),
        ("dead_letters", "true"),
    ):
        used = {name: value for name, value in values.items() if f":{name}" in where}
        db.execute(f"insert into main.{table} select * from store.{table} where {where}", used)
    db.execute(
        "insert into main.blobs(digest, data) select digest, data from store.blobs where rowid > ?", (values["blob"],)
    )
    for table in _WHOLE_TABLES:
        db.execute(f"delete from main.{table}")
        db.execute(f"insert into main.{table} select * from store.{table}")
    count: int = db.execute("select count(*) from main.entries").get
    db.execute("commit")
    db.execute("detach store")
    return StoreIncrement(after_pos, upto, count, last_blob)
