"""Where one entry is on its way to each platform account and memory."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from everhold.ports.store import ConsumerCursor, DeadLetter, Receipt, Store

DeliveryState: TypeAlias = Literal["waiting", "in_flight", "delivered", "in_doubt", "dead", "replaying", "passed"]
OPEN_STATES = ("dead", "replaying")
DELIVERING_PREFIXES = ("platform:", "memory:", "backfill:")


class EntryDelivery(Struct, frozen=True, kw_only=True):
    """The state of an entry at one consumer. `passed`: the consumer has read it and had nothing to send for it."""

    consumer: str
    state: DeliveryState
    remote: str = ""
    at: float = 0.0
    attempts: int = 0
    error: str = ""
    reason: str = ""


async def list_deliveries(store: Store, session: str, seq: int) -> list[EntryDelivery]:
    """Return the state of an entry at every consumer that delivers, by consumer."""
    cursors = [it for it in await store.list_cursors(session=session) if it.consumer.startswith(DELIVERING_PREFIXES)]
    receipts = {it.consumer: it for it in await store.list_receipts(session, seq=seq)}
    given_up = [it for it in await store.list_dead_letters(session=session, state="") if it.seq == seq]
    letters = {it.consumer: it for it in sorted(given_up, key=lambda it: it.state in OPEN_STATES)}
    known = {it.consumer: it for it in cursors}
    return [
        _describe(consumer, seq, known.get(consumer), receipts.get(consumer), letters.get(consumer))
        for consumer in sorted({*known, *receipts, *letters})
    ]


def _describe(
    consumer: str, seq: int, cursor: ConsumerCursor | None, receipt: Receipt | None, letter: DeadLetter | None
) -> EntryDelivery:
    if letter is not None and letter.state in OPEN_STATES:
        state: DeliveryState = "dead" if letter.state == "dead" else "replaying"
        return EntryDelivery(consumer=consumer, state=state, at=letter.at, reason=letter.reason)
    if receipt is not None:
        state = "in_doubt" if receipt.in_doubt else "delivered"
        return EntryDelivery(consumer=consumer, state=state, remote=receipt.remote, at=receipt.at)
    if cursor is None:
        return EntryDelivery(consumer=consumer, state="passed")
    if cursor.in_flight is not None and any(item.seq == seq for item in cursor.in_flight.items):
        state = "in_doubt" if cursor.in_flight.state == "in_doubt" else "in_flight"
        return EntryDelivery(consumer=consumer, state=state, attempts=cursor.attempts, error=cursor.error)
    if cursor.processed_seq >= seq:
        return EntryDelivery(consumer=consumer, state="passed")
    return EntryDelivery(consumer=consumer, state="waiting", attempts=cursor.attempts, error=cursor.error)
