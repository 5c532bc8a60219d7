"""The table of hosts: who works on this store, and until when that is known."""

from __future__ import annotations

from typing import Final

import apsw

from everhold.ports.hosts import HostRecord, HostStatus, HostVersion
from everhold.stores.sqlite.connect import fetch_rows

FORGET_SECONDS: Final = 86_400.0
"""How long a host that did not remove itself is listed after its registration ended."""
_SELECT: Final = (
    "select id, name, program, schema, url, started, lease_since, lease_wait, draining from hosts order by started, id"
)


def register_host(cur: apsw.Cursor, host: HostRecord, *, at: float, lease: float) -> list[HostStatus]:
    """Register a host, forget those that ended long ago, and return the others that are alive."""
    cur.execute("delete from hosts where lease_since + lease_wait < ?", (at - FORGET_SECONDS,))
    version = host.version
    cur.execute(
        "insert or replace into hosts(id, name, program, schema, url, started, lease_since, lease_wait) "
        "values (?, ?, ?, ?, ?, ?, ?, ?)",
        (host.id, host.name, version.program, version.schema, host.url, at, at, lease),
    )
    return [status for status in list_hosts(cur, at=at) if status.is_alive and status.host.id != host.id]


def renew_host(cur: apsw.Cursor, id: str, *, at: float, lease: float, is_draining: bool) -> bool:
    cur.execute(
        "update hosts set lease_since = ?, lease_wait = ?, draining = ? where id = ?", (at, lease, is_draining, id)
    )
    return cur.connection.changes() > 0


def remove_host(cur: apsw.Cursor, id: str) -> None:
    cur.execute("delete from hosts where id = ?", (id,))


def list_hosts(cur: apsw.Cursor, *, at: float) -> list[HostStatus]:
    accounts: dict[str, list[str]] = {}
    claimed = "select owner, account from account_leases where owner <> '' order by account"
    for owner, account in fetch_rows(cur, claimed):
        accounts.setdefault(owner, []).append(account)
    held: dict[str, dict[str, int]] = {}
    for owner, consumer, count in fetch_rows(
        cur,
        "select owner, consumer, count(*) from cursors where due is not null and owner <> '' "
        "group by owner, consumer order by owner, consumer",
    ):
        held.setdefault(owner, {})[consumer] = count
    return [
        HostStatus(
            host=HostRecord(id=id, name=name, version=HostVersion(program=program, schema=schema), url=url),
            seconds_since_start=at - started,
            seconds_since_renewal=at - lease_since,
            is_alive=lease_since <= at < lease_since + lease_wait,
            is_draining=bool(draining),
            accounts=tuple(accounts.get(id, ())),
            cursors=held.get(id, {}),
        )
        for id, name, program, schema, url, started, lease_since, lease_wait, draining in fetch_rows(cur, _SELECT)
    ]
