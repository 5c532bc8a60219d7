"""Starts processes, and starts others when they fall, stand still, or seem to: the machine the system runs on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from everhold.admin.sessions import SessionAdmin
from everhold.api.log_tail import LogTail
from everhold.core.entries import ChatLocation
from everhold.core.memory_pacing import parse_write_setting
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.gates import Wakeups
from everhold.engine.memory_client import MemoryClient
from everhold.engine.supervisor import WorkerSupervisor
from everhold.ingress.accept import MessageAcceptor
from everhold.ports.platform import DeliveryGuarantee, Platform, SupportsDrafts
from everhold.ports.store import Store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.sim import people
from everhold.testing.sim.callers import SimCaller
from everhold.testing.sim.http import SimApi
from everhold.testing.sim.invariants import InvariantWitness
from everhold.testing.sim.model import SimModel
from everhold.testing.sim.operator import SimOperator
from everhold.testing.sim.power_loss import PowerCutWriter
from everhold.testing.sim.process import SimGates, SimProcess
from everhold.testing.sim.profile import SimProfile
from everhold.testing.sim.remote_services import (
    TOOL_EFFECTS,
    SimListener,
    SimMemoryClient,
    SimMemoryProvider,
    SimPlatform,
    SimTool,
)
from everhold.testing.sim.world import SimRandom, SimWorld

CHECK_SECONDS: Final = 2.0
MAX_CALM_SECONDS: Final = 3 * 3_600.0
"""After the storm everything must come to rest within this, the longest waits included."""
MAX_PROCESSES: Final = 24
MAX_IDLE_SECONDS: Final = 20.0


class SimProcessParts(Struct, frozen=True, kw_only=True):
    """What a process is built of. Planted bugs put something else into one of these places."""

    store: Callable[[SimProcess], Store] = lambda process: process.store
    accept: type[MessageAcceptor] = MessageAcceptor
    supervisor: type[WorkerSupervisor] = WorkerSupervisor
    runtimes: Callable[[AgentRuntimes], AgentRuntimes] = lambda runtimes: runtimes
    listener: type[SimListener] = SimListener
    api: type[SimApi] = SimApi


class SimEnvironment:
    """The far sides, and what an agent is configured to be."""

    def __init__(
        self, world: SimWorld, witness: InvariantWitness, platforms: list[SimPlatform], chats: list[people.SimChat]
    ) -> None:
        profile = world.profile
        self.world = world
        self.profile = profile
        self.platforms = {(one.name, one.account): one for one in platforms}
        self.providers = {
            f"mem{number}": SimMemoryProvider(world, witness, f"mem{number}", delivery)
            for number, delivery in enumerate(profile.memories)
        }
        places = [chat.location for chat in chats]
        self.callers = [SimCaller(world, witness, len(chats) + number + 1) for number in range(profile.callers)]
        self.model = SimModel(world, witness)
        self.drafts = world.profile.drafts
        self.tools = {name: SimTool(world, name, effect, places) for name, effect in TOOL_EFFECTS.items()}

    def make_runtime(self) -> AgentRuntime:
        """An agent as one process knows it; what it learns about its model is forgotten with the process."""
        profile = self.profile
        return AgentRuntime(
            agent="main",
            system="You are simulated.",
            models=(self.model,),
            summariser=self.model,
            tools=self.tools,
            memories=tuple(self.providers),
            pacing={
                name: parse_write_setting(write) for name, write in zip(self.providers, profile.writes, strict=True)
            },
            switch_memories=tuple(self.providers),
            busy_policy=profile.busy,
            soft_share=0.5,
            keep_turns=1,
            model_deadline_seconds=60.0,
            review_every_turns=profile.review_every,
            recall_memories=tuple(self.providers),
            recall_seconds=2.0 if profile.recall else 0.0,
            recall_tokens=120,
            text_limit=self._get_text_limit,
            is_pull_location=self._is_pulled,
        )

    def _is_pulled(self, place: ChatLocation) -> bool:
        return (place.platform, place.account) not in self.platforms

    def _get_text_limit(self, place: ChatLocation) -> int:
        return 4_000 if self._is_pulled(place) else self.platforms[place.platform, place.account].text_limit


class SimRuntimes:
    """The surroundings as one process sees them. Implements `flow.runtime.Runtimes`."""

    def __init__(self, environment: SimEnvironment) -> None:
        self.environment = environment
        self._runtime = environment.make_runtime()
        self._memories = {
            name: MemoryClient(SimMemoryClient(it), instance=name) for name, it in environment.providers.items()
        }

    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime:
        return self._runtime

    def find_platform(self, name: str, account: str) -> Platform | None:
        return self.environment.platforms.get((name, account))

    def find_draft_platform(self, name: str, account: str) -> SupportsDrafts | None:
        platform = self.environment.platforms.get((name, account))
        if platform is None or platform.delivery is not DeliveryGuarantee.KEYED or not self.environment.drafts:
            return None
        return platform

    def get_in_doubt_policy(self, consumer: str, agent: str) -> str:
        return self.environment.profile.policy

    def find_memory(self, instance: str, agent: str) -> MemoryClient | None:
        """The client in use now. Settings change, and keys: then another takes its place, and the old one is closed."""
        world, far = self.environment.world, self.environment.providers.get(instance)
        if far is None:
            return None
        if not world.calm and world.draw_chance(self.environment.profile.replace_client):
            world.loop.create_task(self._memories[instance].close())
            self._memories[instance] = MemoryClient(SimMemoryClient(far), instance=instance)
        return self._memories[instance]

    def list_memories(self) -> list[MemoryClient]:
        return list(self._memories.values())


class SimHost:
    """Keeps one process (or two peers) running until everything has come to rest."""

    def __init__(
        self,
        world: SimWorld,
        witness: InvariantWitness,
        environment: SimEnvironment,
        chats: list[people.SimChat],
        parts: SimProcessParts,
    ):
        self.world = world
        self.witness = witness
        self.environment = environment
        self.chats = chats
        self.parts = parts
        self.processes: list[SimProcess] = []
        self._connections: list[SqliteStore] = []
        self._spare: list[SqliteStore] = []
        self.controls: dict[str, SessionAdmin] = {}
        self.supervisors: dict[str, WorkerSupervisor] = {}
        self.apis: dict[str, SimApi] = {}
        self._idle: dict[tuple[str, str, int], float] = {}
        """Lanes that are held while nobody works on them, and since when."""
        self.operator = SimOperator(world, witness, self._find_control)
        self.serving: list[SimProcess] = []
        """Those that are meant to serve. Whoever is not among them any more and still runs is a zombie."""
        world.cut_power = self._cut_power

    async def run(self) -> str:
        """Let the schedule happen; what was left undone, or nothing."""
        world, profile = self.world, self.world.profile
        for chat in self.chats:
            chat.sessions = lambda: self.witness.session_of
            self.witness.on_commit.append(chat.interfere)
            world.loop.create_task(chat.run())
        for caller in self.environment.callers:
            caller.find_api = self._find_api
            world.loop.create_task(caller.run())
        self.witness.on_recall.append(self.operator.interfere)
        operator = world.loop.create_task(self.operator.run())
        for _ in range(2 if profile.mode == "peers" else 1):
            self._start_process()
        calm_since = 0.0
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._check_processes(profile)
            if not world.calm and world.loop.time() > profile.storm_seconds and self._is_everything_written():
                world.calm = True
                world.record("world", "the storm is over")
                calm_since = world.loop.time()
            if not world.calm:
                continue
            left = self._describe_remaining_work() or ("" if operator.done() else "the operator is at work")
            if not left:
                return ""
            if world.loop.time() > calm_since + MAX_CALM_SECONDS:
                return left

    def _is_everything_written(self) -> bool:
        return all(chat.finished for chat in self.chats) and all(it.finished for it in self.environment.callers)

    def _describe_remaining_work(self) -> str:
        if waiting := sum(caller.open_requests for caller in self.environment.callers):
            return f"{waiting} callers never heard how it ended"
        if waiting := sum(platform.count_unacknowledged() for platform in self.environment.platforms.values()):
            return f"{waiting} messages were never acknowledged"
        return self.witness.describe_unfinished()

    def _check_processes(self, profile: SimProfile) -> None:
        world = self.world
        if world.draw_chance(profile.jump):
            world.jump_clock()
        for process in list(self.serving):
            if process.dead:
                self._replace_process(process, "fell")
            elif process.stalled is not None and world.draw_chance(0.4):
                self._replace_process(process, "stands still")
            elif world.draw_chance(profile.replace):
                self._replace_process(process, "is replaced and runs on")
        self._check_idle_cursors()
        for process in self.processes:
            if process not in self.serving and not process.dead and world.draw_chance(0.05):
                process.die()

    def _check_idle_cursors(self) -> None:
        """A lane that is held by a living process is worked on: its lease would be renewed for ever otherwise."""
        now = self.world.loop.time()
        alive = [process.name for process in self.processes if process.alive and process.name in self.supervisors]
        working = {
            (claim.consumer, claim.session, claim.fence)
            for name in alive
            for claim in self.supervisors[name].tasks.values()
        }
        held = {
            (consumer, session, fence)
            for (consumer, session), (owner, fence) in self.witness.holders.items()
            if owner in alive and (consumer, session, fence) not in working
        }
        self._idle = {cursor: self._idle.get(cursor, now) for cursor in sorted(held)}
        for (consumer, session, _), since in self._idle.items():
            if since and now - since > MAX_IDLE_SECONDS:
                self.witness.report_problem(
                    f"{consumer} of {session} has been held since {since:.0f} s, and nobody works on it"
                )
                self._idle[consumer, session, _] = 0.0

    def _replace_process(self, process: SimProcess, why: str) -> None:
        if len(self.processes) >= MAX_PROCESSES and not process.dead:
            return
        self.world.record("host", f"{process.name} {why}")
        self.serving.remove(process)
        if process.dead:
            if process.disk in self._connections:
                self._spare.append(process.disk)
        else:
            self.world.stats["zombies"] += 1
        self._start_process()

    def _start_process(self) -> None:
        process = SimProcess(self.world, self.witness, len(self.processes) + 1, self._open_store())
        self.processes.append(process)
        self.serving.append(process)
        self.world.loop.create_task(self._run_process(process), name=process.name)

    def _open_store(self) -> SqliteStore:
        """A connection of its own for a process: a new one, or one that a dead process can no longer use."""
        if self._spare and self.world.draw_chance(0.8):
            return self._spare.pop()
        if self.world.draw_chance(0.7):
            self.witness.checkpoint_wal()  # who opens the file finds its write-ahead log empty, or long
        number = len(self._connections)
        store = SqliteStore.open(
            self.world.disk, chance=SimRandom(self.world.seed, f"salt {number}"), inline=True, synchronous="OFF"
        )
        store.writer = PowerCutWriter(store.writer.db, store.path, self.world.power)
        self._connections.append(store)
        return store

    def _cut_power(self) -> None:
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
        self.world.record("host", "the power fails" + (" and what was not yet on the disk is lost" if lost else ""))
        self.world.stats["lost with the power"] += lost
        self.witness.reopen()

    async def _run_process(self, process: SimProcess) -> None:
        """What a process does from its start."""
        parts = self.parts
        log = process.make_logger(self.witness.complaints)
        gates = SimGates(process, store=parts.store(process), log=log)
        if self.world.profile.mode == "seize":
            await gates.store.revoke_leases(owner=process.name, at=gates.clock.now())
        wakeups, tail = Wakeups(), LogTail()
        process.on_commit = tail.on_commit
        runtimes = parts.runtimes(SimRuntimes(self.environment))
        grew = tail.on_reply_text if self.environment.callers else None
        supervisor = parts.supervisor(
            gates, runtimes=runtimes, wakeups=wakeups, poll_seconds=self.world.profile.poll, on_text=grew
        )
        accept = parts.accept(gates, admit=people.admit_message, wakeups=wakeups)
        self.supervisors[process.name] = supervisor
        process.workers = supervisor.tasks
        erasures = self.world.disk.with_name("erasures.log")
        control = SessionAdmin(gates, wakeups=wakeups, accept=accept, runtimes=runtimes, erasures=erasures)
        await control.reapply_erasures()
        self.controls[process.name] = control
        if self.environment.callers:
            budgets = supervisor.budgets
            self.apis[process.name] = parts.api(process, control, runtimes=runtimes, budgets=budgets, tail=tail)
        start = self.world.loop.create_task
        start(supervisor.keep_running("dispatch", supervisor.dispatch))
        start(supervisor.keep_running("renew", supervisor.keep_renewing_leases))
        for platform in self.environment.platforms.values():
            ear = parts.listener(platform, process, gates)
            start(supervisor.keep_running(f"listen {platform.name}", lambda ear=ear: ear.listen(accept)))  # type: ignore[misc]

    def _find_control(self) -> SessionAdmin | None:
        """The control of a process that serves, if one does."""
        found = [self.controls[one.name] for one in self.serving if one.alive and one.name in self.controls]
        return found[-1] if found else None

    def _find_api(self) -> SimApi | None:
        """The door of a process that is there: one that stands still lets callers in, and wait."""
        found = [self.apis[one.name] for one in self.serving if not one.dead and one.name in self.apis]
        return found[int(self.world.draw_between(0, len(found)))] if found else None

    async def close(self) -> None:
        for store in self._connections:
            await store.close()
