"""What was handed over -> the same memory, again: for one that lost it, or never said that it was kept.

Nothing new is made up for it: each item goes back in front of the lane it left by, under its own key and the name of
its time, in order, one commit for each session. What is asked for twice goes once.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from everhold.core.consumers import backfill_consumer, memory_consumer
from everhold.engine.gates import Gates
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import Change, DeadLetter, Receipt, Session, Step, Store, Wakeup

RESEND_REASON: Final = "handed over before, and asked for again"
REPEAT_EFFECTS: Final = {
    DeliveryGuarantee.KEYED: "what is there already is recognised by its key, and stays as it is",
    DeliveryGuarantee.UPSERT: "what is there already is overwritten with itself",
    DeliveryGuarantee.PROBE: "each is looked for first, and goes only if it is not there",
    DeliveryGuarantee.UNACKNOWLEDGED: "it knows no keys: what it has kept may be there twice afterwards",
}
"""What a repeat does, where one is allowed."""
PROBED_EFFECT: Final = "each is looked for first; what it has kept and does not show may be there twice afterwards"


class ResendPlan(Struct, frozen=True, kw_only=True):
    """What of one session was handed over since a time, and goes again."""

    session: str
    dead_letters: tuple[DeadLetter, ...]
    dead_letter_ids: tuple[int, ...]
    """Dead letters of that time: they go, too."""
    since: float
    until: float

    @property
    def item_count(self) -> int:
        return len(self.dead_letters) + len(self.dead_letter_ids)


async def plan_resend(store: Store, session: Session, instance: str, *, since: float) -> ResendPlan | None:
    """What a memory was handed of a session from `since` on, oldest first; None if nothing was."""
    letters: list[DeadLetter] = []
    given_up: list[DeadLetter] = []
    for consumer in (backfill_consumer(instance), memory_consumer(instance)):
        going = await store.list_dead_letters(session=session.id, consumer=consumer, state="replaying")
        given_up += [
            it for it in await store.list_dead_letters(session=session.id, consumer=consumer) if it.at >= since
        ]
        besides = {(it.seq, it.part) for it in (*going, *given_up) if it.consumer == consumer}
        letters += [
            _build_dead_letter(receipt)
            for receipt in await store.list_receipts(session.id, consumer=consumer)
            if receipt.at >= since and (receipt.seq, receipt.part) not in besides
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
    """Put it in front of its lanes, which take it up before anything new, whatever falls meanwhile."""
    now = gates.clock.now()
    if again.dead_letters:
        wakeups = tuple(Wakeup(consumer=consumer) for consumer in sorted({it.consumer for it in again.dead_letters}))
        change = Change(
            step=Step.REPLAY, session=again.session, at=now, dead_letters=again.dead_letters, wakeups=wakeups
        )
        await gates.store.commit(change)
    if again.dead_letter_ids:
        await gates.store.replay_dead_letters(again.dead_letter_ids, at=now)
