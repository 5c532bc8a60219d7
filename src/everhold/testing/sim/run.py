"""Run one seed and collect the problems."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, structs

from everhold.admin.sessions import SessionAdmin
from everhold.engine.gates import Gates, Wakeups
from everhold.ingress.accept import MessageAcceptor
from everhold.ports.platform import DeliveryGuarantee
from everhold.stores.sqlite import SqliteStore
from everhold.testing.sim import oracles
from everhold.testing.sim.host import SimEnvironment, SimHost, SimProcessParts, SimRuntimes
from everhold.testing.sim.invariants import InvariantWitness
from everhold.testing.sim.loop import LoopStuck, SimLoop
from everhold.testing.sim.people import SimAdmission, SimChat
from everhold.testing.sim.profile import SimProfile, draw_approval_profile, draw_host_profile, draw_profile
from everhold.testing.sim.remote_services import SimPlatform
from everhold.testing.sim.world import SimLogger, SimRandom, SimWorld

STEPS_PER_SECOND: Final = 400
"""More callbacks in a second of virtual time, on average, count as an endless loop."""
FAST_DIRECTORY = Path("/dev/shm")
PLATFORM_GUARANTEES = (
    ("poll", DeliveryGuarantee.BLIND),
    ("keyed", DeliveryGuarantee.KEYED),
    ("probe", DeliveryGuarantee.PROBE),
)


class SimOutcome(Struct, frozen=True, kw_only=True):
    """The result of a schedule."""

    seed: int
    problems: list[str]
    trace: str
    seconds: float
    """Of virtual time."""
    steps: int
    stats: Counter[str]
    passed: Counter[tuple[str, str]]
    """(gate, moment) -> how often a process passed it."""
    crashed: Counter[tuple[str, str]]
    lines: list[str]
    profile: SimProfile


NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})


def run_seed(
    seed: int,
    *,
    parts: SimProcessParts | None = None,
    settings: Mapping[str, Any] = NO_SETTINGS,
    hosts: bool = False,
    approvals: bool = False,
) -> SimOutcome:
    """Run the schedule of `seed` and check the final state. `settings` replace some of its profile. `hosts`: with
    several hosts on one store. `approvals`: with calls that need permission."""
    draw = draw_approval_profile if approvals else draw_host_profile if hosts else draw_profile
    profile = structs.replace(draw(seed), **settings)
    directory = Path(tempfile.mkdtemp(prefix="everhold-sim-", dir=FAST_DIRECTORY if FAST_DIRECTORY.is_dir() else None))
    try:
        disk = directory / "everhold.db"
        disk.write_bytes(_make_empty_database())
        return _run_schedule(seed, profile, disk, parts or SimProcessParts())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run_schedule(seed: int, profile: SimProfile, disk: Path, parts: SimProcessParts) -> SimOutcome:
    loop = SimLoop(seed)  # type: ignore[abstract]  # it lacks only sockets and signals
    loop.max_steps = max(loop.max_steps, int(STEPS_PER_SECOND * profile.fault_seconds))
    world = SimWorld(seed, profile, loop, disk)
    witness = InvariantWitness(world)
    world.record("world", f"seed {seed} {profile}")
    platforms = [SimPlatform(world, witness, name, delivery) for name, delivery in PLATFORM_GUARANTEES]
    order = random.Random(f"{seed}/platforms").sample(platforms, k=len(platforms))
    chats = [SimChat(world, number + 1, order[number % len(order)]) for number in range(profile.chats)]
    environment = SimEnvironment(world, witness, platforms, chats)
    host = SimHost(world, witness, environment, chats, parts)

    async def play() -> list[str]:
        left = await host.run()
        undone = [f"work remains after the faults ended: {left}"] if left else []
        store = SqliteStore.open(disk, chance=SimRandom(seed, "end"), now=world.now, inline=True, synchronous="OFF")
        gates = Gates(
            store=store, clock=world, chance=SimRandom(seed, "end"), log=SimLogger(world, "end", []), owner="end"
        )
        runtimes = SimRuntimes(environment)
        acceptor = MessageAcceptor(gates, admit=SimAdmission(store, seed=seed), wakeups=Wakeups())
        control = SessionAdmin(gates, wakeups=Wakeups(), accept=acceptor, runtimes=runtimes)
        found = await oracles.check_all(store, control, world, witness, environment, is_finished=not left)
        await store.close()
        await host.close()
        return undone + found

    try:
        problems = loop.run(play())
    except LoopStuck as stuck:
        problems = [str(stuck)]
    problems = [*witness.problems, *witness.complaints, *problems, *loop.errors]
    loop.close()
    witness.close()
    return SimOutcome(
        seed=seed,
        problems=[world.shorten_ids(problem) for problem in problems],
        trace=world.trace,
        seconds=loop.time(),
        steps=loop.steps,
        stats=world.stats,
        passed=world.passed,
        crashed=world.crashed,
        lines=world.lines,
        profile=profile,
    )


@cache
def _make_empty_database() -> bytes:
    """Return an empty database with the newest schema."""
    with tempfile.TemporaryDirectory(prefix="everhold-sim-") as directory:
        path = Path(directory) / "everhold.db"
        store = SqliteStore.open(path, chance=SimRandom(0, "template"), inline=True)
        asyncio.run(store.close())
        return path.read_bytes()
