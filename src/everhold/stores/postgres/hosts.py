"""The tables of hosts and account leases. Each statement is a transaction of its own.

`now` in a statement is the time of a test's clock, or null for the server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from everhold.ports.hosts import AccountLease, HostRecord, HostStatus, HostVersion

FORGET_SECONDS: Final = 86_400.0
"""How long a host that did not remove itself is listed after its registration ended."""
_NOW: Final = "coalesce(%(now)s::float8, extract(epoch from clock_timestamp())::float8)"
CLAIM_ACCOUNT: Final = f"""
insert into account_leases as held(account, owner, fence, lease_since, lease_wait)
select %(account)s, %(owner)s, 1, {_NOW}, %(lease)s
on conflict (account) do update set owner = excluded.owner, fence = held.fence + 1,
  lease_since = excluded.lease_since, lease_wait = excluded.lease_wait
where held.owner in ('', excluded.owner) or excluded.lease_since >= held.lease_since + held.lease_wait
  or excluded.lease_since < held.lease_since
returning fence
"""
RENEW_ACCOUNTS: Final = f"""
with wanted as materialized (
  select a.account from account_leases a
  join unnest(%(accounts)s::text[], %(owners)s::text[], %(fences)s::bigint[]) n(account, owner, fence)
    on a.account = n.account and a.owner = n.owner and a.fence = n.fence order by a.account for update of a
)
update account_leases a set lease_since = {_NOW}, lease_wait = %(lease)s from wanted where a.account = wanted.account
returning a.account, a.owner, a.fence
"""
RELEASE_ACCOUNT: Final = (
    "update account_leases set owner = '' where account = %(account)s and owner = %(owner)s and fence = %(fence)s"
)
SELECT_ACCOUNTS: Final = f"""
select account, owner, fence, case when {_NOW} < lease_since then 0 else lease_since + lease_wait - {_NOW} end
from account_leases where owner <> '' order by account
"""
REGISTER_HOST: Final = f"""
with forgotten as (delete from hosts where lease_since + lease_wait < {_NOW} - {FORGET_SECONDS} and id <> %(id)s)
insert into hosts(id, name, program, schema, url, started, lease_since, lease_wait)
values (%(id)s, %(name)s, %(program)s, %(schema)s, %(url)s, {_NOW}, {_NOW}, %(lease)s)
on conflict (id) do update set name = excluded.name, program = excluded.program, schema = excluded.schema,
  url = excluded.url, started = excluded.started, lease_since = excluded.lease_since,
  lease_wait = excluded.lease_wait, draining = false
"""
RENEW_HOST: Final = (
    f"update hosts set lease_since = {_NOW}, lease_wait = %(lease)s, draining = %(draining)s where id = %(id)s"
)
REMOVE_HOST: Final = "delete from hosts where id = %(id)s"
SELECT_HOSTS: Final = f"""
select h.id, h.name, h.program, h.schema, h.url, clock.now - h.started, clock.now - h.lease_since,
  h.lease_since <= clock.now and clock.now < h.lease_since + h.lease_wait, h.draining,
  array(select a.account from account_leases a where a.owner = h.id order by a.account)
from hosts h, (select {_NOW} as now) clock order by h.started, h.id
"""
SELECT_HELD: Final = (
    "select owner, consumer, count(*) from cursors where free is not null and owner <> '' "
    "group by owner, consumer order by owner, consumer"
)


def parse_account_row(row: Sequence[Any]) -> AccountLease:
    account, owner, fence, seconds_left = row
    return AccountLease(account=account, owner=owner, fence=fence, seconds_left=seconds_left)


def build_host_statuses(rows: Sequence[Sequence[Any]], held: Sequence[Sequence[Any]]) -> list[HostStatus]:
    cursors: dict[str, dict[str, int]] = {}
    for owner, consumer, count in held:
        cursors.setdefault(owner, {})[consumer] = count
    return [
        HostStatus(
            host=HostRecord(id=id, name=name, version=HostVersion(program=program, schema=schema), url=url),
            seconds_since_start=started,
            seconds_since_renewal=renewed,
            is_alive=alive,
            is_draining=draining,
            accounts=tuple(accounts),
            cursors=cursors.get(id, {}),
        )
        for id, name, program, schema, url, started, renewed, alive, draining, accounts in rows
    ]
