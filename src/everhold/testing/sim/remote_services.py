"""The remote services of the simulator: platforms, memory providers, tools. The model is in model.py.

They are the shipped fakes with random faults: they are overloaded, name a time to retry, or store only a part of a
batch. The witness checks every request that reaches them.
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
from everhold.core.peers import PeerRule
from everhold.core.people import can_hear
from everhold.errors import InDoubt, PartiallyDone, Refused, StoreError, Transient
from everhold.ingress.account_leadership import AccountLeadership
from everhold.ports.hosts import AccountClaim, make_account_name
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    ProviderDeletion,
    SessionSwitch,
)
from everhold.ports.platform import (
    AcceptMessage,
    AcceptResult,
    DeliveryGuarantee,
    IncomingMessage,
    OutgoingMessage,
    PlatformOffset,
)
from everhold.ports.store import StateNamespace, make_state_scope
from everhold.ports.tool import SendRequest, ToolContext, ToolEffect, ToolResult
from everhold.testing.fakes import FakeMemoryProvider, FakePlatform, FakeTool, get_memory_text
from everhold.testing.sim.invariants import (
    POLL_OFFSET,
    SECRET_PATTERN,
    AliasEdit,
    BusyService,
    InvariantWitness,
    WaitRequest,
)
from everhold.testing.sim.process import SimGates, SimProcess
from everhold.testing.sim.world import SimWorld

LONG_WAIT_SECONDS: Final = (2.0, 20.0, 90.0, 900.0)
POLL_SECONDS: Final = 50.0
ACCOUNT_POLL_SECONDS: Final = 2.0
"""How often a host checks whether an account that another host polls is free."""
WEBHOOK_SECONDS: Final = 10.0
MAX_RECALLED: Final = 3
DELETION_SECONDS: Final = (0.0, 3.0, 40.0, 400.0, 1_000_000.0)
"""When a deletion takes effect that a memory has accepted."""
MEMORY_FAULTS: Final = ("lies", "503 after execution", "idle resets")
"""Faults of a memory provider that is reachable."""


class SimRemoteService:
    """The common part of the remote services."""

    def __init__(self, world: SimWorld, witness: InvariantWitness) -> None:
        self.world = world
        self.witness = witness

    def refuse_sometimes(
        self, cursor: str, session: str, busy: Callable[[WaitRequest], Exception] = BusyService
    ) -> None:
        """Sometimes refuse a request before it has an effect."""
        world = self.world
        if not world.draw_chance(world.profile.trouble):
            return
        world.stats["refusals"] += 1
        if world.draw_chance(0.5):
            seconds = LONG_WAIT_SECONDS[int(world.draw_between(0, len(LONG_WAIT_SECONDS)))]
            world.record("remote", f"asks {cursor} of {session} to wait {seconds:.0f} s")
            raise busy(WaitRequest(cursor, session, seconds))
        if world.draw_chance(0.15):
            world.record("remote", f"refuses {cursor} of {session} for good")
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
    """A tool whose effects are recorded in the world, so that they survive the process."""

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
    """A simulated platform. `poll` must be polled for updates; the others call a webhook."""

    def __init__(self, world: SimWorld, witness: InvariantWitness, name: str, delivery: DeliveryGuarantee) -> None:
        FakePlatform.__init__(
            self, delivery, name=name, text_limit=60, visible_after=5.0 if delivery is DeliveryGuarantee.PROBE else 0.0
        )
        SimRemoteService.__init__(self, world, witness)
        self.updates: list[IncomingMessage] = []
        self.acknowledged: set[int] = set()
        self.seen_upto = 0
        """For a polled platform: updates before this one were confirmed by a poll for later ones."""
        self.handlers: dict[str, tuple[SimProcess, AcceptMessage]] = {}
        self.drafts: dict[str, str] = {}
        """remote id -> its current text."""
        self.update_arrived = asyncio.Event()
        self.polled = delivery is DeliveryGuarantee.BLIND

    # -- incoming messages

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
        """Call the webhook until it confirms the update, and sometimes once more."""
        world = self.world
        if world.draw_chance(0.2):
            await asyncio.sleep(world.draw_between(0, 5))  # so that a later update may arrive first
        again = 1 if world.draw_chance(world.profile.duplicate) else 0
        while again >= 0:
            if await self._deliver_update(self.updates[number]):
                self.acknowledged.add(number)
                again -= 1
            await asyncio.sleep(world.draw_between(0.5, 5))
        if world.draw_chance(0.05):
            await self._send_forgery(self.updates[number])

    async def _send_forgery(self, incoming: IncomingMessage) -> None:
        """Send another text under a known message id. It must be neither a duplicate nor a new message."""
        altered = structs.replace(incoming, text=f"{incoming.text} and more")
        open_ = [(process, accept) for process, accept in self.handlers.values() if process.alive]
        for process, accept in open_[:1]:
            await process.wait_until_alive()
            try:
                verdict = await accept(altered)
            except StoreError:
                return
            if verdict.outcome not in ("differs", "duplicate", "ignored"):
                self.witness.report_problem(f"{altered.text!r} under a known message id was {verdict.outcome}")

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
        try:
            verdict = await accept(incoming)
        except StoreError as error:
            self.world.record(self.name, f"gets an error: {error}")
            return False
        await process.pass_gate("hook", "after")
        return verdict.outcome in ("accepted", "duplicate", "ignored")

    async def poll_updates(self, offset: int) -> list[tuple[int, IncomingMessage]]:
        """Return updates from `offset` on. A poll for later updates confirms the earlier ones."""
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

    # -- outgoing messages

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
        """Show a draft of a reply. Only a keyed platform recognises a repeated key."""
        self.witness.check_arrival("draft", out.key.partition(":")[0], out.text)
        number = 0 if self.delivery is DeliveryGuarantee.KEYED else len(self.drafts)
        remote = f"draft {out.key} {number}"
        self.drafts.setdefault(remote, out.text)
        self.arrived.setdefault(out.key, (remote, asyncio.get_running_loop().time()))
        self.world.record(self.name, f"shows {remote} {out.text!r}")
        return remote

    def list_drafts(self, session: str) -> list[tuple[int, str]]:
        """Return the operation and the present text of each draft of a session."""
        keys = {remote: remote.split(" ")[1].split(":") for remote in self.drafts}
        return [(int(key[1]), self.drafts[remote]) for remote, key in keys.items() if key[0] == session]

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        self.drafts[remote] = out.text
        self.world.record(self.name, f"shows {remote} {out.text!r}")


class SimListener:
    """How one process receives updates of a platform."""

    def __init__(self, platform: SimPlatform, process: SimProcess, gates: SimGates) -> None:
        self.platform = platform
        self.process = process
        self.gates = gates

    async def listen(self, accept: AcceptMessage) -> None:
        if self.platform.polled and self.process.is_remote:
            await self._poll_while_held(accept)
        elif self.platform.polled:
            await self._poll_platform(accept)
        else:
            self.platform.handlers[self.process.name] = (self.process, accept)
            await self.process.world.wait_forever()

    async def _poll_while_held(self, accept: AcceptMessage) -> None:
        """Poll whenever this host holds the account."""
        account = make_account_name(self.platform.name, self.platform.account)
        gates = self.gates
        leadership = AccountLeadership(
            gates.store, owner=gates.owner, clock=gates.clock, log=gates.log, sleep=gates.sleep
        )
        while True:
            await leadership.listen_while_held(account, functools.partial(self._poll_from_offset, accept))
            await self.gates.sleep(ACCOUNT_POLL_SECONDS)

    async def _poll_from_offset(self, accept: AcceptMessage, claim: AccountClaim) -> None:
        """Poll from the stored offset on, and store the new one with each message."""
        scope = make_state_scope(self.platform.name, self.platform.account)

        async def accept_with_offset(incoming: IncomingMessage) -> AcceptResult:
            offset = incoming.offset or PlatformOffset(
                key=POLL_OFFSET, value=str(self.platform.updates.index(incoming) + 1)
            )
            return await accept(structs.replace(incoming, offset=structs.replace(offset, claim=claim)))

        store = self.gates.store
        record = await store.get_state_record(StateNamespace.PLATFORM_OFFSET, POLL_OFFSET, scope=scope)
        await self._poll_platform(accept_with_offset, offset=0 if record is None else int(record.value))

    async def _poll_platform(self, accept: AcceptMessage, *, offset: int = 0) -> None:
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
        """Accept one message; return the next offset."""
        await accept(incoming)
        return number + 1


# -- memory ------------------------------------------------------------------------------------------------------------


class SimMemoryClient:
    """The client of one process for a provider. It reports a call to `store` after its close."""

    capabilities = frozenset(
        {
            MemoryCapability.PROBE,
            MemoryCapability.RETRACT,
            MemoryCapability.CLOSE,
            MemoryCapability.SESSION_SWITCHED,
            MemoryCapability.FORGET,
        }
    )

    def __init__(self, provider: SimMemoryProvider) -> None:
        self.provider = provider
        self.delivery = provider.delivery
        self.deadline = provider.deadline
        self.visible_after = provider.visible_after
        self.peer_rule = provider.peer_rule
        self.closed = False

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        if self.closed:
            self.provider.witness.report_problem(f"a closed client of {self.provider.name} is asked to store")
        return await self.provider.store(batch)

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        return await self.provider.probe(batch)

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return await self.provider.find(query)

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        return await self.provider.forget(target)

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        return await self.provider.confirm_deletions(deletions)

    async def session_switched(self, switch: SessionSwitch) -> None:
        self.provider.world.stats[f"switched {switch.how}"] += 1

    async def close(self) -> None:
        self.closed = True
        self.provider.world.stats["clients closed"] += 1


class SimMemoryProvider(FakeMemoryProvider, SimRemoteService):
    """A simulated memory provider. It may store only a part of a batch before it fails.

    It refuses some items for good. Then it refuses the whole batch, or stores the items before the refused one.
    """

    def __init__(self, world: SimWorld, witness: InvariantWitness, name: str, delivery: DeliveryGuarantee) -> None:
        FakeMemoryProvider.__init__(self, delivery, visible_after=5.0 if delivery is DeliveryGuarantee.PROBE else 0.0)
        SimRemoteService.__init__(self, world, witness)
        self.name = name
        self.rng = random.Random(f"{world.seed}/{name}/temper")
        self.blamed: set[str] = set()
        """Keys that were refused as the only item of a batch."""
        self.peer_rule = PeerRule(prefix="sim-")
        self._deleted_at: dict[int, float] = {}
        """The id of an item's object -> when its deletion takes effect. `kept` has everything that ever arrived."""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        cursor, session = memory_consumer(self.name), batch.items[0].session
        fault = self._pick_fault()
        if fault == "idle resets":
            raise InDoubt("the idle connection was reset")
        self.witness.check_arrival(cursor, session, "\n".join(get_memory_text(item) for item in batch.items))
        try:
            self.refuse_sometimes(cursor, session)
            self._refuse_batch(batch)
        except Refused:
            self.blamed |= {item.key for item in batch.items if len(batch.items) == 1}
            raise
        if fault == "lies":
            raise InDoubt("the provider confirmed the batch and did not store it")
        half = len(batch.items) > 1 and self.world.draw_chance(0.2)
        for index, item in enumerate(batch.items):
            if half and index == len(batch.items) // 2:
                self.world.record(self.name, f"fails after {index} of {len(batch.items)} items")
                raise InDoubt("the provider failed in the middle of the batch")
            if self._is_never_taken(item):
                self.world.stats["batches kept in part"] += 1
                self.world.record(self.name, f"refuses {item.key} after {index} others")
                raise PartiallyDone(f"{item.key} is refused")
            self.receive_item(batch.name, item)
            self.world.record(self.name, f"keeps {item.key}")
        if fault == "503 after execution":
            raise InDoubt("the provider stored the batch and answered 503")
        return {item.key: f"doc-{item.key}" for item in batch.items}

    def _pick_fault(self) -> str:
        """Draw the fault of this call, or an empty string."""
        if self.world.calm or self.rng.random() >= self.world.profile.lost / 2:
            return ""
        fault = self.rng.choice(MEMORY_FAULTS)
        self.world.stats[fault] += 1
        self.world.record(self.name, fault)
        return fault

    def _refuse_batch(self, batch: MemoryBatch) -> None:
        """Refuse a whole batch because of one item, unless the items before it are stored first."""
        bad = [index for index, item in enumerate(batch.items) if self._is_never_taken(item)]
        if bad and (bad[0] == 0 or self.rng.random() < 0.5):
            self.world.stats["batches refused"] += len(batch.items) > 1
            self.world.record(self.name, f"refuses {batch.items[bad[0]].key} and its batch")
            raise Refused(f"{batch.items[bad[0]].key} is refused")

    def _is_never_taken(self, item: MemoryItem) -> bool:
        """Return whether the provider refuses an item for good. The result is the same for every attempt."""
        name = self.world.shorten_ids(item.key)
        return random.Random(f"{self.world.seed}/{self.name}/{name}").random() < self.world.profile.refused_items

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        """Return the newest items. A keyed provider returns single messages with their seq, which the gateway judges.
        Other providers return what the people present may read: those without keys leave out what was erased, and the
        others return the key.
        """
        self.witness.check_present(query)
        kept = [it for it in self.list_visible() if not isinstance(it, MemoryRetraction)]
        found: list[MemoryHit] = []
        for item in sorted(kept, key=lambda item: (-item.at, item.key)):
            if self.delivery is DeliveryGuarantee.KEYED:
                found += _find_messages(item)
            elif can_hear(query.present, item.stamp.audience, item.at):
                text = get_memory_text(item)
                if self.delivery is not DeliveryGuarantee.BLIND:
                    found.append(MemoryHit(text=text, session=item.session, key=item.key))
                elif not set(SECRET_PATTERN.findall(text)) & (self.witness.erased.keys() - self.witness.forgotten):
                    found.append(MemoryHit(text=text))
        for one in found[:MAX_RECALLED]:
            for callback in self.witness.on_recall:
                callback(one.text)
        return found[:MAX_RECALLED]

    # -- people

    def set_alias(self, identity: str, peer: str) -> None:
        """Edit the configuration: store a person under another peer; empty: under none of their own."""
        aliases = {**self.peer_rule.aliases, identity: peer}
        self.peer_rule = structs.replace(self.peer_rule, aliases={it: to for it, to in aliases.items() if to})
        self.witness.aliases[self.name, identity] = AliasEdit(self.world.loop.time(), peer)
        self.world.record(self.name, f"is configured to call {identity} {peer or 'by no alias'}")

    def list_visible(self) -> list[MemoryItem]:
        """Return everything that a search or a read can find."""
        now = self.world.loop.time()
        kept = (item for items in self.kept.values() for item in items)
        return [it for it in kept if self._deleted_at.get(id(it), now + 1) > now]

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        """Accept the deletion of the erased items. It takes effect later, as with status 202, and sometimes never."""
        self.refuse_sometimes(f"forget {self.name}", "")
        found = []
        for item in self.list_visible():
            if item.key in target.keys:
                delay = self.rng.choice(DELETION_SECONDS) if not self.world.calm else DELETION_SECONDS[1]
                self._deleted_at.setdefault(id(item), self.world.loop.time() + delay)
                found.append(ProviderDeletion(id=item.key, what=f"the item {item.key}", count=1))
        self.world.record(self.name, f"will delete {[it.id for it in found]}")
        return list({it.id: it for it in found}.values())

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        self.refuse_sometimes(f"forget {self.name}", "")
        there = {item.key for item in self.list_visible()}
        return {it.id: ErasureState.ASKED if it.id in there else ErasureState.CONFIRMED for it in deletions}


def _find_messages(item: Exchange | MemoryNote) -> list[MemoryHit]:
    """Return the messages of an item, each with its place in the log."""
    if isinstance(item, MemoryNote):
        return [MemoryHit(text=item.text, session=item.session, seq=item.seq)]
    return [MemoryHit(text=it.text, session=item.session, seq=it.seq) for it in item.heard]
