"""The far sides of the simulated world: platforms, memory providers, tools. The model is in model.py.

They are the shipped fakes with a will of their own: overloaded now and then, naming a time to come back, keeping only
half of a batch. Whatever reaches them is shown to the witness.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import structs

from everhold.core.consumers import memory_consumer, platform_consumer
from everhold.core.entries import Noted, Place
from everhold.errors import InDoubt, Partial, Refused, Transient
from everhold.ports.memory import Batch, Capability, Exchange, Found, Memory, Note, Query, Retraction, Switch
from everhold.ports.platform import Accept, Delivery, Incoming, Outgoing
from everhold.ports.tool import Effect, Result, Saying, ToolContext
from everhold.testing.fakes import FakePlatform, FakeProvider, FakeTool, wording
from everhold.testing.sim.process import Process, SimGates
from everhold.testing.sim.witness import SECRET, Busy, Told, Witness
from everhold.testing.sim.world import World

LONG_WAITS: Final = (2.0, 20.0, 90.0, 900.0)
POLL_SECONDS: Final = 50.0
HOOK_SECONDS: Final = 10.0
MOST_RECALLED: Final = 3
MODEL: Final = "mind"
TEMPERS: Final = ("lies", "503 after execution", "idle resets")
"""How a memory provider fails that is there all the time."""


class FarSide:
    """What the far sides have in common."""

    def __init__(self, world: World, witness: Witness) -> None:
        self.world = world
        self.witness = witness

    def trouble(self, lane: str, session: str, busy: Callable[[Told], Exception] = Busy) -> None:
        """Refuse, once in a while, before anything is done."""
        world = self.world
        if not world.chance(world.profile.trouble):
            return
        world.stats["refusals"] += 1
        if world.chance(0.5):
            seconds = LONG_WAITS[int(world.pick(0, len(LONG_WAITS)))]
            world.tell("far side", f"asks {lane} of {session} to wait {seconds:.0f} s")
            raise busy(Told(lane, session, seconds))
        if world.chance(0.15):
            world.tell("far side", f"refuses {lane} of {session} for good")
            raise Refused("never")
        raise Transient("not now")


# -- tools -------------------------------------------------------------------------------------------------------------

TOOLS: Final = {
    "look": Effect.PURE,
    "note": Effect.PURE,
    "file": Effect.KEYED,
    "book": Effect.PROBE,
    "pay": Effect.ONCE,
    "tell": Effect.ONCE,
}


class SimTool(FakeTool):
    """A tool of the world: what it did is remembered there, whoever ran it."""

    def __init__(self, world: World, name: str, effect: Effect, places: Sequence[Place]) -> None:
        super().__init__(name, effect, deadline=20.0, act=self._act_out)
        self.world = world
        self.places = places

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        result = await super().run(arguments, context)
        self.world.tell("tool", f"{self.spec.name} runs for {context.key} ({self.done[context.key]})")
        return result

    def _act_out(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        number = int(arguments.get("n", 0))
        match self.spec.name:
            case "look":
                return Result(text="what is there " * (200 if number % 7 == 0 else 3))
            case "note":
                return Result(text="noted", notes=(Noted(text=f"note {context.key}", fact=f"f{number % 2}"),))
            case "tell":
                place = self.places[number % len(self.places)]
                return Result(text="told", sayings=(Saying(text=f"word of {context.key}", to=place),))
            case name:
                if number % 11 == 0:
                    raise ValueError(f"{name} cannot do {number}")
                return Result(text=f"{name} {number} done")


# -- platforms ---------------------------------------------------------------------------------------------------------


class SimPlatform(FakePlatform, FarSide):
    """A platform of the world. `poll` must be asked for news, the others bring theirs."""

    def __init__(self, world: World, witness: Witness, name: str, delivery: Delivery) -> None:
        FakePlatform.__init__(
            self, delivery, name=name, text_limit=60, visible_after=5.0 if delivery is Delivery.PROBE else 0.0
        )
        FarSide.__init__(self, world, witness)
        self.updates: list[Incoming] = []
        self.acknowledged: set[int] = set()
        self.seen_upto = 0
        """Of a polled platform: updates before this one were confirmed by asking for later ones."""
        self.handlers: dict[str, tuple[Process, Accept]] = {}
        self.drafts: dict[str, str] = {}
        """remote id -> what stands there now."""
        self.news = asyncio.Event()
        self.polled = delivery is Delivery.BLIND

    # -- what people write

    def write(self, incoming: Incoming) -> None:
        number = len(self.updates)
        self.updates.append(incoming)
        self.world.tell(self.name, f"{incoming.origin.chat}: {incoming.text}")
        if self.polled:
            self.news.set()
        else:
            self.world.loop.create_task(self._bring(number))

    def unacknowledged(self) -> int:
        return len(self.updates) - (self.seen_upto if self.polled else len(self.acknowledged))

    async def _bring(self, number: int) -> None:
        """Call the hook until somebody says that it was kept; sometimes once more, for good measure."""
        world = self.world
        if world.chance(0.2):
            await asyncio.sleep(world.pick(0, 5))  # later than what was written after it
        again = 1 if world.chance(world.profile.duplicate) else 0
        while again >= 0:
            if await self._hook(self.updates[number]):
                self.acknowledged.add(number)
                again -= 1
            await asyncio.sleep(world.pick(0.5, 5))
        if world.chance(0.05):
            await self._falsify(self.updates[number])

    async def _falsify(self, incoming: Incoming) -> None:
        """Bring something else under the same name: it must not be taken for the same, nor for something new."""
        altered = structs.replace(incoming, text=f"{incoming.text} and more")
        open_ = [(process, accept) for process, accept in self.handlers.values() if process.alive]
        for process, accept in open_[:1]:
            await process.breathe()
            verdict = await accept(altered)
            if verdict.outcome not in ("differs", "duplicate", "ignored"):
                self.witness.problem(f"{altered.text!r} under a known name was {verdict.outcome}")

    async def _hook(self, incoming: Incoming) -> bool:
        open_ = [(process, accept) for process, accept in self.handlers.values() if process.alive]
        if not open_:
            return False
        process, accept = open_[int(self.world.pick(0, len(open_)))]
        task = self.world.loop.create_task(self._handle(process, accept, incoming))
        await asyncio.wait([task], timeout=HOOK_SECONDS)
        return task.done() and task.result() and not self.world.chance(self.world.profile.lost)

    async def _handle(self, process: Process, accept: Accept, incoming: Incoming) -> bool:
        await process.gate("hook", "before")
        verdict = await accept(incoming)
        await process.gate("hook", "after")
        return verdict.outcome in ("accepted", "duplicate", "ignored")

    async def ask_for(self, offset: int) -> list[tuple[int, Incoming]]:
        """The far side of a poll: news from `offset` on; asking for later ones confirms what was before."""
        self.seen_upto = max(self.seen_upto, offset)
        if self.seen_upto >= len(self.updates):
            self.news.clear()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self.news.wait()
            except TimeoutError:
                return []
        first = self.seen_upto
        return list(enumerate(self.updates[first : first + 3], first))

    # -- what is said to them

    async def send(self, out: Outgoing) -> str:
        session = out.key.partition(":")[0]
        lane = platform_consumer(self.name, self.account)
        self.witness.arrives(lane, session, out.text)
        self.trouble(lane, session)
        remote = await super().send(out)
        if out.edits:
            self.drafts[out.edits] = out.text
        self.world.tell(self.name, f"shows {out.key} {out.text!r}{' in place of a draft' if out.edits else ''}")
        return remote

    async def draft(self, out: Outgoing) -> str:
        """Show an unfinished reply. The key is honoured: asked twice, it shows one."""
        self.witness.arrives("draft", out.key.partition(":")[0], out.text)
        remote = f"draft {out.key}"
        self.drafts.setdefault(remote, out.text)
        self.world.tell(self.name, f"shows {remote} {out.text!r}")
        return remote

    async def revise(self, remote: str, out: Outgoing) -> None:
        self.drafts[remote] = out.text
        self.world.tell(self.name, f"shows {remote} {out.text!r}")


class Ear:
    """How one process hears of news on a platform."""

    def __init__(self, far: SimPlatform, process: Process, gates: SimGates) -> None:
        self.far = far
        self.process = process
        self.gates = gates

    async def listen(self, accept: Accept) -> None:
        if self.far.polled:
            await self._poll(accept)
        else:
            self.far.handlers[self.process.name] = (self.process, accept)
            await self.process.world.never()

    async def _poll(self, accept: Accept) -> None:
        offset = 0
        while True:
            ask = functools.partial(self.far.ask_for, offset)
            try:
                news = await self.gates.call("poll", ask, deadline=POLL_SECONDS + 10)
            except InDoubt:
                await self.gates.sleep(1.0)
                continue
            for number, incoming in news:
                offset = await self._take(accept, number, incoming)

    async def _take(self, accept: Accept, number: int, incoming: Incoming) -> int:
        """Hand one message in; the offset to ask from after that."""
        await accept(incoming)
        return number + 1


# -- memory ------------------------------------------------------------------------------------------------------------


class Client:
    """One process's object for a provider. One that was closed is never asked to store again."""

    capabilities = frozenset({Capability.PROBE, Capability.RETRACT, Capability.CLOSE, Capability.SESSION_SWITCHED})

    def __init__(self, far: SimProvider) -> None:
        self.far = far
        self.delivery = far.delivery
        self.deadline = far.deadline
        self.visible_after = far.visible_after
        self.closed = False

    async def store(self, batch: Batch) -> Mapping[str, str]:
        if self.closed:
            self.far.witness.problem(f"a client of {self.far.name} that was closed is asked to store")
        return await self.far.store(batch)

    async def probe(self, batch: Batch) -> Sequence[str]:
        return await self.far.probe(batch)

    async def find(self, query: Query) -> Sequence[Found]:
        return await self.far.find(query)

    async def session_switched(self, switch: Switch) -> None:
        self.far.world.stats[f"switched {switch.how}"] += 1

    async def close(self) -> None:
        self.closed = True
        self.far.world.stats["clients closed"] += 1


class SimProvider(FakeProvider, FarSide):
    """A memory provider of the world. One that can be asked is asked for a reason: it may keep half of a batch.

    Some items it will never take: then it turns the whole batch away, or keeps what stands before them.
    """

    def __init__(self, world: World, witness: Witness, name: str, delivery: Delivery) -> None:
        FakeProvider.__init__(self, delivery, visible_after=5.0 if delivery is Delivery.PROBE else 0.0)
        FarSide.__init__(self, world, witness)
        self.name = name
        self.dice = random.Random(f"{world.seed}/{name}/temper")
        self.blamed: set[str] = set()
        """Keys that were refused with nobody else to blame."""

    async def store(self, batch: Batch) -> Mapping[str, str]:
        lane, session = memory_consumer(self.name), batch.items[0].session
        temper = self._temper()
        if temper == "idle resets":
            raise InDoubt("the connection had been idle, and was reset")
        self.witness.arrives(lane, session, "\n".join(wording(item) for item in batch.items))
        try:
            self.trouble(lane, session)
            self._turn_away(batch)
        except Refused:
            self.blamed |= {item.key for item in batch.items if len(batch.items) == 1}
            raise
        if temper == "lies":
            raise InDoubt("the provider said that it kept it, and it is not there")
        half = len(batch.items) > 1 and self.world.chance(0.2)
        for index, item in enumerate(batch.items):
            if half and index == len(batch.items) // 2:
                self.world.tell(self.name, f"falls over after {index} of {len(batch.items)} items")
                raise InDoubt("the provider fell over in the middle")
            if self._spoiled(item):
                self.world.stats["batches kept in part"] += 1
                self.world.tell(self.name, f"will not take {item.key}, after {index} others")
                raise Partial(f"{item.key} is not taken")
            self.receive(batch.name, item)
            self.world.tell(self.name, f"keeps {item.key}")
        if temper == "503 after execution":
            raise InDoubt("the provider did it, and answers 503")
        return {item.key: f"doc-{item.key}" for item in batch.items}

    def _temper(self) -> str:
        """What goes wrong over there this time, if anything; counted by its name."""
        if self.world.calm or self.dice.random() >= self.world.profile.lost / 2:
            return ""
        temper = self.dice.choice(TEMPERS)
        self.world.stats[temper] += 1
        self.world.tell(self.name, temper)
        return temper

    def _turn_away(self, batch: Batch) -> None:
        """Refuse a batch for one of its items: at the door, unless what stands before it is kept first."""
        bad = [index for index, item in enumerate(batch.items) if self._spoiled(item)]
        if bad and (bad[0] == 0 or self.dice.random() < 0.5):
            self.world.stats["batches refused"] += len(batch.items) > 1
            self.world.tell(self.name, f"will not take {batch.items[bad[0]].key}, nor what comes with it")
            raise Refused(f"{batch.items[bad[0]].key} is not taken")

    def _spoiled(self, item: Memory) -> bool:
        """Whether an item will never be taken: the same ones every time."""
        name = self.world.shorten(item.key)
        return random.Random(f"{self.world.seed}/{self.name}/{name}").random() < self.world.profile.spoiled

    async def find(self, query: Query) -> Sequence[Found]:
        """What it got last for everybody who asks, wherever it was said; some know where that was.

        That it is told to forget what was erased is another matter, and taken as done.
        """
        kept = [item for items in self.kept.values() for item in items if not isinstance(item, Retraction)]
        found = [
            Found(text=text, session=item.session, seq=_place(item) if self.delivery is Delivery.KEYED else 0)
            for item in sorted(kept, key=lambda item: (-item.at, item.key))
            if set(query.audience) <= set(item.stamp.audience)
            and not set(SECRET.findall(text := wording(item))) & set(self.witness.erased)
        ]
        for one in found[:MOST_RECALLED]:
            for hear in self.witness.on_recall:
                hear(one.text)
        return found[:MOST_RECALLED]


def _place(item: Exchange | Note) -> int:
    return item.seq if isinstance(item, Note) else item.heard[0].seq
