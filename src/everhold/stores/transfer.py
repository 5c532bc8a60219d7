"""Moves a whole store between a SQLite file and a PostgreSQL database. Both have the same tables and columns.

Rows are copied in the order of their keys, one batch per commit, so an interrupted move goes on behind the last row
that the target has. Nobody may write meanwhile: the caller holds the home, and a marker keeps hosts away from the
database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import apsw
import psycopg

from everhold.errors import StoreBusy, StoreError
from everhold.stores.postgres.shared_store import (
    MOVE_MARKER,
    describe_address,
    explain_connection_error,
    hide_password,
)
from everhold.stores.sqlite import connect, migrate

BATCH_ROWS: Final = 500
Row: TypeAlias = tuple[Any, ...]
ReportRows: TypeAlias = Callable[[str, int], None]
"""Called with the table and the number of rows that were copied."""


class TransferTable(NamedTuple):
    """A table, and the columns that order it."""

    name: str
    key: tuple[str, ...]


TABLES: Final = (
    TransferTable("sessions", ("id",)),
    TransferTable("entries", ("pos",)),
    TransferTable("pending", ("session", "seq")),
    TransferTable("operations", ("session", "op")),
    TransferTable("cursors", ("session", "consumer")),
    TransferTable("dead_letters", ("id",)),
    TransferTable("receipts", ("session", "seq", "part", "consumer")),
    TransferTable("bindings", ("address",)),
    TransferTable("state_records", ("namespace", "scope", "key")),
    TransferTable("spending", ("budget", "day")),
    TransferTable("blobs", ("digest",)),
    TransferTable("people_log", ("n",)),
    TransferTable("persons", ("id",)),
    TransferTable("identities", ("identity",)),
    TransferTable("peers", ("memory", "agent", "identity", "from_pos")),
)
COUNTERS: Final = ("state_floor", "state_version")
"""Tables with one row and a version, which must not fall."""
NOT_MOVED: Final = frozenset(
    {"hosts", "account_leases", "reservations", "budget_locks", "store_info", "sqlite_sequence", MOVE_MARKER}
)
"""What matters only while processes run, and what each database has of its own."""


class TransferEnd(Protocol):
    """One of the two stores of a move."""

    place: str

    def list_tables(self) -> set[str]: ...

    def list_columns(self, table: str) -> list[str]: ...

    def read_rows(self, table: TransferTable, columns: Sequence[str], after: Row | None, limit: int) -> list[Row]: ...

    def find_last_key(self, table: TransferTable) -> Row | None: ...

    def write_rows(self, table: TransferTable, columns: Sequence[str], rows: Sequence[Row]) -> None: ...

    def read_counter(self, table: str) -> int: ...

    def write_counter(self, table: str, value: int) -> None: ...

    def finish(self) -> None:
        """End the leases of processes that ended, after the copy was compared."""

    def close(self) -> None: ...


def _build_page_query(source: str, columns: Sequence[str], key: Sequence[str], *, mark: str, is_first: bool) -> str:
    names, order = ", ".join(f'"{it}"' for it in columns), ", ".join(f'"{it}"' for it in key)
    where = "" if is_first else f" where ({order}) > ({', '.join([mark] * len(key))})"
    return f"select {names} from {source}{where} order by {order} limit {mark}"


class FileEnd:
    """The SQLite file of a store."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.place = str(path)
        if create:
            migrations = migrate.list_migrations()
            self.db = migrate.open_database(path, migrations=migrations, backups=path.parent, synchronous="FULL")
        else:
            self.db = connect.open_for_reading(path)

    def list_tables(self) -> set[str]:
        return {str(row[0]) for row in self.db.execute("select name from sqlite_master where type = 'table'")}

    def list_columns(self, table: str) -> list[str]:
        return [str(row[1]) for row in self.db.execute(f'pragma table_info("{table}")')]

    def read_rows(self, table: TransferTable, columns: Sequence[str], after: Row | None, limit: int) -> list[Row]:
        sql = _build_page_query(table.name, columns, table.key, mark="?", is_first=after is None)
        return list(self.db.execute(sql, (*(after or ()), limit)))

    def find_last_key(self, table: TransferTable) -> Row | None:
        names = ", ".join(f'"{it}"' for it in table.key)
        order = ", ".join(f'"{it}" desc' for it in table.key)
        found: Row | None = self.db.execute(f"select {names} from {table.name} order by {order} limit 1").fetchone()
        return found

    def write_rows(self, table: TransferTable, columns: Sequence[str], rows: Sequence[Row]) -> None:
        names, marks = ", ".join(f'"{it}"' for it in columns), ", ".join("?" * len(columns))
        plain = [tuple(int(it) if isinstance(it, bool) else it for it in row) for row in rows]
        with self.db:
            self.db.executemany(f"insert into {table.name} ({names}) values ({marks})", plain)

    def read_counter(self, table: str) -> int:
        return int(self.db.execute(f"select max(version) from {table}").get or 0)

    def write_counter(self, table: str, value: int) -> None:
        self.db.execute(f"insert or replace into {table}(id, version) values (1, ?)", (value,))

    def finish(self) -> None:
        self.db.execute("update cursors set lease_wait = 0 where owner <> ''")
        self.db.pragma("journal_mode", "delete")

    def close(self) -> None:
        self.db.close()


class ServerEnd:
    """The PostgreSQL database of a store."""

    def __init__(self, url: str) -> None:
        self.place = describe_address(url)
        try:
            self.connection: psycopg.Connection[Row] = psycopg.connect(url, autocommit=True)
        except psycopg.Error as error:
            raise explain_connection_error(error, url) from None

    def list_tables(self) -> set[str]:
        found = self.connection.execute("select tablename from pg_tables where schemaname = current_schema()")
        return {str(row[0]) for row in found}

    def _list_types(self, table: str) -> dict[str, str]:
        rows = self.connection.execute(
            "select column_name, data_type from information_schema.columns where table_schema = current_schema() "
            "and table_name = %s and is_generated = 'NEVER' order by ordinal_position",
            (table,),
        )
        return {str(name): str(kind) for name, kind in rows}

    def list_columns(self, table: str) -> list[str]:
        return [name for name in self._list_types(table) if (table, name) != ("spending", "shard")]

    def read_rows(self, table: TransferTable, columns: Sequence[str], after: Row | None, limit: int) -> list[Row]:
        source = table.name
        if table.name == "spending":
            source = (
                "(select budget, day, sum(usd) as usd, sum(tokens)::bigint as tokens from spending group by 1, 2) as it"
            )
        sql = _build_page_query(source, columns, table.key, mark="%s", is_first=after is None)
        return list(self.connection.execute(sql.encode(), (*(after or ()), limit)))

    def find_last_key(self, table: TransferTable) -> Row | None:
        names = ", ".join(f'"{it}"' for it in table.key)
        order = ", ".join(f'"{it}" desc' for it in table.key)
        return self.connection.execute(f"select {names} from {table.name} order by {order} limit 1".encode()).fetchone()

    def write_rows(self, table: TransferTable, columns: Sequence[str], rows: Sequence[Row]) -> None:
        types = self._list_types(table.name)
        names, marks = ", ".join(f'"{it}"' for it in columns), ", ".join(["%s"] * len(columns))
        if table.name == "spending":
            names, marks = f"{names}, shard", f"{marks}, 0"
        flags = {place for place, name in enumerate(columns) if types[name] == "boolean"}
        typed = [tuple(bool(it) if place in flags else it for place, it in enumerate(row)) for row in rows]
        sql = f"insert into {table.name} ({names}) overriding system value values ({marks})"
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.executemany(sql.encode(), typed)

    def read_counter(self, table: str) -> int:
        row = self.connection.execute(f"select max(version) from {table}".encode()).fetchone()
        return int(row[0] or 0) if row else 0

    def write_counter(self, table: str, value: int) -> None:
        self.connection.execute(f"update {table} set version = %s".encode(), (value,))

    def finish(self) -> None:
        self.connection.execute("update cursors set lease_wait = 0 where owner <> ''")
        self.connection.execute(
            "select setval(pg_get_serial_sequence('dead_letters', 'id'), (select max(id) from dead_letters)) "
            "where exists (select 1 from dead_letters)"
        )

    def close(self) -> None:
        self.connection.close()

    # -- the marker that keeps hosts away

    def mark(self, text: str, *, wants_empty: bool) -> None:
        """Keep hosts away from now on. Refuse a database that another move uses, that hosts use, or that is in use."""
        if MOVE_MARKER in self.list_tables():
            row = self.connection.execute(f"select what from {MOVE_MARKER}".encode()).fetchone()
            if row is not None and row[0] != text:
                raise StoreBusy(
                    f"{self.place} belongs to another move: {row[0]}", remedy="finish that one, or use another database"
                )
            return
        if wants_empty and self.find_last_key(TABLES[0]) is not None:
            raise StoreError(f"{self.place} has sessions already", remedy="create an empty database, and name it")
        with self.connection.transaction():
            self.connection.execute(f"create table {MOVE_MARKER} (what text not null)".encode())
            self.connection.execute(f"insert into {MOVE_MARKER} values (%s)".encode(), (text,))
        alive = self.connection.execute(
            "select name from hosts where lease_since + lease_wait > extract(epoch from clock_timestamp())::float8"
        ).fetchall()
        if alive:
            self.unmark()
            names = ", ".join(str(row[0]) for row in alive)
            raise StoreBusy(
                f"hosts use {self.place}: {names}", remedy="stop them with `everhold drain`, then try again"
            )

    def unmark(self) -> None:
        self.connection.execute(f"drop table if exists {MOVE_MARKER}".encode())


def find_unknown_tables(end: TransferEnd) -> list[str]:
    """The tables that no move copies. There must be none, or something would be lost."""
    known = {table.name for table in TABLES} | set(COUNTERS) | NOT_MOVED
    return sorted(name for name in end.list_tables() - known if not name.startswith("sqlite_"))


def copy_store(source: TransferEnd, target: TransferEnd, report: ReportRows) -> None:
    """Copy everything that the target does not have yet."""
    for end in (source, target):
        if unknown := find_unknown_tables(end):
            raise StoreError(f"{end.place} has tables that cannot be moved: {', '.join(unknown)}", remedy="report this")
    for table in TABLES:
        columns = source.list_columns(table.name)
        if missing := set(columns) ^ set(target.list_columns(table.name)):
            raise StoreError(
                f"{table.name} has other columns in one of the stores: {', '.join(sorted(missing))}",
                remedy="open both stores with this version of everhold first",
            )
        copied, after = 0, target.find_last_key(table)
        while rows := source.read_rows(table, columns, after, BATCH_ROWS):
            target.write_rows(table, columns, rows)
            after = tuple(rows[-1][columns.index(name)] for name in table.key)
            copied += len(rows)
            report(table.name, copied)
    for counter in COUNTERS:
        target.write_counter(counter, source.read_counter(counter))


def find_differences(source: TransferEnd, target: TransferEnd) -> list[str]:
    """Compare the number and the digest of the rows of every table. Return a sentence for each difference."""
    found = []
    for table in TABLES:
        columns = sorted(source.list_columns(table.name))
        here, there = _digest_table(source, table, columns), _digest_table(target, table, columns)
        if here != there:
            found.append(
                f"{table.name} has {here[0]} rows at {source.place} and {there[0]} at {target.place}, or others"
            )
    for counter in COUNTERS:
        if source.read_counter(counter) != target.read_counter(counter):
            found.append(f"{counter} differs")
    return found


def _digest_table(end: TransferEnd, table: TransferTable, columns: Sequence[str]) -> tuple[int, str]:
    count, digest = 0, hashlib.blake2b(digest_size=16)
    for row in _iterate_rows(end, table, columns):
        count += 1
        digest.update(repr([_normalize(it) for it in row]).encode("utf-8", "surrogatepass"))
    return count, digest.hexdigest()


def _iterate_rows(end: TransferEnd, table: TransferTable, columns: Sequence[str]) -> Iterator[Row]:
    after: Row | None = None
    while rows := end.read_rows(table, columns, after, BATCH_ROWS):
        yield from rows
        after = tuple(rows[-1][columns.index(name)] for name in table.key)


def _normalize(value: Any) -> Any:
    """Return a value as both databases have it: a truth value as a number, and a whole number as one kind."""
    if isinstance(value, bool | int):
        return float(value) if abs(value) < 2**53 else value
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def count_rows(end: TransferEnd, table: str) -> int:
    """Count the rows of a table page by page."""
    wanted = next(it for it in TABLES if it.name == table)
    return sum(1 for _ in _iterate_rows(end, wanted, wanted.key))


def translate_transfer_error(error: Exception, url: str) -> StoreError:
    """Return the error of a database during a move."""
    if isinstance(error, apsw.Error | psycopg.Error):
        return StoreError(f"the move stopped: {hide_password(str(error), url)}", remedy="run the same command again")
    raise error
