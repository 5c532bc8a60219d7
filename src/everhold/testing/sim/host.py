"""The simulated machine. It starts processes and replaces those that crash, stall, or seem to."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, structs

from everhold.admin.forgetting import PersonForgetter
from everhold.admin.sessions import SessionAdmin
from everhold.api.log_tail import LogTail
from everhold.core.entries import ChatLocation
from everhold.core.memory_pacing import parse_write_setting
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.approvals.decisions import ApprovalService
from everhold.engine.gates import Wakeups
from everhold.engine.memory.peers import build_peer_registry
from everhold.engine.memory_client import MemoryClient
from everhold.engine.roles import RoleSource, StampedRoles
from everhold.engine.supervisor import WorkerSupervisor
from everhold.errors import StoreError
from everhold.ingress.accept import MessageAcceptor
from everhold.ports.hosts import CommitHint, HostRecord, HostVersion
from everhold.ports.platform import Platform, SupportsDrafts
from everhold.ports.store import Store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.fakes import get_memory_text
from everhold.testing.sim import people
from everhold.testing.sim.approvals import SimAnswers, SimPolicy, SimRoles
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
"""After the faults end, all work must finish within this time, the longest waits included."""
MAX_IDLE_SECONDS: Final = 20.0
DRAIN_SECONDS: Final = 20.0
MAX_STRAY_SECONDS: Final = 60.0
"""How long a host may hold a cursor that it does not know of: until it noticed the lost connection and tried again."""
HOST_LEASE_SECONDS: Final = 15.0
MAX_HINT_SECONDS: Final = 5.0
"""The longest time that a hint takes to another host."""


class SimProcessParts(Struct, frozen=True, kw_only=True):
    """The parts of a process. A mutant replaces one of them."""

    store: Callable[[SimProcess], Store] = lambda process: process.store
    forgetter: type[PersonForgetter] = PersonForgetter
    accept: type[MessageAcceptor] = MessageAcceptor
    supervisor: type[WorkerSupervisor] = WorkerSupervisor
    runtimes: Callable[[AgentRuntimes], AgentRuntimes] = lambda runtimes: runtimes
    listener: type[SimListener] = SimListener
    api: type[SimApi] = SimApi
    roles: type[SimRoles] = SimRoles


class SimEnvironment:
    """The remote services and the configuration of the agent."""

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
        witness.list_memory_texts = lambda memory: [
            get_memory_text(item) for item in self.providers[memory].list_visible()
        ]
        places = [chat.location for chat in chats]
        self.callers = [SimCaller(world, witness, len(chats) + number + 1) for number in range(profile.callers)]
        self.model = SimModel(world, witness)
        self.drafts = world.profile.drafts
        self.policy = SimPolicy(world) if profile.approvals else None
        self.tools = {name: SimTool(world, name, effect, places) for name, effect in TOOL_EFFECTS.items()}

    def make_runtime(self) -> AgentRuntime:
        """Build the agent runtime of one process. What it learns about its model ends with the process."""
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
            get_policy=lambda: self.policy.policy if self.policy is not None else None,
        )

    def _is_pulled(self, place: ChatLocation) -> bool:
        return (place.platform, place.account) not in self.platforms

    def _get_text_limit(self, place: ChatLocation) -> int:
        return 4_000 if self._is_pulled(place) else self.platforms[place.platform, place.account].text_limit


class SimRuntimes:
    """The environment as one process sees it. Implements `engine.agent_runtime.AgentRuntimes`."""

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
        return self.environment.platforms.get((name, account)) if self.environment.drafts else None

    def get_in_doubt_policy(self, consumer: str, agent: str) -> str:
        return self.environment.profile.policy

    def find_memory(self, instance: str, agent: str) -> MemoryClient | None:
        """Return the current client. Sometimes a new one replaces it and the old one is closed, as when keys change."""
        world, provider = self.environment.world, self.environment.providers.get(instance)
        if provider is None:
            return None
        is_edited = self._memories[instance].peer_rule != provider.peer_rule
        if is_edited or (not world.calm and world.draw_chance(self.environment.profile.replace_client)):
            world.loop.create_task(self._memories[instance].close())
            self._memories[instance] = MemoryClient(SimMemoryClient(provider), instance=instance)
        return self._memories[instance]

    def list_memories(self) -> list[MemoryClient]:
        return list(self._memories.values())


class SimHost:
    """Keeps one process, or two peers, running until all work is done."""

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
        self.approvals: dict[str, ApprovalService] = {}
        self.forgetters: dict[str, PersonForgetter] = {}
        self.supervisors: dict[str, WorkerSupervisor] = {}
        self.apis: dict[str, SimApi] = {}
        self._idle: dict[tuple[str, str, int], float] = {}
        """Cursors that are held while no worker processes them, and since when."""
        self.operator = SimOperator(world, witness, environment, self._find_control, self._find_forgetter)
        self.listeners: dict[str, list[asyncio.Task[None]]] = {}
        """The tasks with which a process receives messages."""
        self.serving: list[SimProcess] = []
        """The processes that should serve. A replaced process that still runs is a zombie."""
        world.cut_power = self._cut_power

    async def run(self) -> str:
        """Run the schedule. Return a description of the remaining work, or an empty string."""
        world, profile = self.world, self.world.profile
        for chat in self.chats:
            chat.sessions = lambda: self.witness.session_of
            self.witness.on_commit.append(chat.interfere)
            world.loop.create_task(chat.run())
        for caller in self.environment.callers:
            caller.find_api = self._find_api
            world.loop.create_task(caller.run())
        if self.environment.policy is not None:
            answers = SimAnswers(world, self.witness, self.environment.policy, self.chats, self._find_approvals)
            world.loop.create_task(answers.run())
        self.witness.on_recall.append(self.operator.interfere)
        operator = world.loop.create_task(self.operator.run())
        for _ in range(2 if profile.mode == "peers" else profile.hosts):
            self._start_process()
        calm_since = 0.0
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._check_processes(profile)
            if not world.calm and world.loop.time() > profile.fault_seconds and self._is_everything_written():
                world.calm = True
                world.record("world", "the faults end")
                calm_since = world.loop.time()
            if not world.calm:
                continue
            left = self._describe_remaining_work() or ("" if operator.done() else "the operator has not finished")
            if not left:
                return ""
            if world.loop.time() > calm_since + MAX_CALM_SECONDS:
                return left

    def _is_everything_written(self) -> bool:
        return all(chat.finished for chat in self.chats) and all(it.finished for it in self.environment.callers)

    def _describe_remaining_work(self) -> str:
        if waiting := sum(caller.open_requests for caller in self.environment.callers):
            return f"{waiting} callers have no outcome"
        if waiting := sum(platform.count_unacknowledged() for platform in self.environment.platforms.values()):
            return f"{waiting} messages were never acknowledged"
        return self.witness.describe_unfinished()

    def _check_processes(self, profile: SimProfile) -> None:
        world = self.world
        if world.draw_chance(profile.jump):
            world.jump_clock()
        for process in list(self.serving):
            is_early = world.loop.time() < profile.fault_seconds
            if is_early and world.draw_chance(profile.partition) and process.alive:
                process.cut_off(world.draw_partition_seconds())
            can_drain = is_early and process.alive and process.name in self.supervisors
            if can_drain and world.draw_chance(profile.drain):
                self._drain_process(process)
            elif process.dead:
                self._replace_process(process, "crashed")
            elif process.stalled is not None and world.draw_chance(0.4):
                self._replace_process(process, "stalls")
            elif world.draw_chance(profile.replace):
                self._replace_process(process, "is replaced and keeps running")
        self._roll()
        self._check_idle_cursors()
        for process in self.processes:
            if process not in self.serving and not process.dead and world.draw_chance(0.05):
                process.die()

    def _roll(self) -> None:
        """Ask the host that runs longest to end when it is time for it."""
        world, profile = self.world, self.world.profile
        due = profile.roll_seconds * (world.stats["rolls"] + 1)
        if not profile.roll_seconds or not due < world.loop.time() < profile.fault_seconds:
            return
        ready = [process for process in self.serving if process.alive and process.name in self.supervisors]
        if ready:
            world.stats["rolls"] += 1
            self._drain_process(ready[0])

    def _drain_process(self, process: SimProcess) -> None:
        """End a process as an operator does, and start another one in its place."""
        self._replace_process(process, "drains")
        if process in self.serving:
            return
        self.world.stats["drains"] += 1
        for platform in self.environment.platforms.values():
            platform.handlers.pop(process.name, None)
        self.world.loop.create_task(self._end_process(process))

    async def _end_process(self, process: SimProcess) -> None:
        for listener in self.listeners.pop(process.name, ()):
            listener.cancel()
        await self.supervisors[process.name].drain(DRAIN_SECONDS)
        with contextlib.suppress(StoreError):
            await self.supervisors[process.name].gates.store.remove_host(process.name)
        if not process.dead:
            process.die()

    def _check_idle_cursors(self) -> None:
        """Report a cursor that a live process holds without a worker, because its lease would be renewed for ever."""
        now = self.world.loop.time()
        alive = [
            process.name
            for process in self.processes
            if process.alive and process.name in self.supervisors and process.cut_off_until <= now
        ]
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
            if since and now - since > self._get_max_idle_seconds():
                self.witness.report_problem(
                    f"{consumer} of {session} has been held since {since:.0f} s, and no worker processes it"
                )
                self._idle[consumer, session, _] = 0.0

    def _get_max_idle_seconds(self) -> float:
        """After a lost connection a host looks for cursors that it does not know of."""
        return MAX_IDLE_SECONDS + (MAX_STRAY_SECONDS if self.world.profile.unknown_outcome else 0.0)

    def _replace_process(self, process: SimProcess, why: str) -> None:
        if len(self.processes) >= self.world.profile.most_processes and not process.dead:
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
        assert isinstance(process.disk.writer, PowerCutWriter)
        process.disk.writer.pass_to(process)
        self.processes.append(process)
        self.serving.append(process)
        self.world.loop.create_task(self._run_process(process), name=process.name)

    def _open_store(self) -> SqliteStore:
        """Return a connection for a process: a new one, or one of a dead process."""
        if self._spare and self.world.draw_chance(0.8):
            return self._spare.pop()
        if self.world.draw_chance(0.7):
            self.witness.checkpoint_wal()  # some connections open an empty write-ahead log
        number = len(self._connections)
        store = SqliteStore.open(
            self.world.disk,
            chance=SimRandom(self.world.seed, f"salt {number}"),
            now=self.world.now,
            inline=True,
            synchronous="OFF",
            exclusive=self.world.profile.mode == "restart",
        )
        writer = PowerCutWriter(
            store.writer.db,
            store.path,
            self.world.power,
            batch_seconds=self.world.profile.batch_seconds,
            on_batch=self.witness.finish_batch,
        )
        writer.bulk_writer, store.writer = store.writer.bulk_writer, writer
        self._connections.append(store)
        return store

    def _cut_power(self) -> None:
        """Cut the power: all processes die, and data that is not synced to the disk is lost."""
        self.world.stats["power cuts"] += 1
        for process in self.processes:
            if not process.dead:
                process.die()
        for store in self._connections:
            with contextlib.suppress(StopIteration):
                store.close().send(None)  # an inline store does not wait
        self._connections.clear()
        self._spare.clear()
        self.witness.close()
        lost = self.world.power.cut()
        self.world.record("host", "the power fails" + (" and unsynced data is lost" if lost else ""))
        self.world.stats["lost with the power"] += lost
        self.witness.reopen()

    async def _run_process(self, process: SimProcess) -> None:
        """Build and start one process."""
        parts = self.parts
        log = process.make_logger(self.witness.complaints)
        gates = SimGates(process, store=parts.store(process), log=log)
        if self.world.profile.mode == "restart":
            await gates.store.revoke_leases(owner=process.name)
        wakeups, tail = Wakeups(), LogTail()
        process.on_commit = functools.partial(self._pass_hint, process, tail, wakeups)
        process.receive_hint = functools.partial(_receive_hint, tail, wakeups)
        runtimes = parts.runtimes(SimRuntimes(self.environment))
        roles: RoleSource = StampedRoles() if self.environment.policy is None else parts.roles(self.world.seed)
        grew = tail.on_reply_text if self.environment.callers else None
        supervisor = parts.supervisor(
            gates,
            runtimes=runtimes,
            wakeups=wakeups,
            poll_seconds=self.world.profile.poll,
            on_text=grew,
            has_no_rivals=False,  # a process that was replaced may still run
            roles=roles,
        )
        accept = parts.accept(
            gates,
            admit=people.SimAdmission(gates.store, seed=self.world.seed),
            wakeups=wakeups,
            peers=build_peer_registry(gates, runtimes),
        )
        self.supervisors[process.name] = supervisor
        process.workers = supervisor.tasks
        erasures = self.world.disk.with_name("erasures.log")
        control = SessionAdmin(gates, wakeups=wakeups, accept=accept, runtimes=runtimes, erasures=erasures)
        forgetter = parts.forgetter(control, agents=lambda: ("main",))
        try:
            if process.is_remote:
                await self._join_hosts(process, gates)
            await forgetter.resume_erasures(restored=await control.reapply_erasures() > 0)
        except StoreError as error:
            self.world.record(process.name, f"cannot start: {error}")
            process.die()
            return
        self.controls[process.name] = control
        self.approvals[process.name] = ApprovalService(gates, runtimes=runtimes, wakeups=wakeups, roles=roles)
        self.forgetters[process.name] = forgetter
        if self.environment.callers:
            budgets = supervisor.budgets
            self.apis[process.name] = parts.api(process, control, runtimes=runtimes, budgets=budgets, tail=tail)
        start = self.world.loop.create_task
        start(supervisor.keep_running("dispatch", supervisor.dispatch))
        start(supervisor.keep_running("renew", supervisor.keep_renewing_leases))
        start(supervisor.keep_running("forgetting", forgetter.keep_finishing_unfinished))
        for platform in self.environment.platforms.values():
            listener = parts.listener(platform, process, gates)
            listen = functools.partial(listener.listen, accept)
            task = start(supervisor.keep_running(f"listen {platform.name}", listen))
            self.listeners.setdefault(process.name, []).append(task)

    async def _join_hosts(self, process: SimProcess, gates: SimGates) -> None:
        """Register a host, and keep its registration."""
        version = HostVersion("0.1.0", gates.store.schema_version)
        record = HostRecord(id=process.name, name=process.name, version=version)
        others = await gates.store.register_host(record, lease=HOST_LEASE_SECONDS)
        self.world.record(process.name, f"joins {len(others)} hosts")

        async def keep_renewing() -> None:
            while True:
                await gates.sleep(HOST_LEASE_SECONDS / 3)
                with contextlib.suppress(StoreError):
                    if not await gates.store.renew_host(process.name, lease=HOST_LEASE_SECONDS):
                        await gates.store.register_host(record, lease=HOST_LEASE_SECONDS)

        self.world.loop.create_task(keep_renewing())

    def _pass_hint(self, process: SimProcess, tail: LogTail, wakeups: Wakeups, hint: CommitHint) -> None:
        """Pass a hint to the process that committed, and sometimes late or twice to other hosts."""
        tail.on_commit(hint)
        if not process.is_remote:
            return
        wakeups.on_commit(hint)
        world = self.world
        for other in self.serving:
            if other is process or process.chance.random() < world.profile.lost_hints:
                continue
            for _ in range(2 if process.chance.random() < world.profile.duplicate else 1):
                delay = process.chance.random() ** 3 * MAX_HINT_SECONDS
                world.loop.call_later(delay, other.take_hint, structs.replace(hint, is_remote=True))

    def _find_control(self) -> SessionAdmin | None:
        """Return the admin of a serving process, or None."""
        found = [self.controls[one.name] for one in self.serving if one.alive and one.name in self.controls]
        return found[-1] if found else None

    def _find_forgetter(self) -> PersonForgetter | None:
        found = [self.forgetters[one.name] for one in self.serving if one.alive and one.name in self.forgetters]
        return found[-1] if found else None

    def _find_approvals(self) -> ApprovalService | None:
        found = [self.approvals[one.name] for one in self.serving if one.alive and one.name in self.approvals]
        return found[int(self.world.draw_between(0, len(found)))] if found else None

    def _find_api(self) -> SimApi | None:
        """Return the API of a process that is not dead. A stalled process accepts connections, and its callers wait."""
        found = [self.apis[one.name] for one in self.serving if not one.dead and one.name in self.apis]
        return found[int(self.world.draw_between(0, len(found)))] if found else None

    async def close(self) -> None:
        for store in self._connections:
            await store.close()


def _receive_hint(tail: LogTail, wakeups: Wakeups, hint: CommitHint) -> None:
    tail.on_commit(hint)
    wakeups.on_commit(hint)
