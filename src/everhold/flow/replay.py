"""What was handed over -> the same memory, again: for one that lost it, or never said that it was kept.

Nothing new is made up for it: each item goes back in front of the lane it left by, under its own key and the name of
its time, in order, one commit for each session. What is asked for twice goes once.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from everhold.core.consumers import backfill_consumer, memory_consumer
from everhold.flow.gates import Gates
from everhold.ports.platform import Delivery
from everhold.ports.store import Change, DeadLetter, Receipt, Session, Step, Store, Wakeup

REASON: Final = "handed over before, and asked for again"
REPEATS: Final = {
    Delivery.KEYED: "what is there already is recognised by its key, and stays as it is",
    Delivery.UPSERT: "what is there already is overwritten with itself",
    Delivery.PROBE: "each is looked for first, and goes only if it is not there",
    Delivery.UNACKNOWLEDGED: "it knows no keys: what it has kept may be there twice afterwards",
}
"""What a repeat does, where one is allowed."""
LOOKED_FOR: Final = "each is looked for first; what it has kept and does not show may be there twice afterwards"


class Again(Struct, frozen=True, kw_only=True):
    """What of one session was handed over since a time, and goes again."""

    session: str
    letters: tuple[DeadLetter, ...]
    given_up: tuple[int, ...]
    """Dead letters of that time: they go, too."""
    since: float
    until: float

    @property
    def items(self) -> int:
        return len(self.letters) + len(self.given_up)


async def handed_over(store: Store, session: Session, instance: str, *, since: float) -> Again | None:
    """What a memory was handed of a session from `since` on, oldest first; None if nothing was."""
    letters: list[DeadLetter] = []
    given_up: list[DeadLetter] = []
    for reader in (backfill_consumer(instance), memory_consumer(instance)):
        going = await store.list_dead_letters(session=session.id, consumer=reader, state="replaying")
        given_up += [it for it in await store.list_dead_letters(session=session.id, consumer=reader) if it.at >= since]
        besides = {(it.seq, it.part) for it in (*going, *given_up) if it.consumer == reader}
        letters += [
            _letter(receipt)
            for receipt in await store.list_receipts(session.id, consumer=reader)
            if receipt.at >= since and (receipt.seq, receipt.part) not in besides
        ]
    times = [it.at for it in (*letters, *given_up)]
    if not times:
        return None
    return Again(
        session=session.id,
        letters=tuple(sorted(letters, key=lambda it: (it.seq, it.part))),
        given_up=tuple(it.id for it in given_up),
        since=min(times),
        until=max(times),
    )


def _letter(receipt: Receipt) -> DeadLetter:
    return DeadLetter(
        consumer=receipt.consumer,
        session=receipt.session,
        seq=receipt.seq,
        part=receipt.part,
        key=receipt.key,
        reason=REASON,
        in_doubt=True,
        at=receipt.at,
        state="replaying",
    )


async def begin(gates: Gates, again: Again) -> None:
    """Put it in front of its lanes, which take it up before anything new, whatever falls meanwhile."""
    now = gates.clock.now()
    if again.letters:
        wakes = tuple(Wakeup(consumer=reader) for reader in sorted({it.consumer for it in again.letters}))
        change = Change(step=Step.REPLAY, session=again.session, at=now, dead_letters=again.letters, wakeups=wakes)
        await gates.store.commit(change)
    if again.given_up:
        await gates.store.replay_dead_letters(again.given_up, at=now)
