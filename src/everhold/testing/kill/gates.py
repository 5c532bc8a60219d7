"""Kill gates: a process can be killed before or after every named commit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from everhold.ports.store import Change, CommitResult, Step, Store

KillMoment: TypeAlias = Literal["before", "after"]
PassGate: TypeAlias = Callable[[Step, KillMoment], None]
"""Called before and after each commit, with its name."""
KILL_MOMENTS: Final[tuple[KillMoment, ...]] = ("before", "after")

UNREACHED: Final = {
    Step.NOTICE: "no change commits a notice alone; it is part of the commit of its cause",
    Step.ACCOUNT_LEASE: "only hosts that share a store claim accounts",
    Step.HOST_RECORD: "only hosts that share a store register",
}
"""Steps that no process reaches, and why. Every other step must be reached, or the test fails."""
REACHED_ELSEWHERE: Final = frozenset({Step.REQUEST, Step.DECIDE, Step.ACTION_BEGIN, Step.ACTION_END})
"""No call of these trials asks for permission. The trial of a whole task does, and is killed at each of these steps."""


class KillGate(Struct, frozen=True):
    """Kill a process before or after its `nth` commit of this step."""

    step: Step
    moment: KillMoment
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.moment} {self.step}" + (f" number {self.nth}" if self.nth > 1 else "")


UNREACHED_ON_SHARED_STORE: Final = {
    Step.REVOKE_LEASES: "no host may end the leases of another one",
}
"""Further steps that no process reaches on a store that hosts share."""


def list_kill_gates(*, is_shared: bool = False) -> list[KillGate]:
    """Return all gates. They come from the enum, so a new step is included."""
    left_out = {**UNREACHED, **(UNREACHED_ON_SHARED_STORE if is_shared else {})}
    steps = [step for step in Step if step not in left_out and step not in REACHED_ELSEWHERE]
    return [KillGate(step, moment) for step in steps for moment in KILL_MOMENTS]


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


_STEPS_BY_METHOD: Final[Mapping[str, Step]] = {
    "claim_cursors": Step.CLAIM,
    "renew_leases": Step.RENEW,
    "revoke_leases": Step.REVOKE_LEASES,
    "claim_account": Step.ACCOUNT_LEASE,
    "renew_accounts": Step.ACCOUNT_LEASE,
    "release_account": Step.ACCOUNT_LEASE,
    "register_host": Step.HOST_RECORD,
    "renew_host": Step.HOST_RECORD,
    "remove_host": Step.HOST_RECORD,
    "reserve_spending": Step.SPEND,
    "renew_reservations": Step.SPEND,
    "release_reservations": Step.SPEND,
    "retry_now": Step.RETRY_NOW,
    "replay_dead_letters": Step.REPLAY,
    "drop_dead_letters": Step.REPLAY,
}
"""The methods that write, besides `commit`, and the name of their commit."""


def add_kill_points(store: Store, switch: PassGate) -> None:
    """Give the real store a kill switch before and after each of its commits, whatever database keeps it."""
    commit = store.commit

    async def commit_or_die(change: Change) -> CommitResult:
        switch(change.step, "before")
        done = await commit(change)
        switch(change.step, "after")
        return done

    guarded: dict[str, Any] = {"commit": commit_or_die}
    for name, step in _STEPS_BY_METHOD.items():
        guarded[name] = _guard_method(getattr(store, name), switch, step)
    vars(store).update(guarded)


def _guard_method(
    method: Callable[..., Coroutine[Any, Any, Any]], switch: PassGate, step: Step
) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def run_or_die(*args: Any, **kwargs: Any) -> Any:
        switch(step, "before")
        done = await method(*args, **kwargs)
        switch(step, "after")
        return done

    return run_or_die
