"""A whole everhold in one process and virtual time: the real store, the real flows, fakes for the far sides.

    house = House(tmp_path)
    with house.awake():
        house.say("hello")
        assert house.heard_back() == ["You said: hello"]

`crash` leaves everything as a kill -9 would; `start` is the next process on the same disk.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from everhold.control import Control
from everhold.core.access import Admission
from everhold.core.entries import Body, Entry, Place
from everhold.errors import NotFound
from everhold.flow.accept import Accept
from everhold.flow.facts import Facts
from everhold.flow.gates import Bells, Gates
from everhold.flow.memory import Attached
from everhold.flow.pulse import Pulse
from everhold.flow.runtime import Runtime
from everhold.flow.supervise import Supervisor
from everhold.ports.clock import Chance, Clock
from everhold.ports.memory import MemoryProvider
from everhold.ports.platform import Carrying, Drafting, Incoming, Platform, Verdict
from everhold.ports.store import Store
from everhold.ports.tool import Tool
from everhold.stores.sqlite import SqliteStore
from everhold.testing.dice import Dice
from everhold.testing.fakes import FakePlatform, ScriptedModel
from everhold.testing.sim.loop import SimLoop

T = TypeVar("T")
B = TypeVar("B", bound=Body)


class VirtualClock:
    """Wall time is the loop's plus `skew`, which a test may change at will."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.skew = 1_700_000_000.0

    def now(self) -> float:
        return self.loop.time() + self.skew

    def monotonic(self) -> float:
        return self.loop.time()


class Diary:
    """A log that a test can read: (event, fields)."""

    def __init__(self, lines: list[tuple[str, dict[str, object]]] | None = None, **bound: object) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = [] if lines is None else lines
        self.bound = bound

    def debug(self, event: str, /, **fields: object) -> None:
        self.lines.append((event, {**self.bound, **fields}))

    info = warning = error = debug

    def bind(self, **fields: object) -> Diary:
        return Diary(self.lines, **{**self.bound, **fields})

    def of(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.lines if name == event]


class Furniture:
    """What the flows work with; a test may exchange any of it at any time."""

    def __init__(self) -> None:
        self.model = ScriptedModel()
        self.fallbacks: tuple[ScriptedModel, ...] = ()
        self.others: dict[str, ScriptedModel] = {}
        """What a session may choose instead, by name."""
        self.summariser = self.model
        self.tools: dict[str, Tool] = {}
        self.platforms: dict[tuple[str, str], Platform] = {}
        self.drafts: dict[tuple[str, str], Drafting] = {}
        self.memories: dict[str, MemoryProvider] = {}
        self._known: dict[tuple[str, str], tuple[MemoryProvider, Attached]] = {}
        self._pulses: dict[tuple[str, str], Pulse] = {}
        self.notes: Facts | None = None
        self.clock: Clock | None = None
        self.diary = Diary()
        self.policy = "resend"
        self.away: set[str] = set()
        """Agents that have sessions and are not in the configuration."""
        self.settings: dict[str, Any] = {}
        """Anything else of a Runtime: busy, soft, hard, keep, ahead…"""

    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime:
        if agent in self.away:
            raise NotFound(f"there is no agent {agent!r}")
        chosen = choices.get("model", "")
        model = self.others.get(chosen, self.model)
        return Runtime(
            agent=agent,
            system="You are a test.",
            models=(model, *self.fallbacks),
            model=model.name,
            whom=" ".join(one.name for one in (model, *self.fallbacks)),
            choices=tuple(self.others),
            unfit=lambda name: "" if name in self.others else f"There is no model {name!r}.",
            summariser=self.summariser,
            tools=self.tools,
            memories=tuple(self.memories),
            text_limit=self._limit,
            file_limit=self._file_limit,
            notes=self.notes,
            **self.settings,
        )

    def _limit(self, place: Place) -> int:
        platform = self.platform(place.platform, place.account)
        return platform.text_limit if platform else 4_000

    def _file_limit(self, place: Place) -> int:
        platform: object = self.platform(place.platform, place.account)
        return platform.file_limit if isinstance(platform, Carrying) else 0

    def platform(self, name: str, account: str) -> Platform | None:
        return self.platforms.get((name, account))

    def drafting(self, name: str, account: str) -> Drafting | None:
        return self.drafts.get((name, account))

    def in_doubt(self, reader: str, agent: str) -> str:
        return self.policy

    def memory(self, instance: str, agent: str) -> Attached | None:
        provider = self.memories.get(instance)
        return None if provider is None else self._attached(instance, agent, provider)

    def _attached(self, instance: str, agent: str, provider: MemoryProvider) -> Attached:
        known = self._known.get((instance, agent))
        if known is None or known[0] is not provider:
            known = provider, Attached(provider, instance=instance, agent=agent, pulse=self._pulse(instance, agent))
            self._known[instance, agent] = known
        return known[1]

    def _pulse(self, instance: str, agent: str) -> Pulse | None:
        if self.clock is None:
            return None
        if (instance, agent) not in self._pulses:
            self._pulses[instance, agent] = Pulse(clock=self.clock, log=self.diary.bind(memory=instance))
        return self._pulses[instance, agent]

    def attached(self) -> list[Attached]:
        return [attached for _, attached in self._known.values()]


class MortalStore:
    """A store as one process sees it: once that is dead, nothing it asks for ever comes back."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)

        async def gate(*args: Any, **options: Any) -> Any:
            if self.dead:
                await asyncio.get_running_loop().create_future()
            return await real(*args, **options)

        return gate


class MortalGates(Gates):
    """Gates that let nobody through once their process is dead."""

    dead = False

    async def call(self, what: str, work: Callable[[], Awaitable[T]], *, deadline: float) -> T:
        if self.dead:
            await asyncio.get_running_loop().create_future()
        result = await super().call(what, work, deadline=deadline)
        if self.dead:
            await asyncio.get_running_loop().create_future()
        return result

    async def sleep(self, seconds: float, *, bell: asyncio.Event | None = None) -> None:
        await super().sleep(seconds, bell=bell)
        if self.dead:
            await asyncio.get_running_loop().create_future()


class Process:
    """One life of a gateway: what dies with it."""

    def __init__(self, house: House, owner: str) -> None:
        opened = SqliteStore.open(house.path / "log.db", chance=house.chance, inline=True, synchronous="OFF")
        self.disk = opened
        self._mortal = MortalStore(opened)
        self.store = cast(Store, self._mortal)
        self.gates = MortalGates(store=self.store, clock=house.clock, chance=house.chance, log=house.diary, owner=owner)
        house.furniture.notes = Facts(self.store)
        self.bells = Bells()
        self.supervisor = Supervisor(self.gates, runtimes=house.furniture, bells=self.bells)
        self.accept = Accept(self.gates, reception=house.reception, bells=self.bells)
        self.control = Control(
            self.gates,
            bells=self.bells,
            accept=self.accept,
            runtimes=house.furniture,
            erasures=house.path / "erasures.log",
        )
        self.tasks: list[asyncio.Task[None]] = []

    def die(self) -> None:
        self.gates.dead = self._mortal.dead = True

    async def start(self) -> None:
        await self.store.revoke_leases(owner=self.gates.owner, at=self.gates.clock.now())
        loop = asyncio.get_running_loop()
        self.tasks = [loop.create_task(self.supervisor.dispatch()), loop.create_task(self.supervisor.renew())]


class House:
    """Everything, wired. Synchronous to use: each call runs the virtual world until it comes to rest."""

    def __init__(self, path: Path, *, seed: object = 0) -> None:
        self.path = path
        self.loop = SimLoop(seed, shuffle=0.0)  # type: ignore[abstract]  # it has what virtual worlds need
        self.clock = VirtualClock(self.loop)
        self.chance: Chance = Dice()
        self.diary = Diary()
        self.furniture = Furniture()
        self.furniture.clock, self.furniture.diary = self.clock, self.diary
        self.platform = FakePlatform()
        self.furniture.platforms[("fake", "main")] = self.platform
        self.process: Process | None = None
        self.lives = 0
        self._ids = 0
        self.admit: Callable[[Incoming], Admission] = lambda incoming: Admission(
            agent=incoming.agent or "main", person=incoming.sender, group="shared"
        )

    async def reception(self, incoming: Incoming) -> Admission:
        return self.admit(incoming)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> Process:
        self.lives += 1
        self.process = Process(self, f"life-{self.lives}")
        self.run(self.process.start())
        return self.process

    def crash(self) -> None:
        """End the process as kill -9 would: nothing is finished, flushed or let go of."""
        assert self.process is not None
        self.process.die()
        self.process = None

    @contextlib.contextmanager
    def awake(self) -> Iterator[House]:
        """A house at work, from here to the end of the block."""
        self.start()
        try:
            yield self
        finally:
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    def tick(self, seconds: float = 0.1) -> None:
        """Let `seconds` pass, whatever is under way."""
        self.run(asyncio.sleep(seconds))

    def rest(self, seconds: float = 0.0) -> None:
        """Let `seconds` pass, then let everything that is due be done."""

        async def wait() -> None:
            if seconds:
                await asyncio.sleep(seconds)
            for _ in range(10_000):
                await asyncio.sleep(0.01)
                assert self.process is not None
                if not self.process.supervisor.tasks:
                    due = await self.store.get_next_due(at=self.clock.now())
                    if due is None or due > 0:
                        return
            raise AssertionError("the house does not come to rest")

        self.run(wait())

    @property
    def store(self) -> Store:
        assert self.process is not None
        return self.process.store

    @property
    def control(self) -> Control:
        assert self.process is not None
        return self.process.control

    # -- talking -----------------------------------------------------------------------------------------------------

    def message(self, text: str, *, chat: str = "chat", who: str = "ada", id: str = "", **more: Any) -> Incoming:
        if not id:
            self._ids += 1
            id = f"m{self._ids}"
        origin = Place(platform="fake", account="main", chat=chat, message=id)
        return Incoming(origin=origin, text=text, sender=who, name=who, **more)

    def accept(self, incoming: Incoming) -> Verdict:
        assert self.process is not None
        return self.run(_await(self.process.accept(incoming)))

    def say(self, text: str, *, rest: bool = True, **more: Any) -> Verdict:
        """Somebody says something; with `rest` everything that follows from it happens, too."""
        verdict = self.accept(self.message(text, **more))
        if rest:
            self.rest()
        return verdict

    def heard_back(self) -> list[str]:
        """What people see on the platform."""
        return [out.text for out in self.platform.shown]

    # -- looking -----------------------------------------------------------------------------------------------------

    def log(self, session: str) -> list[Entry]:
        return self.run(self.store.list_entries(session))

    def bodies(self, session: str, kind: type[B]) -> list[B]:
        return [entry.body for entry in self.log(session) if isinstance(entry.body, kind)]

    def sound(self) -> None:
        """Nothing in the store contradicts itself or a promise."""
        report = self.run(self.control.audit())
        assert report.checked.entries, "an audit of nothing proves nothing"
        assert not report.broken, report.broken


async def _await(work: Awaitable[T]) -> T:
    return await work
