"""Reports when a commit of the store finds no space."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from everhold.errors import StoreFull
from everhold.stores.sqlite.store import SqliteStore

P = ParamSpec("P")
T = TypeVar("T")


def _report_full_disk(
    write: Callable[Concatenate[DiskGuardedStore, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[DiskGuardedStore, P], Coroutine[Any, Any, T]]:
    @functools.wraps(write)
    async def reporting(self: DiskGuardedStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await write(self, *args, **kwargs)
        except StoreFull:
            self.on_full()
            raise

    return reporting


class DiskGuardedStore(SqliteStore):
    """A store that calls `on_full` when one of its commits finds no space."""

    commit = _report_full_disk(SqliteStore.commit)
    claim_cursors = _report_full_disk(SqliteStore.claim_cursors)
    renew_leases = _report_full_disk(SqliteStore.renew_leases)
    revoke_leases = _report_full_disk(SqliteStore.revoke_leases)
    reserve_spending = _report_full_disk(SqliteStore.reserve_spending)
    renew_reservations = _report_full_disk(SqliteStore.renew_reservations)
    release_reservations = _report_full_disk(SqliteStore.release_reservations)
    claim_account = _report_full_disk(SqliteStore.claim_account)
    renew_accounts = _report_full_disk(SqliteStore.renew_accounts)
    release_account = _report_full_disk(SqliteStore.release_account)
    register_host = _report_full_disk(SqliteStore.register_host)
    renew_host = _report_full_disk(SqliteStore.renew_host)
    remove_host = _report_full_disk(SqliteStore.remove_host)
    retry_now = _report_full_disk(SqliteStore.retry_now)
    replay_dead_letters = _report_full_disk(SqliteStore.replay_dead_letters)
    drop_dead_letters = _report_full_disk(SqliteStore.drop_dead_letters)
