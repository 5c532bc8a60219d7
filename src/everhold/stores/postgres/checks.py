"""Verifies and audits the database in one snapshot, on a thread with a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import psycopg

from everhold.core.audit import ReportProgress, StoreAudit
from everhold.stores import audit, verify
from everhold.stores.postgres.connections import PostgresConnector
from everhold.stores.postgres.errors import translate_error

T = TypeVar("T")
ROWS_PER_FETCH: Final = 200
_BEGIN: Final = "begin isolation level repeatable read read only"


class PostgresSnapshot:
    """Implements `stores.snapshot.SnapshotReader` in one transaction."""

    has_start_seq = True

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        self._cursors = 0

    def fetch_rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._connection.execute(_mark_values(sql), values or None, binary=True).fetchall()

    def iterate_rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        self._cursors += 1
        with self._connection.cursor(f"rows_{self._cursors}") as cursor:
            cursor.itersize = ROWS_PER_FETCH
            yield from cursor.execute(_mark_values(sql), values or None, binary=True)

    def fetch_value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        row = self._connection.execute(_mark_values(sql), values or None, binary=True).fetchone()
        return None if row is None else row[0]


def _mark_values(sql: str) -> str:
    return sql.replace("?", "%s")


async def verify_snapshot(connector: PostgresConnector, session: str | None) -> list[str]:
    return await _read_in_thread(connector, lambda reader: verify.find_contradictions(reader, session))


async def audit_snapshot(
    connector: PostgresConnector, session: str | None, report_progress: ReportProgress
) -> StoreAudit:
    return await _read_in_thread(connector, lambda reader: audit.audit_snapshot(reader, session, report_progress))


async def _read_in_thread(connector: PostgresConnector, read: Callable[[PostgresSnapshot], T]) -> T:
    def work() -> T:
        try:
            with psycopg.connect(connector.conninfo, autocommit=True, prepare_threshold=None) as connection:
                connection.execute(_BEGIN)
                return read(PostgresSnapshot(connection))
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise translate_error(error) from error

    return await asyncio.get_running_loop().run_in_executor(None, work)
