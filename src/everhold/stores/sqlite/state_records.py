"""The table of state records: small versioned values outside the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from everhold.errors import Conflict
from everhold.ports.store import SHARED_NAMESPACES, StateNamespace, StateRecord, StateWrite
from everhold.stores.sqlite.connect import fetch_rows


def write_state(cur: apsw.Cursor, write: StateWrite) -> None:
    """Write or delete one state record. Raises Conflict unless it still has the version that was read."""
    place = (write.namespace, write.scope, write.key)
    if write.value is not None and write.version:
        cur.execute(
            "update state_records set value = ?, version = version + 1 "
            "where namespace = ? and scope = ? and key = ? and version = ?",
            (write.value, *place, write.version),
        )
    elif write.value is not None:
        cur.execute(
            "insert or ignore into state_records(namespace, scope, key, value, version) "
            "select ?, ?, ?, ?, version + 1 from state_floor where id = 1",
            (*place, write.value),
        )
    elif write.version:
        cur.execute(
            "delete from state_records where namespace = ? and scope = ? and key = ? and version = ?",
            (*place, write.version),
        )
    elif get_state_record(cur, write.namespace, write.key, scope=write.scope) is None:
        return  # it should not exist, and it does not
    else:
        raise _build_state_conflict(write)
    if cur.connection.changes() != 1:
        raise _build_state_conflict(write)
    if write.value is None:
        cur.execute("update state_floor set version = max(version, ?) where id = 1", (write.version,))
    if write.namespace in SHARED_NAMESPACES:
        cur.execute("update state_version set version = version + 1 where id = 1")


def _build_state_conflict(write: StateWrite) -> Conflict:
    found = f"was changed or deleted after version {write.version}" if write.version else "exists already"
    where = f" of {write.scope}" if write.scope else ""
    return Conflict(f"the {write.namespace} record {write.key!r}{where} {found}", remedy="try again")


def get_state_record(cur: apsw.Cursor, namespace: StateNamespace, key: str, *, scope: str) -> StateRecord | None:
    row = cur.execute(
        "select value, version from state_records where namespace = ? and scope = ? and key = ?",
        (namespace, scope, key),
    ).get
    return None if row is None else _parse_state_row((namespace, scope, key, *row))


def read_state_version(cur: apsw.Cursor) -> int:
    version: int = cur.execute("select version from state_version where id = 1").get
    return version


def list_state_records(cur: apsw.Cursor, namespace: StateNamespace | None, *, scope: str | None) -> list[StateRecord]:
    found = fetch_rows(
        cur,
        "select namespace, scope, key, value, version from state_records "
        "where (?1 is null or namespace = ?1) and (?2 is null or scope = ?2) order by namespace, scope, key",
        (namespace, scope),
    )
    return [_parse_state_row(row) for row in found]


def _parse_state_row(row: Sequence[Any]) -> StateRecord:
    namespace, scope, key, value, version = row
    return StateRecord(namespace=StateNamespace(namespace), scope=scope, key=key, value=value, version=version)
