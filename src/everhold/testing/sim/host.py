"""Starts processes, and starts others when they fall, stand still, or seem to: the machine the system runs on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from everhold.control import Control
from everhold.core.entries import Place
from everhold.core.pace import pace_of
from everhold.flow.accept import Accept
from everhold.flow.gates import Bells
from everhold.flow.memory import Attached
from everhold.flow.runtime import Runtime, Runtimes
from everhold.flow.supervise import Supervisor
from everhold.ports.platform import Delivery, Drafting, Platform
from everhold.ports.store import Store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.sim import people
from everhold.testing.sim.callers import Caller
from everhold.testing.sim.farside import TOOLS, Client, Ear, SimPlatform, SimProvider, SimTool
from everhold.testing.sim.model import SimModel
from everhold.testing.sim.operator import Operator
from everhold.testing.sim.power import PoweredWriter
from everhold.testing.sim.process import Process, SimGates
from everhold.testing.sim.profile import Profile
from everhold.testing.sim.web import Door
from everhold.testing.sim.witness import Witness
from everhold.testing.sim.world import Dice, World
from everhold.web.tail import Tail

LOOK_SECONDS: Final = 2.0
MOST_CALM_SECONDS: Final = 3 * 3_600.0
"""After the storm everything must come to rest within this, the longest waits included."""
MOST_PROCESSES: Final = 24
MOST_IDLE_SECONDS: Final = 20.0


class Parts(Struct, frozen=True, kw_only=True):
    """What a process is built of. Planted bugs put something else into one of these places."""

    store: Callable[[Process], Store] = lambda process: process.store
    accept: type[Accept] = Accept
    supervisor: type[Supervisor] = Supervisor
    runtimes: Callable[[Runtimes], Runtimes] = lambda runtimes: runtimes
    ear: type[Ear] = Ear
    door: type[Door] = Door


class Surroundings:
    """The far sides, and what an agent is configured to be."""

    def __init__(self, world: World, witness: Witness, platforms: list[SimPlatform], chats: list[people.Chat]) -> None:
        profile = world.profile
        self.world = world
        self.profile = profile
        self.platforms = {(one.name, one.account): one for one in platforms}
        self.providers = {
            f"mem{number}": SimProvider(world, witness, f"mem{number}", delivery)
            for number, delivery in enumerate(profile.memories)
        }
        places = [chat.place for chat in chats]
        self.callers = [Caller(world, witness, len(chats) + number + 1) for number in range(profile.callers)]
        self.model = SimModel(world, witness)
        self.drafts = world.profile.drafts
        self.tools = {name: SimTool(world, name, effect, places) for name, effect in TOOLS.items()}

    def configure(self) -> Runtime:
        """An agent as one process knows it; what it learns about its model is forgotten with the process."""
        profile = self.profile
        return Runtime(
            agent="main",
            system="You are simulated.",
            models=(self.model,),
            summariser=self.model,
            tools=self.tools,
            memories=tuple(self.providers),
            paces={name: pace_of(write) for name, write in zip(self.providers, profile.writes, strict=True)},
            attentive=tuple(self.providers),
            busy=profile.busy,
            soft=0.5,
            keep=1,
            model_deadline=60.0,
            review_every=profile.review_every,
            recalls=tuple(self.providers),
            recall_seconds=2.0 if profile.recall else 0.0,
            recall_tokens=120,
            text_limit=self._limit,
            pulls=self._pulls,
        )

    def _pulls(self, place: Place) -> bool:
        return (place.platform, place.account) not in self.platforms

    def _limit(self, place: Place) -> int:
        return 4_000 if self._pulls(place) else self.platforms[place.platform, place.account].text_limit


class Inside:
    """The surroundings as one process sees them. Implements `flow.runtime.Runtimes`."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.surroundings = surroundings
        self._runtime = surroundings.configure()
        self._memories = {name: Attached(Client(it), instance=name) for name, it in surroundings.providers.items()}

    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime:
        return self._runtime

    def platform(self, name: str, account: str) -> Platform | None:
        return self.surroundings.platforms.get((name, account))

    def drafting(self, name: str, account: str) -> Drafting | None:
        platform = self.surroundings.platforms.get((name, account))
        if platform is None or platform.delivery is not Delivery.KEYED or not self.surroundings.drafts:
            return None
        return platform

    def in_doubt(self, reader: str, agent: str) -> str:
        return self.surroundings.profile.policy

    def memory(self, instance: str, agent: str) -> Attached | None:
        """The client in use now. Settings change, and keys: then another takes its place, and the old one is closed."""
        world, far = self.surroundings.world, self.surroundings.providers.get(instance)
        if far is None:
            return None
        if not world.calm and world.chance(self.surroundings.profile.rebuild):
            world.loop.create_task(self._memories[instance].close())
            self._memories[instance] = Attached(Client(far), instance=instance)
        return self._memories[instance]

    def attached(self) -> list[Attached]:
        return list(self._memories.values())


class Host:
    """Keeps one process (or two peers) running until everything has come to rest."""

    def __init__(
        self, world: World, witness: Witness, surroundings: Surroundings, chats: list[people.Chat], parts: Parts
    ):
        self.world = world
        self.witness = witness
        self.surroundings = surroundings
        self.chats = chats
        self.parts = parts
        self.processes: list[Process] = []
        self._connections: list[SqliteStore] = []
        self._spare: list[SqliteStore] = []
        self.controls: dict[str, Control] = {}
        self.supervisors: dict[str, Supervisor] = {}
        self.doors: dict[str, Door] = {}
        self._idle: dict[tuple[str, str, int], float] = {}
        """Lanes that are held while nobody works on them, and since when."""
        self.operator = Operator(world, witness, self._answering)
        self.serving: list[Process] = []
        """Those that are meant to serve. Whoever is not among them any more and still runs is a zombie."""
        world.cut = self._cut

    async def run(self) -> str:
        """Let the schedule happen; what was left undone, or nothing."""
        world, profile = self.world, self.world.profile
        for chat in self.chats:
            chat.sessions = lambda: self.witness.session_of
            self.witness.on_commit.append(chat.meddle)
            world.loop.create_task(chat.live())
        for caller in self.surroundings.callers:
            caller.answering = self._open
            world.loop.create_task(caller.live())
        self.witness.on_recall.append(self.operator.meddle)
        operator = world.loop.create_task(self.operator.live())
        for _ in range(2 if profile.mode == "peers" else 1):
            self._start()
        calm_since = 0.0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look_after(profile)
            if not world.calm and world.loop.time() > profile.stormy and self._all_said():
                world.calm = True
                world.tell("world", "the storm is over")
                calm_since = world.loop.time()
            if not world.calm:
                continue
            left = self._left() or ("" if operator.done() else "the operator is at work")
            if not left:
                return ""
            if world.loop.time() > calm_since + MOST_CALM_SECONDS:
                return left

    def _all_said(self) -> bool:
        return all(chat.finished for chat in self.chats) and all(it.finished for it in self.surroundings.callers)

    def _left(self) -> str:
        if waiting := sum(caller.open for caller in self.surroundings.callers):
            return f"{waiting} callers never heard how it ended"
        if waiting := sum(platform.unacknowledged() for platform in self.surroundings.platforms.values()):
            return f"{waiting} messages were never acknowledged"
        return self.witness.unfinished()

    def _look_after(self, profile: Profile) -> None:
        world = self.world
        if world.chance(profile.jump):
            world.jump()
        for process in list(self.serving):
            if process.dead:
                self._replace(process, "fell")
            elif process.stalled is not None and world.chance(0.4):
                self._replace(process, "stands still")
            elif world.chance(profile.replace):
                self._replace(process, "is replaced and runs on")
        self._look_for_idlers()
        for process in self.processes:
            if process not in self.serving and not process.dead and world.chance(0.05):
                process.die()

    def _look_for_idlers(self) -> None:
        """A lane that is held by a living process is worked on: its lease would be renewed for ever otherwise."""
        now = self.world.loop.time()
        alive = [process.name for process in self.processes if process.alive and process.name in self.supervisors]
        working = {
            (claim.consumer, claim.session, claim.fence)
            for name in alive
            for claim in self.supervisors[name].tasks.values()
        }
        held = {
            (reader, session, fence)
            for (reader, session), (owner, fence) in self.witness.holders.items()
            if owner in alive and (reader, session, fence) not in working
        }
        self._idle = {lane: self._idle.get(lane, now) for lane in sorted(held)}
        for (reader, session, _), since in self._idle.items():
            if since and now - since > MOST_IDLE_SECONDS:
                self.witness.problem(f"{reader} of {session} has been held since {since:.0f} s, and nobody works on it")
                self._idle[reader, session, _] = 0.0

    def _replace(self, process: Process, why: str) -> None:
        if len(self.processes) >= MOST_PROCESSES and not process.dead:
            return
        self.world.tell("host", f"{process.name} {why}")
        self.serving.remove(process)
        if process.dead:
            if process.disk in self._connections:
                self._spare.append(process.disk)
        else:
            self.world.stats["zombies"] += 1
        self._start()

    def _start(self) -> None:
        process = Process(self.world, self.witness, len(self.processes) + 1, self._connect())
        self.processes.append(process)
        self.serving.append(process)
        self.world.loop.create_task(self._live(process), name=process.name)

    def _connect(self) -> SqliteStore:
        """A connection of its own for a process: a new one, or one that a dead process can no longer use."""
        if self._spare and self.world.chance(0.8):
            return self._spare.pop()
        if self.world.chance(0.7):
            self.witness.settle()  # who opens the file finds its write-ahead log empty, or long
        number = len(self._connections)
        store = SqliteStore.open(
            self.world.disk, chance=Dice(self.world.seed, f"salt {number}"), inline=True, synchronous="OFF"
        )
        store.writer = PoweredWriter(store.writer.db, store.path, self.world.power)
        self._connections.append(store)
        return store

    def _cut(self) -> None:
        """The power goes, and comes back: whoever ran is gone, and what the disk did not have yet."""
        self.world.stats["power cuts"] += 1
        for process in self.processes:
            if not process.dead:
                process.die()
        for store in self._connections:
            with contextlib.suppress(StopIteration):
                store.close().send(None)  # it waits for nobody
        self._connections.clear()
        self._spare.clear()
        self.witness.close()
        lost = self.world.power.cut()
        self.world.tell("host", "the power fails" + (" and what was not yet on the disk is lost" if lost else ""))
        self.world.stats["lost with the power"] += lost
        self.witness.wake()

    async def _live(self, process: Process) -> None:
        """What a process does from its start."""
        parts = self.parts
        log = process.log(self.witness.complaints)
        gates = SimGates(process, store=parts.store(process), log=log)
        if self.world.profile.mode == "seize":
            await gates.store.revoke_leases(owner=process.name, at=gates.clock.now())
        bells, tail = Bells(), Tail()
        process.on_commit = tail.committed
        runtimes = parts.runtimes(Inside(self.surroundings))
        grew = tail.grew if self.surroundings.callers else None
        supervisor = parts.supervisor(gates, runtimes=runtimes, bells=bells, poll=self.world.profile.poll, on_text=grew)
        accept = parts.accept(gates, reception=people.reception, bells=bells)
        self.supervisors[process.name] = supervisor
        process.workers = supervisor.tasks
        erasures = self.world.disk.with_name("erasures.log")
        control = Control(gates, bells=bells, accept=accept, runtimes=runtimes, erasures=erasures)
        await control.reapply_erasures()
        self.controls[process.name] = control
        if self.surroundings.callers:
            purses = supervisor.purses
            self.doors[process.name] = parts.door(process, control, runtimes=runtimes, purses=purses, tail=tail)
        start = self.world.loop.create_task
        start(supervisor.keep("dispatch", supervisor.dispatch))
        start(supervisor.keep("renew", supervisor.renew))
        for platform in self.surroundings.platforms.values():
            ear = parts.ear(platform, process, gates)
            start(supervisor.keep(f"listen {platform.name}", lambda ear=ear: ear.listen(accept)))  # type: ignore[misc]

    def _answering(self) -> Control | None:
        """The control of a process that serves, if one does."""
        found = [self.controls[one.name] for one in self.serving if one.alive and one.name in self.controls]
        return found[-1] if found else None

    def _open(self) -> Door | None:
        """The door of a process that is there: one that stands still lets callers in, and wait."""
        found = [self.doors[one.name] for one in self.serving if not one.dead and one.name in self.doors]
        return found[int(self.world.pick(0, len(found)))] if found else None

    async def close(self) -> None:
        for store in self._connections:
            await store.close()
