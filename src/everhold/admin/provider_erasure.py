"""Erases a person in one memory: ask it to delete, and read back until nothing is found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from msgspec import structs

from everhold.core import erasure
from everhold.core.consumers import backfill_consumer, get_memory_name, memory_consumer, rekey_consumer
from everhold.core.entries import Changed, Entry, EntryDraft, MemoryNameSet, Stamp
from everhold.core.erasure import PersonErasure, PlaceErasure
from everhold.core.exchange import get_original_key
from everhold.core.peers import PeerBook, find_peer_at
from everhold.core.people import PERSON_MEMBER
from everhold.core.session_rebuild import make_new_name
from everhold.engine.agent_runtime import AgentRuntimes
from everhold.engine.effects import deliver_outside
from everhold.engine.gates import Gates
from everhold.engine.memory.destination import build_session_origin
from everhold.errors import EverholdError
from everhold.ports.memory import ErasureState, ErasureTarget, MemoryCapability, ProviderDeletion
from everhold.ports.store import Change, Receipt, Session, Step

T = TypeVar("T")
SavePlace: TypeAlias = Callable[[PlaceErasure], Awaitable[None]]

SETTLE_WAIT_SECONDS: Final = 60.0
"""How long a forgetting waits for batches in flight before it reports that they are not settled."""
ERASURE_DEADLINE_SECONDS: Final = 3_600.0
"""How long one request to delete or read back may take. The provider's own deadline is for one write; an erasure lists
and deletes everything that it has of a person.
"""
_READABLE_CAPABILITIES: Final = frozenset({MemoryCapability.FORGET, MemoryCapability.RENEW_SESSION})
MOVED_NAME: Final = "moved"
"""Begins the name of a session that goes on without a conversation."""
READ_INTERVAL_SECONDS: Final = 1.0
"""The shortest time between two readbacks of a memory that shows everything at once."""


class ProviderEraser:
    """Asks the memories of all agents, and reads back. It changes nothing in the log except the names of sessions."""

    def __init__(self, gates: Gates, runtimes: AgentRuntimes) -> None:
        self.gates = gates
        self.store = gates.store
        self.runtimes = runtimes
        self.errors: dict[tuple[str, str], str] = {}
        """(agent, memory) -> the last error. It is not stored, because a service may repeat what it was sent."""

    async def ask_place(
        self, place: PlaceErasure, person: PersonErasure, sessions: Collection[Session], *, save: SavePlace
    ) -> PlaceErasure:
        """Ask a memory to delete, after batches in flight that could bring the data back. `sessions` are those in which
        something was erased. `save` stores the place: before it is asked, and as soon as it has answered, because what
        it deleted is named only once.
        """
        provider = self.runtimes.find_memory(place.memory, place.agent)
        if provider is None:
            return self._record_problem(place, "it is not available; everhold asks it once it is")
        if not provider.has_capability(MemoryCapability.FORGET):
            return self._record_asked(place, [_build_incapable_deletion()])
        if not await self.wait_settled(place.memory, names=()):
            return self._record_problem(place, "a batch with some of the data is in flight; everhold retries")
        place = _drop_incapable_deletion(place)
        target = await self._build_target(place, person, sessions)
        place = erasure.record_began(place, now=self.gates.clock.now())
        await save(place)
        try:
            deletions = await self._call(place, "forgetting", lambda: provider.forget(target))
            place = self._record_asked(place, deletions)
            await save(place)
            planned = [it.session for it in deletions if it.state is ErasureState.PLANNED and it.session]
            if planned:
                moved = await self._choose_new_names(place, person, planned)
                place = erasure.record_new_names(place, moved)
                await save(place)
                await self._move_sessions(place, moved)
                if not await self.wait_settled(place.memory, names=planned):
                    return self._record_problem(place, "a batch for a session that is deleted is in flight")
                target = structs.replace(target, moved_sessions=moved)
                deletions = await self._call(place, "forgetting", lambda: provider.forget(target))
                place = self._record_asked(place, deletions)
                await save(place)
        except EverholdError as error:
            return self._record_failure(place, "it could not be asked", error)
        return place

    async def read_back(self, place: PlaceErasure) -> PlaceErasure:
        """Read back what a memory was asked to delete."""
        unread = erasure.list_unread(place)
        provider = self.runtimes.find_memory(place.memory, place.agent)
        if not unread:
            return place
        if provider is None or provider.capabilities.isdisjoint(_READABLE_CAPABILITIES):
            return self._record_problem(place, "it is not available, so nothing can be read back")
        try:
            states = await self._call(place, "reading back", lambda: provider.confirm_deletions(unread))
        except EverholdError as error:
            return self._record_failure(place, "it could not be read back", error)
        return erasure.record_readback(
            place, states, visible_after=self.get_visible_after(place), now=self.gates.clock.now()
        )

    def get_visible_after(self, place: PlaceErasure) -> float:
        """Return how far apart two readbacks have to be, in seconds."""
        provider = self.runtimes.find_memory(place.memory, place.agent)
        return max(READ_INTERVAL_SECONDS, provider.visible_after if provider is not None else 0.0)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _record_asked(self, place: PlaceErasure, deletions: Sequence[ProviderDeletion]) -> PlaceErasure:
        return erasure.record_asked(place, deletions, now=self.gates.clock.now())

    def _record_problem(self, place: PlaceErasure, problem: str) -> PlaceErasure:
        return erasure.record_problem(place, problem, now=self.gates.clock.now())

    def _record_failure(self, place: PlaceErasure, what: str, error: EverholdError) -> PlaceErasure:
        self.errors[place.agent, place.memory] = f"{what}: {error}; everhold retries"
        return self._record_problem(place, f"{what}; everhold retries")

    async def _call(self, place: PlaceErasure, what: str, work: Callable[[], Awaitable[T]]) -> T:
        return await deliver_outside(f"{what} in {place.memory}", work, self.gates, deadline=ERASURE_DEADLINE_SECONDS)

    async def _build_target(
        self, place: PlaceErasure, person: PersonErasure, sessions: Collection[Session]
    ) -> ErasureTarget:
        book = PeerBook(await self.store.list_peers(memory=place.memory, agent=place.agent))
        audience = {it.removeprefix(PERSON_MEMBER) for members in person.audiences for it in members}
        keys: list[str] = []
        kept: list[str] = []
        remote_ids: list[str] = []
        former: dict[str, set[str]] = {}
        for session in sessions:
            if session.agent == place.agent:
                entries = await self.store.list_entries(session.id)
                for identity, entry in _list_of_former_owners(entries, person):
                    row = find_peer_at(book.list_records(identity), entry.pos)
                    former.setdefault(identity, set()).update([row.peer] if row is not None else ())
                erased = erasure.list_erased_keys(session.id, entries)
                kept += erasure.list_kept_keys(session.id, entries)
                receipts = await self._list_receipts(session.id, place.memory)
                mine = [it for it in receipts if get_original_key(it.key) in set(erased)]
                keys += [*erased, *(it.key for it in mine)]
                remote_ids += [it.remote for it in mine if it.remote]
        own, shared = book.split_peers(person.identities)
        reused_peers = set().union(*former.values())
        return ErasureTarget(
            identities=person.identities,
            peers=tuple(it for it in own if it not in reused_peers),
            shared_peers=(*shared, *(it for it in own if it in reused_peers)),
            reused_identities=frozenset(former),
            kept_keys=frozenset(kept),
            before=person.at,
            peers_of={it: tuple(dict.fromkeys(row.peer for row in book.list_records(it))) for it in sorted(audience)},
            keys=tuple(dict.fromkeys(keys)),
            remote_ids=tuple(dict.fromkeys(remote_ids)),
            audiences=person.audiences,
            rebuild=person.rebuild,
        )

    async def _list_receipts(self, session: str, memory: str) -> list[Receipt]:
        """Return what a memory has of a session, also what was moved to another peer there."""
        return [it for one in _list_consumers(memory) for it in await self.store.list_receipts(session, consumer=one)]

    async def list_memories_of(self, session: Session) -> list[str]:
        """Return the memories that received something of a session, whether or not they are configured."""
        consumers = [it.consumer for it in await self.store.list_cursors(session=session.id)]
        found = dict.fromkeys(name for it in consumers if (name := get_memory_name(it)))
        return [name for name in found if await self._list_receipts(session.id, name)]

    async def count_received(self, place: PlaceErasure, sessions: Collection[Session]) -> int:
        """Return how many items of these sessions a memory received."""
        receipts = [
            it
            for session in sessions
            if session.agent == place.agent
            for it in await self._list_receipts(session.id, place.memory)
        ]
        return len({get_original_key(it.key) for it in receipts})

    async def _choose_new_names(
        self, place: PlaceErasure, person: PersonErasure, names: Sequence[str]
    ) -> dict[str, str]:
        """Return a new name for each of these sessions of a memory; the same one again after a crash. The title may be
        erased, so no name is made of it or of the old name.
        """
        # a name that no conversation has any more was given up with its title, or by another step
        plain = dict.fromkeys(names, MOVED_NAME)
        async for session in self._iterate_named(place, names):
            runtime = self.runtimes.get_runtime(session.agent, session.choices)
            origin = build_session_origin(session, Stamp())
            plain[session.names[place.memory]] = runtime.choose_memory_name(place.memory, origin)
        places = (place, *person.places)
        return {
            old: erasure.find_new_name(places, place.memory, old) or make_new_name(new, f"{person.id}\0{old}")
            for old, new in plain.items()
        }

    async def _move_sessions(self, place: PlaceErasure, moved: Mapping[str, str]) -> None:
        """Give every conversation that is stored under one of these names its new one. No item goes to the old session
        any more, however old.
        """
        async for session in self._iterate_named(place, moved):
            old = session.names[place.memory]
            body = Changed(change=MemoryNameSet(memory=place.memory, name=moved[old], replaces=old))
            draft = EntryDraft(body=body, author="system")
            at = self.gates.clock.now()
            await self.store.commit(Change(step=Step.ERASE, session=session.id, at=at, entries=(draft,)))

    async def _iterate_named(self, place: PlaceErasure, names: Collection[str]) -> AsyncIterator[Session]:
        """Yield the conversations of the agent that the memory stores under one of these names."""
        async for session in self.iterate_sessions():
            if session.agent == place.agent and session.names.get(place.memory, "") in names:
                yield session

    async def wait_settled(self, memory: str, *, names: Collection[str]) -> bool:
        """Wait for batches in flight that contain erased entries, or that go to a session with one of `names`. Return
        whether there are none left.
        """
        until = self.gates.clock.monotonic() + SETTLE_WAIT_SECONDS
        while True:
            flying = [
                cursor.in_flight
                for consumer in _list_consumers(memory)
                for cursor in await self.store.list_cursors(consumer=consumer)
                if cursor.in_flight is not None
            ]
            if not any(it.state == "voided" or it.name in names for it in flying):
                return True
            if self.gates.clock.monotonic() >= until:
                return False
            await self.gates.sleep(1.0)

    async def iterate_sessions(self) -> AsyncIterator[Session]:
        after = ""
        while page := await self.store.list_sessions(limit=500, after=after):
            for session in page:
                yield session
            after = page[-1].id


def _list_of_former_owners(entries: Iterable[Entry], person: PersonErasure) -> Iterator[tuple[str, Entry]]:
    """Yield what the person's identities said before they were the person's."""
    for entry in entries if person.starts else ():
        identity = entry.author.removeprefix(PERSON_MEMBER)
        if entry.author != identity and entry.at < person.starts.get(identity, 0.0):
            yield identity, entry


def _list_consumers(memory: str) -> tuple[str, ...]:
    return memory_consumer(memory), backfill_consumer(memory), rekey_consumer(memory)


def _build_incapable_deletion() -> ProviderDeletion:
    return ProviderDeletion(
        id="all",
        what="everything it has of the person",
        state=ErasureState.CANNOT,
        reason="it cannot delete; delete its data with the provider's own tools",
    )


def _drop_incapable_deletion(place: PlaceErasure) -> PlaceErasure:
    """Return a place without the record that it cannot delete at all, because now it can."""
    incapable = _build_incapable_deletion()
    kept = tuple(it for it in place.deletions if it.deletion != incapable)
    return structs.replace(place, deletions=kept)
