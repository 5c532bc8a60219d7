"""Move what a memory has stored of a person from old peers to the present ones. It is a job that an operator orders.

Each session has a separate cursor, so a crash loses nothing. Each item is stored under the new peer with the key
`<key>@<peer>`, read back, and then the old one is deleted. Every step is safe to repeat. A memory that cannot delete
single items gets a new session with all items, and the old session is deleted after the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from everhold.core.consumers import backfill_consumer, memory_consumer, rekey_consumer
from everhold.core.entries import Changed, Ended, Entry, EntryDraft, MemoryNameSet, Noted
from everhold.core.exchange import MEMORY_KINDS
from everhold.engine.effects import deliver_outside
from everhold.engine.facts import FactCache
from everhold.engine.gates import Gates
from everhold.engine.memory.backfill import select_valid_entries
from everhold.engine.memory.destination import PAGE_ENTRIES, DeliverableItem, MemoryDestination
from everhold.engine.memory.peers import PeerLookup
from everhold.engine.memory.rekey_orders import (
    RekeyOrder,
    load_locations,
    load_rekey_orders,
    locate_item,
    make_order_key,
    move_item,
)
from everhold.engine.outbox.delivery import BatchScan, DeliveryBatch
from everhold.errors import InDoubt, Transient
from everhold.ports.memory import Exchange, JobResult, MemoryBatch, MemoryCapability, MemoryNote, MemoryRetraction
from everhold.ports.store import (
    Change,
    Claim,
    DeliveryItem,
    Session,
    StateNamespace,
    StateWrite,
    Step,
    Wakeup,
)

WAIT_SECONDS: Final = 5.0
"""How long to wait for items that are still being delivered under the old peer."""
FINISH_SECONDS: Final = 0.1


class RekeyRange(Struct, frozen=True, kw_only=True):
    """What an order would move in one session."""

    session: str
    agent: str
    items: int
    old_peers: tuple[str, ...]
    order: RekeyOrder
    version: int
    """The version of the orders that existed when this was computed."""
    seen: int
    """The session's last entry at that time."""


class RekeyDestination(MemoryDestination):
    """The destination of a move: stores each item under the new peer, reads it back, and deletes the old one."""

    delivered_event = "memory.rekeyed"

    def __init__(self, *args: Any, orders: Sequence[RekeyOrder], notes: FactCache | None, **options: Any) -> None:
        super().__init__(*args, upto=orders[-1].upto, **options)
        self.orders = orders
        self.order = orders[-1]
        self.notes = notes
        self._just_done: set[int] = set()
        """The items that were moved right before a scan, whose receipts are not stored yet."""

    @property
    def batch_items(self) -> int:
        return 1  # the old item is deleted as soon as the new one is there

    @property
    def deadline(self) -> float:
        return self.provider.deadline * 4  # an item is looked for, stored, read back and deleted

    @property
    def _receives_jobs(self) -> bool:
        return False

    # -- what is moved -----------------------------------------------------------------------------------------------

    async def next_batch(self, claim: Claim, *, after: int, done: Sequence[DeliveryItem] = ()) -> BatchScan:
        last = (await self.store.get_session(claim.session)).last_seq
        if not await self._has_settled(claim.session):
            return BatchScan(batch=None, scanned_upto_seq=last, wait_seconds=WAIT_SECONDS)
        self._just_done = {item.seq for item in done}
        if after == self.order.stood:
            after = 0
        look = await super().next_batch(claim, after=after, done=done)
        if self.order.name and look.batch is not None:
            look = structs.replace(look, has_more=True)  # the old session is deleted after the last item
        elif self.order.name and done:
            look = structs.replace(look, wait_seconds=FINISH_SECONDS)  # until the last item's outcome is stored
        elif self.order.name:
            await self._remove_old_sessions(claim.session)
        return structs.replace(look, scanned_upto_seq=last)

    async def _has_settled(self, session: str) -> bool:
        """Return whether nothing of the session is on its way to the old peer any more."""
        for consumer in (memory_consumer(self.instance), backfill_consumer(self.instance)):
            cursor = await self.store.get_cursor(consumer, session)
            waits = cursor is not None and cursor.since is not None and cursor.processed_seq < self.order.upto
            if waits or await self.store.list_dead_letters(session=session, consumer=consumer, state="replaying"):
                return False
        return True

    async def _select_places(self, session: Session, places: list[Entry]) -> list[Entry]:
        """Return the places that have to be moved: stored there, still valid, and not moved yet."""
        stored = await load_locations(self.store, session.id, self.instance)
        given_up = await self.store.list_dead_letters(
            session=session.id, consumer=rekey_consumer(self.instance), state=""
        )
        done = {it.seq for it in given_up if it.key.endswith(self.order.suffix)} | self._just_done
        left = [
            entry
            for entry in places
            if entry.seq in stored
            and entry.seq not in done
            and not stored[entry.seq].endswith(self.order.suffix)
            and not (isinstance(entry.body, Noted) and entry.body.action == "remove")
        ]
        left = await select_valid_entries(self.store, self.notes, session, left)
        if self.order.name:
            return left  # the whole session moves
        return [entry for entry in left if await self._is_moved(session, entry)]

    async def _is_moved(self, session: Session, entry: Entry) -> bool:
        old = await self._build_old_item(session, entry)
        return old is not None and bool(_list_changed_peers(old, self.order.peers))

    async def count_items(self, session: Session) -> tuple[int, set[str]]:
        """Return how many items have to be moved, and the peers they have now."""
        items, peers, after = 0, set[str](), 0
        while page := await self.store.list_entries(
            session.id, after=after, upto=self.order.upto, kinds=MEMORY_KINDS, limit=PAGE_ENTRIES
        ):
            places = [it for it in page if isinstance(it.body, Ended | Noted)]
            for entry in await self._select_places(session, places):
                old = await self._build_old_item(session, entry)
                if old is not None:
                    items += 1
                    peers |= _list_changed_peers(old, self.order.peers)
            after = page[-1].seq
        return items, peers

    # -- items -------------------------------------------------------------------------------------------------------

    async def _build_item(
        self, session: Session, entry: Entry, lookup: PeerLookup | None = None, *, jobs: bool = True
    ) -> DeliverableItem | None:
        """Return the item under its new key and peer."""
        item = await super()._build_item(session, entry, lookup, jobs=jobs)
        return None if item is None or isinstance(item, MemoryRetraction | JobResult) else move_item(item, self.order)

    async def _build_old_item(self, session: Session, entry: Entry) -> Exchange | MemoryNote | None:
        """Return the item as it is stored now: by an earlier order, or as it was delivered."""
        item = await super()._build_item(session, entry, jobs=False)
        if not isinstance(item, Exchange | MemoryNote):
            return None
        return await locate_item(self.store, self.instance, item, entry.seq)

    async def _list_names(self, session: str) -> list[tuple[int, str]]:
        return [(0, self.order.name)] if self.order.name else await super()._list_names(session)

    async def list_all_names(self, session: str) -> list[str]:
        """Return all names that the session has had in the memory, in order."""
        return list(dict.fromkeys(name for _, name in await super()._list_names(session)))

    async def _list_old_names(self, session: str) -> list[str]:
        return [name for name in await self.list_all_names(session) if name != self.order.name]

    # -- moving ------------------------------------------------------------------------------------------------------

    async def find_arrived(self, delivery_batch: DeliveryBatch) -> Sequence[str]:
        """Return nothing: an item counts as moved only if the old one is gone, and `deliver` makes sure of both."""
        return ()

    async def deliver(self, delivery_batch: DeliveryBatch) -> Mapping[str, str]:
        """Store what is not there yet, read it back, then delete the old."""
        assert isinstance(delivery_batch.payload, MemoryBatch)
        batch = structs.replace(delivery_batch.payload, is_moved=bool(self.order.name))
        old = await self._build_old_batches(delivery_batch)
        if not self._refresh_provider():
            raise Transient(f"memory {self.instance} is not attached")
        there = set(await self.provider.probe(batch))
        missing = tuple(item for item in batch.items if item.key not in there)
        remotes = dict(await self.provider.store(structs.replace(batch, items=missing))) if missing else {}
        if missing and not {item.key for item in missing} <= set(await self.provider.probe(batch)):
            raise InDoubt(f"memory {self.instance} does not show what was stored under the new peer")
        for before in old:
            if left := await self.provider.remove(before):
                raise InDoubt(f"memory {self.instance} still has {', '.join(left)} under the old peer")
        return remotes

    async def _build_old_batches(self, delivery_batch: DeliveryBatch) -> list[MemoryBatch]:
        """Return the old items, by the name of the session they are in."""
        assert isinstance(delivery_batch.payload, MemoryBatch)
        found: dict[str, list[Exchange | MemoryNote]] = {}
        for item, given in zip(delivery_batch.payload.items, delivery_batch.items, strict=True):
            session = await self.store.get_session(item.session)
            old = await self._build_old_item(session, await self.store.get_entry(session.id, given.seq))
            if old is None or old.key == item.key:
                continue
            names = await self._list_old_names(session.id) if self.order.name else [delivery_batch.name]
            for name in names or [delivery_batch.name]:
                found.setdefault(name, []).append(old)
        return [MemoryBatch(name=name, items=tuple(items)) for name, items in found.items()]

    async def _remove_old_sessions(self, session: str) -> None:
        """Delete the sessions whose items have all been moved, unless some of them were given up."""
        given_up = await self.store.list_dead_letters(session=session, consumer=rekey_consumer(self.instance))
        if given_up or not self._refresh_provider():
            return
        for name in await self._list_old_names(session):
            kept = await deliver_outside(
                f"deleting the old session in {self.instance}",
                lambda name=name: self.provider.remove_session(name),  # type: ignore[misc]
                self.gates,
                deadline=self.provider.deadline,
            )
            if kept:
                self.gates.log.warning("memory.session_kept", memory=self.instance, session=session, reason=kept)


def _list_changed_peers(item: Exchange | MemoryNote, peers: Mapping[str, str]) -> set[str]:
    """Return the peers of an item that an order replaces."""
    named = {*item.peers.items()}
    if isinstance(item, Exchange):
        named |= {(one.stamp.person, one.peer) for one in item.heard if one.peer}
    return {peer for identity, peer in named if peers.get(identity, peer) != peer}


async def plan_rekey(
    gates: Gates, session: Session, instance: str, *, peers: Mapping[str, str], destination: Any
) -> RekeyRange | None:
    """Return what has to be moved in a session; None if nothing. `destination` builds a RekeyDestination for orders."""
    if not await load_locations(gates.store, session.id, instance):
        return None
    orders, version = await load_rekey_orders(gates.store, instance, session.id)
    cursor = await gates.store.get_cursor(rekey_consumer(instance), session.id)
    if cursor is not None and cursor.since is not None:
        return None  # a move is under way, and a second one would change what it sends
    order = RekeyOrder(
        number=len(orders) + 1,
        peer=min(peers.values()),
        peers=dict(peers),
        upto=session.last_seq,
        stood=-1 if cursor is None else cursor.processed_seq,
    )
    found: RekeyDestination = destination([*orders, order])
    items, old = await found.count_items(session)
    if not old:
        return None
    if found.provider.has_capability(MemoryCapability.REMOVE_SESSION):
        names = await found.list_all_names(session.id)
        base = names[0] if names else session.id
        # The order is committed together with the new name, which is the session's next entry.
        order = structs.replace(order, name=f"{base[:90]}-k{order.number}", upto=session.last_seq + 1)
        whole: RekeyDestination = destination([*orders, order])
        items, _ = await whole.count_items(session)
    return RekeyRange(
        session=session.id,
        agent=session.agent,
        items=items,
        old_peers=tuple(sorted(old)),
        order=order,
        version=version,
        seen=session.last_seq,
    )


async def start_rekey(gates: Gates, one: RekeyRange, instance: str) -> None:
    """Store the order and wake up the move. Raises Conflict if the session has grown since the plan, or another
    operator ordered a move.
    """
    orders, _ = await load_rekey_orders(gates.store, instance, one.session)
    write = StateWrite(
        namespace=StateNamespace.REKEY,
        key=make_order_key(instance, one.session),
        value=msgspec.json.encode([*orders, one.order]).decode(),
        version=one.version,
    )
    # Later items go to the new session at once, so the old one is complete.
    named = Changed(change=MemoryNameSet(memory=instance, name=one.order.name))
    await gates.store.commit(
        Change(
            step=Step.REPLAY,
            session=one.session,
            at=gates.clock.now(),
            seen=one.seen,
            entries=(EntryDraft(body=named, author="operator"),) if one.order.name else (),
            state_writes=(write,),
            wakeups=(Wakeup(consumer=rekey_consumer(instance), start=0),),
        )
    )
