"""What one seed is about: how many chats, which far sides, which faults and how often. Drawn once, then fixed."""

from __future__ import annotations

import random
from typing import Final, Literal

from msgspec import Struct

from everhold.core.inbox import BusyPolicy
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import Step

UNREACHED_STEPS: Final[dict[Step, str]] = {
    Step.NOTICE: "notices are committed with what they are about; nothing gives one by itself yet",
}
"""Commits that nobody makes here, and why. Every other step is crashed at, before and after."""

CRASH_AIMS: Final = tuple(
    (step, moment) for step in Step if step not in UNREACHED_STEPS for moment in ("before", "after")
)
"""Each seed's first crash is aimed at one of these, in turn: no commit can be forgotten."""

CLOCK_JUMPS_SECONDS: Final = (30.0, -30.0, 3_600.0, -3_600.0, 315_360_000.0, -315_360_000.0)


class SimProfile(Struct, frozen=True, kw_only=True):
    """The knobs of one schedule."""

    aim: tuple[str, str]
    aim_at: int
    """Which passing of the aimed gate is the fatal one."""
    mode: Literal["seize", "peers"]
    chats: int
    messages: int
    storm_seconds: float
    """Seconds of virtual time after which nothing goes wrong any more."""
    crash: float
    stall: float
    replace: float
    """How likely a running process gets a successor while it runs on, at each look."""
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
    """How often the person in charge does something, when they look."""
    drafts: bool
    review_every: int
    recall: bool
    writes: tuple[str | int, ...]
    """When each memory is handed what was said."""
    replace_client: float
    """How likely another object takes a memory's place, whenever somebody asks for it."""
    refused_items: float
    """How likely something is that a memory will never take."""
    power: float
    """How likely it is the power that fails when a process falls: all of them fall, and the disk forgets."""
    model_fault: float
    """How likely something is wrong with an answer of the model."""
    callers: int
    """Programs that talk to it over HTTP."""


def draw_profile(seed: int) -> SimProfile:
    """The profile of `seed`; the same for ever, as long as this function stays as it is."""
    chance = random.Random(f"{seed}/profile")
    calm = chance.random() < 0.1
    return SimProfile(
        aim=CRASH_AIMS[seed % len(CRASH_AIMS)],
        aim_at=1 + int(chance.random() ** 3 * 7),
        mode="peers" if chance.random() < 0.3 else "seize",
        chats=chance.choice((1, 2, 3)),
        messages=chance.choice((3, 4, 5, 6)),
        storm_seconds=chance.choice((60.0, 150.0, 400.0)),
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
    )
