"""Resend to a memory what it already received, because it lost the items or never confirmed them.

Each item becomes a dead letter that is replayed, with its own key and the name of its time, in order, in one commit for
each session. An item that is requested twice is sent once.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from everhold.core.consumers import backfill_consumer, memory_consumer, rekey_consumer
from everhold.engine.gates import Gates
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import Change, DeadLetter, Receipt, Session, Step, Store, Wakeup

RESEND_REASON: Final = "sent before, and requested again"
REPEAT_EFFECTS: Final = {
    DeliveryGuarantee.KEYED: "the memory recognises existing items by their key and keeps them",
    DeliveryGuarantee.UPSERT: "existing items are overwritten with the same content",
    DeliveryGuarantee.PROBE: "each item is probed first, and sent only if it is missing",
    DeliveryGuarantee.UNACKNOWLEDGED: "the memory knows no keys, so existing items may be stored twice",
}
"""What a repeat does, by delivery guarantee."""
PROBED_EFFECT: Final = "each item is probed first; items that the memory stores but does not show may be stored twice"


class ResendPlan(Struct, frozen=True, kw_only=True):
    """The items of one session that were sent since a time, and are sent again."""

    session: str
    dead_letters: tuple[DeadLetter, ...]
    dead_letter_ids: tuple[int, ...]
    """Dead letters of that time, which are replayed, too."""
    since: float
    until: float

    @property
    def item_count(self) -> int:
        return len(self.dead_letters) + len(self.dead_letter_ids)


async def plan_resend(store: Store, session: Session, instance: str, *, since: float) -> ResendPlan | None:
    """Return what a memory received of a session from `since` on, oldest first; None if nothing."""
    letters: list[DeadLetter] = []
    given_up: list[DeadLetter] = []
    moved = {it.seq for it in await store.list_receipts(session.id, consumer=rekey_consumer(instance))}
    for consumer in (backfill_consumer(instance), memory_consumer(instance), rekey_consumer(instance)):
        # An item that was moved to another peer is sent again from there.
        left = moved if consumer != rekey_consumer(instance) else set()
        going = await store.list_dead_letters(session=session.id, consumer=consumer, state="replaying")
        given_up += [
            it for it in await store.list_dead_letters(session=session.id, consumer=consumer) if it.at >= since
        ]
        besides = {(it.seq, it.part) for it in (*going, *given_up) if it.consumer == consumer}
        letters += [
            _build_dead_letter(receipt)
            for receipt in await store.list_receipts(session.id, consumer=consumer)
            if receipt.at >= since and (receipt.seq, receipt.part) not in besides and receipt.seq not in left
        ]
    times = [it.at for it in (*letters, *given_up)]
    if not times:
        return None
    return ResendPlan(
        session=session.id,
        dead_letters=tuple(sorted(letters, key=lambda it: (it.seq, it.part))),
        dead_letter_ids=tuple(it.id for it in given_up),
        since=min(times),
        until=max(times),
    )


def _build_dead_letter(receipt: Receipt) -> DeadLetter:
    return DeadLetter(
        consumer=receipt.consumer,
        session=receipt.session,
        seq=receipt.seq,
        part=receipt.part,
        key=receipt.key,
        reason=RESEND_REASON,
        in_doubt=True,
        at=receipt.at,
        state="replaying",
    )


async def start_resend(gates: Gates, again: ResendPlan) -> None:
    """Commit the items as replayed dead letters. The cursors send them before anything new, even after a crash."""
    now = gates.clock.now()
    if again.dead_letters:
        wakeups = tuple(Wakeup(consumer=consumer) for consumer in sorted({it.consumer for it in again.dead_letters}))
        change = Change(
            step=Step.REPLAY, session=again.session, at=now, dead_letters=again.dead_letters, wakeups=wakeups
        )
        await gates.store.commit(change)
    if again.dead_letter_ids:
        await gates.store.replay_dead_letters(again.dead_letter_ids)
