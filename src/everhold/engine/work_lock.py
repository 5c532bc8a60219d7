"""Work that one task of one host does at a time: forgetting people, and storing sessions anew.

Within a process it is a lock. On a store that several hosts use, it is also a lease, so a host that dies does not hold
the work for ever. What the work records names the lease, so a host that lost it writes nothing any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from everhold.engine.gates import Gates
from everhold.errors import EverholdError
from everhold.ports.hosts import AccountClaim, make_account_name

WORK_LEASE_SECONDS: Final = 60.0
WORK_POLL_SECONDS: Final = 1.0
"""How often a host asks for work that another one holds."""


class WorkLock:
    """Held with `async with`."""

    def __init__(self, gates: Gates, name: str) -> None:
        self._gates = gates
        self._name = make_account_name("work", name)
        self._local = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self.claim: AccountClaim | None = None
        """What a change names that the work makes; None on a store that no other host uses."""

    async def __aenter__(self) -> None:
        await self._local.acquire()
        try:
            if not self._gates.store.is_exclusive:
                await self._claim()
        except BaseException:
            self._local.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        claim, self.claim = self.claim, None
        try:
            if self._renewing is not None:
                self._renewing.cancel()
                self._renewing = None
            if claim is not None:
                with contextlib.suppress(EverholdError):  # otherwise it ends with its lease
                    await self._gates.store.release_account(claim)
        finally:
            self._local.release()

    async def _claim(self) -> None:
        store, owner = self._gates.store, self._gates.owner
        while True:
            self.claim = await store.claim_account(self._name, owner=owner, lease=WORK_LEASE_SECONDS)
            if self.claim is not None:
                break
            await self._gates.sleep(WORK_POLL_SECONDS)
        self._renewing = asyncio.get_running_loop().create_task(self._keep_renewing(self.claim), name=self._name)

    async def _keep_renewing(self, claim: AccountClaim) -> None:
        while True:
            await self._gates.sleep(WORK_LEASE_SECONDS / 3)
            with contextlib.suppress(EverholdError):  # a later renewal may still be in time
                if not await self._gates.store.renew_accounts([claim], lease=WORK_LEASE_SECONDS):
                    return
