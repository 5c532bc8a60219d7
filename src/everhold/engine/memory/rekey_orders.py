"""The orders to move a person's items in a memory to another peer, and where each item is now."""

from __future__ import annotations

import msgspec
from msgspec import Struct, structs

from everhold.core.consumers import backfill_consumer, memory_consumer, rekey_consumer
from everhold.core.exchange import MOVED_MARK
from everhold.ports.memory import Exchange, MemoryNote
from everhold.ports.store import StateNamespace, Store


class RekeyOrder(Struct, frozen=True, kw_only=True):
    """The order to move the items of one session."""

    number: int
    peer: str
    """The new peer, which is part of the new keys."""
    peers: dict[str, str]
    """Identity -> new peer."""
    upto: int
    stood: int = -1
    """Where the cursor was when this was ordered. If it is still there, it begins again."""
    name: str = ""
    """The new name of the session in the memory; empty if it stays the same."""

    @property
    def suffix(self) -> str:
        """What follows the key of an item. An order that comes back to a peer has other keys than the first one."""
        return f"{MOVED_MARK}{self.peer}" if self.number == 1 else f"{MOVED_MARK}{self.peer}.{self.number}"


def make_order_key(instance: str, session: str) -> str:
    return f"{instance}:{session}"


async def load_rekey_orders(store: Store, instance: str, session: str) -> tuple[list[RekeyOrder], int]:
    """Return the orders of a session, the newest last, and the version of their record."""
    record = await store.get_state_record(StateNamespace.REKEY, make_order_key(instance, session))
    if record is None:
        return [], 0
    return msgspec.json.decode(record.value, type=list[RekeyOrder]), record.version


async def load_locations(store: Store, session: str, instance: str) -> dict[int, str]:
    """Return seq -> the key under which a memory stores the item of an entry now."""
    found: dict[int, str] = {}
    for consumer in (backfill_consumer(instance), memory_consumer(instance), rekey_consumer(instance)):
        found |= {one.seq: one.key for one in await store.list_receipts(session, consumer=consumer)}
    return found


def move_item(item: Exchange | MemoryNote, order: RekeyOrder) -> Exchange | MemoryNote:
    """Return an item under the key and the peers of an order. A note that replaced another one stands for itself."""
    peers = {identity: order.peers.get(identity, peer) for identity, peer in item.peers.items()}
    key = f"{item.key}{order.suffix}"
    if isinstance(item, MemoryNote):
        return structs.replace(item, key=key, peers=peers, action="add", supersedes="")
    heard = tuple(
        structs.replace(one, peer=order.peers.get(one.stamp.person, one.peer) if one.peer else "") for one in item.heard
    )
    return structs.replace(item, key=key, peers=peers, heard=heard)


async def locate_item(store: Store, instance: str, item: Exchange | MemoryNote, seq: int) -> Exchange | MemoryNote:
    """Return an item under the key and the peers that it has in a memory now."""
    receipts = await store.list_receipts(item.session, seq=seq, consumer=rekey_consumer(instance))
    if not receipts:
        return item
    orders, _ = await load_rekey_orders(store, instance, item.session)
    order = next((it for it in reversed(orders) if receipts[-1].key.endswith(it.suffix)), None)
    return item if order is None else move_item(item, order)
