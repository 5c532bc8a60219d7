"""The lane machine: due, deliver, done | later | parked | in doubt; in order per session.

A lane hands over one load at a time. What is in flight is stored before it leaves, and a retry repeats exactly that.
What a load is, and how it is handed over, is the courier's business (voice, remember).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final, Literal, Protocol

from msgspec import Struct, structs

from everhold.core.entries import Draft
from everhold.core.retry import must_hold, resolution, wait_seconds
from everhold.errors import Conflict, EverholdError, InDoubt, Partial, Poisoned, Refused, Transient
from everhold.flow.gates import Gates
from everhold.flow.perform import hand_over
from everhold.ports.memory import SEEN
from everhold.ports.platform import Delivery
from everhold.ports.store import (
    Change,
    Claim,
    CursorUpdate,
    DeadLetter,
    InFlightBatch,
    Item,
    Receipt,
    RetryDelay,
    Step,
    Wakeup,
)

MOST_GAMBLES: Final = 3
"""How often something that may have arrived is sent again where nobody can tell."""


class Load(Struct, frozen=True, kw_only=True):
    """What is handed over at once."""

    items: tuple[Item, ...]
    upto: int
    """The lane's position once this is done with."""
    digest: str
    payload: object
    name: str = ""
    records: tuple[Draft, ...] = ()
    """What is to be written down with it, once."""
    generation: int = 0
    """The session's, before the load was made: an erasure since then must not find it on its way."""


class Look(Struct, frozen=True, kw_only=True):
    """What a courier saw when it looked at the log."""

    load: Load | None
    upto: int
    """The last seq it looked at."""
    generation: int = 0
    """The session's, as it was then."""
    more: bool = False
    """There is, or may be, more to hand over behind this load."""
    passed: int = 0
    """Without a load: up to here nothing is left to do."""
    wait: float = 0.0
    """Without a load: something is there, and held back for so many seconds unless more comes."""


class Leg(Struct, frozen=True, kw_only=True):
    """A load that is stored as in flight, about to be handed over."""

    load: Load
    flight: InFlightBatch
    since: float
    """Monotonic time before it was stored: its deadline counts from here, however long it takes to leave."""
    doubtful: bool = False
    """It may have arrived before: this is the policy's second try."""


class Notice(Struct, frozen=True, kw_only=True):
    """Something to be told, and who says it."""

    entries: tuple[Draft, ...] = ()
    wakes: tuple[Wakeup, ...] = ()


class Courier(Protocol):
    """Knows one kind of load and one far side."""

    policy: str
    event: str
    """What a delivered load is called in the log."""
    parking: str
    """And one that was given up."""

    @property
    def delivery(self) -> Delivery: ...

    @property
    def deadline(self) -> float: ...

    @property
    def visible_after(self) -> float: ...

    @property
    def looks(self) -> bool:
        """Whether `arrived` is worth a question before something goes that may be there already."""

    @property
    def anew(self) -> bool:
        """Whether a flight nobody remembers goes again just as it went, and is recognised."""

    async def next(self, claim: Claim, *, after: int, done: Sequence[Item] = ()) -> Look:
        """What is to be handed over after a position, `done` just being finished."""

    async def again(self, claim: Claim, flight: InFlightBatch) -> Load | None:
        """The load of a flight, built again from the log; None if nothing of it may be sent any more."""

    async def deliver(self, load: Load) -> Mapping[str, str]:
        """Hand it over; the remote id of each key."""

    async def arrived(self, load: Load) -> Sequence[str]:
        """Those of its keys that the far side already has."""

    async def notice(self, claim: Claim, *, attempts: int) -> Notice:
        """What somebody should be told about an attempt that failed, the so manieth in a row."""


class Lane:
    """Works one claimed lane until it is empty, waiting, or lost."""

    def __init__(self, gates: Gates, claim: Claim, courier: Courier) -> None:
        self.gates = gates
        self.claim = claim
        self.courier = courier
        self.attempts = claim.cursor.attempts
        self.look: Look | None = None
        self.settled = claim.cursor.processed_seq
        """Up to here everything is done with, on record."""
        self.rests = False
        self.replays: list[DeadLetter] = []
        """What somebody took back from the parked ones: goes again, before anything new."""
        self.log = gates.log.bind(session=claim.session, reader=claim.consumer)

    async def run(self) -> bool:
        """Whether nothing is left to do in it."""
        while True:
            try:
                await self._run()
                return self.rests
            except Conflict:
                # the view changed while a load was made, perhaps by an erasure: make it anew from what is stored
                found = await self.gates.store.get_cursor(self.claim.consumer, self.claim.session)
                if found is None or found.fence != self.claim.fence:
                    return False
                self.claim = structs.replace(self.claim, cursor=found)
                self.look = None

    async def _run(self) -> None:
        lane = self.claim.cursor
        self.replays = await self._replaying()
        leg = await (self._take_up(lane.in_flight) if lane.in_flight else self._land(lane.processed_seq))
        while leg is not None:
            leg = await self._send(leg)

    async def _replaying(self) -> list[DeadLetter]:
        return await self.gates.store.list_dead_letters(
            session=self.claim.session, consumer=self.claim.consumer, state="replaying"
        )

    async def _take_up(self, flight: InFlightBatch) -> Leg | None:
        """Go on with a flight found in the lane."""
        if flight.state != "unsent" and (must_hold(self.courier.delivery) or flight.state == "voided"):
            # whoever sent this may be stalled, not dead: its request may be carried out until its deadline
            await self.gates.sleep(self.courier.deadline + self.courier.visible_after)
        self.replays = [parked for parked in self.replays if parked.id not in flight.replays]
        load = await self._again(flight)
        if load is None:
            return await self._land(flight.upto, flight=flight, parks=self._lost(flight))
        load = structs.replace(load, upto=flight.upto)
        if flight.state == "voided":
            # something in it was erased: the rest is in doubt, as what it now is, under its own keys
            parks = self._lost(flight, load.items)
            flight = structs.replace(flight, items=load.items, digest=load.digest, state="in_doubt")
            await self._commit(
                Step.DELIVERY_SEND, CursorUpdate(in_flight=flight), parks=parks, generation=load.generation
            )
            return await self._resolve(load, flight)
        if load.digest != flight.digest:
            stored = await self.gates.store.get_cursor(self.claim.consumer, self.claim.session)
            if stored is None or stored.in_flight != flight:
                raise Conflict("the flight was voided while it was waited for")
            raise Poisoned(
                f"{self.claim.consumer} would not repeat what it sent for {self.claim.session}",
                remedy="entries behind a batch in flight were altered; run `everhold audit`",
            )
        if flight.state == "unsent":
            return await self._fly(load, flight, doubtful=self._gambled(flight))
        return await self._resolve(load, flight)

    def _gambled(self, flight: InFlightBatch) -> bool:
        """Whether an earlier send may have arrived, where nobody can tell: the doubt outlives who sent it."""
        return flight.sends > 1 and resolution(self.courier.delivery, policy="") == "gamble"

    async def _fly(
        self,
        load: Load,
        flight: InFlightBatch,
        *,
        doubtful: bool = False,
        receipts: tuple[Receipt, ...] = (),
        parks: tuple[DeadLetter, ...] = (),
    ) -> Leg:
        """Store that the load is about to leave: from here on nobody knows any more that it has not."""
        since = self.gates.clock.monotonic()
        flight = structs.replace(flight, state="sent")
        update = CursorUpdate(in_flight=flight)
        await self._commit(Step.DELIVERY_SEND, update, receipts=receipts, parks=parks, generation=load.generation)
        return Leg(load=load, flight=flight, since=since, doubtful=doubtful)

    async def _again(self, flight: InFlightBatch) -> Load | None:
        """The load of a flight as the log has it now."""
        _, generation = await self.gates.store.get_session_head(self.claim.session)
        load = await self.courier.again(self.claim, flight)
        return None if load is None else structs.replace(load, generation=generation)

    async def _resolve(self, load: Load, flight: InFlightBatch, *, refused: bool = False) -> Leg | None:
        """The answer was lost: ask, send again, or follow the policy; always counted where people see it.

        `refused`: what did not arrive would be refused again, as long as it goes together.
        """
        how = resolution(self.courier.delivery, policy=self.courier.policy)
        blind = how == "gamble"
        if blind and flight.sends >= MOST_GAMBLES:
            how = "hold"
        elif blind and self.courier.looks:
            how = "probe"  # what is seen there need not go again; what is not seen may be there all the same
        there: Sequence[str] = ()
        self.log.warning("delivery.in_doubt", keys=[item.key for item in load.items], then=how)
        if how == "hold":
            parks = self._parks(load.items, "nobody can tell whether it arrived", doubtful=True)
            return await self._land(load.upto, load.items, flight=flight, parks=parks)
        if how == "probe":
            try:
                there = await hand_over(
                    f"probe of {self.claim.consumer}",
                    lambda: self.courier.arrived(load),
                    self.gates,
                    deadline=self.courier.deadline,
                )
            except (Transient, InDoubt, Refused) as error:
                return await self._later(load, structs.replace(flight, state="in_doubt"), error)
            if set(there) >= {item.key for item in load.items}:
                receipts = self._found(load.items)
                return await self._land(load.upto, load.items, flight=flight, receipts=receipts)
            if there and not refused:
                return await self._complete(load, flight, set(there))
        if refused:
            return await self._one_by_one(load, structs.replace(flight, sends=flight.sends + 1), there=set(there))
        return await self._fly(load, structs.replace(flight, sends=flight.sends + 1), doubtful=blind)

    async def _complete(self, load: Load, flight: InFlightBatch, there: set[str]) -> Leg | None:
        """Part of a load arrived: that part is done, and the rest goes again by itself, under its own keys."""
        rest = structs.replace(flight, items=tuple(item for item in load.items if item.key not in there))
        missing = await self._again(rest)
        receipts = self._found([item for item in load.items if item.key in there])
        if missing is None:
            return await self._land(load.upto, load.items, flight=flight, receipts=receipts, parks=self._lost(rest))
        parks = self._lost(rest, missing.items)
        rest = structs.replace(rest, items=missing.items, digest=missing.digest, sends=flight.sends + 1)
        missing = structs.replace(missing, upto=flight.upto)
        return await self._fly(missing, rest, doubtful=self._gambled(rest), receipts=receipts, parks=parks)

    async def _one_by_one(self, load: Load, flight: InFlightBatch, *, there: Set[str] = frozenset()) -> Leg | None:
        """A batch was refused, and something in it is to blame: each item goes by itself, and only that one is parked.

        What is left is stored as part of the flight, so whoever takes the lane over goes on in the middle.
        """
        left = tuple(item for item in load.items if item.key not in there)
        state: Literal["unsent", "in_doubt"] = "in_doubt" if self._gambled(flight) else "unsent"
        behind = structs.replace(flight, items=left, digest="", state=state)
        receipts = self._found([item for item in load.items if item.key in there])
        self.log.info("delivery.one_by_one", keys=[item.key for item in left])
        return await self._land(load.upto, flight=structs.replace(flight, remaining=behind), receipts=receipts)

    async def _send(self, leg: Leg) -> Leg | None:
        """Hand a load over and settle it; the next one, already in flight, or None when the lane is done for now."""
        courier, load = self.courier, leg.load
        if leg.flight.state == "in_doubt":
            return await self._resolve(load, leg.flight)
        left = leg.since + courier.deadline - self.gates.clock.monotonic()
        if left < courier.deadline / 2:
            # we stood still on the way: a successor waits only so long, so ask the store whether it is still ours
            return await self._fly(load, leg.flight, doubtful=leg.doubtful)
        try:
            remotes = await hand_over(self.claim.consumer, lambda: courier.deliver(load), self.gates, deadline=left)
        except Transient as error:
            return await self._later(load, structs.replace(leg.flight, state="unsent"), error)
        except (Refused, Partial) as error:
            return await self._refused(leg, error)
        except InDoubt as error:
            flight = structs.replace(leg.flight, state="in_doubt")
            if self.attempts or not must_hold(courier.delivery):
                return await self._later(load, flight, error)
            # the first time it is settled as soon as it can be; after that with growing waits, like any failure
            self.attempts = 1
            await self._commit(Step.DELIVERY_RETRY, CursorUpdate(in_flight=flight, attempts=1, error=str(error)))
            # until its deadline the request may still be carried out, and until then a look proves nothing
            left = leg.since + courier.deadline - self.gates.clock.monotonic()
            await self.gates.sleep(max(0.0, left) + courier.visible_after)
            return await self._resolve(load, flight)
        self.log.info(courier.event, keys=[item.key for item in load.items])
        receipts = self._receipts(load.items, remotes, doubtful=leg.doubtful)
        return await self._land(load.upto, load.items, flight=leg.flight, receipts=receipts)

    async def _refused(self, leg: Leg, error: Refused | Partial) -> Leg | None:
        """It will not be taken, or not all of it: find out what is to blame, and park that."""
        load, partial = leg.load, isinstance(error, Partial)
        if len(load.items) == 1:
            parks = self._parks(load.items, str(error), doubtful=leg.doubtful or partial)
            return await self._land(load.upto, load.items, flight=leg.flight, parks=parks)
        if not partial:
            return await self._one_by_one(load, leg.flight)
        flight = structs.replace(leg.flight, state="in_doubt")
        await self._commit(Step.DELIVERY_RETRY, CursorUpdate(in_flight=flight, error=str(error)))
        # the answer is here, so nothing is on its way any more; what was kept may take a while to be seen
        await self.gates.sleep(self.courier.visible_after)
        return await self._resolve(load, flight, refused=True)

    async def _land(
        self,
        upto: int,
        done: tuple[Item, ...] = (),
        *,
        flight: InFlightBatch | None = None,
        receipts: tuple[Receipt, ...] = (),
        parks: tuple[DeadLetter, ...] = (),
    ) -> Leg | None:
        """The flight is over: move the position, and in the same commit put the next load in flight or let go."""
        unparks = flight.replays if flight else ()
        behind = flight.remaining if flight else None
        while True:
            try:
                if behind is not None:
                    return await self._next_alone(behind, receipts=receipts, parks=parks)
                return await self._settle(upto, done, receipts=receipts, parks=parks, unparks=unparks)
            except Conflict:
                # the view changed while the next load was made: look again; what is done with stays done
                self.look = None
                self.replays = [parked for parked in await self._replaying() if parked.id not in unparks]

    async def _next_alone(
        self, behind: InFlightBatch, *, receipts: tuple[Receipt, ...], parks: tuple[DeadLetter, ...]
    ) -> Leg | None:
        """Put the first of what is left of a refused batch in flight. The position waits for the last of them."""
        for index in range(len(behind.items)):
            flight = structs.replace(behind, items=behind.items[index : index + 1])
            load = await self._again(flight)
            if load is None:
                parks += self._lost(flight)
                continue
            rest = behind.items[index + 1 :]
            flight = structs.replace(
                flight,
                digest=load.digest,
                state="sent",
                remaining=structs.replace(behind, items=rest) if rest else None,
            )
            since = self.gates.clock.monotonic()
            self.attempts = 0
            await self._commit(
                Step.DELIVERY_SEND,
                CursorUpdate(in_flight=flight, attempts=0, error=""),
                receipts=receipts,
                parks=parks,
                generation=load.generation,
            )
            return Leg(load=load, flight=flight, since=since, doubtful=self._gambled(flight))
        return await self._settle(behind.upto, (), receipts=receipts, parks=parks, unparks=())

    async def _settle(
        self,
        upto: int,
        done: tuple[Item, ...],
        *,
        receipts: tuple[Receipt, ...],
        parks: tuple[DeadLetter, ...],
        unparks: tuple[int, ...],
    ) -> Leg | None:
        while self.replays:
            parked = self.replays.pop(0)
            again = InFlightBatch(
                items=(Item(seq=parked.seq, part=parked.part, key=parked.key),),
                upto=upto,
                digest="",
                state="voided",
                replays=(parked.id,),
            )
            load = await self._again(again)
            if load is None:
                unparks = (*unparks, parked.id)
                continue
            # what may have arrived before it was parked is now sent for the second time at least
            sends = 2 if parked.in_doubt else 1
            state: Literal["in_doubt", "sent"] = "in_doubt" if parked.in_doubt and self.courier.looks else "sent"
            flight = structs.replace(
                again, items=load.items, digest=load.digest, state=state, sends=sends, name=load.name
            )
            load = structs.replace(load, upto=upto)
            update = CursorUpdate(processed_seq=upto, in_flight=flight, attempts=0, error="")
            since = self.gates.clock.monotonic()
            self.attempts = 0
            await self._commit(
                Step.DELIVERY_SEND, update, receipts=receipts, parks=parks, unparks=unparks, generation=load.generation
            )
            return Leg(load=load, flight=flight, since=since, doubtful=self._gambled(flight))
        first = self.look is None and not done and self.claim.cursor.in_flight is None
        if self.look is None or self.look.more:
            self.look = await self.courier.next(self.claim, after=upto, done=done)
        else:
            # the last look saw nothing behind this load; if something came since, the store keeps the lane due
            self.look = structs.replace(self.look, load=None)
        self.attempts = 0
        since = self.gates.clock.monotonic()
        load = self.look.load
        if load is None:
            step = Step.CURSOR_SETTLE if first else Step.DELIVERY_DONE
            upto = max(upto, self.look.passed)
            update = CursorUpdate(
                processed_seq=upto,
                clear_in_flight=True,
                attempts=0,
                error="",
                idle_at=self.look.upto,
                wait=RetryDelay(seconds=self.look.wait) if self.look.wait else None,
                release=True,
            )
            # if the disk loses this, the flight is still there and goes again
            repeats = not parks and not unparks and resolution(self.courier.delivery, policy="") == "resend"
            await self._commit(
                step,
                update,
                receipts=receipts,
                parks=parks,
                unparks=unparks,
                durable=not repeats and step is not Step.CURSOR_SETTLE,
            )
            self.settled = upto
            return None
        flight = InFlightBatch(items=load.items, upto=load.upto, digest=load.digest, name=load.name)
        update = CursorUpdate(processed_seq=upto, in_flight=flight, attempts=0, error="")
        step = Step.DELIVERY_SEND if first else Step.DELIVERY_DONE
        await self._commit(
            step,
            update,
            receipts=receipts,
            parks=parks,
            unparks=unparks,
            generation=self.look.generation,
            entries=load.records,
            durable=not self.courier.anew or bool(parks or unparks or load.records),
        )
        self.settled = upto
        load = structs.replace(load, generation=self.look.generation)
        return Leg(load=load, flight=flight, since=since)

    async def _later(self, load: Load, flight: InFlightBatch, error: EverholdError) -> Leg | None:
        """Try again when it makes sense, or give the load up and go on with the next."""
        self.attempts += 1
        asked = error.retry_after if isinstance(error, Transient) else None
        seconds = asked if asked is not None else wait_seconds(self.attempts, jitter=self.gates.chance.random())
        if seconds is None:
            parks = self._parks(
                load.items,
                f"given up after {self.attempts} attempts: {error}",
                doubtful=flight.state != "unsent" or self._gambled(flight),
            )
            return await self._land(load.upto, load.items, flight=flight, parks=parks)
        self.log.info("delivery.later", attempt=self.attempts, seconds=round(seconds, 1), error=str(error))
        update = CursorUpdate(
            in_flight=flight,
            attempts=self.attempts,
            error=str(error),
            wait=RetryDelay(seconds=seconds, mandatory=asked is not None),
            release=True,
        )
        notice = await self.courier.notice(self.claim, attempts=self.attempts)
        await self._commit(Step.DELIVERY_RETRY, update, entries=notice.entries, wakes=notice.wakes)
        return None

    def _found(self, items: Sequence[Item]) -> tuple[Receipt, ...]:
        """Receipts of those that arrived although the answer was lost. What stands for their ids: nothing, unless being
        seen is all there ever is."""
        keys = [item.key for item in items]
        if keys:
            self.log.info(self.courier.event, keys=keys, found=True)
        return self._receipts(
            items, dict.fromkeys(keys, SEEN) if self.courier.delivery is Delivery.UNACKNOWLEDGED else {}
        )

    def _receipts(
        self, items: Sequence[Item], remotes: Mapping[str, str], *, doubtful: bool = False
    ) -> tuple[Receipt, ...]:
        return tuple(
            Receipt(
                consumer=self.claim.consumer,
                session=self.claim.session,
                seq=item.seq,
                part=item.part,
                key=item.key,
                remote=remotes.get(item.key, ""),
                in_doubt=doubtful,
            )
            for item in items
        )

    def _lost(self, flight: InFlightBatch, left: tuple[Item, ...] = ()) -> tuple[DeadLetter, ...]:
        """What was erased whole on its way to somebody who cannot tell: it may be there all the same."""
        if flight.state == "unsent" or resolution(self.courier.delivery, policy="") != "gamble":
            return ()
        keys = {item.key for item in left}
        gone = tuple(item for item in flight.items if item.key not in keys)
        return self._parks(gone, "it was erased on its way, and nobody can tell whether it arrived", doubtful=True)

    def _parks(self, items: tuple[Item, ...], reason: str, *, doubtful: bool = False) -> tuple[DeadLetter, ...]:
        return tuple(
            DeadLetter(
                consumer=self.claim.consumer,
                session=self.claim.session,
                seq=item.seq,
                part=item.part,
                key=item.key,
                reason=reason,
                in_doubt=doubtful,
            )
            for item in items
        )

    async def _commit(
        self,
        step: Step,
        update: CursorUpdate,
        *,
        receipts: tuple[Receipt, ...] = (),
        parks: tuple[DeadLetter, ...] = (),
        unparks: tuple[int, ...] = (),
        generation: int | None = None,
        entries: tuple[Draft, ...] = (),
        wakes: tuple[Wakeup, ...] = (),
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
                receipts=receipts,
                dead_letters=parks,
                replayed=unparks,
                wakeups=wakes,
                durable=durable,
            )
        )
        self.rests = done.rests
        for parked in parks:
            self.log.warning(self.courier.parking, keys=[parked.key], reason=parked.reason, doubtful=parked.in_doubt)
