"""Opens connections to the database file, private to their owner. It never reads or writes a row."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import apsw

LOCK_WAIT_SECONDS: Final = 5.0
"""How long a foreign lock on the file is waited for."""
CACHE_KIB: Final = 16_384
STATEMENT_CACHE_SIZE: Final = 512
"""After so many others have run, a statement has to be compiled again. There are not so many different ones: it is the
same few, run for each row of a batch, that would drive out the rest."""
WAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""The write-ahead log is cut back to this once it has been copied into the database."""


def open_for_writing(
    path: Path, *, synchronous: str, patience: float = LOCK_WAIT_SECONDS, vfs: str | None = None
) -> apsw.Connection:
    """A connection that may write. Until `settle` is called it leaves the write-ahead log alone when it closes."""
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
    """What was opened has been found sound: keep the log in WAL mode from here on."""
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    db.pragma("journal_mode", "wal")
    db.pragma("journal_size_limit", WAL_LIMIT_BYTES)
    db.pragma("wal_autocheckpoint", 0)  # the writer does it, where a failing fsync is seen


def open_for_reading(path: Path, *, vfs: str | None = None) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs, statementcachesize=STATEMENT_CACHE_SIZE)
    db.set_busy_timeout(int(LOCK_WAIT_SECONDS * 1000))
    db.pragma("query_only", "on")
    _disable_replanning(db)
    db.pragma("cache_size", -CACHE_KIB)
    return db


def _disable_replanning(db: apsw.Connection) -> None:
    """Keep a statement's plan whatever is bound to it. This SQLite would else compile most of ours on every run, for
    statistics that we do not gather."""
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def make_private(path: Path) -> None:
    """Create `path` for its owner's eyes only, or make it so; whatever the umask says."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.close(handle)
    path.chmod(0o600)
