"""Receives for an account on one host at a time: claims it, renews the claim, and stops when it may be lost.

A host that stalls may go on receiving for a moment after another one took over. Its commits name its fence, so the
store refuses the offsets that it would move.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from everhold.engine.gates import Gates
from everhold.errors import LeaseLost, StoreError
from everhold.ports.hosts import AccountClaim

ACCOUNT_LEASE_SECONDS: Final = 15.0
"""If the host that receives for an account dies, another one takes over after this time."""
RENEWALS_PER_LEASE: Final = 3


class AccountLeadership:
    """Claims accounts for one host."""

    def __init__(self, gates: Gates, *, lease_seconds: float = ACCOUNT_LEASE_SECONDS) -> None:
        self.gates = gates
        self.lease_seconds = lease_seconds

    async def listen_while_held(self, account: str, listen: Callable[[AccountClaim], Awaitable[None]]) -> bool:
        """Claim the account and run `listen` until it ends by itself, or the claim is lost. Return whether it ended by
        itself. Do nothing if another host holds the account."""
        gates = self.gates
        claim = await gates.store.claim_account(account, owner=gates.owner, lease=self.lease_seconds)
        if claim is None:
            return False
        gates.log.info("account.claimed", account=account, fence=claim.fence)
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
        gates.log.warning("account.lost", account=account, fence=claim.fence)
        return False

    async def _end_listening(self, claim: AccountClaim, *tasks: asyncio.Future[None]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(StoreError):  # then its lease ends
            await self.gates.store.release_account(claim)

    async def _keep_renewing(self, claim: AccountClaim) -> None:
        """Renew a claim. Return when it is lost, or when it could end before the next attempt."""
        gates = self.gates
        pause = self.lease_seconds / RENEWALS_PER_LEASE
        renewed_at = gates.clock.monotonic()
        while gates.clock.monotonic() - renewed_at < self.lease_seconds - pause:
            await gates.sleep(pause)
            before = gates.clock.monotonic()
            try:
                if not await gates.store.renew_accounts([claim], lease=self.lease_seconds):
                    return
            except StoreError:
                continue
            renewed_at = before
