"""The file of the index: opening, checking and creating it. The file holds no records; everything in it is derived from
the log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import apsw

VERSION: Final = "9"
"""Raised whenever the derived content changes. A file of another version is rebuilt."""
BUSY_TIMEOUT_SECONDS: Final = 5.0
CACHE_KIB: Final = 32_768
SCOPE_BITS: Final = 36
"""A chunk's id consists of its scope and its number in the scope, so one range of ids is one audience."""
HASH_BYTES: Final = 262_144
"""Bytes that full text collects before it writes a segment. At every commit it scans a buffer of the largest size it
ever had, so a large batch would make all later commits slow.
"""
TOKENIZER: Final = ("porter", ["unicode61", "remove_diacritics", "2", "categories", "'L* N* Co Mc Mn'"])
DAMAGE_ERRORS: Final = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.IOError)

_TABLES: Final = f"""
create table meta (key text primary key, value) without rowid;
create table scopes (
    id integer primary key, agent text not null, audience text not null, next integer not null default 0,
    items integer not null default 0, unique (agent, audience)
);
create table members (agent text, member text, scope integer, primary key (agent, member, scope)) without rowid;
create table authors (id integer primary key, author text not null unique);
create table items (
    pos integer primary key, session text not null, seq integer not null, part integer not null,
    scope integer not null, kind text not null,
    op integer, author text not null, person text not null, name text not null, address text not null,
    origin text not null, at real not null, fact text not null, state integer not null default 0,
    cause text not null default '', before integer not null, size integer not null, first integer not null,
    chunks integer not null
);
create unique index items_place on items (session, seq, part);
create index items_cause on items (cause) where cause <> '';
create index items_fact on items (scope, fact) where fact <> '';
create table places (
    first integer primary key, before integer not null, chunks integer not null, author integer not null,
    flags integer not null, at real not null, occasion integer not null
);
create table takes (session text, seq integer, op integer, primary key (session, op, seq)) without rowid;
create table names (scope integer, name text, author text, primary key (scope, name, author)) without rowid;
create table chunks (id integer primary key, pos integer not null, self text not null);
create virtual table words using fts5 (
    self, grams, content='', columnsize=0, tokenize="{TOKENIZER[0]} {" ".join(TOKENIZER[1])}"
);
insert into words (words, rank) values ('secure-delete', 1);
insert into words (words, rank) values ('hashsize', {HASH_BYTES});
create table vectors (chunk integer primary key, vector blob not null, pieces blob not null);
create table deep (chunk integer primary key, vector blob not null);
create table shallow (chunk integer primary key);
create table statements (
    scope integer, topic text, author text, first integer, at real not null, value text not null,
    negated integer not null, weak integer not null, primary key (scope, topic, author, first)
) without rowid;
create index statements_first on statements (first);
"""


def open_for_writing(path: Path) -> apsw.Connection:
    """Open the connection that writes. A file that is damaged or of another version is rebuilt."""
    if path.exists():
        try:
            db = _connect_writer(path)
            if _read_version(db) == VERSION:
                return db
            db.close()
        except DAMAGE_ERRORS:
            pass  # what cannot be read is derived again
        remove_index_file(path)
    return _create_file(path)


def open_for_reading(path: Path) -> apsw.Connection:
    db = _open_connection(path)
    db.pragma("temp_store", "memory")
    db.pragma("cache_size", -CACHE_KIB)
    db.pragma("query_only", "on")
    return db


def remove_index_file(path: Path) -> None:
    """Delete the file with its journal files."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def wipe_removed_bytes(db: apsw.Connection) -> None:
    """Leave no byte of removed rows in the files: deletion overwrites their pages, and this truncates the WAL."""
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def read_meta(db: apsw.Connection, key: str, default: str = "") -> str:
    found = db.execute("select value from meta where key = ?", (key,)).get
    return default if found is None else str(found)


def write_meta(db: apsw.Connection, key: str, value: str) -> None:
    db.execute("insert into meta values (?, ?) on conflict (key) do update set value = excluded.value", (key, value))


def _open_connection(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    db.set_busy_timeout(int(BUSY_TIMEOUT_SECONDS * 1000))
    # Use query plans that do not depend on bound values. Otherwise full text would prepare its own lookup twice per
    # word.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return db


def _connect_writer(path: Path) -> apsw.Connection:
    db = _open_connection(path)
    db.pragma("secure_delete", "on")
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "normal")
    db.pragma("temp_store", "memory")
    return db


def _read_version(db: apsw.Connection) -> str:
    known = db.execute("select 1 from sqlite_master where name = 'meta'").get
    return read_meta(db, "version") if known else ""


def _create_file(path: Path) -> apsw.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    db = _connect_writer(path)
    with db:
        db.execute(_TABLES)
        write_meta(db, "version", VERSION)
    return db
