"""History -> a memory that came later: a bounded range of each session, at a rate, beside what is being said.

A lane of its own for each session, so it survives whatever the log survives. It ends where the memory's own lane began:
nothing is handed over twice. What it has to do is written down with the commit that starts it. What was undone,
replaced or taken back by now is passed over: the memory was told so before it had it, or never will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, structs

from everhold.core.consumers import backfill_consumer, memory_consumer
from everhold.core.entries import Began, Ended, Entry, Heard, Kind, Noted, Said, Took
from everhold.core.exchange import matters
from everhold.core.tokens import weigh
from everhold.flow.facts import Facts
from everhold.flow.gates import Gates
from everhold.flow.lane import Look
from everhold.flow.remember import MOST_ITEMS, PAGE, Remember
from everhold.ports.store import Change, Claim, Item, Session, StateNamespace, StateWrite, Step, Store, Wakeup

PER_MINUTE: Final = 60
"""Exchanges and notes, unless somebody says otherwise: services charge, and limit."""
_READ: Final = (Kind.HEARD, Kind.SAID, Kind.NOTED, Kind.ENDED, Kind.CHANGED)


class Order(Struct, frozen=True, kw_only=True):
    """What a backfill of one session has to do."""

    upto: int
    per_minute: int
    after: int = 0
    stood: int = -1
    """Where the lane stood when this was asked for: if it still does, it goes to `after`, which may lie before that."""


class Stretch(Struct, frozen=True, kw_only=True):
    """The part of one session that a memory has never been handed."""

    session: str
    agent: str
    after: int
    upto: int
    stood: int
    version: int
    """Of the order that was there when this was found out."""
    items: int
    tokens: int
    since: float
    until: float


class Meter:
    """How soon the next hand-over of an instance may be. In memory: a restart costs one batch that comes early."""

    def __init__(self) -> None:
        self.free_at = float("-inf")

    def wait(self, now: float) -> float:
        return max(0.0, self.free_at - now)

    def take(self, items: int, per_minute: int, now: float) -> None:
        self.free_at = max(self.free_at, now) + items * 60.0 / per_minute


class Backfill(Remember):
    """The courier of the past: like the one of the present, but it ends, and takes its time."""

    event = "memory.backfilled"

    def __init__(self, *args: Any, meter: Meter, order: Order, notes: Facts | None, **options: Any) -> None:
        super().__init__(*args, upto=order.upto, **options)
        self.meter = meter
        self.notes = notes
        self.order = order
        self._done: set[int] = set()

    @property
    def _hears_of_jobs(self) -> bool:
        return False  # of the past only what was said and noted goes: what came of a task was heard by the next turn

    async def _wanted(self, session: Session, places: list[Entry]) -> list[Entry]:
        places = [entry for entry in places if entry.seq not in self._done]
        return await holding(self.store, self.notes, session, places)

    async def next(self, claim: Claim, *, after: int, done: Sequence[Item] = ()) -> Look:
        now = self.gates.clock.monotonic()
        # what comes after its end is nothing to it: it does not stay due for that
        last = (await self.store.get_session(claim.session)).last_seq
        if (seconds := self.meter.wait(now)) > 0:
            return Look(load=None, upto=last, wait=seconds)
        if after == self.order.stood:
            after = self.order.after
        # it may have been sent back to what an earlier order left out: what it passes again is not handed over again
        self._done = await _handed(self.store, claim.session, self.instance) | {item.seq for item in done}
        look = await super().next(claim, after=after, done=done)
        if look.load is not None:
            self.meter.take(len(look.load.items), self.order.per_minute, now)
        return structs.replace(look, upto=last)


def _order_key(instance: str, session: str) -> str:
    return f"{instance}:{session}"


async def order_of(store: Store, instance: str, session: str) -> Order:
    """As it was written down; nothing to do if it was not."""
    record = await store.get_state_record(StateNamespace.BACKFILL, _order_key(instance, session))
    upto, per_minute, after, stood = map(int, ("0 1 0 -1" if record is None else record.value).split(" "))
    return Order(upto=upto, per_minute=per_minute, after=after, stood=stood)


async def holding(store: Store, notes: Facts | None, session: Session, places: Sequence[Entry]) -> list[Entry]:
    """Those of these places at which something stands that holds by now: turns that are not undone, and notes."""
    ops = [entry.op for entry in places if entry.op is not None and isinstance(entry.body, Ended)]
    turns = (
        await store.list_operations(session.id, types=("turn",), after=min(ops) - 1, before=max(ops) + 1) if ops else []
    )
    stand = {turn.op for turn in turns if not turn.undone_at}
    gone = await notes.gone(session.agent, places) if notes is not None else set()
    return [
        entry
        for entry in places
        if (isinstance(entry.body, Ended) and entry.op in stand)
        or (isinstance(entry.body, Noted) and (entry.session, entry.seq) not in gone)
    ]


async def stretch(
    store: Store,
    session: Session,
    instance: str,
    *,
    notes: Facts | None,
    since: float = 0.0,
    until: float = float("inf"),
) -> Stretch | None:
    """What of a session a memory was never handed and would be, within a time; None if there is nothing."""
    ordered = await store.get_state_record(StateNamespace.BACKFILL, _order_key(instance, session.id))
    begun = await store.get_cursor(backfill_consumer(instance), session.id)
    stood = begun.processed_seq if begun is not None else -1
    handed = await _handed(store, session.id, instance) if begun is not None else set()
    upto = min(session.last_seq, await _own_beginning(store, session, instance))
    first, last, items, tokens = 0, 0, 0, 0
    earliest = latest = 0.0
    at = 0
    while at < upto:
        page = await store.list_entries(session.id, after=at, upto=upto, kinds=_READ, limit=PAGE)
        within = [entry for entry in page if since <= entry.at < until]
        new = [entry for entry in within if matters(entry) and entry.seq not in handed]
        places = [
            entry
            for entry in await holding(store, notes, session, new)
            if entry.seq > stood or await _still_says(store, entry)
        ]
        for entry in places:
            items += 1
            first, last = first or entry.seq, entry.seq
            earliest, latest = earliest or entry.at, entry.at
        tokens += await _weight(store, within, places)
        if len(page) < PAGE:
            break
        at = page[-1].seq
    if not items:
        return None
    return Stretch(
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


async def _own_beginning(store: Store, session: Session, instance: str) -> int:
    """The last entry before those that the memory's own lane takes care of."""
    reader = memory_consumer(instance)
    lane = await store.get_cursor(reader, session.id)
    if lane is None:
        return session.last_seq
    taken = [one.seq for one in await store.list_receipts(session.id, consumer=reader)]
    taken += [one.seq for one in await store.list_dead_letters(session=session.id, consumer=reader)]
    taken += [item.seq for item in lane.in_flight.items] if lane.in_flight else []
    return min(taken) - 1 if taken else lane.processed_seq


async def _handed(store: Store, session: str, instance: str) -> set[int]:
    """What a backfill is done with, on its way, or has given up."""
    reader = backfill_consumer(instance)
    handed = {one.seq for one in await store.list_receipts(session, consumer=reader)}
    handed |= {one.seq for one in await store.list_dead_letters(session=session, consumer=reader, state="")}
    lane = await store.get_cursor(reader, session)
    return handed | {item.seq for item in lane.in_flight.items} if lane is not None and lane.in_flight else handed


async def _still_says(store: Store, place: Entry) -> bool:
    """Whether anything is left to hand over at a place that was passed: of a turn, unless all of it was erased."""
    if place.op is None or isinstance(place.body, Noted):
        return True
    steps = await store.list_entries(place.session, after=place.op - 1, upto=place.seq)
    own = [entry.body for entry in steps if entry.op == place.op]
    heard = await store.get_cited_entries(
        {(place.session, seq) for it in own if isinstance(it, Began | Took) for seq in it.takes}
    )
    return any(isinstance(it, Said) for it in own) or any(it.entry.body is not None for it in heard.values())


async def _weight(store: Store, page: Sequence[Entry], places: Sequence[Entry]) -> int:
    """Tokens of what was said on a page and is not undone, and of the notes among `places`."""
    said = {(entry.session, entry.seq) for entry in page if isinstance(entry.body, Heard | Said)}
    stand = [it.entry for it in (await store.get_cited_entries(said)).values() if not it.undone]
    return sum(weigh(it.body.text) for it in (*stand, *places) if isinstance(it.body, Heard | Said | Noted))


def requests(stretches: Sequence[Stretch]) -> int:
    """Hand-overs it takes; what each of them costs is the service's to say."""
    return sum(-(-one.items // MOST_ITEMS) for one in stretches)


async def begin(gates: Gates, one: Stretch, instance: str, *, per_minute: int) -> None:
    """Write down what is to be done, and let it be done. Begun again, it goes on, or back to what it left out.

    Raises Conflict if another operator ordered a backfill of the session since `one` was found out.
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
