"""The settings of one seed: the number of chats, the remote services, the faults and their rates."""

from __future__ import annotations

import random
from typing import Final, Literal

from msgspec import Struct, structs

from everhold.core.inbox import BusyPolicy
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import Step

UNREACHED_STEPS: Final[dict[Step, str]] = {
    Step.NOTICE: "notices are committed with their cause; nothing commits one alone yet",
    Step.HOST_RECORD: "only hosts that share a store register",
    Step.REQUEST: "only schedules with approvals have a policy",
    Step.DECIDE: "only schedules with approvals have a policy",
    Step.ACTION_BEGIN: "only schedules with approvals have a policy",
    Step.ACTION_END: "only schedules with approvals have a policy",
}
"""Steps that do not occur in the simulator, and why. Every other step gets a crash before and after its commit."""

HOST_AIMS: Final = tuple(
    (step, moment)
    for step in Step
    if step is Step.HOST_RECORD or (step is not Step.REVOKE_LEASES and step not in UNREACHED_STEPS)
    for moment in ("before", "after")
)
"""The same for hosts that share a store."""

CRASH_AIMS: Final = tuple(
    (step, moment) for step in Step if step not in UNREACHED_STEPS for moment in ("before", "after")
)
"""The target of each seed's first crash, in turn, so that every step is covered."""

APPROVAL_AIMS: Final = tuple(
    (step, moment)
    for step in (Step.REQUEST, Step.DECIDE, Step.ACTION_BEGIN, Step.ACTION_END)
    for moment in ("before", "after")
)
"""The same for schedules with approvals."""

CLOCK_JUMPS_SECONDS: Final = (30.0, -30.0, 3_600.0, -3_600.0, 315_360_000.0, -315_360_000.0)


class SimProfile(Struct, frozen=True, kw_only=True):
    """The settings of one schedule."""

    aim: tuple[str, str]
    aim_at: int
    """At which passage of the target gate the process crashes."""
    mode: Literal["restart", "peers", "hosts"]
    """`restart`: one process at a time; `peers`: two processes on one machine; `hosts`: several machines on one store
    that is reached over a network."""
    chats: int
    messages: int
    fault_seconds: float
    """Seconds of virtual time after which no more faults occur."""
    crash: float
    stall: float
    replace: float
    """The probability at each check that a running process is replaced and keeps running."""
    lost: float
    slow: float
    trouble: float
    jump: float
    most_faults: int
    duplicate: float
    policy: Literal["resend", "hold"]
    busy: BusyPolicy
    memories: tuple[DeliveryGuarantee, ...]
    context_tokens: int
    poll: float
    commands: float
    operator_actions: float
    """The probability of an operator action at each check."""
    drafts: bool
    review_every: int
    recall: bool
    writes: tuple[str | int, ...]
    """The `write` setting of each memory."""
    replace_client: float
    """The probability that a memory's client is replaced when it is looked up."""
    refused_items: float
    """The probability that a memory refuses an item for good."""
    power: float
    """The probability that a crash is a power cut, which ends all processes and loses unsynced data."""
    model_fault: float
    """The probability of a fault in an answer of the model."""
    callers: int
    """The number of HTTP callers."""
    batch_seconds: float
    """For how long commits of a process are collected and then made at once; 0 for each alone."""
    pins: float
    """The probability at each check that somebody pins an entry or removes a pin."""
    clock_skew: float
    """By how many seconds the clock of a process may differ from the store's."""
    approvals: float = 0.0
    """The probability at each check that somebody answers a request for permission; 0: the agent has no policy."""
    hosts: int = 1
    """The number of hosts that serve, in the mode of this name."""
    store_delay: float = 0.0
    """The longest time in seconds that a call of the store takes each way."""
    partition: float = 0.0
    """The probability at each check that a host is cut off from the store."""
    unknown_outcome: float = 0.0
    """The probability that the connection is lost during a write, so that the caller does not learn its outcome."""
    lost_hints: float = 0.0
    """The probability that a hint does not reach another host."""
    drain: float = 0.0
    """The probability at each check that a host is asked to end and another one takes its place."""
    roll_seconds: float = 0.0
    """How often the host that runs longest is asked to end, as in a rolling restart; 0 for never."""
    quiet_seconds: float = 0.0
    """The longest additional time between two messages of a chat."""
    most_processes: int = 24
    """How many processes may start before all of them are left running."""


def draw_profile(seed: int) -> SimProfile:
    """Draw the profile of `seed`. A change of this function changes the schedules of all seeds."""
    chance = random.Random(f"{seed}/profile")
    calm = chance.random() < 0.1
    return SimProfile(
        aim=CRASH_AIMS[seed % len(CRASH_AIMS)],
        aim_at=1 + int(chance.random() ** 3 * 7),
        mode="peers" if chance.random() < 0.3 else "restart",
        chats=chance.choice((1, 2, 3)),
        messages=chance.choice((3, 4, 5, 6)),
        fault_seconds=chance.choice((60.0, 150.0, 400.0)),
        crash=0.0 if calm else chance.choice((0.0, 0.01, 0.03)),
        stall=0.0 if calm else chance.choice((0.0, 0.005, 0.015)),
        replace=chance.choice((0.0, 0.01, 0.03)),
        lost=0.0 if calm else chance.choice((0.0, 0.08, 0.2)),
        slow=chance.choice((0.0, 0.05, 0.15)),
        trouble=0.0 if calm else chance.choice((0.0, 0.05, 0.15)),
        jump=chance.choice((0.0, 0.0, 0.05)),
        most_faults=chance.choice((3, 7, 14)),
        duplicate=chance.choice((0.0, 0.1, 0.3)),
        policy=chance.choice(("resend", "hold")),
        busy=chance.choice(("queue", "queue", "steer", "interrupt")),
        memories=tuple(
            chance.sample(
                [DeliveryGuarantee.KEYED, DeliveryGuarantee.UPSERT, DeliveryGuarantee.PROBE, DeliveryGuarantee.BLIND],
                k=2,
            )
        ),
        context_tokens=chance.choice((450, 700, 1_200, 100_000)),
        poll=chance.choice((5.0, 20.0, 60.0)),
        commands=chance.choice((0.0, 0.15, 0.4)),
        operator_actions=chance.choice((0.0, 0.3, 0.8)),
        drafts=chance.random() < 0.5,
        review_every=chance.choice((0, 0, 1, 2)),
        recall=chance.random() < 0.3,
        writes=tuple(chance.choice(("turn", "turn", "async", "session", 2, 3)) for _ in range(2)),
        replace_client=chance.choice((0.0, 0.1, 0.4)),
        refused_items=chance.choice((0.0, 0.1, 0.25)),
        power=chance.choice((0.0, 0.0, 0.5)),
        model_fault=0.0 if calm else chance.choice((0.0, 0.1, 0.3)),
        callers=chance.choice((0, 0, 1)),
        batch_seconds=chance.choice((0.0, 0.0, 0.05, 0.5)),
        pins=chance.choice((0.0, 0.0, 0.0, 0.6)),
        clock_skew=chance.choice((0.0, 0.0, 0.05, 10.0)),
    )


def make_rolling_settings(*, seconds: float, roll_seconds: float) -> dict[str, object]:
    """Return what makes of a profile with hosts a long time of rolling restarts, with messages until its end."""
    gap = 60.0
    return {
        "hosts": 3,
        "fault_seconds": seconds,
        "roll_seconds": roll_seconds,
        "quiet_seconds": 2 * gap,
        "messages": int(seconds / gap),
        "chats": 2,
        "drain": 0.0,
        "most_faults": int(seconds / 600.0),
        "most_processes": int(4 * seconds / roll_seconds),
    }


def draw_host_profile(seed: int) -> SimProfile:
    """Draw a profile with several hosts on one store. The rest is as `draw_profile` draws it."""
    chance = random.Random(f"{seed}/hosts")
    return structs.replace(
        draw_profile(seed),
        aim=HOST_AIMS[seed % len(HOST_AIMS)],
        mode="hosts",
        hosts=chance.choice((2, 2, 3, 4)),
        clock_skew=chance.choice((0.05, 10.0, 10.0)),
        store_delay=chance.choice((0.005, 0.05, 0.3)),
        partition=chance.choice((0.0, 0.02, 0.05)),
        unknown_outcome=chance.choice((0.0, 0.01, 0.05)),
        lost_hints=chance.choice((0.0, 0.3, 1.0)),
        drain=chance.choice((0.0, 0.02, 0.05)),
        poll=chance.choice((1.0, 5.0, 20.0)),
        power=0.0,  # the database server keeps what it confirmed
    )


def draw_approval_profile(seed: int) -> SimProfile:
    """Draw a profile in which calls need permission, in two of five seeds with several hosts."""
    chance = random.Random(f"{seed}/approvals")
    return structs.replace(
        draw_host_profile(seed) if chance.random() < 0.4 else draw_profile(seed),
        aim=APPROVAL_AIMS[seed % len(APPROVAL_AIMS)],
        approvals=chance.choice((0.5, 0.9)),
        messages=chance.choice((4, 6, 8)),
        context_tokens=chance.choice((1_200, 100_000)),
    )
