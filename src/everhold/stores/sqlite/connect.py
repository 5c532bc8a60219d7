"""Opens connections to the database file, reads rows from them, and keeps the file private to its owner."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from everhold.infra.home import make_private_directory

LOCK_WAIT_SECONDS: Final = 5.0
"""How long a connection waits for a lock of another process on the file."""
CACHE_KIB: Final = 16_384
STATEMENT_CACHE_SIZE: Final = 512
"""How many compiled statements SQLite caches. It is larger than the number of different statements, because the few
that run for each row of a batch would otherwise evict the rest."""
WAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""The write-ahead log is truncated to this size after it was copied into the database."""


def open_for_writing(
    path: Path, *, synchronous: str, patience: float = LOCK_WAIT_SECONDS, vfs: str | None = None
) -> apsw.Connection:
    """Open a connection that may write. Before `enable_wal`, closing it does not change the write-ahead log."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs, statementcachesize=STATEMENT_CACHE_SIZE)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.set_busy_timeout(int(patience * 1000))
    _disable_replanning(db)
    db.pragma("synchronous", synchronous)
    db.pragma("secure_delete", "on")
    db.pragma("foreign_keys", "off")
    db.pragma("temp_store", "memory")
    db.pragma("cache_size", -CACHE_KIB)
    return db


def enable_wal(db: apsw.Connection) -> None:
    """Switch to WAL mode, after the opened file was found sound."""
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    db.pragma("journal_mode", "wal")
    db.pragma("journal_size_limit", WAL_LIMIT_BYTES)
    db.pragma("wal_autocheckpoint", 0)  # the writer makes checkpoints, because it notices a failing fsync


def open_for_reading(path: Path, *, vfs: str | None = None) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs, statementcachesize=STATEMENT_CACHE_SIZE)
    db.set_busy_timeout(int(LOCK_WAIT_SECONDS * 1000))
    db.pragma("query_only", "on")
    _disable_replanning(db)
    db.pragma("cache_size", -CACHE_KIB)
    return db


def _disable_replanning(db: apsw.Connection) -> None:
    """Keep a statement's plan whatever values are bound. Otherwise this SQLite compiles most of our statements on every
    run to use statistics that we do not collect."""
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def make_private(path: Path) -> None:
    """Create `path` readable and writable by its owner only, or change its mode, whatever the umask is."""
    if not path.parent.exists():
        make_private_directory(path.parent)
        path.parent.chmod(0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.close(handle)
    path.chmod(0o600)


def fetch_rows(cur: apsw.Cursor, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
    """Return all rows of a query at once, so that no statement stays open."""
    found: list[Any] = cur.execute(sql, values).fetchall()
    return found
