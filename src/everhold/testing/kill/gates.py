"""Every named commit is a place to die at, before it or after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from everhold.ports.store import Change, Claim, Committed, Now, Step
from everhold.stores.sqlite import SqliteStore

Moment: TypeAlias = Literal["before", "after"]
MOMENTS: Final[tuple[Moment, ...]] = ("before", "after")

UNREACHED: Final = {
    Step.NOTICE: "nothing commits a notice alone: it goes with the commit of what it is about",
}
"""Steps that no process comes to, and why. Every other step must be reached, or the tour fails."""


class Gate(Struct, frozen=True):
    """Die before or after the `nth` commit of this kind that a process makes."""

    step: Step
    moment: Moment
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.moment} {self.step}" + (f" number {self.nth}" if self.nth > 1 else "")


def gates() -> list[Gate]:
    """All of them; a step added to the enum is in here at once."""
    return [Gate(step, moment) for step in Step if step not in UNREACHED for moment in MOMENTS]


class Doom:
    """Counts the commits of one process and ends it at its gate. No `finally` runs after that."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate = gate
        self.left = gate.nth if gate else 0

    def __call__(self, step: Step, moment: Moment) -> None:
        if self.gate is not None and (self.gate.step, self.gate.moment) == (step, moment):
            self.left -= 1
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


class DeadlyStore(SqliteStore):
    """The real store, and the end of the process at one of its commits."""

    doom = Doom()

    async def commit(self, change: Change) -> Committed:
        self.doom(change.step, "before")
        done = await super().commit(change)
        self.doom(change.step, "after")
        return done

    async def claim_cursors(
        self, *, owner: str, at: Now, lease: float, limit: int, skip: Sequence[str] = (), only: Sequence[str] = ()
    ) -> list[Claim]:
        self.doom(Step.CLAIM, "before")
        claims = await super().claim_cursors(owner=owner, at=at, lease=lease, limit=limit, skip=skip, only=only)
        self.doom(Step.CLAIM, "after")
        return claims

    async def renew_leases(self, claims: Collection[Claim], *, owner: str, at: float, lease: float) -> int:
        self.doom(Step.RENEW, "before")
        count = await super().renew_leases(claims, owner=owner, at=at, lease=lease)
        self.doom(Step.RENEW, "after")
        return count

    async def revoke_leases(self, *, owner: str, at: float) -> int:
        self.doom(Step.REVOKE_LEASES, "before")
        count = await super().revoke_leases(owner=owner, at=at)
        self.doom(Step.REVOKE_LEASES, "after")
        return count

    async def retry_now(self, *, at: float, held: Sequence[str] = ()) -> int:
        self.doom(Step.RETRY_NOW, "before")
        count = await super().retry_now(at=at, held=held)
        self.doom(Step.RETRY_NOW, "after")
        return count

    async def replay_dead_letters(self, ids: Sequence[int], *, at: float) -> int:
        self.doom(Step.REPLAY, "before")
        count = await super().replay_dead_letters(ids, at=at)
        self.doom(Step.REPLAY, "after")
        return count

    async def link_identity(self, identity: str, person: str, *, at: float) -> None:
        self.doom(Step.PEOPLE, "before")
        await super().link_identity(identity, person, at=at)
        self.doom(Step.PEOPLE, "after")
