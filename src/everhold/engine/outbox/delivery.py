"""The lane machine: due, deliver, done | later | parked | in doubt; in order per session.

A lane hands over one load at a time. What is in flight is stored before it leaves, and a retry repeats exactly that.
What a load is, and how it is handed over, is the courier's business (voice, remember).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final, Literal, Protocol

from msgspec import Struct, structs

from everhold.core.entries import EntryDraft
from everhold.core.retry import is_late_arrival_harmful, resolve_in_doubt, retry_delay_seconds
from everhold.engine.effects import deliver_outside
from everhold.engine.gates import Gates
from everhold.errors import Conflict, EverholdError, InDoubt, PartiallyDone, Poisoned, Refused, Transient
from everhold.ports.memory import SEEN_REMOTE_ID
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import (
    Change,
    Claim,
    CursorUpdate,
    DeadLetter,
    DeliveryItem,
    InFlightBatch,
    Receipt,
    RetryDelay,
    Step,
    Wakeup,
)

MAX_BLIND_RESENDS: Final = 3
"""How often something that may have arrived is sent again where nobody can tell."""


class DeliveryBatch(Struct, frozen=True, kw_only=True):
    """What is handed over at once."""

    items: tuple[DeliveryItem, ...]
    processed_upto_seq: int
    """The lane's position once this is done with."""
    digest: str
    payload: object
    name: str = ""
    records: tuple[EntryDraft, ...] = ()
    """What is to be written down with it, once."""
    generation: int = 0
    """The session's, before the load was made: an erasure since then must not find it on its way."""


class BatchScan(Struct, frozen=True, kw_only=True):
    """What a courier saw when it looked at the log."""

    batch: DeliveryBatch | None
    scanned_upto_seq: int
    """The last seq it looked at."""
    generation: int = 0
    """The session's, as it was then."""
    has_more: bool = False
    """There is, or may be, more to hand over behind this load."""
    passed_upto_seq: int = 0
    """Without a load: up to here nothing is left to do."""
    wait_seconds: float = 0.0
    """Without a load: something is there, and held back for so many seconds unless more comes."""


class DeliveryAttempt(Struct, frozen=True, kw_only=True):
    """A load that is stored as in flight, about to be handed over."""

    batch: DeliveryBatch
    in_flight: InFlightBatch
    started_at: float
    """Monotonic time before it was stored: its deadline counts from here, however long it takes to leave."""
    in_doubt: bool = False
    """It may have arrived before: this is the policy's second try."""


class DeliveryOutcome(Struct, frozen=True, kw_only=True):
    """What became of items that were sent, or could not be. The next commit stores it."""

    receipts: tuple[Receipt, ...] = ()
    parks: tuple[DeadLetter, ...] = ()
    """Items that are given up."""
    unparks: tuple[int, ...] = ()
    """Dead letters that were replayed, and are no longer dead."""


NO_OUTCOME: Final = DeliveryOutcome()


class FailureNotice(Struct, frozen=True, kw_only=True):
    """Something to be told, and who says it."""

    entries: tuple[EntryDraft, ...] = ()
    wakeups: tuple[Wakeup, ...] = ()


class Destination(Protocol):
    """Knows one kind of load and one far side."""

    in_doubt_policy: str
    delivered_event: str
    """What a delivered load is called in the log."""
    dead_letter_event: str
    """And one that was given up."""

    @property
    def delivery(self) -> DeliveryGuarantee: ...

    @property
    def deadline(self) -> float: ...

    @property
    def visible_after(self) -> float: ...

    @property
    def probes_before_resend(self) -> bool:
        """Whether `arrived` is worth a question before something goes that may be there already."""

    @property
    def rebuilds_in_flight(self) -> bool:
        """Whether a flight nobody remembers goes again just as it went, and is recognised."""

    async def next_batch(self, claim: Claim, *, after: int, done: Sequence[DeliveryItem] = ()) -> BatchScan:
        """What is to be handed over after a position, `done` just being finished."""

    async def rebuild_batch(self, claim: Claim, in_flight: InFlightBatch) -> DeliveryBatch | None:
        """The load of a flight, built again from the log; None if nothing of it may be sent any more."""

    async def deliver(self, delivery_batch: DeliveryBatch) -> Mapping[str, str]:
        """Hand it over; the remote id of each key."""

    async def find_arrived(self, delivery_batch: DeliveryBatch) -> Sequence[str]:
        """Those of its keys that the far side already has."""

    async def build_notice(self, claim: Claim, *, attempts: int) -> FailureNotice:
        """What somebody should be told about an attempt that failed, the so manieth in a row."""


class DeliveryWorker:
    """Works one claimed lane until it is empty, waiting, or lost."""

    def __init__(self, gates: Gates, claim: Claim, destination: Destination) -> None:
        self.gates = gates
        self.claim = claim
        self.destination = destination
        self.attempts = claim.cursor.attempts
        self.scan: BatchScan | None = None
        self.settled_upto_seq = claim.cursor.processed_seq
        """Up to here everything is done with, on record."""
        self.is_idle = False
        self.replaying: list[DeadLetter] = []
        """What somebody took back from the parked ones: goes again, before anything new."""
        self.log = gates.log.bind(session=claim.session, reader=claim.consumer)

    async def run(self) -> bool:
        """Whether nothing is left to do in it."""
        while True:
            try:
                await self._run()
                return self.is_idle
            except Conflict:
                # the view changed while a load was made, perhaps by an erasure: make it anew from what is stored
                found = await self.gates.store.get_cursor(self.claim.consumer, self.claim.session)
                if found is None or found.fence != self.claim.fence:
                    return False
                self.claim = structs.replace(self.claim, cursor=found)
                self.scan = None

    async def _run(self) -> None:
        cursor = self.claim.cursor
        self.replaying = await self._list_replaying()
        attempt = await (
            self._resume_in_flight_batch(cursor.in_flight)
            if cursor.in_flight
            else self._finish_batch(cursor.processed_seq)
        )
        while attempt is not None:
            attempt = await self._send(attempt)

    async def _list_replaying(self) -> list[DeadLetter]:
        return await self.gates.store.list_dead_letters(
            session=self.claim.session, consumer=self.claim.consumer, state="replaying"
        )

    async def _resume_in_flight_batch(self, in_flight: InFlightBatch) -> DeliveryAttempt | None:
        """Go on with a flight found in the lane."""
        if in_flight.state != "unsent" and (
            is_late_arrival_harmful(self.destination.delivery) or in_flight.state == "voided"
        ):
            # whoever sent this may be stalled, not dead: its request may be carried out until its deadline
            await self.gates.sleep(self.destination.deadline + self.destination.visible_after)
        self.replaying = [dead_letter for dead_letter in self.replaying if dead_letter.id not in in_flight.replays]
        batch = await self._rebuild_batch(in_flight)
        if batch is None:
            return await self._finish_batch(
                in_flight.upto, in_flight=in_flight, dead_letters=self._build_erased_dead_letters(in_flight)
            )
        batch = structs.replace(batch, processed_upto_seq=in_flight.upto)
        if in_flight.state == "voided":
            # something in it was erased: the rest is in doubt, as what it now is, under its own keys
            dead_letters = self._build_erased_dead_letters(in_flight, batch.items)
            in_flight = structs.replace(in_flight, items=batch.items, digest=batch.digest, state="in_doubt")
            outcome = DeliveryOutcome(parks=dead_letters)
            await self._commit(
                Step.DELIVERY_SEND, CursorUpdate(in_flight=in_flight), outcome, generation=batch.generation
            )
            return await self._resolve_in_doubt(batch, in_flight)
        if batch.digest != in_flight.digest:
            stored = await self.gates.store.get_cursor(self.claim.consumer, self.claim.session)
            if stored is None or stored.in_flight != in_flight:
                raise Conflict("the flight was voided while it was waited for")
            raise Poisoned(
                f"{self.claim.consumer} would not repeat what it sent for {self.claim.session}",
                remedy="entries behind a batch in flight were altered; run `everhold audit`",
            )
        if in_flight.state == "unsent":
            return await self._begin_attempt(batch, in_flight, in_doubt=self._is_blind_resend(in_flight))
        return await self._resolve_in_doubt(batch, in_flight)

    def _is_blind_resend(self, in_flight: InFlightBatch) -> bool:
        """Whether an earlier send may have arrived, where nobody can tell: the doubt outlives who sent it."""
        return in_flight.sends > 1 and resolve_in_doubt(self.destination.delivery, policy="") == "gamble"

    async def _begin_attempt(
        self,
        batch: DeliveryBatch,
        in_flight: InFlightBatch,
        *,
        in_doubt: bool = False,
        outcome: DeliveryOutcome = NO_OUTCOME,
    ) -> DeliveryAttempt:
        """Store that the load is about to leave: from here on nobody knows any more that it has not."""
        since = self.gates.clock.monotonic()
        in_flight = structs.replace(in_flight, state="sent")
        await self._commit(Step.DELIVERY_SEND, CursorUpdate(in_flight=in_flight), outcome, generation=batch.generation)
        return DeliveryAttempt(batch=batch, in_flight=in_flight, started_at=since, in_doubt=in_doubt)

    async def _rebuild_batch(self, in_flight: InFlightBatch) -> DeliveryBatch | None:
        """The load of a flight as the log has it now."""
        _, generation = await self.gates.store.get_session_head(self.claim.session)
        batch = await self.destination.rebuild_batch(self.claim, in_flight)
        return None if batch is None else structs.replace(batch, generation=generation)

    async def _resolve_in_doubt(
        self, batch: DeliveryBatch, in_flight: InFlightBatch, *, refused: bool = False
    ) -> DeliveryAttempt | None:
        """The answer was lost: ask, send again, or follow the policy; always counted where people see it.

        `refused`: what did not arrive would be refused again, as long as it goes together.
        """
        how = resolve_in_doubt(self.destination.delivery, policy=self.destination.in_doubt_policy)
        blind = how == "gamble"
        if blind and in_flight.sends >= MAX_BLIND_RESENDS:
            how = "hold"
        elif blind and self.destination.probes_before_resend:
            how = "probe"  # what is seen there need not go again; what is not seen may be there all the same
        there: Sequence[str] = ()
        self.log.warning("delivery.in_doubt", keys=[item.key for item in batch.items], then=how)
        if how == "hold":
            dead_letters = self._build_dead_letters(batch.items, "nobody can tell whether it arrived", in_doubt=True)
            return await self._finish_batch(
                batch.processed_upto_seq, batch.items, in_flight=in_flight, dead_letters=dead_letters
            )
        if how == "probe":
            try:
                there = await deliver_outside(
                    f"probe of {self.claim.consumer}",
                    lambda: self.destination.find_arrived(batch),
                    self.gates,
                    deadline=self.destination.deadline,
                )
            except (Transient, InDoubt, Refused) as error:
                return await self._retry_later(batch, structs.replace(in_flight, state="in_doubt"), error)
            if set(there) >= {item.key for item in batch.items}:
                receipts = self._build_arrived_receipts(batch.items)
                return await self._finish_batch(
                    batch.processed_upto_seq, batch.items, in_flight=in_flight, receipts=receipts
                )
            if there and not refused:
                return await self._resend_missing(batch, in_flight, set(there))
        if refused:
            return await self._send_one_by_one(
                batch, structs.replace(in_flight, sends=in_flight.sends + 1), there=set(there)
            )
        return await self._begin_attempt(batch, structs.replace(in_flight, sends=in_flight.sends + 1), in_doubt=blind)

    async def _resend_missing(
        self, batch: DeliveryBatch, in_flight: InFlightBatch, there: set[str]
    ) -> DeliveryAttempt | None:
        """Part of a load arrived: that part is done, and the rest goes again by itself, under its own keys."""
        rest = structs.replace(in_flight, items=tuple(item for item in batch.items if item.key not in there))
        missing = await self._rebuild_batch(rest)
        receipts = self._build_arrived_receipts([item for item in batch.items if item.key in there])
        if missing is None:
            return await self._finish_batch(
                batch.processed_upto_seq,
                batch.items,
                in_flight=in_flight,
                receipts=receipts,
                dead_letters=self._build_erased_dead_letters(rest),
            )
        dead_letters = self._build_erased_dead_letters(rest, missing.items)
        rest = structs.replace(rest, items=missing.items, digest=missing.digest, sends=in_flight.sends + 1)
        missing = structs.replace(missing, processed_upto_seq=in_flight.upto)
        outcome = DeliveryOutcome(receipts=receipts, parks=dead_letters)
        return await self._begin_attempt(missing, rest, in_doubt=self._is_blind_resend(rest), outcome=outcome)

    async def _send_one_by_one(
        self, batch: DeliveryBatch, in_flight: InFlightBatch, *, there: Set[str] = frozenset()
    ) -> DeliveryAttempt | None:
        """A batch was refused, and something in it is to blame: each item goes by itself, and only that one is parked.

        What is left is stored as part of the flight, so whoever takes the lane over goes on in the middle.
        """
        left = tuple(item for item in batch.items if item.key not in there)
        state: Literal["unsent", "in_doubt"] = "in_doubt" if self._is_blind_resend(in_flight) else "unsent"
        behind = structs.replace(in_flight, items=left, digest="", state=state)
        receipts = self._build_arrived_receipts([item for item in batch.items if item.key in there])
        self.log.info("delivery.split", keys=[item.key for item in left])
        return await self._finish_batch(
            batch.processed_upto_seq, in_flight=structs.replace(in_flight, remaining=behind), receipts=receipts
        )

    async def _send(self, attempt: DeliveryAttempt) -> DeliveryAttempt | None:
        """Hand a load over and settle it; the next one, already in flight, or None when the lane is done for now."""
        destination, batch = self.destination, attempt.batch
        if attempt.in_flight.state == "in_doubt":
            return await self._resolve_in_doubt(batch, attempt.in_flight)
        left = attempt.started_at + destination.deadline - self.gates.clock.monotonic()
        if left < destination.deadline / 2:
            # we stood still on the way: a successor waits only so long, so ask the store whether it is still ours
            return await self._begin_attempt(batch, attempt.in_flight, in_doubt=attempt.in_doubt)
        try:
            remotes = await deliver_outside(
                self.claim.consumer, lambda: destination.deliver(batch), self.gates, deadline=left
            )
        except Transient as error:
            return await self._retry_later(batch, structs.replace(attempt.in_flight, state="unsent"), error)
        except (Refused, PartiallyDone) as error:
            return await self._settle_refusal(attempt, error)
        except InDoubt as error:
            in_flight = structs.replace(attempt.in_flight, state="in_doubt")
            if self.attempts or not is_late_arrival_harmful(destination.delivery):
                return await self._retry_later(batch, in_flight, error)
            # the first time it is settled as soon as it can be; after that with growing waits, like any failure
            self.attempts = 1
            await self._commit(Step.DELIVERY_RETRY, CursorUpdate(in_flight=in_flight, attempts=1, error=str(error)))
            # until its deadline the request may still be carried out, and until then a look proves nothing
            left = attempt.started_at + destination.deadline - self.gates.clock.monotonic()
            await self.gates.sleep(max(0.0, left) + destination.visible_after)
            return await self._resolve_in_doubt(batch, in_flight)
        self.log.info(destination.delivered_event, keys=[item.key for item in batch.items])
        receipts = self._build_receipts(batch.items, remotes, in_doubt=attempt.in_doubt)
        return await self._finish_batch(
            batch.processed_upto_seq, batch.items, in_flight=attempt.in_flight, receipts=receipts
        )

    async def _settle_refusal(self, attempt: DeliveryAttempt, error: Refused | PartiallyDone) -> DeliveryAttempt | None:
        """It will not be taken, or not all of it: find out what is to blame, and park that."""
        batch, partial = attempt.batch, isinstance(error, PartiallyDone)
        if len(batch.items) == 1:
            dead_letters = self._build_dead_letters(batch.items, str(error), in_doubt=attempt.in_doubt or partial)
            return await self._finish_batch(
                batch.processed_upto_seq, batch.items, in_flight=attempt.in_flight, dead_letters=dead_letters
            )
        if not partial:
            return await self._send_one_by_one(batch, attempt.in_flight)
        in_flight = structs.replace(attempt.in_flight, state="in_doubt")
        await self._commit(Step.DELIVERY_RETRY, CursorUpdate(in_flight=in_flight, error=str(error)))
        # the answer is here, so nothing is on its way any more; what was kept may take a while to be seen
        await self.gates.sleep(self.destination.visible_after)
        return await self._resolve_in_doubt(batch, in_flight, refused=True)

    async def _finish_batch(
        self,
        upto: int,
        done: tuple[DeliveryItem, ...] = (),
        *,
        in_flight: InFlightBatch | None = None,
        receipts: tuple[Receipt, ...] = (),
        dead_letters: tuple[DeadLetter, ...] = (),
    ) -> DeliveryAttempt | None:
        """The flight is over: move the position, and in the same commit put the next load in flight or let go."""
        outcome = DeliveryOutcome(receipts=receipts, parks=dead_letters, unparks=in_flight.replays if in_flight else ())
        behind = in_flight.remaining if in_flight else None
        while True:
            try:
                if behind is not None:
                    return await self._begin_next_single(behind, structs.replace(outcome, unparks=()))
                return await self._settle_cursor(upto, done, outcome)
            except Conflict:
                # the view changed while the next load was made: look again; what is done with stays done
                self.scan = None
                self.replaying = [
                    dead_letter for dead_letter in await self._list_replaying() if dead_letter.id not in outcome.unparks
                ]

    async def _begin_next_single(self, behind: InFlightBatch, outcome: DeliveryOutcome) -> DeliveryAttempt | None:
        """Put the first of what is left of a refused batch in flight. The position waits for the last of them."""
        for index in range(len(behind.items)):
            in_flight = structs.replace(behind, items=behind.items[index : index + 1])
            batch = await self._rebuild_batch(in_flight)
            if batch is None:
                outcome = structs.replace(outcome, parks=outcome.parks + self._build_erased_dead_letters(in_flight))
                continue
            rest = behind.items[index + 1 :]
            in_flight = structs.replace(
                in_flight,
                digest=batch.digest,
                state="sent",
                remaining=structs.replace(behind, items=rest) if rest else None,
            )
            return await self._leave(batch, in_flight, CursorUpdate(in_flight=in_flight, attempts=0, error=""), outcome)
        return await self._settle_cursor(behind.upto, (), outcome)

    async def _settle_cursor(
        self, upto: int, done: tuple[DeliveryItem, ...], outcome: DeliveryOutcome
    ) -> DeliveryAttempt | None:
        """Everything up to `upto` is done with. Go on with a replay, else with what the log holds next, else rest."""
        while self.replaying:
            dead_letter = self.replaying.pop(0)
            leg = await self._replay(dead_letter, upto, outcome)
            if leg is not None:
                return leg
            outcome = structs.replace(outcome, unparks=(*outcome.unparks, dead_letter.id))
        idle = (
            self.scan is None and not done and self.claim.cursor.in_flight is None
        )  # nothing was sent before this look
        if self.scan is None or self.scan.has_more:
            self.scan = await self.destination.next_batch(self.claim, after=upto, done=done)
        else:
            # the last look saw nothing behind this load; if something came since, the store keeps the lane due
            self.scan = structs.replace(self.scan, batch=None)
        self.attempts = 0
        if self.scan.batch is None:
            await self._rest(self.scan, upto, outcome, idle=idle)
            return None
        return await self._send_next(self.scan, self.scan.batch, upto, outcome, idle=idle)

    async def _replay(self, parked: DeadLetter, upto: int, outcome: DeliveryOutcome) -> DeliveryAttempt | None:
        """Put a dead letter in flight once more; None if nothing of it may be sent any more."""
        items = (DeliveryItem(seq=parked.seq, part=parked.part, key=parked.key),)
        again = InFlightBatch(items=items, upto=upto, digest="", state="voided", replays=(parked.id,))
        load = await self._rebuild_batch(again)
        if load is None:
            return None
        # what may have arrived before it was parked is now sent for the second time at least
        sends = 2 if parked.in_doubt else 1
        state: Literal["in_doubt", "sent"] = (
            "in_doubt" if parked.in_doubt and self.destination.probes_before_resend else "sent"
        )
        flight = structs.replace(again, items=load.items, digest=load.digest, state=state, sends=sends, name=load.name)
        update = CursorUpdate(processed_seq=upto, in_flight=flight, attempts=0, error="")
        return await self._leave(structs.replace(load, processed_upto_seq=upto), flight, update, outcome)

    async def _leave(
        self, load: DeliveryBatch, flight: InFlightBatch, update: CursorUpdate, outcome: DeliveryOutcome
    ) -> DeliveryAttempt:
        """Store that this load is in flight, with what became of the one before. It is its first attempt."""
        since = self.gates.clock.monotonic()
        self.attempts = 0
        await self._commit(Step.DELIVERY_SEND, update, outcome, generation=load.generation)
        return DeliveryAttempt(batch=load, in_flight=flight, started_at=since, in_doubt=self._is_blind_resend(flight))

    async def _rest(self, look: BatchScan, upto: int, outcome: DeliveryOutcome, *, idle: bool) -> None:
        """There is nothing to send now: let go of the lane."""
        upto = max(upto, look.passed_upto_seq)
        update = CursorUpdate(
            processed_seq=upto,
            clear_in_flight=True,
            attempts=0,
            error="",
            idle_at=look.scanned_upto_seq,
            wait=RetryDelay(seconds=look.wait_seconds) if look.wait_seconds else None,
            release=True,
        )
        # if the disk loses this, the flight is still there and goes again
        resent = resolve_in_doubt(self.destination.delivery, policy="") == "resend"
        durable = not idle and bool(not resent or outcome.parks or outcome.unparks)
        await self._commit(Step.CURSOR_SETTLE if idle else Step.DELIVERY_DONE, update, outcome, durable=durable)
        self.settled_upto_seq = upto

    async def _send_next(
        self, look: BatchScan, load: DeliveryBatch, upto: int, outcome: DeliveryOutcome, *, idle: bool
    ) -> DeliveryAttempt:
        """Put the load that the look found in flight."""
        since = self.gates.clock.monotonic()
        flight = InFlightBatch(items=load.items, upto=load.processed_upto_seq, digest=load.digest, name=load.name)
        await self._commit(
            Step.DELIVERY_SEND if idle else Step.DELIVERY_DONE,
            CursorUpdate(processed_seq=upto, in_flight=flight, attempts=0, error=""),
            outcome,
            generation=look.generation,
            entries=load.records,
            durable=not self.destination.rebuilds_in_flight or bool(outcome.parks or outcome.unparks or load.records),
        )
        self.settled_upto_seq = upto
        return DeliveryAttempt(
            batch=structs.replace(load, generation=look.generation), in_flight=flight, started_at=since
        )

    async def _retry_later(
        self, batch: DeliveryBatch, in_flight: InFlightBatch, error: EverholdError
    ) -> DeliveryAttempt | None:
        """Try again when it makes sense, or give the load up and go on with the next."""
        self.attempts += 1
        asked = error.retry_after if isinstance(error, Transient) else None
        seconds = asked if asked is not None else retry_delay_seconds(self.attempts, jitter=self.gates.chance.random())
        if seconds is None:
            dead_letters = self._build_dead_letters(
                batch.items,
                f"given up after {self.attempts} attempts: {error}",
                in_doubt=in_flight.state != "unsent" or self._is_blind_resend(in_flight),
            )
            return await self._finish_batch(
                batch.processed_upto_seq, batch.items, in_flight=in_flight, dead_letters=dead_letters
            )
        self.log.info("delivery.retrying", attempt=self.attempts, seconds=round(seconds, 1), error=str(error))
        update = CursorUpdate(
            in_flight=in_flight,
            attempts=self.attempts,
            error=str(error),
            wait=RetryDelay(seconds=seconds, mandatory=asked is not None),
            release=True,
        )
        notice = await self.destination.build_notice(self.claim, attempts=self.attempts)
        await self._commit(Step.DELIVERY_RETRY, update, entries=notice.entries, wakeups=notice.wakeups)
        return None

    def _build_arrived_receipts(self, items: Sequence[DeliveryItem]) -> tuple[Receipt, ...]:
        """Receipts of those that arrived although the answer was lost. What stands for their ids: nothing, unless being
        seen is all there ever is."""
        keys = [item.key for item in items]
        if keys:
            self.log.info(self.destination.delivered_event, keys=keys, found=True)
        return self._build_receipts(
            items,
            dict.fromkeys(keys, SEEN_REMOTE_ID)
            if self.destination.delivery is DeliveryGuarantee.UNACKNOWLEDGED
            else {},
        )

    def _build_receipts(
        self, items: Sequence[DeliveryItem], remotes: Mapping[str, str], *, in_doubt: bool = False
    ) -> tuple[Receipt, ...]:
        return tuple(
            Receipt(
                consumer=self.claim.consumer,
                session=self.claim.session,
                seq=item.seq,
                part=item.part,
                key=item.key,
                remote=remotes.get(item.key, ""),
                in_doubt=in_doubt,
            )
            for item in items
        )

    def _build_erased_dead_letters(
        self, in_flight: InFlightBatch, left: tuple[DeliveryItem, ...] = ()
    ) -> tuple[DeadLetter, ...]:
        """What was erased whole on its way to somebody who cannot tell: it may be there all the same."""
        if in_flight.state == "unsent" or resolve_in_doubt(self.destination.delivery, policy="") != "gamble":
            return ()
        keys = {item.key for item in left}
        gone = tuple(item for item in in_flight.items if item.key not in keys)
        return self._build_dead_letters(
            gone, "it was erased on its way, and nobody can tell whether it arrived", in_doubt=True
        )

    def _build_dead_letters(
        self, items: tuple[DeliveryItem, ...], reason: str, *, in_doubt: bool = False
    ) -> tuple[DeadLetter, ...]:
        return tuple(
            DeadLetter(
                consumer=self.claim.consumer,
                session=self.claim.session,
                seq=item.seq,
                part=item.part,
                key=item.key,
                reason=reason,
                in_doubt=in_doubt,
            )
            for item in items
        )

    async def _commit(
        self,
        step: Step,
        update: CursorUpdate,
        outcome: DeliveryOutcome = NO_OUTCOME,
        *,
        generation: int | None = None,
        entries: tuple[EntryDraft, ...] = (),
        wakeups: tuple[Wakeup, ...] = (),
        durable: bool = True,
    ) -> None:
        done = await self.gates.commit(
            Change(
                step=step,
                session=self.claim.session,
                at=self.gates.clock.now(),
                entries=entries,
                claim=self.claim,
                generation=generation,
                cursor=update,
                receipts=outcome.receipts,
                dead_letters=outcome.parks,
                replayed=outcome.unparks,
                wakeups=wakeups,
                durable=durable,
            )
        )
        self.is_idle = done.rests
        for dead_letter in outcome.parks:
            self.log.warning(
                self.destination.dead_letter_event,
                keys=[dead_letter.key],
                reason=dead_letter.reason,
                doubtful=dead_letter.in_doubt,
            )
