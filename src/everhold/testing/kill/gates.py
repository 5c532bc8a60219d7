"""Kill gates: a process can be killed before or after every named commit."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from everhold.core.budget import BudgetHold, BudgetRefusal
from everhold.ports.hosts import AccountClaim, HostRecord, HostStatus
from everhold.ports.store import Change, Claim, CommitResult, Step
from everhold.stores.sqlite import SqliteStore

KillMoment: TypeAlias = Literal["before", "after"]
KILL_MOMENTS: Final[tuple[KillMoment, ...]] = ("before", "after")

UNREACHED: Final = {
    Step.NOTICE: "no change commits a notice alone; it is part of the commit of its cause",
    Step.ACCOUNT_LEASE: "only hosts that share a store claim accounts",
    Step.HOST_RECORD: "only hosts that share a store register",
}
"""Steps that no process reaches, and why. Every other step must be reached, or the test fails."""


class KillGate(Struct, frozen=True):
    """Kill a process before or after its `nth` commit of this step."""

    step: Step
    moment: KillMoment
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.moment} {self.step}" + (f" number {self.nth}" if self.nth > 1 else "")


def list_kill_gates() -> list[KillGate]:
    """Return all gates. They come from the enum, so a new step is included."""
    return [KillGate(step, moment) for step in Step if step not in UNREACHED for moment in KILL_MOMENTS]


class KillSwitch:
    """Counts the commits of one process and kills it at its gate, so that no `finally` runs."""

    def __init__(self, gate: KillGate | None = None) -> None:
        self.gate = gate
        self.commits_left = gate.nth if gate else 0

    def __call__(self, step: Step, moment: KillMoment) -> None:
        if self.gate is not None and (self.gate.step, self.gate.moment) == (step, moment):
            self.commits_left -= 1
            if self.commits_left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


class KillableStore(SqliteStore):
    """The real store with a kill switch at its commits."""

    kill_switch = KillSwitch()

    async def commit(self, change: Change) -> CommitResult:
        self.kill_switch(change.step, "before")
        done = await super().commit(change)
        self.kill_switch(change.step, "after")
        return done

    async def claim_cursors(self, **wanted: Any) -> list[Claim]:
        self.kill_switch(Step.CLAIM, "before")
        claims = await super().claim_cursors(**wanted)
        self.kill_switch(Step.CLAIM, "after")
        return claims

    async def renew_leases(self, claims: Collection[Claim], *, owner: str, lease: float) -> int:
        self.kill_switch(Step.RENEW, "before")
        count = await super().renew_leases(claims, owner=owner, lease=lease)
        self.kill_switch(Step.RENEW, "after")
        return count

    async def revoke_leases(self, *, owner: str) -> int:
        self.kill_switch(Step.REVOKE_LEASES, "before")
        count = await super().revoke_leases(owner=owner)
        self.kill_switch(Step.REVOKE_LEASES, "after")
        return count

    async def claim_account(self, account: str, *, owner: str, lease: float) -> AccountClaim | None:
        self.kill_switch(Step.ACCOUNT_LEASE, "before")
        claim = await super().claim_account(account, owner=owner, lease=lease)
        self.kill_switch(Step.ACCOUNT_LEASE, "after")
        return claim

    async def renew_accounts(self, claims: Collection[AccountClaim], *, lease: float) -> list[AccountClaim]:
        self.kill_switch(Step.ACCOUNT_LEASE, "before")
        held = await super().renew_accounts(claims, lease=lease)
        self.kill_switch(Step.ACCOUNT_LEASE, "after")
        return held

    async def release_account(self, claim: AccountClaim) -> bool:
        self.kill_switch(Step.ACCOUNT_LEASE, "before")
        done = await super().release_account(claim)
        self.kill_switch(Step.ACCOUNT_LEASE, "after")
        return done

    async def register_host(self, host: HostRecord, *, lease: float) -> list[HostStatus]:
        self.kill_switch(Step.HOST_RECORD, "before")
        others = await super().register_host(host, lease=lease)
        self.kill_switch(Step.HOST_RECORD, "after")
        return others

    async def renew_host(self, id: str, *, lease: float, is_draining: bool = False) -> bool:
        self.kill_switch(Step.HOST_RECORD, "before")
        done = await super().renew_host(id, lease=lease, is_draining=is_draining)
        self.kill_switch(Step.HOST_RECORD, "after")
        return done

    async def remove_host(self, id: str) -> None:
        self.kill_switch(Step.HOST_RECORD, "before")
        await super().remove_host(id)
        self.kill_switch(Step.HOST_RECORD, "after")

    async def reserve_spending(self, holds: Sequence[BudgetHold], **wanted: Any) -> BudgetRefusal | None:
        self.kill_switch(Step.SPEND, "before")
        refusal = await super().reserve_spending(holds, **wanted)
        self.kill_switch(Step.SPEND, "after")
        return refusal

    async def renew_reservations(self, ids: Collection[str], *, lease: float) -> int:
        self.kill_switch(Step.SPEND, "before")
        count = await super().renew_reservations(ids, lease=lease)
        self.kill_switch(Step.SPEND, "after")
        return count

    async def release_reservations(self, ids: Collection[str]) -> None:
        self.kill_switch(Step.SPEND, "before")
        await super().release_reservations(ids)
        self.kill_switch(Step.SPEND, "after")

    async def retry_now(self, *, held: Sequence[str] = ()) -> int:
        self.kill_switch(Step.RETRY_NOW, "before")
        count = await super().retry_now(held=held)
        self.kill_switch(Step.RETRY_NOW, "after")
        return count

    async def replay_dead_letters(self, ids: Sequence[int]) -> int:
        self.kill_switch(Step.REPLAY, "before")
        count = await super().replay_dead_letters(ids)
        self.kill_switch(Step.REPLAY, "after")
        return count
