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
from everhold.core.entries import ChatLocation, Noted
from everhold.errors import InDoubt, PartiallyDone, Refused, Transient
from everhold.ports.memory import (
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    SessionSwitch,
)
from everhold.ports.platform import AcceptMessage, DeliveryGuarantee, IncomingMessage, OutgoingMessage
from everhold.ports.tool import SendRequest, ToolContext, ToolEffect, ToolResult
from everhold.testing.fakes import FakeMemoryProvider, FakePlatform, FakeTool, get_memory_text
from everhold.testing.sim.invariants import SECRET_PATTERN, BusyService, InvariantWitness, WaitRequest
from everhold.testing.sim.process import SimGates, SimProcess
from everhold.testing.sim.world import SimWorld

LONG_WAIT_SECONDS: Final = (2.0, 20.0, 90.0, 900.0)
POLL_SECONDS: Final = 50.0
WEBHOOK_SECONDS: Final = 10.0
MAX_RECALLED: Final = 3
MEMORY_FAULTS: Final = ("lies", "503 after execution", "idle resets")
"""How a memory provider fails that is there all the time."""


class SimRemoteService:
    """What the far sides have in common."""

    def __init__(self, world: SimWorld, witness: InvariantWitness) -> None:
        self.world = world
        self.witness = witness

    def refuse_sometimes(
        self, cursor: str, session: str, busy: Callable[[WaitRequest], Exception] = BusyService
    ) -> None:
        """Refuse, once in a while, before anything is done."""
        world = self.world
        if not world.draw_chance(world.profile.trouble):
            return
        world.stats["refusals"] += 1
        if world.draw_chance(0.5):
            seconds = LONG_WAIT_SECONDS[int(world.draw_between(0, len(LONG_WAIT_SECONDS)))]
            world.record("far side", f"asks {cursor} of {session} to wait {seconds:.0f} s")
            raise busy(WaitRequest(cursor, session, seconds))
        if world.draw_chance(0.15):
            world.record("far side", f"refuses {cursor} of {session} for good")
            raise Refused("never")
        raise Transient("not now")


# -- tools -------------------------------------------------------------------------------------------------------------

TOOL_EFFECTS: Final = {
    "look": ToolEffect.PURE,
    "note": ToolEffect.PURE,
    "file": ToolEffect.KEYED,
    "book": ToolEffect.PROBE,
    "pay": ToolEffect.ONCE,
    "tell": ToolEffect.ONCE,
}


class SimTool(FakeTool):
    """A tool of the world: what it did is remembered there, whoever ran it."""

    def __init__(self, world: SimWorld, name: str, effect: ToolEffect, places: Sequence[ChatLocation]) -> None:
        super().__init__(name, effect, deadline=20.0, act=self._run_action)
        self.world = world
        self.places = places

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        result = await super().run(arguments, context)
        self.world.record("tool", f"{self.spec.name} runs for {context.key} ({self.done[context.key]})")
        return result

    def _run_action(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        number = int(arguments.get("n", 0))
        match self.spec.name:
            case "look":
                return ToolResult(text="what is there " * (200 if number % 7 == 0 else 3))
            case "note":
                return ToolResult(text="noted", notes=(Noted(text=f"note {context.key}", fact=f"f{number % 2}"),))
            case "tell":
                place = self.places[number % len(self.places)]
                return ToolResult(text="told", send_requests=(SendRequest(text=f"word of {context.key}", to=place),))
            case name:
                if number % 11 == 0:
                    raise ValueError(f"{name} cannot do {number}")
                return ToolResult(text=f"{name} {number} done")


# -- platforms ---------------------------------------------------------------------------------------------------------


class SimPlatform(FakePlatform, SimRemoteService):
    """A platform of the world. `poll` must be asked for news, the others bring theirs."""

    def __init__(self, world: SimWorld, witness: InvariantWitness, name: str, delivery: DeliveryGuarantee) -> None:
        FakePlatform.__init__(
            self, delivery, name=name, text_limit=60, visible_after=5.0 if delivery is DeliveryGuarantee.PROBE else 0.0
        )
        SimRemoteService.__init__(self, world, witness)
        self.updates: list[IncomingMessage] = []
        self.acknowledged: set[int] = set()
        self.seen_upto = 0
        """Of a polled platform: updates before this one were confirmed by asking for later ones."""
        self.handlers: dict[str, tuple[SimProcess, AcceptMessage]] = {}
        self.drafts: dict[str, str] = {}
        """remote id -> what stands there now."""
        self.update_arrived = asyncio.Event()
        self.polled = delivery is DeliveryGuarantee.BLIND

    # -- what people write

    def write_message(self, incoming: IncomingMessage) -> None:
        number = len(self.updates)
        self.updates.append(incoming)
        self.world.record(self.name, f"{incoming.origin.chat}: {incoming.text}")
        if self.polled:
            self.update_arrived.set()
        else:
            self.world.loop.create_task(self._call_webhook(number))

    def count_unacknowledged(self) -> int:
        return len(self.updates) - (self.seen_upto if self.polled else len(self.acknowledged))

    async def _call_webhook(self, number: int) -> None:
        """Call the hook until somebody says that it was kept; sometimes once more, for good measure."""
        world = self.world
        if world.draw_chance(0.2):
            await asyncio.sleep(world.draw_between(0, 5))  # later than what was written after it
        again = 1 if world.draw_chance(world.profile.duplicate) else 0
        while again >= 0:
            if await self._deliver_update(self.updates[number]):
                self.acknowledged.add(number)
                again -= 1
            await asyncio.sleep(world.draw_between(0.5, 5))
        if world.draw_chance(0.05):
            await self._send_forgery(self.updates[number])

    async def _send_forgery(self, incoming: IncomingMessage) -> None:
        """Bring something else under the same name: it must not be taken for the same, nor for something new."""
        altered = structs.replace(incoming, text=f"{incoming.text} and more")
        open_ = [(process, accept) for process, accept in self.handlers.values() if process.alive]
        for process, accept in open_[:1]:
            await process.wait_until_alive()
            verdict = await accept(altered)
            if verdict.outcome not in ("differs", "duplicate", "ignored"):
                self.witness.report_problem(f"{altered.text!r} under a known name was {verdict.outcome}")

    async def _deliver_update(self, incoming: IncomingMessage) -> bool:
        open_ = [(process, accept) for process, accept in self.handlers.values() if process.alive]
        if not open_:
            return False
        process, accept = open_[int(self.world.draw_between(0, len(open_)))]
        task = self.world.loop.create_task(self._accept_update(process, accept, incoming))
        await asyncio.wait([task], timeout=WEBHOOK_SECONDS)
        return task.done() and task.result() and not self.world.draw_chance(self.world.profile.lost)

    async def _accept_update(self, process: SimProcess, accept: AcceptMessage, incoming: IncomingMessage) -> bool:
        await process.pass_gate("hook", "before")
        verdict = await accept(incoming)
        await process.pass_gate("hook", "after")
        return verdict.outcome in ("accepted", "duplicate", "ignored")

    async def poll_updates(self, offset: int) -> list[tuple[int, IncomingMessage]]:
        """The far side of a poll: news from `offset` on; asking for later ones confirms what was before."""
        self.seen_upto = max(self.seen_upto, offset)
        if self.seen_upto >= len(self.updates):
            self.update_arrived.clear()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self.update_arrived.wait()
            except TimeoutError:
                return []
        first = self.seen_upto
        return list(enumerate(self.updates[first : first + 3], first))

    # -- what is said to them

    async def send(self, out: OutgoingMessage) -> str:
        session = out.key.partition(":")[0]
        cursor = platform_consumer(self.name, self.account)
        self.witness.check_arrival(cursor, session, out.text)
        self.refuse_sometimes(cursor, session)
        remote = await super().send(out)
        if out.edits:
            self.drafts[out.edits] = out.text
        self.world.record(self.name, f"shows {out.key} {out.text!r}{' in place of a draft' if out.edits else ''}")
        return remote

    async def draft(self, out: OutgoingMessage) -> str:
        """Show an unfinished reply. The key is honoured: asked twice, it shows one."""
        self.witness.check_arrival("draft", out.key.partition(":")[0], out.text)
        remote = f"draft {out.key}"
        self.drafts.setdefault(remote, out.text)
        self.world.record(self.name, f"shows {remote} {out.text!r}")
        return remote

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        self.drafts[remote] = out.text
        self.world.record(self.name, f"shows {remote} {out.text!r}")


class SimListener:
    """How one process hears of news on a platform."""

    def __init__(self, platform: SimPlatform, process: SimProcess, gates: SimGates) -> None:
        self.platform = platform
        self.process = process
        self.gates = gates

    async def listen(self, accept: AcceptMessage) -> None:
        if self.platform.polled:
            await self._poll_platform(accept)
        else:
            self.platform.handlers[self.process.name] = (self.process, accept)
            await self.process.world.wait_forever()

    async def _poll_platform(self, accept: AcceptMessage) -> None:
        offset = 0
        while True:
            ask = functools.partial(self.platform.poll_updates, offset)
            try:
                news = await self.gates.call("poll", ask, deadline=POLL_SECONDS + 10)
            except InDoubt:
                await self.gates.sleep(1.0)
                continue
            for number, incoming in news:
                offset = await self._accept_update(accept, number, incoming)

    async def _accept_update(self, accept: AcceptMessage, number: int, incoming: IncomingMessage) -> int:
        """Hand one message in; the offset to ask from after that."""
        await accept(incoming)
        return number + 1


# -- memory ------------------------------------------------------------------------------------------------------------


class SimMemoryClient:
    """One process's object for a provider. One that was closed is never asked to store again."""

    capabilities = frozenset(
        {MemoryCapability.PROBE, MemoryCapability.RETRACT, MemoryCapability.CLOSE, MemoryCapability.SESSION_SWITCHED}
    )

    def __init__(self, provider: SimMemoryProvider) -> None:
        self.provider = provider
        self.delivery = provider.delivery
        self.deadline = provider.deadline
        self.visible_after = provider.visible_after
        self.closed = False

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        if self.closed:
            self.provider.witness.report_problem(f"a client of {self.provider.name} that was closed is asked to store")
        return await self.provider.store(batch)

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        return await self.provider.probe(batch)

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return await self.provider.find(query)

    async def session_switched(self, switch: SessionSwitch) -> None:
        self.provider.world.stats[f"switched {switch.how}"] += 1

    async def close(self) -> None:
        self.closed = True
        self.provider.world.stats["clients closed"] += 1


class SimMemoryProvider(FakeMemoryProvider, SimRemoteService):
    """A memory provider of the world. One that can be asked is asked for a reason: it may keep half of a batch.

    Some items it will never take: then it turns the whole batch away, or keeps what stands before them.
    """

    def __init__(self, world: SimWorld, witness: InvariantWitness, name: str, delivery: DeliveryGuarantee) -> None:
        FakeMemoryProvider.__init__(self, delivery, visible_after=5.0 if delivery is DeliveryGuarantee.PROBE else 0.0)
        SimRemoteService.__init__(self, world, witness)
        self.name = name
        self.dice = random.Random(f"{world.seed}/{name}/temper")
        self.blamed: set[str] = set()
        """Keys that were refused with nobody else to blame."""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        cursor, session = memory_consumer(self.name), batch.items[0].session
        temper = self._pick_fault()
        if temper == "idle resets":
            raise InDoubt("the connection had been idle, and was reset")
        self.witness.check_arrival(cursor, session, "\n".join(get_memory_text(item) for item in batch.items))
        try:
            self.refuse_sometimes(cursor, session)
            self._refuse_batch(batch)
        except Refused:
            self.blamed |= {item.key for item in batch.items if len(batch.items) == 1}
            raise
        if temper == "lies":
            raise InDoubt("the provider said that it kept it, and it is not there")
        half = len(batch.items) > 1 and self.world.draw_chance(0.2)
        for index, item in enumerate(batch.items):
            if half and index == len(batch.items) // 2:
                self.world.record(self.name, f"falls over after {index} of {len(batch.items)} items")
                raise InDoubt("the provider fell over in the middle")
            if self._is_never_taken(item):
                self.world.stats["batches kept in part"] += 1
                self.world.record(self.name, f"will not take {item.key}, after {index} others")
                raise PartiallyDone(f"{item.key} is not taken")
            self.receive_item(batch.name, item)
            self.world.record(self.name, f"keeps {item.key}")
        if temper == "503 after execution":
            raise InDoubt("the provider did it, and answers 503")
        return {item.key: f"doc-{item.key}" for item in batch.items}

    def _pick_fault(self) -> str:
        """What goes wrong over there this time, if anything; counted by its name."""
        if self.world.calm or self.dice.random() >= self.world.profile.lost / 2:
            return ""
        temper = self.dice.choice(MEMORY_FAULTS)
        self.world.stats[temper] += 1
        self.world.record(self.name, temper)
        return temper

    def _refuse_batch(self, batch: MemoryBatch) -> None:
        """Refuse a batch for one of its items: at the door, unless what stands before it is kept first."""
        bad = [index for index, item in enumerate(batch.items) if self._is_never_taken(item)]
        if bad and (bad[0] == 0 or self.dice.random() < 0.5):
            self.world.stats["batches refused"] += len(batch.items) > 1
            self.world.record(self.name, f"will not take {batch.items[bad[0]].key}, nor what comes with it")
            raise Refused(f"{batch.items[bad[0]].key} is not taken")

    def _is_never_taken(self, item: MemoryItem) -> bool:
        """Whether an item will never be taken: the same ones every time."""
        name = self.world.shorten_ids(item.key)
        return random.Random(f"{self.world.seed}/{self.name}/{name}").random() < self.world.profile.refused_items

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        """What it got last for everybody who asks, wherever it was said; some know where that was.

        That it is told to forget what was erased is another matter, and taken as done.
        """
        kept = [item for items in self.kept.values() for item in items if not isinstance(item, MemoryRetraction)]
        found = [
            MemoryHit(
                text=text,
                session=item.session,
                seq=_get_item_seq(item) if self.delivery is DeliveryGuarantee.KEYED else 0,
            )
            for item in sorted(kept, key=lambda item: (-item.at, item.key))
            if set(query.audience) <= set(item.stamp.audience)
            and not set(SECRET_PATTERN.findall(text := get_memory_text(item))) & set(self.witness.erased)
        ]
        for one in found[:MAX_RECALLED]:
            for hear in self.witness.on_recall:
                hear(one.text)
        return found[:MAX_RECALLED]


def _get_item_seq(item: Exchange | MemoryNote) -> int:
    return item.seq if isinstance(item, MemoryNote) else item.heard[0].seq
