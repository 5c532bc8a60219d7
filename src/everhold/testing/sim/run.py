"""One seed -> one schedule -> what went wrong."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from msgspec import Struct

from everhold.control import Control
from everhold.flow.accept import Accept
from everhold.flow.gates import Bells, Gates
from everhold.ports.platform import Delivery
from everhold.stores.sqlite import SqliteStore
from everhold.testing.sim import oracles
from everhold.testing.sim.farside import SimPlatform
from everhold.testing.sim.host import Host, Inside, Parts, Surroundings
from everhold.testing.sim.loop import SimLoop, Stuck
from everhold.testing.sim.people import Chat, reception
from everhold.testing.sim.profile import Profile, draw
from everhold.testing.sim.witness import Witness
from everhold.testing.sim.world import Dice, Quiet, World

FAST = Path("/dev/shm")
PLATFORMS = (("poll", Delivery.BLIND), ("keyed", Delivery.KEYED), ("probe", Delivery.PROBE))


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a schedule."""

    seed: int
    problems: list[str]
    trace: str
    seconds: float
    """Of virtual time."""
    steps: int
    stats: Counter[str]
    passed: Counter[tuple[str, str]]
    """(gate, moment) -> how often somebody went through."""
    crashed: Counter[tuple[str, str]]
    lines: list[str]
    profile: Profile


def run(seed: int, *, parts: Parts | None = None) -> Outcome:
    """Play the schedule of `seed` and look at what is left."""
    profile = draw(seed)
    directory = Path(tempfile.mkdtemp(prefix="everhold-sim-", dir=FAST if FAST.is_dir() else None))
    try:
        disk = directory / "everhold.db"
        disk.write_bytes(_template())
        return _play(seed, profile, disk, parts or Parts())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _play(seed: int, profile: Profile, disk: Path, parts: Parts) -> Outcome:
    loop = SimLoop(seed)  # type: ignore[abstract]  # it has what is used here; sockets and signals it has not
    world = World(seed, profile, loop, disk)
    witness = Witness(world)
    world.tell("world", f"seed {seed} {profile}")
    platforms = [SimPlatform(world, witness, name, delivery) for name, delivery in PLATFORMS]
    order = random.Random(f"{seed}/platforms").sample(platforms, k=len(platforms))
    chats = [Chat(world, number + 1, order[number % len(order)]) for number in range(profile.chats)]
    surroundings = Surroundings(world, witness, platforms, chats)
    host = Host(world, witness, surroundings, chats, parts)

    async def play() -> list[str]:
        left = await host.run()
        undone = [f"not at rest after the storm: {left}"] if left else []
        store = SqliteStore.open(disk, chance=Dice(seed, "end"), inline=True, synchronous="OFF")
        gates = Gates(store=store, clock=world, chance=Dice(seed, "end"), log=Quiet(world, "end", []), owner="end")
        runtimes = Inside(surroundings)
        door = Accept(gates, reception=reception, bells=Bells())
        control = Control(gates, bells=Bells(), accept=door, runtimes=runtimes)
        found = await oracles.check(store, control, world, witness, surroundings, at_rest=not left)
        await store.close()
        await host.close()
        return undone + found

    try:
        problems = loop.run(play())
    except Stuck as stuck:
        problems = [str(stuck)]
    problems = [*witness.problems, *witness.complaints, *problems, *loop.errors]
    loop.close()
    witness.close()
    return Outcome(
        seed=seed,
        problems=[world.shorten(problem) for problem in problems],
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
def _template() -> bytes:
    """A database with the newest schema and nothing in it."""
    with tempfile.TemporaryDirectory(prefix="everhold-sim-") as directory:
        path = Path(directory) / "everhold.db"
        store = SqliteStore.open(path, chance=Dice(0, "template"), inline=True)
        asyncio.run(store.close())
        return path.read_bytes()
