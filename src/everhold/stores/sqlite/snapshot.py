"""Reads a database file for `stores.verify` and `stores.audit`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import apsw

from everhold.core.audit import ReportProgress, StoreAudit
from everhold.stores import audit
from everhold.stores.sqlite.connect import fetch_rows

START_SEQ_SCHEMA: Final = 3
"""The schema that introduced `start_seq`. An older copy does not say where its cursors began."""


class SqliteSnapshot:
    """Implements `stores.snapshot.SnapshotReader`."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._cursor = db.cursor()
        self.has_start_seq: bool = db.pragma("user_version") >= START_SEQ_SCHEMA

    def fetch_rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return fetch_rows(self._cursor, sql, values)

    def iterate_rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        yield from self._db.cursor().execute(sql, values)

    def fetch_value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        return self._cursor.execute(sql, values).get


def audit_snapshot(
    db: apsw.Connection, session: str | None = None, report_progress: ReportProgress = lambda done, total: None
) -> StoreAudit:
    """Audit one session, or the whole store, in one read transaction."""
    db.execute("begin")
    try:
        return audit.audit_snapshot(SqliteSnapshot(db), session, report_progress)
    finally:
        db.execute("rollback")
