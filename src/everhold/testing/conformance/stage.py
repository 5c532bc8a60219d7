"""A gateway around the provider under test: the real store and the real lanes, and faults between them and it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from everhold.core.access import Admission
from everhold.core.consumers import MEMORY_PREFIX, memory_consumer
from everhold.core.entries import Place
from everhold.errors import InDoubt, Transient
from everhold.flow.memory import Attached
from everhold.ports.clock import Chance
from everhold.ports.memory import Batch, Found, MemoryProvider, Query
from everhold.ports.model import Answer
from everhold.ports.platform import Incoming, Verdict
from everhold.stores.sqlite import SqliteStore
from everhold.testing.conformance.scene import MOMENT, Failed, Scene
from everhold.testing.dice import Dice
from everhold.testing.fakes import FakePlatform, ScriptedModel
from everhold.testing.house import Diary, Furniture, House, Process

Store: TypeAlias = Callable[[Batch], Awaitable[Mapping[str, str]]]
Fault: TypeAlias = Callable[[Store, Batch], Awaitable[Mapping[str, str]]]
"""(what storing would be, the batch) -> what becomes of it instead."""


async def lose(store: Store, batch: Batch) -> Mapping[str, str]:
    """It is stored, and nobody hears of it."""
    await store(batch)
    raise InDoubt("the answer was lost")


async def refuse_to_connect(store: Store, batch: Batch) -> Mapping[str, str]:
    raise Transient("nobody answers")


async def hang(store: Store, batch: Batch) -> Mapping[str, str]:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody wakes up from this")


def late(seconds: float, begun: list[asyncio.Task[Any]]) -> Fault:
    """The answer is lost at once, and the request carried out only after `seconds`."""

    async def fault(store: Store, batch: Batch) -> Mapping[str, str]:
        async def carry_out() -> None:
            await asyncio.sleep(seconds)
            await store(batch)

        begun.append(asyncio.get_running_loop().create_task(carry_out()))
        raise InDoubt("the connection broke")

    return fault


def slow(seconds: float) -> Fault:
    async def fault(store: Store, batch: Batch) -> Mapping[str, str]:
        await asyncio.sleep(seconds)
        return await store(batch)

    return fault


class Between:
    """The provider as the gateway sees it: faults happen on the way, everything else is the provider's own."""

    def __init__(self, provider: MemoryProvider) -> None:
        self.provider = provider
        self.faults: deque[Fault] = deque()
        self.always: Fault | None = None
        self.finding: Callable[[], Awaitable[None]] | None = None
        self.stored = 0
        self.probed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.provider, name)

    async def store(self, batch: Batch) -> Mapping[str, str]:
        self.stored += 1
        fault = self.faults.popleft() if self.faults else self.always
        return await (fault(self.provider.store, batch) if fault else self.provider.store(batch))

    async def find(self, query: Query) -> Sequence[Found]:
        if self.finding is not None:
            await self.finding()
        return await self.provider.find(query)

    async def probe(self, batch: Batch) -> Sequence[str]:
        self.probed += 1
        found: Sequence[str] = await cast(Any, self.provider).probe(batch)
        return found


class LoopClock:
    """Time is the loop's, real or virtual."""

    def now(self) -> float:
        return asyncio.get_running_loop().time() + 1_700_000_000.0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Stage:
    """Agents `main` and `other`, each with the provider as its only memory."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.path: Path = scene.path / "gateway"
        self.path.mkdir(parents=True, exist_ok=True)
        self.chance: Chance = Dice(int(scene.mark, 16))
        self.clock = LoopClock()
        self.diary = Diary()
        self.furniture = Furniture()
        self.furniture.model = self.furniture.summariser = ScriptedModel(lambda _: Answer(text="Good."))
        self.furniture.platforms[("fake", "main")] = FakePlatform()
        self.between: Between
        self.replace()
        self.lives = 0
        self._ids = 0
        self.process: Process | None = None

    def replace(self) -> Attached:
        """Put another object of the provider in the place of the one there was; the old one."""
        before = self.furniture.memory("it", "main") if self.furniture.memories else None
        self.between = Between(self.scene.raw())
        self.furniture.memories["it"] = cast(MemoryProvider, self.between)
        attached = self.furniture.memory("it", "main")
        assert attached is not None
        attached.deadline = min(attached.deadline, self.scene.seconds)
        return before or attached

    @property
    def attached(self) -> Attached:
        attached = self.furniture.memory("it", "main")
        assert attached is not None
        return attached

    async def reception(self, incoming: Incoming) -> Admission:
        return Admission(agent=incoming.agent or "main", person=incoming.sender, group="shared")

    async def start(self) -> Stage:
        self.lives += 1
        self.process = Process(cast(House, self), f"life-{self.lives}")
        await self.process.start()
        return self

    def crash(self) -> None:
        """As kill -9 would: nothing is finished, flushed or let go of."""
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

    async def say(self, text: str, *, chat: str = "s1", who: str = "ada") -> Verdict:
        """Somebody says something, and is answered."""
        assert self.process is not None
        self._ids += 1
        chat, who = self.scene.session(chat), self.scene.person(who)
        origin = Place(platform="fake", account="main", chat=chat, message=f"m{self._ids}")
        verdict = await self.process.accept(Incoming(origin=origin, text=text, sender=who, name=who))
        until = self.clock.monotonic() + 10
        while await self.store.list_pending(verdict.session) or (await self.store.get_session(verdict.session)).running:
            if self.clock.monotonic() > until:
                raise Failed("a turn waited for the memory")
            await asyncio.sleep(MOMENT)
        return verdict

    async def delivered(self, *, seconds: float = 20.0) -> None:
        """Until nothing is left to hand over. What waits after a failure is tried again at once."""
        assert self.process is not None
        until = self.clock.monotonic() + seconds + 3 * (self.attached.deadline + self.attached.visible_after)
        while True:
            busy = any(claim.consumer == memory_consumer("it") for claim in self.process.supervisor.tasks.values())
            behind = await self.store.list_backlogs(MEMORY_PREFIX)
            if not busy and not any(it.items for it in behind):
                return
            if self.clock.monotonic() > until:
                raise Failed(
                    f"{sum(it.items for it in behind)} exchanges never arrived: {behind[0].error if behind else ''}"
                )
            if not busy:
                await self.store.retry_now(at=self.clock.now())
                self.process.bells.work.set()
            await asyncio.sleep(MOMENT * 5)
