"""A gateway around the provider under test: the real store, the real delivery workers, and faults before the
provider."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from everhold.core.access import AdmissionDecision
from everhold.core.consumers import MEMORY_PREFIX, memory_consumer
from everhold.core.entries import ChatLocation
from everhold.engine.memory_client import MemoryClient
from everhold.engine.roles import RoleSource
from everhold.errors import InDoubt, Transient
from everhold.ports.clock import RandomSource
from everhold.ports.memory import MemoryBatch, MemoryHit, MemoryProvider, MemoryQuery
from everhold.ports.model import ModelResponse
from everhold.ports.platform import AcceptResult, IncomingMessage
from everhold.stores.sqlite import SqliteStore
from everhold.testing.conformance.scenario import POLL_SECONDS, CheckFailed, ProviderScenario
from everhold.testing.fakes import FakeModel, FakePlatform
from everhold.testing.gateway import FakeRuntimes, GatewayProcess, InProcessGateway, RecordingLogger
from everhold.testing.seeded_random import SeededRandom

StoreCall: TypeAlias = Callable[[MemoryBatch], Awaitable[Mapping[str, str]]]
StoreFault: TypeAlias = Callable[[StoreCall, MemoryBatch], Awaitable[Mapping[str, str]]]
"""(the provider's `store`, the batch) -> the faulty result."""


async def lose_answer(store: StoreCall, batch: MemoryBatch) -> Mapping[str, str]:
    """Store the batch and lose the answer."""
    await store(batch)
    raise InDoubt("the answer was lost")


async def refuse_connection(store: StoreCall, batch: MemoryBatch) -> Mapping[str, str]:
    raise Transient("the service does not answer")


async def hang_forever(store: StoreCall, batch: MemoryBatch) -> Mapping[str, str]:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("this wait never ends")


def delay_store(seconds: float, begun: list[asyncio.Task[Any]]) -> StoreFault:
    """Lose the answer immediately, and store the batch after `seconds`."""

    async def fault(store: StoreCall, batch: MemoryBatch) -> Mapping[str, str]:
        async def carry_out() -> None:
            await asyncio.sleep(seconds)
            await store(batch)

        begun.append(asyncio.get_running_loop().create_task(carry_out()))
        raise InDoubt("the connection broke")

    return fault


def slow_down_store(seconds: float) -> StoreFault:
    async def fault(store: StoreCall, batch: MemoryBatch) -> Mapping[str, str]:
        await asyncio.sleep(seconds)
        return await store(batch)

    return fault


class FaultyProvider:
    """The provider with injected faults in `store`. All other calls go to the provider."""

    def __init__(self, provider: MemoryProvider) -> None:
        self.provider = provider
        self.faults: deque[StoreFault] = deque()
        self.default_fault: StoreFault | None = None
        self.before_find: Callable[[], Awaitable[None]] | None = None
        self.probe_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.provider, name)

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        fault = self.faults.popleft() if self.faults else self.default_fault
        return await (fault(self.provider.store, batch) if fault else self.provider.store(batch))

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        if self.before_find is not None:
            await self.before_find()
        return await self.provider.find(query)

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        self.probe_count += 1
        found: Sequence[str] = await cast(Any, self.provider).probe(batch)
        return found


class LoopClock:
    """A clock with the loop's time, real or virtual."""

    def now(self) -> float:
        return asyncio.get_running_loop().time() + 1_700_000_000.0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class GatewayHarness:
    """Agents `main` and `other`, each with the provider as its only memory."""

    def __init__(self, scenario: ProviderScenario) -> None:
        self.scenario = scenario
        self.path: Path = scenario.path / "gateway"
        self.path.mkdir(parents=True, exist_ok=True)
        self.chance: RandomSource = SeededRandom(int(scenario.mark, 16))
        self.clock = LoopClock()
        self.logger = RecordingLogger()
        self.runtimes = FakeRuntimes()
        self.runtimes.model = self.runtimes.summariser = FakeModel(lambda _: ModelResponse(text="Good."))
        self.runtimes.platforms[("fake", "main")] = FakePlatform()
        self.faulty_provider: FaultyProvider
        self.replace_provider()
        self.roles: RoleSource | None = None
        self.process_count = 0
        self._ids = 0
        self.process: GatewayProcess | None = None

    def replace_provider(self) -> MemoryClient:
        """Replace the provider's object with a new one; return the old one."""
        before = self.runtimes.find_memory("it", "main") if self.runtimes.memories else None
        self.faulty_provider = FaultyProvider(self.scenario.build_provider())
        self.runtimes.memories["it"] = cast(MemoryProvider, self.faulty_provider)
        attached = self.runtimes.find_memory("it", "main")
        assert attached is not None
        attached.deadline = min(attached.deadline, self.scenario.seconds)
        return before or attached

    @property
    def memory_client(self) -> MemoryClient:
        attached = self.runtimes.find_memory("it", "main")
        assert attached is not None
        return attached

    async def admit_message(self, incoming: IncomingMessage) -> AdmissionDecision:
        return AdmissionDecision(agent=incoming.agent or "main", identity=incoming.sender, group="shared")

    async def start(self) -> GatewayHarness:
        self.process_count += 1
        self.process = GatewayProcess(cast(InProcessGateway, self), f"life-{self.process_count}")
        await self.process.start()
        return self

    def crash(self) -> None:
        """End the process as kill -9 does: nothing is finished, flushed or released."""
        assert self.process is not None
        self.process.die()
        for task in (*self.process.tasks, *self.process.supervisor.tasks):
            task.cancel()
        self.process = None

    async def stop(self) -> None:
        if self.process is not None:
            self.crash()

    @property
    def store(self) -> SqliteStore:
        assert self.process is not None
        return self.process.disk

    async def send_message(self, text: str, *, chat: str = "s1", who: str = "ada") -> AcceptResult:
        """Write a message and wait for its reply."""
        assert self.process is not None
        self._ids += 1
        chat, who = self.scenario.make_session_id(chat), self.scenario.make_person_id(who)
        origin = ChatLocation(platform="fake", account="main", chat=chat, message=f"m{self._ids}")
        verdict = await self.process.accept(IncomingMessage(origin=origin, text=text, sender=who, name=who))
        until = self.clock.monotonic() + 10 + self.scenario.patience
        while await self.store.list_pending(verdict.session) or (await self.store.get_session(verdict.session)).running:
            if self.clock.monotonic() > until:
                raise CheckFailed("a turn waited for the memory")
            await asyncio.sleep(POLL_SECONDS)
        return verdict

    async def wait_until_delivered(self, *, seconds: float = 20.0) -> None:
        """Wait until everything is delivered. Failed batches are retried immediately."""
        assert self.process is not None
        until = self.clock.monotonic() + seconds + 3 * (self.memory_client.deadline + self.memory_client.visible_after)
        while True:
            busy = any(claim.consumer == memory_consumer("it") for claim in self.process.supervisor.tasks.values())
            undelivered = await self.store.list_backlogs(MEMORY_PREFIX)
            if not busy and not any(it.items for it in undelivered):
                return
            if self.clock.monotonic() > until:
                error = undelivered[0].error if undelivered else ""
                raise CheckFailed(f"{sum(it.items for it in undelivered)} exchanges never arrived: {error}")
            if not busy:
                await self.store.retry_now()
                self.process.wakeups.work_available.set()
            await asyncio.sleep(POLL_SECONDS * 5)
