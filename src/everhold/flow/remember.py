"""exchanges and notes -> provider: the courier of one memory instance, under the identity of their time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import structs

from everhold.core import consumers
from everhold.core.context import assemble, choose
from everhold.core.entries import (
    Body,
    Changed,
    Draft,
    Ended,
    Entry,
    Heard,
    Kind,
    MemoryNameSet,
    Noted,
    Notified,
    OperationsUndone,
    Stamp,
)
from everhold.core.exchange import PLACES, exchange, fingerprint, job, matters, note, retraction
from everhold.core.naming import Origin
from everhold.core.pace import Pace, Waiting, due
from everhold.errors import EverholdError, Transient
from everhold.flow.gates import Gates
from everhold.flow.lane import Load, Look, Notice
from everhold.flow.memory import Attached
from everhold.flow.perform import hand_over
from everhold.flow.switch import WINDOW, is_turn, switch_of
from everhold.ports.memory import Batch, Capability, Exchange, Job, Memory, Note, Retraction
from everhold.ports.platform import Delivery
from everhold.ports.store import Claim, InFlightBatch, Item, Operation, Session, Wakeup

MOST_ITEMS: Final = 20
PAGE: Final = 200
TELL_AT: Final = 3
"""The attempt that, when it fails, is worth a word in the chat: a short hiccup is not."""
SICK: Final = (
    "My memory {memory} is not answering. Nothing is lost: what we say is kept, and goes there once it is back."
)
HOOK_SECONDS: Final = 10.0
"""For a provider to take note of something that concerns nobody else."""
READ: Final = (*PLACES, Kind.COMPRESSED)


Handed: TypeAlias = Memory | Job


class Remember:
    """Hands one session's memories to one provider, in order, a batch at a time."""

    event = "memory.stored"
    parking = "memory.parked"

    def __init__(
        self,
        gates: Gates,
        provider: Attached,
        *,
        now: Callable[[], Attached | None],
        policy: str,
        instance: str = "",
        naming: Callable[[Origin], str] = lambda origin: origin.session,
        pace: Pace | None = None,
        released: float = float("-inf"),
        tells: bool = False,
        voices: Callable[[Sequence[Body]], tuple[Wakeup, ...]] = lambda _: (),
        upto: int | None = None,
    ) -> None:
        """`now` is asked for the provider before every call: the one there was may have been replaced.

        What was said up to `released` is not held back, whatever the pace. What stands behind `upto` is not looked at.
        """
        self.upto = upto
        self.gates = gates
        self.store = gates.store
        self.provider = provider
        self.now = now
        self.instance = instance
        self.naming = naming
        self.policy = policy
        self.pace = pace or Pace()
        self.released = released
        self.tells = tells
        self.voices = voices
        self.turns: dict[int, Entry] = {}
        """Where the talk took a turn, among what was looked at."""

    @property
    def delivery(self) -> Delivery:
        return self.provider.delivery

    @property
    def deadline(self) -> float:
        return self.provider.deadline

    @property
    def visible_after(self) -> float:
        return self.provider.visible_after

    @property
    def anew(self) -> bool:
        return False  # which exchanges went together is written down nowhere else

    @property
    def looks(self) -> bool:
        delivery = self.provider.delivery
        return delivery is Delivery.PROBE or (
            delivery is Delivery.UNACKNOWLEDGED and self.provider.can(Capability.PROBE)
        )

    async def next(self, claim: Claim, *, after: int, done: Sequence[Item] = ()) -> Look:
        session = await self.store.get_session(claim.session)
        upto = session.last_seq if self.upto is None else self.upto
        if not self._here():
            return Look(load=None, upto=after)  # what is left stays due, and waits for a provider
        most = max(MOST_ITEMS, min(self.pace.turns, PAGE))
        while True:
            page = await self.store.list_entries(claim.session, after=after, upto=upto, kinds=READ, limit=PAGE)
            ready, wait = await self._ready(session, page)
            self.turns.update({entry.seq: entry for entry in ready if is_turn(entry)})
            places = await self._wanted(session, [entry for entry in ready if matters(entry)])
            items: list[tuple[int, Handed]] = []
            for entry in places[:most]:
                if (memory := await self._memory(session, entry, jobs=self._hears_of_jobs)) is not None:
                    items.append((memory.seq if isinstance(memory, Job) else entry.seq, memory))
            more = len(page) == PAGE or len(places) > most
            if items or not more:
                load, rest = await self._named(session, items) if items else (None, False)
                return Look(
                    load=load,
                    upto=upto,
                    generation=session.generation,
                    more=more or rest,
                    passed=ready[-1].seq if ready and not more and not rest else 0,
                    wait=wait,
                )
            after = (places[most - 1] if len(places) > most else page[-1]).seq

    async def _wanted(self, session: Session, places: list[Entry]) -> list[Entry]:
        """Those of these places of which something is handed over at all: of the present, everything."""
        return places

    async def _ready(self, session: Session, page: Sequence[Entry]) -> tuple[list[Entry], float]:
        """What of a page is to be handed over now, and after how many seconds the rest is, if there is one."""
        found = [entry for entry in page if matters(entry) or is_turn(entry)]
        if len(page) == PAGE or self.pace.turns == 1 or not found:
            return found, 0.0
        ops = [entry.op for entry in found if entry.op is not None] or [0]
        ended = await self._operations(session.id, min(ops), max(ops), jobs=self._hears_of_jobs)
        what = {op.op: op.type for op in ended}
        # what ended and was no turn is nothing for memory: it neither fills a batch nor waits for one
        found = [entry for entry in found if entry.kind is not Kind.ENDED or entry.op in what]
        waiting = [
            Waiting(entry.at, urgent=entry.kind is not Kind.ENDED or what.get(entry.op or 0) == "job")
            for entry in found
        ]
        verdict = due(self.pace, waiting, now=self.gates.clock.now(), released=self.released)
        return found[: verdict.count], verdict.seconds

    async def notice(self, claim: Claim, *, attempts: int) -> Notice:
        """The chat hears once, in every outage that lasts, that its memory is not answering."""
        if attempts != TELL_AT or not self.tells:
            return Notice()
        latest = (await self.store.get_session(claim.session)).last_seq
        heard = await self.store.list_entries(claim.session, after=max(0, latest - WINDOW), kinds=(Kind.HEARD,))
        to = next((e.body.origin for e in reversed(heard) if isinstance(e.body, Heard) and e.body.asks), None)
        if to is None:
            return Notice()
        told = Notified(text=(text := SICK.format(memory=self.instance)), about="memory", to=to, parts=(text,))
        return Notice(entries=(Draft(body=told, author="system"),), wakes=self.voices((told,)))

    async def announce(self, claim: Claim, *, upto: int) -> None:
        """Tell the provider where the talk took a turn, as far as everything before it is done with."""
        for seq in sorted(self.turns):
            provider = self.now()
            if seq > upto or provider is None or not provider.can(Capability.SESSION_SWITCHED):
                continue
            session = await self.store.get_session(claim.session)
            switch = await switch_of(
                self.store,
                session,
                self.turns[seq],
                memory=self.instance,
                naming=lambda session, stamp: self.naming(origin_of(session, stamp)),
            )
            seconds = min(provider.deadline, HOOK_SECONDS)
            try:
                await hand_over(
                    f"session_switched of {self.instance}",
                    lambda provider=provider, switch=switch: provider.session_switched(switch),  # type: ignore[misc]
                    self.gates,
                    deadline=seconds,
                )
            except EverholdError as error:
                log = self.gates.log.bind(session=claim.session, memory=self.instance)
                log.warning("memory.hook_failed", hook="session_switched", error=str(error))
                provider.hook("session_switched", str(error))
            else:
                provider.hook("session_switched", "")

    async def again(self, claim: Claim, flight: InFlightBatch) -> Load | None:
        session = await self.store.get_session(claim.session)
        items = []
        for item in flight.items:
            entry = await self.store.get_entry(claim.session, item.seq)
            if (memory := await self._memory(session, entry)) is not None:
                items.append((item.seq, memory))
        if not items:
            return None
        # what was parked left its flight behind: it goes under the name of its time all the same
        name = flight.name or _name_at(await self._names(session.id) or [(0, self._name(session, items))], items[0][0])
        return self._load(items, upto=flight.upto, name=name)

    async def deliver(self, load: Load) -> Mapping[str, str]:
        assert isinstance(load.payload, Batch)
        batch = await self._with_past(load.payload)
        if not self._here():  # asked last: while something else is waited for, another may take its place
            raise Transient(f"memory {self.instance} is not attached")
        return await self.provider.store(batch)

    async def arrived(self, load: Load) -> Sequence[str]:
        assert isinstance(load.payload, Batch)
        batch = await self._with_past(load.payload)
        if not self._here():  # asked last: while something else is waited for, another may take its place
            raise Transient(f"memory {self.instance} is not attached")
        return await self.provider.probe(batch)

    async def _with_past(self, batch: Batch) -> Batch:
        """Looked up at the last moment, and no part of what a retry must repeat: it may have been erased meanwhile."""
        replaced: dict[str, str] = {}
        heard_by: dict[str, tuple[str, ...]] = {}
        for item in batch.items:
            if isinstance(item, Retraction):
                heard_by |= await self._heard_by(item)
            if not isinstance(item, Note) or item.action == "add":
                continue
            if item.supersedes:
                session, seq, _ = item.supersedes.rsplit(":", 2)
                old = (await self.store.get_entry(session, int(seq))).body
            else:
                old = await self._last_version(item) if item.fact else None
            if isinstance(old, Noted) and old.text:
                key = item.supersedes or item.fact
                replaced[key] = old.text
                # nobody takes back what others heard and they did not
                if item.stamp.audience and set(item.stamp.audience) <= set(old.stamp.audience):
                    heard_by[key] = old.stamp.audience
        return structs.replace(batch, replaced=replaced, heard_by=heard_by) if replaced or heard_by else batch

    async def _heard_by(self, retraction: Retraction) -> dict[str, tuple[str, ...]]:
        session = await self.store.get_session(retraction.session)
        heard_by: dict[str, tuple[str, ...]] = {}
        for key in retraction.keys:
            op = int(key.rpartition(":")[2])
            for turn in await self.store.list_operations(session.id, types=("turn",), after=op - 1, before=op + 1):
                memory = (
                    await self._memory(session, await self.store.get_entry(session.id, turn.last))
                    if turn.last
                    else None
                )
                if isinstance(memory, Exchange):
                    heard_by[key] = memory.stamp.audience
        return heard_by

    async def _last_version(self, note: Note) -> Noted | None:
        """How a fact was noted in another session."""
        last: Noted | None = None
        after = 0
        while page := await self.store.list_notes(after=after, limit=PAGE):
            for entry in page:
                if (entry.session, entry.seq) == (note.session, note.seq):
                    return last
                body = entry.body
                if isinstance(body, Noted) and body.fact == note.fact:
                    last = None if body.action == "remove" else body
            after = page[-1].pos
        return last

    def _here(self) -> bool:
        """Whether there is a provider; from here on it is the one in use now."""
        provider = self.now()
        self.provider = provider or self.provider
        return provider is not None

    async def _named(self, session: Session, items: list[tuple[int, Handed]]) -> tuple[Load, bool]:
        """The first of `items` that go under one name, jobs apart from the rest, and whether others are left.

        The name is resolved when a session's first memory is stored, recorded, and kept; one that was given later
        counts from there on.
        """
        names = await self._names(session.id)
        records: tuple[Draft, ...] = ()
        if not names:
            name = self._name(session, items)
            records = (Draft(body=Changed(change=MemoryNameSet(memory=self.instance, name=name)), author="system"),)
            names = [(0, name)]
        first = _name_at(names, items[0][0])
        alike = isinstance(items[0][1], Job)
        same = list(
            itertools.takewhile(
                lambda item: _name_at(names, item[0]) == first and isinstance(item[1], Job) == alike, items
            )
        )
        return self._load(same, name=first, records=records), len(same) < len(items)

    def _name(self, session: Session, items: list[tuple[int, Handed]]) -> str:
        """What a session is called by what is known of its first item."""
        return self.naming(origin_of(session, _stamp_of(items[0][1])))

    async def _names(self, session: str) -> list[tuple[int, str]]:
        return [
            (entry.seq, entry.body.change.name)
            for entry in await self.store.list_entries(session, kinds=(Kind.CHANGED,))
            if isinstance(entry.body, Changed)
            and isinstance(entry.body.change, MemoryNameSet)
            and entry.body.change.memory == self.instance
        ]

    def _load(
        self,
        items: list[tuple[int, Handed]],
        *,
        name: str,
        upto: int | None = None,
        records: tuple[Draft, ...] = (),
    ) -> Load:
        memories = tuple(memory for _, memory in items)
        jobs = tuple(memory for memory in memories if isinstance(memory, Job))
        others = tuple(memory for memory in memories if not isinstance(memory, Job))
        return Load(
            items=tuple(Item(seq=seq, key=memory.key) for seq, memory in items),
            upto=upto if upto is not None else items[-1][0],
            digest=fingerprint(name, memories),
            payload=Batch(name=name, items=others, jobs=jobs),
            name=name,
            records=records,
        )

    @property
    def _hears_of_jobs(self) -> bool:
        return self.provider.can(Capability.JOBS)

    async def _operations(self, session: str, first: int, last: int, *, jobs: bool) -> list[Operation]:
        """What memory is handed of these: turns, and tasks if it wants to hear of `jobs`. Reviews leave notes."""
        what = ("turn", "job") if jobs else ("turn",)
        found = await self.store.list_operations(session, types=what, after=first - 1, before=last + 1)
        return [op for op in found if op.type == "turn" or op.consumer == consumers.TASKS]

    async def _memory(self, session: Session, entry: Entry, *, jobs: bool = True) -> Handed | None:
        """What an entry stands for in memory. An exchange is built from its turn's own entries, as they were then; a
        job is filed under the entry that reports it, of which nothing is left once that is erased.
        """
        match entry.body:
            case Noted():
                return note(entry, agent=session.agent)
            case Heard():
                return job(entry, agent=session.agent)
            case Ended() if entry.op is not None:
                found = await self._operations(session.id, entry.op, entry.op, jobs=jobs)
                if not found:
                    return None
                turn = found[0]
                if turn.type == "job":
                    return await self._job(session, entry)
                entries = await self.store.list_entries(session.id, after=turn.first - 1, upto=entry.seq)
                # as it was when it ended: what undid it later is handed over at its own place
                selection = choose([turn], at=entry.seq + 1)
                ended = assemble(selection, entries).exchanges
                if not ended:
                    return None
                return exchange(
                    session=session.id,
                    agent=session.agent,
                    op=entry.op,
                    heard=ended[0].heard,
                    steps=ended[0].steps,
                    parent=session.parent,
                )
            case Changed(change=OperationsUndone(ops=ops)):
                turns = [
                    op.op
                    for each in ops
                    for op in await self.store.list_operations(
                        session.id, types=("turn",), after=each - 1, before=each + 1
                    )
                ]
                return retraction(entry, agent=session.agent, turns=turns)
            case _:
                return None

    async def _job(self, session: Session, ended: Entry) -> Job | None:
        """What came of a task: it is heard right behind the end of its job."""
        heard = await self.store.list_entries(session.id, after=ended.seq, upto=ended.seq + 1, kinds=(Kind.HEARD,))
        return job(heard[0], agent=session.agent) if heard else None


def origin_of(session: Session, stamp: Stamp) -> Origin:
    """What is known of a session when its first memory is stored, or first looked for."""
    # whoever speaks from a directory sits at a terminal: that has no chat to be named after
    gateway = not stamp.directory
    return Origin(
        session=session.id,
        owner=stamp.person,
        title=stamp.title,
        address=session.address if gateway else "",
        directory=stamp.directory,
        repo=stamp.repo,
    )


def _stamp_of(memory: Handed) -> Stamp:
    return memory.stamp if not isinstance(memory, Retraction) else Stamp()


def _name_at(names: list[tuple[int, str]], seq: int) -> str:
    """The name in force at an entry; what came before the first one goes under the first."""
    before = [name for at, name in names if at <= seq]
    return before[-1] if before else names[0][1]
