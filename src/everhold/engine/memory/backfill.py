"""Send older history to a memory that was added later: a bounded range of each session, at a limited rate, beside new
items.

Each session has a separate backfill cursor, so a crash loses nothing. The range ends where the memory's own cursor
began, so nothing is sent twice. The order is stored in the commit that starts the backfill. Turns and notes that were
undone, replaced or taken back are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, structs

from everhold.core.consumers import backfill_consumer, memory_consumer
from everhold.core.entries import Began, Ended, Entry, EntryKind, Heard, Noted, Said, Took
from everhold.core.exchange import is_memory_entry
from everhold.core.tokens import weigh_text
from everhold.engine.facts import FactCache
from everhold.engine.gates import Gates
from everhold.engine.memory.destination import MAX_BATCH_ITEMS, PAGE_ENTRIES, MemoryDestination
from everhold.engine.outbox.delivery import BatchScan
from everhold.engine.state_updates import update_state_record
from everhold.ports.store import Change, Claim, DeliveryItem, Session, StateNamespace, StateWrite, Step, Store, Wakeup

DEFAULT_ITEMS_PER_MINUTE: Final = 60
"""The default rate of exchanges and notes, because services charge for requests and limit them."""
_BACKFILL_KINDS: Final = (EntryKind.HEARD, EntryKind.SAID, EntryKind.NOTED, EntryKind.ENDED, EntryKind.CHANGED)


class BackfillOrder(Struct, frozen=True, kw_only=True):
    """What a backfill of one session has to do."""

    upto: int
    per_minute: int
    after: int = 0
    stood: int = -1
    """Where the cursor was when this was ordered. If it is still there, it moves to `after`, which may be earlier."""


class BackfillRange(Struct, frozen=True, kw_only=True):
    """The part of one session that a memory never received."""

    session: str
    agent: str
    after: int
    upto: int
    stood: int
    version: int
    """The version of the order that existed when this was computed."""
    items: int
    tokens: int
    since: float
    until: float


class BackfillRateLimit:
    """When the next batch of a memory may be sent. It is kept in memory, so after a restart one
    batch may come early.
    """

    def __init__(self, gates: Gates) -> None:
        self.gates = gates
        self.free_at = float("-inf")

    async def get_wait_seconds(self) -> float:
        return max(0.0, self.free_at - self.gates.clock.monotonic())

    async def count_items(self, items: int, per_minute: int) -> None:
        self.free_at = max(self.free_at, self.gates.clock.monotonic()) + items * 60.0 / per_minute


class SharedBackfillRateLimit(BackfillRateLimit):
    """The same for all hosts of a store. Each of them may send one batch early."""

    def __init__(self, gates: Gates, instance: str) -> None:
        super().__init__(gates)
        self.instance = instance

    async def get_wait_seconds(self) -> float:
        record = await self.gates.store.get_state_record(StateNamespace.BACKFILL_RATE, self.instance)
        return 0.0 if record is None else max(0.0, float(record.value) - await self.gates.store.get_time())

    async def count_items(self, items: int, per_minute: int) -> None:
        now, seconds = await self.gates.store.get_time(), items * 60.0 / per_minute
        await update_state_record(
            self.gates.store,
            StateNamespace.BACKFILL_RATE,
            self.instance,
            at=self.gates.clock.now(),
            decide=lambda free_at: repr(max(float(free_at or 0.0), now) + seconds),
        )


class BackfillDestination(MemoryDestination):
    """The destination of a backfill: like the memory destination, but with an end and a rate limit."""

    delivered_event = "memory.backfilled"

    def __init__(
        self, *args: Any, rate_limit: BackfillRateLimit, order: BackfillOrder, notes: FactCache | None, **options: Any
    ) -> None:
        super().__init__(*args, upto=order.upto, **options)
        self.rate_limit = rate_limit
        self.notes = notes
        self.order = order
        self._done: set[int] = set()

    @property
    def _receives_jobs(self) -> bool:
        return False  # a backfill sends only exchanges and notes; the result of a task was heard in the session

    async def _select_places(self, session: Session, places: list[Entry]) -> list[Entry]:
        places = [entry for entry in places if entry.seq not in self._done]
        return await select_valid_entries(self.store, self.notes, session, places)

    async def next_batch(self, claim: Claim, *, after: int, done: Sequence[DeliveryItem] = ()) -> BatchScan:
        # Entries after the end of the range do not keep this cursor due.
        last = (await self.store.get_session(claim.session)).last_seq
        if (seconds := await self.rate_limit.get_wait_seconds()) > 0:
            return BatchScan(batch=None, scanned_upto_seq=last, wait_seconds=seconds)
        if after == self.order.stood:
            after = self.order.after
        # The cursor may have been moved back to what an earlier order left out. Items that were sent before are
        # skipped.
        self._done = await _list_backfilled_seqs(self.store, claim.session, self.instance) | {item.seq for item in done}
        look = await super().next_batch(claim, after=after, done=done)
        if look.batch is not None:
            await self.rate_limit.count_items(len(look.batch.items), self.order.per_minute)
        return structs.replace(look, scanned_upto_seq=last)


def _order_key(instance: str, session: str) -> str:
    return f"{instance}:{session}"


async def load_backfill_order(store: Store, instance: str, session: str) -> BackfillOrder:
    """Return the stored order; without one there is nothing to do."""
    record = await store.get_state_record(StateNamespace.BACKFILL, _order_key(instance, session))
    upto, per_minute, after, stood = map(int, ("0 1 0 -1" if record is None else record.value).split(" "))
    return BackfillOrder(upto=upto, per_minute=per_minute, after=after, stood=stood)


async def select_valid_entries(
    store: Store, notes: FactCache | None, session: Session, places: Sequence[Entry]
) -> list[Entry]:
    """Return those of these places whose item is still valid: turns that are not undone, and notes."""
    ops = [entry.op for entry in places if entry.op is not None and isinstance(entry.body, Ended)]
    turns = (
        await store.list_operations(session.id, types=("turn",), after=min(ops) - 1, before=max(ops) + 1) if ops else []
    )
    stand = {turn.op for turn in turns if not turn.undone_at}
    retracted = await notes.find_retracted(session.agent, places) if notes is not None else set()
    return [
        entry
        for entry in places
        if (isinstance(entry.body, Ended) and entry.op in stand)
        or (isinstance(entry.body, Noted) and (entry.session, entry.seq) not in retracted)
    ]


async def find_backfill_range(
    store: Store,
    session: Session,
    instance: str,
    *,
    notes: FactCache | None,
    since: float = 0.0,
    until: float = float("inf"),
) -> BackfillRange | None:
    """Return the part of a session within a time range that a memory never received; None if there is none."""
    ordered = await store.get_state_record(StateNamespace.BACKFILL, _order_key(instance, session.id))
    begun = await store.get_cursor(backfill_consumer(instance), session.id)
    stood = begun.processed_seq if begun is not None else -1
    delivered = await _list_backfilled_seqs(store, session.id, instance) if begun is not None else set()
    upto = min(session.last_seq, await _find_own_start(store, session, instance))
    first, last, items, tokens = 0, 0, 0, 0
    earliest = latest = 0.0
    at = 0
    while at < upto:
        page = await store.list_entries(session.id, after=at, upto=upto, kinds=_BACKFILL_KINDS, limit=PAGE_ENTRIES)
        within = [entry for entry in page if since <= entry.at < until]
        new = [entry for entry in within if is_memory_entry(entry) and entry.seq not in delivered]
        places = [
            entry
            for entry in await select_valid_entries(store, notes, session, new)
            if entry.seq > stood or await _has_text_left(store, entry)
        ]
        for entry in places:
            items += 1
            first, last = first or entry.seq, entry.seq
            earliest, latest = earliest or entry.at, entry.at
        tokens += await _estimate_page_tokens(store, within, places)
        if len(page) < PAGE_ENTRIES:
            break
        at = page[-1].seq
    if not items:
        return None
    return BackfillRange(
        session=session.id,
        agent=session.agent,
        after=first - 1,
        upto=last,
        stood=stood,
        version=0 if ordered is None else ordered.version,
        items=items,
        tokens=tokens,
        since=earliest,
        until=latest,
    )


async def _find_own_start(store: Store, session: Session, instance: str) -> int:
    """Return the last entry before the range of the memory's own cursor."""
    consumer = memory_consumer(instance)
    cursor = await store.get_cursor(consumer, session.id)
    if cursor is None:
        return session.last_seq
    taken = [one.seq for one in await store.list_receipts(session.id, consumer=consumer)]
    taken += [one.seq for one in await store.list_dead_letters(session=session.id, consumer=consumer)]
    taken += [item.seq for item in cursor.in_flight.items] if cursor.in_flight else []
    return min(taken) - 1 if taken else cursor.processed_seq


async def _list_backfilled_seqs(store: Store, session: str, instance: str) -> set[int]:
    """Return the seqs that a backfill has sent, is sending, or has given up."""
    consumer = backfill_consumer(instance)
    delivered = {one.seq for one in await store.list_receipts(session, consumer=consumer)}
    delivered |= {one.seq for one in await store.list_dead_letters(session=session, consumer=consumer, state="")}
    cursor = await store.get_cursor(consumer, session)
    return (
        delivered | {item.seq for item in cursor.in_flight.items}
        if cursor is not None and cursor.in_flight
        else delivered
    )


async def _has_text_left(store: Store, place: Entry) -> bool:
    """Return whether a place still has text. Of a turn this is so unless all of it was erased."""
    if place.op is None or isinstance(place.body, Noted):
        return True
    steps = await store.list_entries(place.session, after=place.op - 1, upto=place.seq)
    own = [entry.body for entry in steps if entry.op == place.op]
    heard = await store.get_cited_entries(
        {(place.session, seq) for it in own if isinstance(it, Began | Took) for seq in it.takes}
    )
    return any(isinstance(it, Said) for it in own) or any(it.entry.body is not None for it in heard.values())


async def _estimate_page_tokens(store: Store, page: Sequence[Entry], places: Sequence[Entry]) -> int:
    """Estimate the tokens of what was said on a page and is not undone, and of the notes among `places`."""
    said = {(entry.session, entry.seq) for entry in page if isinstance(entry.body, Heard | Said)}
    stand = [it.entry for it in (await store.get_cited_entries(said)).values() if not it.undone]
    # Memories receive only what people said themselves.
    return sum(weigh_text(it.body.text) for it in (*stand, *places) if isinstance(it.body, Heard | Said | Noted))


def count_requests(stretches: Sequence[BackfillRange]) -> int:
    """Return the number of requests that a backfill needs."""
    return sum(-(-one.items // MAX_BATCH_ITEMS) for one in stretches)


async def start_backfill(gates: Gates, one: BackfillRange, instance: str, *, per_minute: int) -> None:
    """Store the order and wake up the backfill. A repeated order continues, or returns to what was left out.

    Raises Conflict if another operator ordered a backfill of the session after `one` was computed.
    """
    order = StateWrite(
        namespace=StateNamespace.BACKFILL,
        key=_order_key(instance, one.session),
        value=f"{one.upto} {per_minute} {one.after} {one.stood}",
        version=one.version,
    )
    await gates.store.commit(
        Change(
            step=Step.REPLAY,
            session=one.session,
            at=gates.clock.now(),
            state_writes=(order,),
            wakeups=(Wakeup(consumer=backfill_consumer(instance), start=one.after),),
        )
    )
