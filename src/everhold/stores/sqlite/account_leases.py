"""The table of account leases: which host receives for an account, and under which fence."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import apsw

from everhold.errors import LeaseLost
from everhold.ports.hosts import AccountClaim, AccountLease
from everhold.stores.sqlite.connect import fetch_rows

_CLAIM: Final = (
    "insert into account_leases as held(account, owner, fence, lease_since, lease_wait) "
    "values (:account, :owner, 1, :at, :lease) "
    "on conflict(account) do update set owner = excluded.owner, fence = held.fence + 1, "
    "lease_since = excluded.lease_since, lease_wait = excluded.lease_wait "
    "where held.owner in ('', excluded.owner) "
    "or :at >= held.lease_since + held.lease_wait or :at < held.lease_since returning fence"
)


def check_account(cur: apsw.Cursor, claim: AccountClaim) -> None:
    """Raise LeaseLost unless the account is still held under this fence."""
    held = cur.execute("select owner, fence from account_leases where account = ?", (claim.account,)).get
    if held != (claim.owner, claim.fence):
        raise LeaseLost(f"account {claim.account} is no longer held under fence {claim.fence}")


def claim_account(cur: apsw.Cursor, account: str, *, owner: str, at: float, lease: float) -> AccountClaim | None:
    fence = cur.execute(_CLAIM, {"account": account, "owner": owner, "at": at, "lease": lease}).get
    return None if fence is None else AccountClaim(account=account, owner=owner, fence=fence)


def renew_accounts(
    cur: apsw.Cursor, claims: Collection[AccountClaim], *, at: float, lease: float
) -> list[AccountClaim]:
    still = []
    for claim in claims:
        cur.execute(
            "update account_leases set lease_since = ?, lease_wait = ? where account = ? and owner = ? and fence = ?",
            (at, lease, claim.account, claim.owner, claim.fence),
        )
        if cur.connection.changes():
            still.append(claim)
    return still


def release_account(cur: apsw.Cursor, claim: AccountClaim) -> bool:
    cur.execute(
        "update account_leases set owner = '' where account = ? and owner = ? and fence = ?",
        (claim.account, claim.owner, claim.fence),
    )
    return cur.connection.changes() > 0


def list_account_leases(cur: apsw.Cursor, *, at: float) -> list[AccountLease]:
    return [
        AccountLease(
            account=account,
            owner=owner,
            fence=fence,
            seconds_left=0.0 if at < lease_since else lease_since + lease_wait - at,
        )
        for account, owner, fence, lease_since, lease_wait in fetch_rows(
            cur,
            "select account, owner, fence, lease_since, lease_wait from account_leases "
            "where owner <> '' order by account",
        )
    ]
