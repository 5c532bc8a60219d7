"""A gateway in one process and in virtual time: the real store, the real workers, fakes for the remote services.

    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        gateway.send_message("hello")
        assert gateway.list_shown_texts() == ["You said: hello"]

`crash` ends the process as a kill -9 does; `start` starts the next process on the same disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from everhold.admin.sessions import SessionAdmin
from everhold.core.access import AdmissionDecision
from everhold.core.entries import ChatLocation, Entry, EntryBody
from everhold.engine.agent_runtime import AgentRuntime
from everhold.engine.facts import FactCache
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.memory_client import MemoryClient, MemoryLiveness
from everhold.engine.roles import RoleSource
from everhold.engine.supervisor import WorkerSupervisor
from everhold.errors import NotFound
from everhold.ingress.accept import MessageAcceptor
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.memory import MemoryProvider
from everhold.ports.platform import AcceptResult, IncomingMessage, Platform, SupportsDrafts, SupportsFiles
from everhold.ports.store import Store
from everhold.ports.tool import Tool
from everhold.stores.sqlite import SqliteStore
from everhold.testing.fakes import FakeModel, FakePlatform
from everhold.testing.seeded_random import SeededRandom
from everhold.testing.sim.loop import SimLoop

T = TypeVar("T")
B = TypeVar("B", bound=EntryBody)


class VirtualClock:
    """A clock with the loop's time plus `skew`, which a test may change."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.skew = 1_700_000_000.0

    def now(self) -> float:
        return self.loop.time() + self.skew

    def monotonic(self) -> float:
        return self.loop.time()


class RecordingLogger:
    """A logger that keeps (event, fields) for a test."""

    def __init__(self, lines: list[tuple[str, dict[str, object]]] | None = None, **bound: object) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = [] if lines is None else lines
        self.bound = bound

    def debug(self, event: str, /, **fields: object) -> None:
        self.lines.append((event, {**self.bound, **fields}))

    info = warning = error = debug

    def bind(self, **fields: object) -> RecordingLogger:
        return RecordingLogger(self.lines, **{**self.bound, **fields})

    def find_events(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.lines if name == event]


class FakeRuntimes:
    """What the workers use. A test may replace any part at any time."""

    def __init__(self) -> None:
        self.model = FakeModel()
        self.fallbacks: tuple[FakeModel, ...] = ()
        self.other_models: dict[str, FakeModel] = {}
        """The models that a session may choose, by name."""
        self.summariser = self.model
        self.tools: dict[str, Tool] = {}
        self.platforms: dict[tuple[str, str], Platform] = {}
        self.drafts: dict[tuple[str, str], SupportsDrafts] = {}
        self.memories: dict[str, MemoryProvider] = {}
        self._memory_clients: dict[tuple[str, str], tuple[MemoryProvider, MemoryClient]] = {}
        self._liveness: dict[tuple[str, str], MemoryLiveness] = {}
        self.notes: FactCache | None = None
        self.clock: Clock | None = None
        self.logger = RecordingLogger()
        self.in_doubt_policy = "resend"
        self.unknown_agents: set[str] = set()
        """Agents that have sessions but are not configured."""
        self.settings: dict[str, Any] = {}
        """Other fields of AgentRuntime: busy_policy, soft_share, hard_share, keep_turns…"""

    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime:
        if agent in self.unknown_agents:
            raise NotFound(f"there is no agent {agent!r}")
        chosen = choices.get("model", "")
        model = self.other_models.get(chosen, self.model)
        return AgentRuntime(
            agent=agent,
            system="You are a test.",
            models=(model, *self.fallbacks),
            model=model.name,
            waits_for=" ".join(one.name for one in (model, *self.fallbacks)),
            model_choices=tuple(self.other_models),
            explain_unfit_model=lambda name: "" if name in self.other_models else f"There is no model {name!r}.",
            summariser=self.summariser,
            tools=self.tools,
            memories=tuple(self.memories),
            text_limit=self._get_text_limit,
            file_limit=self._file_limit,
            note_cache=self.notes,
            **self.settings,
        )

    def _get_text_limit(self, place: ChatLocation) -> int:
        platform = self.find_platform(place.platform, place.account)
        return platform.text_limit if platform else 4_000

    def _file_limit(self, place: ChatLocation) -> int:
        platform: object = self.find_platform(place.platform, place.account)
        return platform.file_limit if isinstance(platform, SupportsFiles) else 0

    def find_platform(self, name: str, account: str) -> Platform | None:
        return self.platforms.get((name, account))

    def find_draft_platform(self, name: str, account: str) -> SupportsDrafts | None:
        return self.drafts.get((name, account))

    def get_in_doubt_policy(self, consumer: str, agent: str) -> str:
        return self.in_doubt_policy

    def find_memory(self, instance: str, agent: str) -> MemoryClient | None:
        provider = self.memories.get(instance)
        return None if provider is None else self._find_memory_client(instance, agent, provider)

    def _find_memory_client(self, instance: str, agent: str, provider: MemoryProvider) -> MemoryClient:
        known = self._memory_clients.get((instance, agent))
        if known is None or known[0] is not provider:
            known = (
                provider,
                MemoryClient(provider, instance=instance, agent=agent, liveness=self._find_liveness(instance, agent)),
            )
            self._memory_clients[instance, agent] = known
        return known[1]

    def _find_liveness(self, instance: str, agent: str) -> MemoryLiveness | None:
        if self.clock is None:
            return None
        if (instance, agent) not in self._liveness:
            self._liveness[instance, agent] = MemoryLiveness(clock=self.clock, log=self.logger.bind(memory=instance))
        return self._liveness[instance, agent]

    def list_memories(self) -> list[MemoryClient]:
        return [attached for _, attached in self._memory_clients.values()]


class CrashableStore:
    """A store as one process sees it. Calls of a dead process never return."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if not inspect.iscoroutinefunction(real):
            return real  # a property

        async def gate(*args: Any, **options: Any) -> Any:
            if self.dead:
                await asyncio.get_running_loop().create_future()
            return await real(*args, **options)

        return gate


class CrashableGates(Gates):
    """Gates whose calls never return once their process is dead."""

    dead = False

    async def call(self, what: str, work: Callable[[], Awaitable[T]], *, deadline: float) -> T:
        if self.dead:
            await asyncio.get_running_loop().create_future()
        result = await super().call(what, work, deadline=deadline)
        if self.dead:
            await asyncio.get_running_loop().create_future()
        return result

    async def sleep(self, seconds: float, *, wakeup: asyncio.Event | None = None) -> None:
        await super().sleep(seconds, wakeup=wakeup)
        if self.dead:
            await asyncio.get_running_loop().create_future()


class GatewayProcess:
    """One process of a gateway: everything that a crash ends."""

    def __init__(self, gateway: InProcessGateway, owner: str) -> None:
        path, now = gateway.path / "log.db", gateway.clock.now
        opened = SqliteStore.open(path, chance=gateway.chance, now=now, inline=True, synchronous="OFF")
        self.disk = opened
        self._crashable_store = CrashableStore(opened)
        self.store = cast(Store, self._crashable_store)
        self.gates = CrashableGates(
            store=self.store, clock=gateway.clock, chance=gateway.chance, log=gateway.logger, owner=owner
        )
        gateway.runtimes.notes = FactCache(self.store)
        self.wakeups = Wakeups()
        self.supervisor = WorkerSupervisor(
            self.gates,
            runtimes=gateway.runtimes,
            wakeups=self.wakeups,
            roles=gateway.roles,
            has_no_rivals=False,  # a process that was replaced may still run
        )
        self.accept = MessageAcceptor(
            self.gates, admit=gateway.admit_message, wakeups=self.wakeups, peers=self.supervisor.peers
        )
        self.control = SessionAdmin(
            self.gates,
            wakeups=self.wakeups,
            accept=self.accept,
            runtimes=gateway.runtimes,
            erasures=gateway.path / "erasures.log",
        )
        self.tasks: list[asyncio.Task[None]] = []

    def die(self) -> None:
        self.gates.dead = self._crashable_store.dead = True

    async def start(self) -> None:
        await self.store.revoke_leases(owner=self.gates.owner)
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(self.supervisor.dispatch()),
            loop.create_task(self.supervisor.keep_renewing_leases()),
        ]


class InProcessGateway:
    """A complete gateway with synchronous methods. Each call runs virtual time until all work is done."""

    def __init__(self, path: Path, *, seed: object = 0) -> None:
        self.path = path
        self.loop = SimLoop(seed, shuffle=0.0)  # type: ignore[abstract]  # it lacks only sockets and signals
        self.clock = VirtualClock(self.loop)
        self.chance: RandomSource = SeededRandom()
        self.logger = RecordingLogger()
        self.runtimes = FakeRuntimes()
        self.runtimes.clock, self.runtimes.logger = self.clock, self.logger
        self.platform = FakePlatform()
        self.runtimes.platforms[("fake", "main")] = self.platform
        self.roles: RoleSource | None = None
        """The roles that people have now; None: those that were stamped."""
        self.process: GatewayProcess | None = None
        self.process_count = 0
        self._ids = 0
        self.admit: Callable[[IncomingMessage], AdmissionDecision] = lambda incoming: AdmissionDecision(
            agent=incoming.agent or "main", identity=incoming.sender, group="shared"
        )

    async def admit_message(self, incoming: IncomingMessage) -> AdmissionDecision:
        return self.admit(incoming)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> GatewayProcess:
        self.process_count += 1
        self.process = GatewayProcess(self, f"life-{self.process_count}")
        self.run(self.process.start())
        return self.process

    def crash(self) -> None:
        """End the process as kill -9 does: nothing is finished, flushed or released."""
        assert self.process is not None
        self.process.die()
        self.process = None

    @contextlib.contextmanager
    def run_started(self) -> Iterator[InProcessGateway]:
        """Run the gateway until the end of the block."""
        self.start()
        try:
            yield self
        finally:
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    def pass_time(self, seconds: float = 0.1) -> None:
        """Let `seconds` pass."""
        self.run(asyncio.sleep(seconds))

    def run_until_idle(self, seconds: float = 0.0) -> None:
        """Let `seconds` pass, then finish all due work."""

        async def wait() -> None:
            if seconds:
                await asyncio.sleep(seconds)
            for _ in range(10_000):
                await asyncio.sleep(0.01)
                assert self.process is not None
                if not self.process.supervisor.tasks:
                    due = await self.store.get_next_due()
                    if due is None or due > 0:
                        return
            raise AssertionError("the gateway does not become idle")

        self.run(wait())

    @property
    def store(self) -> Store:
        assert self.process is not None
        return self.process.store

    @property
    def control(self) -> SessionAdmin:
        assert self.process is not None
        return self.process.control

    # -- talking -----------------------------------------------------------------------------------------------------

    def make_message(
        self, text: str, *, chat: str = "chat", who: str = "ada", id: str = "", **more: Any
    ) -> IncomingMessage:
        if not id:
            self._ids += 1
            id = f"m{self._ids}"
        origin = ChatLocation(platform="fake", account="main", chat=chat, message=id)
        return IncomingMessage(origin=origin, text=text, sender=who, name=who, **more)

    def accept_message(self, incoming: IncomingMessage) -> AcceptResult:
        assert self.process is not None
        return self.run(_await_result(self.process.accept(incoming)))

    def send_message(self, text: str, *, rest: bool = True, **more: Any) -> AcceptResult:
        """Write a message as a user; with `rest`, also finish all work that follows."""
        verdict = self.accept_message(self.make_message(text, **more))
        if rest:
            self.run_until_idle()
        return verdict

    def list_shown_texts(self) -> list[str]:
        """Return the messages that users see on the platform."""
        return [out.text for out in self.platform.shown_messages]

    # -- looking -----------------------------------------------------------------------------------------------------

    def read_log(self, session: str) -> list[Entry]:
        return self.run(self.store.list_entries(session))

    def read_bodies(self, session: str, kind: type[B]) -> list[B]:
        return [entry.body for entry in self.read_log(session) if isinstance(entry.body, kind)]

    def assert_sound(self) -> None:
        """Check that the store is consistent and that no promise is broken."""
        report = self.run(self.control.audit_store())
        assert report.checked.entries, "the audit read no session"
        assert not report.broken_findings, report.broken_findings


async def _await_result(work: Awaitable[T]) -> T:
    return await work
