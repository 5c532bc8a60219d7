"""What the store keeps beside the log: state records, what was spent, and content by its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from everhold.errors import Conflict
from everhold.ports.store import Spend, StateNamespace, StateRecord, StateWrite
from everhold.stores.sqlite.rows import fetch_rows


def write_state(cur: apsw.Cursor, write: StateWrite) -> None:
    """Write or delete one state record, if it still has the version that was read."""
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
        raise _state_conflict(write)
    if cur.connection.changes() != 1:
        raise _state_conflict(write)
    if write.value is None:
        cur.execute("update state_floor set version = max(version, ?) where id = 1", (write.version,))


def _state_conflict(write: StateWrite) -> Conflict:
    found = f"was changed or deleted after version {write.version}" if write.version else "exists already"
    where = f" of {write.scope}" if write.scope else ""
    return Conflict(f"the {write.namespace} record {write.key!r}{where} {found}", remedy="try again")


def get_state_record(cur: apsw.Cursor, namespace: StateNamespace, key: str, *, scope: str) -> StateRecord | None:
    row = cur.execute(
        "select value, version from state_records where namespace = ? and scope = ? and key = ?",
        (namespace, scope, key),
    ).get
    return None if row is None else _record_of((namespace, scope, key, *row))


def list_state_records(cur: apsw.Cursor, namespace: StateNamespace | None, *, scope: str | None) -> list[StateRecord]:
    found = fetch_rows(
        cur,
        "select namespace, scope, key, value, version from state_records "
        "where (?1 is null or namespace = ?1) and (?2 is null or scope = ?2) order by namespace, scope, key",
        (namespace, scope),
    )
    return [_record_of(row) for row in found]


def _record_of(row: Sequence[Any]) -> StateRecord:
    namespace, scope, key, value, version = row
    return StateRecord(namespace=StateNamespace(namespace), scope=scope, key=key, value=value, version=version)


def add_spends(cur: apsw.Cursor, spends: Iterable[Spend]) -> None:
    cur.executemany(
        "insert into spending(budget, day, usd, tokens) values (?, ?, ?, ?) "
        "on conflict(budget, day) do update set usd = usd + excluded.usd, tokens = tokens + excluded.tokens",
        [(one.budget, one.day, one.usd, one.tokens) for one in spends],
    )


def read_spend(cur: apsw.Cursor, budget: str, day: str) -> Spend:
    row = cur.execute("select usd, tokens from spending where budget = ? and day = ?", (budget, day)).get
    usd, tokens = (0.0, 0) if row is None else row
    return Spend(budget=budget, day=day, usd=usd, tokens=tokens)


def list_spends(cur: apsw.Cursor, prefix: str, day: str) -> list[Spend]:
    found = cur.execute(
        "select budget, usd, tokens from spending where substr(budget, 1, ?) = ? and day = ? order by budget",
        (len(prefix), prefix, day),
    )
    return [Spend(budget=row[0], day=day, usd=row[1], tokens=row[2]) for row in found]


def store_blobs(cur: apsw.Cursor, blobs: Iterable[bytes]) -> None:
    cur.executemany(
        "insert or ignore into blobs(digest, data) values (?, ?)",
        [(hashlib.sha256(data).hexdigest(), data) for data in blobs],
    )


def delete_blobs(cur: apsw.Cursor, digests: Iterable[str]) -> None:
    cur.executemany("delete from blobs where digest = ?", [(digest,) for digest in digests])


def read_blob(cur: apsw.Cursor, digest: str) -> bytes | None:
    data: bytes | None = cur.execute("select data from blobs where digest = ?", (digest,)).get
    return data
