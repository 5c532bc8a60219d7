"""The delivery worker: delivers the batches of one cursor, in order per session. A batch ends delivered, retried later,
as dead letters, or in doubt.

The worker sends one batch at a time. The batch in flight is stored before it is sent, and a retry repeats exactly that
batch. Only the first send to a remote side that recognises a repetition is not stored. The destination (a platform
account or a memory) knows what a batch is and how to send it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final, Literal, Protocol

from msgspec import Struct, structs

from everhold.core.entries import ChatLocation, EntryDraft
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
from everhold.telemetry.metrics import DELIVERY_SECONDS

MAX_BLIND_RESENDS: Final = 3
"""How often a batch that may have arrived is sent again if the destination cannot tell."""


class DeliveryBatch(Struct, frozen=True, kw_only=True):
    """The items that are delivered together."""

    items: tuple[DeliveryItem, ...]
    processed_upto_seq: int
    """The cursor's processed seq after this batch is done."""
    digest: str
    payload: object
    name: str = ""
    peers: tuple[tuple[str, str], ...] = ()
    """The peers that the payload contains, as `InFlightBatch` stores them."""
    records: tuple[EntryDraft, ...] = ()
    """Entries to commit with the batch, once."""
    lost_draft: DeliveryItem | None = None
    """A draft that this batch shall replace. It may be visible, but its remote id is unknown."""
    draft_place: ChatLocation | None = None
    """Where that draft was shown, with a message that is not newer than it."""
    generation: int = 0
    """The session's generation before the batch was made. If it has changed, for example by an erasure, the batch must
    not be sent.
    """


class BatchScan(Struct, frozen=True, kw_only=True):
    """What a destination found in the log."""

    batch: DeliveryBatch | None
    scanned_upto_seq: int
    """The last seq that was scanned."""
    generation: int = 0
    """The session's generation at that time."""
    has_more: bool = False
    """There may be more to deliver after this batch."""
    passed_upto_seq: int = 0
    """Without a batch: up to this seq nothing is left to do."""
    wait_seconds: float = 0.0
    """Without a batch: items are held back for so many seconds, unless more arrive."""


class DeliveryAttempt(Struct, frozen=True, kw_only=True):
    """A batch that is about to be sent."""

    batch: DeliveryBatch
    in_flight: InFlightBatch
    started_at: float
    """Monotonic time before it was stored or found. Its deadline counts from here."""
    in_doubt: bool = False
    """It may have arrived before, and the policy sends it again."""


class DeliveryOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of items that were sent, or could not be. The next commit stores it."""

    receipts: tuple[Receipt, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    """Items that are given up."""
    replayed: tuple[int, ...] = ()
    """Ids of dead letters that were replayed and are done."""


NO_OUTCOME: Final = DeliveryOutcome()


class FailureNotice(Struct, frozen=True, kw_only=True):
    """A notice to commit, and the consumers to wake up for it."""

    entries: tuple[EntryDraft, ...] = ()
    wakeups: tuple[Wakeup, ...] = ()


class Destination(Protocol):
    """Delivers one kind of batch to one remote side."""

    in_doubt_policy: str
    delivered_event: str
    """The log event of a delivered batch."""
    dead_letter_event: str
    """The log event of a dead letter."""

    @property
    def delivery(self) -> DeliveryGuarantee: ...

    @property
    def deadline(self) -> float: ...

    @property
    def visible_after(self) -> float: ...

    @property
    def late_seconds(self) -> float:
        """How long a request may still be carried out after its connection has ended, or after a takeover."""

    @property
    def probes_before_resend(self) -> bool:
        """Whether to call `find_arrived` before a batch is sent again that may have arrived."""

    @property
    def rebuilds_in_flight(self) -> bool:
        """Whether a batch without an in-flight record is rebuilt identically, and recognised by the remote side. It is
        not stored before its first send."""

    async def next_batch(self, claim: Claim, *, after: int, done: Sequence[DeliveryItem] = ()) -> BatchScan:
        """Return the next batch after a seq. `done` are the items that have just been delivered."""

    async def rebuild_batch(self, claim: Claim, in_flight: InFlightBatch) -> DeliveryBatch | None:
        """Return the batch in flight, rebuilt from the log; None if nothing of it may be sent any more."""

    async def deliver(self, delivery_batch: DeliveryBatch) -> Mapping[str, str]:
        """Send the batch; return the remote id of each key."""

    async def find_arrived(self, delivery_batch: DeliveryBatch) -> Sequence[str]:
        """Return the keys that the remote side already has."""

    async def build_notice(self, claim: Claim, *, attempts: int) -> FailureNotice:
        """Return a notice about the failed attempt number `attempts` in a row."""


class DeliveryWorker:
    """Works on one claimed cursor until it is empty, waiting, or lost."""

    def __init__(self, gates: Gates, claim: Claim, destination: Destination) -> None:
        self.gates = gates
        self.claim = claim
        self.destination = destination
        self.attempts = claim.cursor.attempts
        self.scan: BatchScan | None = None
        self.settled_upto_seq = claim.cursor.processed_seq
        """Everything up to this seq is committed as done."""
        self.is_idle = False
        self.replaying: list[DeadLetter] = []
        """Replayed dead letters, which are sent before anything new."""
        self.log = gates.log.bind(session=claim.session, consumer=claim.consumer)

    async def run(self) -> bool:
        """Work until nothing can be sent now; return whether nothing is left to do."""
        while True:
            try:
                await self._run()
                return self.is_idle
            except Conflict:
                # The context changed while a batch was made, perhaps by an erasure. Rebuild it from what is stored.
                found = await self.gates.store.get_cursor(self.claim.consumer, self.claim.session)
                if found is None or found.fence != self.claim.fence:
                    return False
                self.claim = structs.replace(self.claim, cursor=found, has_replays=True)  # some may be new
                self.scan = None

    async def _run(self) -> None:
        cursor = self.claim.cursor
        self.replaying = await self._list_replaying() if self.claim.has_replays else []
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
        """Continue with a batch in flight that was found in the cursor."""
        if in_flight.state != "unsent" and (
            is_late_arrival_harmful(self.destination.delivery) or in_flight.state == "voided"
        ):
            # The worker that sent it has not settled it, so the request may still be carried out.
            await self.gates.sleep(self.destination.late_seconds + self.destination.visible_after)
        self.replaying = [dead_letter for dead_letter in self.replaying if dead_letter.id not in in_flight.replays]
        batch = await self._rebuild_batch(in_flight)
        if batch is None:
            await self._wait_for_earlier_sends(in_flight)
            return await self._finish_batch(
                in_flight.upto, in_flight=in_flight, dead_letters=self._build_erased_dead_letters(in_flight)
            )
        batch = structs.replace(batch, processed_upto_seq=in_flight.upto)
        if in_flight.state == "voided":
            # A part of the batch was erased. The rest is in doubt with its present content, under its own keys.
            dead_letters = self._build_erased_dead_letters(in_flight, batch.items)
            in_flight = structs.replace(in_flight, items=batch.items, digest=batch.digest, state="in_doubt")
            outcome = DeliveryOutcome(dead_letters=dead_letters)
            await self._commit(
                Step.DELIVERY_SEND, CursorUpdate(in_flight=in_flight), outcome, generation=batch.generation
            )
            return await self._resolve_in_doubt(batch, in_flight)
        if batch.digest != in_flight.digest:
            stored = await self.gates.store.get_cursor(self.claim.consumer, self.claim.session)
            if stored is None or stored.in_flight != in_flight:
                raise Conflict("the batch in flight was voided by another commit")
            raise Poisoned(
                f"{self.claim.consumer} would send another batch than the one in flight for {self.claim.session}",
                remedy="entries of the batch in flight were altered; run `everhold audit`",
            )
        if in_flight.state == "unsent":
            return await self._begin_attempt(batch, in_flight, in_doubt=self._is_blind_resend(in_flight))
        return await self._resolve_in_doubt(batch, in_flight)

    async def _wait_for_earlier_sends(self, in_flight: InFlightBatch) -> None:
        """Before items are given up that may still be under way: wait until they have arrived or never will, because
        they would appear after later items. Where a late arrival is harmful anyway, the worker has waited already."""
        if in_flight.sends > 1 or in_flight.state != "unsent":
            if not is_late_arrival_harmful(self.destination.delivery):
                await self.gates.sleep(self.destination.deadline)

    def _may_have_arrived(self, in_flight: InFlightBatch) -> bool:
        """Return whether an earlier send may have arrived, and nothing has told since."""
        return in_flight.sends > 1 and resolve_in_doubt(self.destination.delivery, policy="") != "probe"

    def _is_blind(self) -> bool:
        """Return whether nothing tells what has arrived."""
        return resolve_in_doubt(self.destination.delivery, policy="") == "blind_resend"

    def _is_blind_resend(self, in_flight: InFlightBatch) -> bool:
        """Return whether an earlier send may have arrived without a way to tell. This holds for later workers, too."""
        return in_flight.sends > 1 and self._is_blind()

    async def _begin_attempt(
        self,
        batch: DeliveryBatch,
        in_flight: InFlightBatch,
        *,
        in_doubt: bool = False,
        outcome: DeliveryOutcome = NO_OUTCOME,
    ) -> DeliveryAttempt:
        """Store that the batch is about to be sent. From here on it may have been sent."""
        since = self.gates.clock.monotonic()
        in_flight = structs.replace(in_flight, state="sent")
        await self._commit(Step.DELIVERY_SEND, CursorUpdate(in_flight=in_flight), outcome, generation=batch.generation)
        return DeliveryAttempt(batch=batch, in_flight=in_flight, started_at=since, in_doubt=in_doubt)

    async def _rebuild_batch(self, in_flight: InFlightBatch) -> DeliveryBatch | None:
        """Return the batch in flight with the present content of the log."""
        _, generation = await self.gates.store.get_session_head(self.claim.session)
        batch = await self.destination.rebuild_batch(self.claim, in_flight)
        return None if batch is None else structs.replace(batch, generation=generation)

    async def _resolve_in_doubt(
        self, batch: DeliveryBatch, in_flight: InFlightBatch, *, refused: bool = False
    ) -> DeliveryAttempt | None:
        """Settle a batch whose answer was lost: probe, send again, or follow the policy. The doubt is always recorded.

        `refused`: items that did not arrive would be refused again if they were sent together.
        """
        how = resolve_in_doubt(self.destination.delivery, policy=self.destination.in_doubt_policy)
        blind = how == "blind_resend"
        if blind and in_flight.sends >= MAX_BLIND_RESENDS:
            how = "hold"
        elif blind and self.destination.probes_before_resend:
            how = "probe"  # an item that is found is not sent again; one that is not found may still be there
        there: Sequence[str] = ()
        self.log.warning("delivery.in_doubt", keys=[item.key for item in batch.items], then=how)
        if how == "hold":
            dead_letters = self._build_dead_letters(batch.items, "it is unknown whether it arrived", in_doubt=True)
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
                receipts = (*self._build_arrived_receipts(batch.items), *self._build_draft_receipts(batch, remote=""))
                return await self._finish_batch(
                    batch.processed_upto_seq, batch.items, in_flight=in_flight, receipts=receipts
                )
            if there and not refused:
                return await self._resend_missing(batch, in_flight, set(there))
        if refused:
            # The refusal has told that no request is under way. Only without keys and probes a doubt remains.
            sends = in_flight.sends + self._is_blind()
            return await self._send_one_by_one(batch, structs.replace(in_flight, sends=sends), there=set(there))
        return await self._begin_attempt(batch, structs.replace(in_flight, sends=in_flight.sends + 1), in_doubt=blind)

    async def _resend_missing(
        self, batch: DeliveryBatch, in_flight: InFlightBatch, there: set[str]
    ) -> DeliveryAttempt | None:
        """Settle the items that arrived, and send the rest again under their own keys."""
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
        outcome = DeliveryOutcome(receipts=receipts, dead_letters=dead_letters)
        return await self._begin_attempt(missing, rest, in_doubt=self._is_blind_resend(rest), outcome=outcome)

    async def _send_one_by_one(
        self, batch: DeliveryBatch, in_flight: InFlightBatch, *, there: Set[str] = frozenset()
    ) -> DeliveryAttempt | None:
        """Send the items of a refused batch one by one, so that only the refused items become dead letters.

        The remaining items are stored with the batch in flight, so another worker can continue in the middle.
        """
        left = tuple(item for item in batch.items if item.key not in there)
        state: Literal["unsent", "in_doubt"] = "in_doubt" if self._is_blind_resend(in_flight) else "unsent"
        remaining = structs.replace(in_flight, items=left, digest="", state=state)
        receipts = self._build_arrived_receipts([item for item in batch.items if item.key in there])
        self.log.info("delivery.split", keys=[item.key for item in left])
        return await self._finish_batch(
            batch.processed_upto_seq, in_flight=structs.replace(in_flight, remaining=remaining), receipts=receipts
        )

    async def _send(self, attempt: DeliveryAttempt) -> DeliveryAttempt | None:
        """Send a batch and settle it; return the next attempt, already stored as in flight, or None if the cursor is
        done for now.
        """
        destination, batch = self.destination, attempt.batch
        if attempt.in_flight.state == "in_doubt":
            return await self._resolve_in_doubt(batch, attempt.in_flight)
        left = attempt.started_at + destination.deadline - self.gates.clock.monotonic()
        if left < destination.deadline / 2:
            # We may have stalled past the deadline, so confirm the claim before sending.
            return await self._begin_attempt(batch, attempt.in_flight, in_doubt=attempt.in_doubt)
        try:
            with self.gates.metrics.time_call(DELIVERY_SECONDS, self.claim.consumer):
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
            # The first time it is settled as soon as possible, then with growing delays, like any failure.
            self.attempts = 1
            await self._commit(Step.DELIVERY_RETRY, CursorUpdate(in_flight=in_flight, attempts=1, error=str(error)))
            # The request may still be carried out, at most until its deadline, so a probe before proves nothing.
            left = attempt.started_at + destination.deadline - self.gates.clock.monotonic()
            await self.gates.sleep(min(max(0.0, left), destination.late_seconds) + destination.visible_after)
            return await self._resolve_in_doubt(batch, in_flight)
        self.log.info(destination.delivered_event, keys=[item.key for item in batch.items])
        receipts = self._build_receipts(batch.items, remotes, in_doubt=attempt.in_doubt)
        if batch.lost_draft is not None and not self._is_blind():
            receipts += self._build_draft_receipts(batch, remote=remotes.get(batch.lost_draft.key, ""))
        return await self._finish_batch(
            batch.processed_upto_seq, batch.items, in_flight=attempt.in_flight, receipts=receipts
        )

    async def _settle_refusal(self, attempt: DeliveryAttempt, error: Refused | PartiallyDone) -> DeliveryAttempt | None:
        """Settle a refusal: find the items that are refused, and make them dead letters."""
        batch, partial = attempt.batch, isinstance(error, PartiallyDone)
        if len(batch.items) == 1:
            earlier = self._may_have_arrived(attempt.in_flight)
            if earlier:
                await self._wait_for_earlier_sends(attempt.in_flight)
            in_doubt = earlier or partial or attempt.in_doubt
            dead_letters = self._build_dead_letters(batch.items, str(error), in_doubt=in_doubt)
            return await self._finish_batch(
                batch.processed_upto_seq, batch.items, in_flight=attempt.in_flight, dead_letters=dead_letters
            )
        if not partial:
            return await self._send_one_by_one(batch, attempt.in_flight)
        in_flight = structs.replace(attempt.in_flight, state="in_doubt")
        await self._commit(Step.DELIVERY_RETRY, CursorUpdate(in_flight=in_flight, error=str(error)))
        # The answer has arrived, so no request is under way any more. Stored items may become visible later.
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
        """Settle a batch: advance the cursor, and in the same commit store the next batch as in flight, or release the
        claim.
        """
        replayed = in_flight.replays if in_flight else ()
        outcome = DeliveryOutcome(receipts=receipts, dead_letters=dead_letters, replayed=replayed)
        remaining = in_flight.remaining if in_flight else None
        while True:
            try:
                if remaining is not None:
                    return await self._begin_next_single(remaining, structs.replace(outcome, replayed=()))
                return await self._settle_cursor(upto, done, outcome)
            except Conflict:
                # The context changed while the next batch was made, so scan again. What is done stays done.
                self.scan = None
                self.replaying = [
                    dead_letter
                    for dead_letter in await self._list_replaying()
                    if dead_letter.id not in outcome.replayed
                ]

    async def _begin_next_single(self, remaining: InFlightBatch, outcome: DeliveryOutcome) -> DeliveryAttempt | None:
        """Send the first remaining item of a refused batch. The cursor advances after the last of them."""
        for index in range(len(remaining.items)):
            in_flight = structs.replace(remaining, items=remaining.items[index : index + 1])
            batch = await self._rebuild_batch(in_flight)
            if batch is None:
                outcome = structs.replace(
                    outcome, dead_letters=(*outcome.dead_letters, *self._build_erased_dead_letters(in_flight))
                )
                continue
            rest = remaining.items[index + 1 :]
            in_flight = structs.replace(
                in_flight,
                digest=batch.digest,
                state="sent",
                remaining=structs.replace(remaining, items=rest) if rest else None,
            )
            return await self._begin_first_attempt(
                batch, in_flight, CursorUpdate(in_flight=in_flight, attempts=0, error=""), outcome
            )
        return await self._settle_cursor(remaining.upto, (), outcome)

    async def _settle_cursor(
        self, upto: int, done: tuple[DeliveryItem, ...], outcome: DeliveryOutcome
    ) -> DeliveryAttempt | None:
        """Everything up to `upto` is done. Continue with a replay, else with the next batch from the log, else release
        the claim.
        """
        while self.replaying:
            dead_letter = self.replaying.pop(0)
            attempt = await self._replay(dead_letter, upto, outcome)
            if attempt is not None:
                return attempt
            outcome = structs.replace(outcome, replayed=(*outcome.replayed, dead_letter.id))
        idle = (
            self.scan is None and not done and self.claim.cursor.in_flight is None
        )  # nothing was sent before this scan
        since = self.gates.clock.monotonic()
        if self.scan is None or self.scan.has_more:
            self.scan = await self.destination.next_batch(self.claim, after=upto, done=done)
        else:
            # The last scan found nothing after this batch. If entries arrived since, the store keeps the cursor due.
            self.scan = structs.replace(self.scan, batch=None)
        self.attempts = 0
        batch = self.scan.batch
        if batch is None:
            await self._rest(self.scan, upto, outcome, idle=idle)
            return None
        if batch.lost_draft is not None and self._is_blind():
            how = resolve_in_doubt(self.destination.delivery, policy=self.destination.in_doubt_policy)
            self.log.warning("delivery.in_doubt", keys=[batch.lost_draft.key], then=how)
            if how == "hold":
                return await self._hold_reply(batch, outcome)
            doubt = self._build_draft_receipts(batch, remote="", in_doubt=True)
            outcome = structs.replace(outcome, receipts=(*outcome.receipts, *doubt))
        return await self._send_next(self.scan, batch, upto, outcome, since=since, idle=idle)

    async def _hold_reply(self, batch: DeliveryBatch, outcome: DeliveryOutcome) -> DeliveryAttempt | None:
        """Make a reply a dead letter instead of showing it beside its draft, and continue with the next batch. The dead
        letter stands for the draft, too."""
        reason = "it is unknown whether a part of it is visible, because the answer to the growing reply was lost"
        dead_letters = self._build_dead_letters(batch.items, reason, in_doubt=True)
        outcome = structs.replace(
            outcome,
            receipts=(*outcome.receipts, *self._build_draft_receipts(batch, remote="")),
            dead_letters=(*outcome.dead_letters, *dead_letters),
        )
        return await self._settle_cursor(batch.processed_upto_seq, batch.items, outcome)

    async def _replay(self, dead_letter: DeadLetter, upto: int, outcome: DeliveryOutcome) -> DeliveryAttempt | None:
        """Send a dead letter again; None if nothing of it may be sent any more."""
        items = (DeliveryItem(seq=dead_letter.seq, part=dead_letter.part, key=dead_letter.key),)
        again = InFlightBatch(items=items, upto=upto, digest="", state="voided", replays=(dead_letter.id,))
        batch = await self._rebuild_batch(again)
        if batch is None:
            return None
        # An item in doubt may have arrived before it became a dead letter, so this is at least the second send.
        sends = 2 if dead_letter.in_doubt else 1
        state: Literal["in_doubt", "sent"] = (
            "in_doubt" if dead_letter.in_doubt and self.destination.probes_before_resend else "sent"
        )
        in_flight = structs.replace(
            again,
            items=batch.items,
            digest=batch.digest,
            state=state,
            sends=sends,
            name=batch.name,
            peers=batch.peers,
        )
        update = CursorUpdate(processed_seq=upto, in_flight=in_flight, attempts=0, error="")
        return await self._begin_first_attempt(
            structs.replace(batch, processed_upto_seq=upto), in_flight, update, outcome
        )

    async def _begin_first_attempt(
        self, batch: DeliveryBatch, in_flight: InFlightBatch, update: CursorUpdate, outcome: DeliveryOutcome
    ) -> DeliveryAttempt:
        """Store that this batch is in flight, together with the outcome of the one before. It is its first attempt."""
        since = self.gates.clock.monotonic()
        self.attempts = 0
        await self._commit(Step.DELIVERY_SEND, update, outcome, generation=batch.generation)
        in_doubt = self._is_blind_resend(in_flight)
        return DeliveryAttempt(batch=batch, in_flight=in_flight, started_at=since, in_doubt=in_doubt)

    async def _rest(self, look: BatchScan, upto: int, outcome: DeliveryOutcome, *, idle: bool) -> None:
        """Release the claim, because there is nothing to send now."""
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
        # If the disk loses this commit, the batch in flight is still stored. It is sent again, or found by a probe.
        durable = not idle and bool(self._is_blind() or outcome.dead_letters or outcome.replayed)
        await self._commit(Step.CURSOR_SETTLE if idle else Step.DELIVERY_DONE, update, outcome, durable=durable)
        self.settled_upto_seq = upto

    async def _send_next(
        self, look: BatchScan, batch: DeliveryBatch, upto: int, outcome: DeliveryOutcome, *, since: float, idle: bool
    ) -> DeliveryAttempt:
        """Store the batch that was found as in flight, if it has to be stored. `since`: when the scan began."""
        batch = structs.replace(batch, generation=look.generation)
        in_flight = InFlightBatch(
            items=batch.items,
            upto=batch.processed_upto_seq,
            digest=batch.digest,
            name=batch.name,
            peers=batch.peers,
        )
        if idle and self.destination.rebuilds_in_flight and outcome == NO_OUTCOME:
            # A worker that comes after a crash sends the same batch again.
            return DeliveryAttempt(batch=batch, in_flight=in_flight, started_at=since)
        await self._commit(
            Step.DELIVERY_SEND if idle else Step.DELIVERY_DONE,
            CursorUpdate(processed_seq=upto, in_flight=in_flight, attempts=0, error=""),
            outcome,
            generation=look.generation,
            entries=batch.records,
            durable=not self.destination.rebuilds_in_flight
            or bool(outcome.dead_letters or outcome.replayed or batch.records),
        )
        self.settled_upto_seq = upto
        return DeliveryAttempt(batch=batch, in_flight=in_flight, started_at=since)

    async def _retry_later(
        self, batch: DeliveryBatch, in_flight: InFlightBatch, error: EverholdError
    ) -> DeliveryAttempt | None:
        """Retry later, or give the batch up and continue with the next."""
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
        """Return receipts of items that arrived although the answer was lost. Their remote id is empty, unless
        visibility is the only confirmation.
        """
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

    def _build_draft_receipts(
        self, batch: DeliveryBatch, *, remote: str, in_doubt: bool = False
    ) -> tuple[Receipt, ...]:
        """Return the receipt of the batch's lost draft, if it has one."""
        if batch.lost_draft is None:
            return ()
        remotes = {batch.lost_draft.key: remote}
        return self._build_receipts((batch.lost_draft,), remotes, in_doubt=in_doubt)

    def _build_erased_dead_letters(
        self, in_flight: InFlightBatch, left: tuple[DeliveryItem, ...] = ()
    ) -> tuple[DeadLetter, ...]:
        """Return dead letters for items that were erased in flight, if the destination cannot tell whether they
        arrived.
        """
        if in_flight.state == "unsent" or not self._is_blind():
            return ()
        keys = {item.key for item in left}
        voided_items = tuple(item for item in in_flight.items if item.key not in keys)
        return self._build_dead_letters(
            voided_items, "it was erased in flight, and it is unknown whether it arrived", in_doubt=True
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
                dead_letters=outcome.dead_letters,
                replayed=outcome.replayed,
                wakeups=wakeups,
                durable=durable,
            )
        )
        self.is_idle = done.rests
        for dead_letter in outcome.dead_letters:
            self.log.warning(
                self.destination.dead_letter_event,
                keys=[dead_letter.key],
                reason=dead_letter.reason,
                in_doubt=dead_letter.in_doubt,
            )
