"""exchanges and notes -> provider: the courier of one memory instance, under the identity of their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from everhold.core.context import assemble, choose
from everhold.core.entries import Changed, Ended, Entry, Noted, Undone
from everhold.core.exchange import PLACES, exchange, fingerprint, matters, note, retraction
from everhold.flow.lane import Load, Look
from everhold.ports.memory import Batch, Memory, MemoryProvider
from everhold.ports.store import Claim, Flight, Item, Session, Store

MOST_ITEMS: Final = 20
PAGE: Final = 200


def reader_of(instance: str) -> str:
    """The lane of a memory instance."""
    return f"memory:{instance}"


class Remember:
    """Hands one session's memories to one provider, in order, a batch at a time."""

    event = "memory.stored"

    def __init__(self, store: Store, provider: MemoryProvider, *, policy: str) -> None:
        self.store = store
        self.provider = provider
        self.delivery = provider.delivery
        self.deadline = provider.deadline
        self.visible_after = provider.visible_after
        self.policy = policy

    async def next(self, claim: Claim, *, after: int, done: Sequence[Item] = ()) -> Look:
        session = await self.store.session(claim.session)
        upto = session.last_seq
        while True:
            page = await self.store.entries(claim.session, after=after, upto=upto, kinds=PLACES, limit=PAGE)
            places = [entry for entry in page if matters(entry)]
            items = []
            for entry in places[:MOST_ITEMS]:
                if (memory := await self._memory(session, entry)) is not None:
                    items.append((entry, memory))
            more = len(page) == PAGE or len(places) > MOST_ITEMS
            if items or not more:
                load = self._load(session, items) if items else None
                return Look(load=load, upto=upto, generation=session.generation, more=more)
            after = (places[MOST_ITEMS - 1] if len(places) > MOST_ITEMS else page[-1]).seq

    async def again(self, claim: Claim, flight: Flight) -> Load | None:
        session = await self.store.session(claim.session)
        items = []
        for item in flight.items:
            entry = await self.store.entry(claim.session, item.seq)
            if (memory := await self._memory(session, entry)) is not None:
                items.append((entry, memory))
        return self._load(session, items, upto=flight.upto, name=flight.name) if items else None

    async def deliver(self, load: Load) -> Mapping[str, str]:
        assert isinstance(load.payload, Batch)
        return await self.provider.store(load.payload)

    async def arrived(self, load: Load) -> Sequence[str]:
        assert isinstance(load.payload, Batch)
        return await self.provider.probe(load.payload)

    def _load(
        self, session: Session, items: list[tuple[Entry, Memory]], *, upto: int | None = None, name: str = ""
    ) -> Load:
        name = name or session.id
        memories = tuple(memory for _, memory in items)
        return Load(
            items=tuple(Item(seq=entry.seq, key=memory.key) for entry, memory in items),
            upto=upto if upto is not None else items[-1][0].seq,
            digest=fingerprint(name, memories),
            payload=Batch(name=name, items=memories),
            name=name,
        )

    async def _memory(self, session: Session, entry: Entry) -> Memory | None:
        """What an entry stands for in memory. An exchange is built from its turn's own entries, as they were then."""
        match entry.body:
            case Noted():
                return note(entry, agent=session.agent)
            case Ended() if entry.op is not None:
                found = await self.store.operations(session.id, what=("turn",), after=entry.op - 1, before=entry.op + 1)
                if not found:
                    return None
                turn = found[0]
                entries = await self.store.entries(session.id, after=turn.first - 1, upto=entry.seq)
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
            case Changed(change=Undone(ops=ops)):
                turns = [
                    op.op
                    for each in ops
                    for op in await self.store.operations(session.id, what=("turn",), after=each - 1, before=each + 1)
                ]
                return retraction(entry, agent=session.agent, turns=turns)
            case _:
                return None
