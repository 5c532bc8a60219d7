"""Receives for an account on one host at a time: claims it, renews the claim, and stops when it may be lost.

A host that stalls may go on receiving for a moment after another one took over. Its commits name its fence, so the
store refuses the offsets that it would move.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from everhold.errors import LeaseLost, StoreError
from everhold.ports.clock import Clock
from everhold.ports.hosts import AccountClaim
from everhold.ports.log import EventLogger
from everhold.ports.store import Store

ACCOUNT_LEASE_SECONDS: Final = 15.0
"""If the host that receives for an account dies, another one takes over after this time."""
RENEWALS_PER_LEASE: Final = 3


class AccountLeadership:
    """Claims accounts for one host."""

    def __init__(
        self,
        store: Store,
        *,
        owner: str,
        clock: Clock,
        log: EventLogger,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        lease_seconds: float = ACCOUNT_LEASE_SECONDS,
    ) -> None:
        """`owner` names this process in the claims of accounts."""
        self._store = store
        self._owner = owner
        self._clock = clock
        self._log = log
        self._sleep = sleep
        self._lease_seconds = lease_seconds

    async def listen_while_held(self, account: str, listen: Callable[[AccountClaim], Awaitable[None]]) -> bool:
        """Claim the account and run `listen` until it ends by itself, or the claim is lost. Return whether it ended by
        itself. Do nothing if another host holds the account."""
        claim = await self._store.claim_account(account, owner=self._owner, lease=self._lease_seconds)
        if claim is None:
            return False
        self._log.info("account.claimed", account=account, fence=claim.fence)
        listening = asyncio.ensure_future(listen(claim))
        renewing = asyncio.ensure_future(self._keep_renewing(claim))
        try:
            await asyncio.wait((listening, renewing), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._end_listening(claim, listening, renewing)
            raise
        has_ended = listening.done()
        await self._end_listening(claim, listening, renewing)
        if has_ended:
            try:
                listening.result()
            except LeaseLost:  # a commit noticed it first
                has_ended = False
        if has_ended:
            return True
        self._log.warning("account.lost", account=account, fence=claim.fence)
        return False

    async def _end_listening(self, claim: AccountClaim, *tasks: asyncio.Future[None]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(StoreError):  # then its lease ends
            await self._store.release_account(claim)

    async def _keep_renewing(self, claim: AccountClaim) -> None:
        """Renew a claim. Return when it is lost, or when it could end before the next attempt."""
        pause = self._lease_seconds / RENEWALS_PER_LEASE
        renewed_at = self._clock.monotonic()
        while self._clock.monotonic() - renewed_at < self._lease_seconds - pause:
            await self._sleep(pause)
            before = self._clock.monotonic()
            try:
                if not await self._store.renew_accounts([claim], lease=self._lease_seconds):
                    return
            except StoreError:
                continue
            renewed_at = before
