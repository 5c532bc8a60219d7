"""Carries out rebuilds: sessions that a memory stores anew without items that were undone.

Every step is recorded before the next one and is safe to repeat: copy the session, give its conversations the new name,
wait for what is on its way to the old one, copy the rest, delete the old session, and read back until it is gone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec import structs

from everhold.admin.provider_erasure import ERASURE_DEADLINE_SECONDS, ProviderEraser
from everhold.admin.sessions import SessionAdmin
from everhold.core import erasure
from everhold.core.consumers import rekey_consumer
from everhold.core.entries import Changed, Entry, EntryDraft, EntryKind, MemoryNameSet, Noted
from everhold.core.erasure import PlaceErasure, list_erased_keys
from everhold.core.peers import PeerBook
from everhold.core.session_rebuild import SessionRebuild, begin_copying, continue_rebuild
from everhold.engine.effects import deliver_outside
from everhold.engine.memory.rebuilds import drop_rebuild, load_rebuilds, order_rebuild, save_rebuild
from everhold.engine.memory.tombstones import load_erasures
from everhold.engine.memory_client import MemoryClient
from everhold.engine.work_lock import WorkLock
from everhold.errors import EverholdError, LeaseLost
from everhold.ports.memory import MemoryCapability, ProviderDeletion, SessionRenewal
from everhold.ports.store import Change, Session, Step

RETRY_SECONDS: Final = 5.0
MAX_RETRY_SECONDS: Final = 3_600.0
"""The first and the longest delay before an unfinished rebuild is continued."""
SHARED_CHECK_SECONDS: Final = 60.0
"""How often a host looks for what other hosts left unfinished."""


class SessionRebuilder:
    """One per home."""

    def __init__(self, control: SessionAdmin, *, lock: WorkLock) -> None:
        """`lock` is held by a forgetting, because a copy could bring back what it erases."""
        self._lock = lock
        self.gates = control.gates
        self.store = control.store
        self.runtimes = control.runtimes
        self.ordered = control.wakeups.rebuild_ordered
        self.eraser = ProviderEraser(control.gates, control.runtimes)

    async def keep_rebuilding(self) -> None:
        """Carry out every rebuild that is ordered, with growing delays until it is confirmed. Runs until cancelled."""
        tries = 0
        while True:
            self.ordered.clear()
            await self.finish_rebuilds()
            left = await load_rebuilds(self.store)
            if left:
                await self.gates.sleep(self._choose_delay(left, tries), wakeup=self.ordered)
                tries += 1
            else:
                tries = 0
                await self._wait_for_orders()

    async def _wait_for_orders(self) -> None:
        if self.store.is_exclusive:
            await self.ordered.wait()
        else:  # another host may have recorded an order, and died
            await self.gates.sleep(SHARED_CHECK_SECONDS, wakeup=self.ordered)

    async def finish_rebuilds(self) -> None:
        """Take every rebuild as far as it goes now."""
        for listed in await load_rebuilds(self.store):
            try:
                async with self._lock:
                    # another host may have finished it meanwhile
                    for rebuild in await load_rebuilds(self.store):
                        if rebuild.key == listed.key:
                            await self._advance(rebuild)
            except LeaseLost:
                continue  # this host was too slow, and another one goes on with it

    def _choose_delay(self, left: Collection[SessionRebuild], tries: int) -> float:
        """Return how long to wait: until a memory that was read back once can be read back again, or ever longer."""
        half_read = [self.eraser.get_visible_after(it.place) for it in left if erasure.is_half_read(it.place)]
        return min([*half_read, MAX_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(tries, 20)])

    async def _advance(self, rebuild: SessionRebuild) -> None:
        now = self.gates.clock.now()
        if erasure.is_ask_due(rebuild.place, now=now):
            try:
                rebuild = await self._ask(rebuild)
            except EverholdError as error:
                place = erasure.record_problem(rebuild.place, f"{error}; everhold retries", now=now)
                await save_rebuild(self.gates, structs.replace(rebuild, place=place), account=self._lock.claim)
                self.gates.log.warning("memory.rebuild_failed", memory=rebuild.place.memory, error=error)
                return
        rebuild = await self._save(rebuild, await self.eraser.read_back(rebuild.place))
        if rebuild.place.asked_at and not rebuild.place.is_open:
            await self._finish(rebuild)

    async def _finish(self, rebuild: SessionRebuild) -> None:
        """Remove the order. What was undone after copying began may have been copied, so it is removed in turn."""
        if (rest := continue_rebuild(rebuild)) is not None:
            await order_rebuild(self.gates, rest)
            self.ordered.set()
        if await drop_rebuild(self.gates, rebuild):
            self.gates.log.info("memory.rebuilt", memory=rebuild.place.memory, items=len(rebuild.copied_keys))
        else:
            self.ordered.set()  # something was undone meanwhile

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _ask(self, rebuild: SessionRebuild) -> SessionRebuild:
        """Store the session anew, and ask for the deletion of the old one."""
        place = rebuild.place
        provider = self.runtimes.find_memory(place.memory, place.agent)
        if provider is None or not provider.has_capability(MemoryCapability.RENEW_SESSION):
            return await self._save(rebuild, self._record_problem(place, "it is not available"))
        sessions = await self._list_sessions(rebuild)
        if await self._is_busy(place, sessions):
            return await self._save(rebuild, self._record_problem(place, "a forgetting or a rekey is under way"))
        rebuild = await save_rebuild(self.gates, begin_copying(rebuild), account=self._lock.claim)
        deletions = await self._renew(provider, rebuild, sessions, is_left=False)
        if not deletions and not place.deletions:
            return await self._save(rebuild, erasure.record_asked(place, (), now=self.gates.clock.now()))
        rebuild = await self._save(rebuild, _record_planned(rebuild.place, deletions))
        await self._rename(rebuild)
        if not await self.eraser.wait_settled(place.memory, names=(rebuild.name,)):
            return await self._save(rebuild, self._record_problem(rebuild.place, "a batch for it is in flight"))
        deletions = await self._renew(provider, rebuild, sessions, is_left=True)
        return await self._save(rebuild, erasure.record_asked(rebuild.place, deletions, now=self.gates.clock.now()))

    async def _renew(
        self, provider: MemoryClient, rebuild: SessionRebuild, sessions: Collection[Session], *, is_left: bool
    ) -> list[ProviderDeletion]:
        entries = [entry for session in sessions for entry in await self.store.list_entries(session.id)]
        erased = [key for session in sessions for key in list_erased_keys(session.id, _select_of(entries, session))]
        renewal = SessionRenewal(
            name=rebuild.name,
            new_name=rebuild.new_name,
            is_left=is_left,
            keys=frozenset((*rebuild.keys, *erased)),
            since=rebuild.since,
            notes=frozenset(
                it.body.text for it in entries if isinstance(it.body, Noted) and it.body.action != "remove"
            ),
            starts=await self._list_starts(rebuild.place),
        )
        what = f"storing a session anew in {rebuild.place.memory}"
        return list(
            await deliver_outside(
                what, lambda: provider.renew_session(renewal), self.gates, deadline=ERASURE_DEADLINE_SECONDS
            )
        )

    async def _list_starts(self, place: PlaceErasure) -> dict[str, float]:
        """Return the peers that stand for their person only from a time on."""
        book = PeerBook(await self.store.list_peers(memory=place.memory, agent=place.agent))
        people = await self.store.get_people()
        return {
            row.peer: it.since
            for it in people.identities.values()
            if it.since > 0
            for row in book.list_records(it.identity)
        }

    async def _list_sessions(self, rebuild: SessionRebuild) -> list[Session]:
        """Return the sessions that have, or had, something in the memory's session."""
        own = {key.rpartition(":")[0] for key in rebuild.keys}
        memory = rebuild.place.memory
        return [
            it
            async for it in self.eraser.iterate_sessions()
            if it.id in own or it.names.get(memory) in (rebuild.name, rebuild.new_name)
        ]

    async def _is_busy(self, place: PlaceErasure, sessions: Collection[Session]) -> bool:
        """Return whether somebody else moves or erases something there. A copy would look newer than the erasure."""
        if erasure.list_blocking_erasures(await load_erasures(self.store), place.memory):
            return True
        moving = await self.store.list_cursors(consumer=rekey_consumer(place.memory), waiting=True)
        return not {it.session for it in moving}.isdisjoint(it.id for it in sessions)

    async def _rename(self, rebuild: SessionRebuild) -> None:
        """Lead every conversation that has the old name to the new session."""
        new = MemoryNameSet(memory=rebuild.place.memory, name=rebuild.new_name, replaces=rebuild.name)
        for session in await self._list_sessions(rebuild):
            given = await self._list_names(session, rebuild.place.memory)
            if not any(it.name == rebuild.name for it in given) or any(it.replaces == rebuild.name for it in given):
                continue
            # a session that was given another name meanwhile keeps it
            names = [new] if given[-1].name == rebuild.name else [new, given[-1]]
            drafts = tuple(EntryDraft(body=Changed(change=it), author="system") for it in names)
            at = self.gates.clock.now()
            await self.store.commit(Change(step=Step.ERASE, session=session.id, at=at, entries=drafts))

    async def _list_names(self, session: Session, memory: str) -> list[MemoryNameSet]:
        return [
            entry.body.change
            for entry in await self.store.list_entries(session.id, kinds=(EntryKind.CHANGED,))
            if isinstance(entry.body, Changed)
            and isinstance(entry.body.change, MemoryNameSet)
            and entry.body.change.memory == memory
        ]

    # -- helpers -------------------------------------------------------------------------------------------------------

    async def _save(self, rebuild: SessionRebuild, place: PlaceErasure) -> SessionRebuild:
        return await save_rebuild(self.gates, structs.replace(rebuild, place=place), account=self._lock.claim)

    def _record_problem(self, place: PlaceErasure, problem: str) -> PlaceErasure:
        return erasure.record_problem(place, f"{problem}; everhold retries", now=self.gates.clock.now())


def _record_planned(place: PlaceErasure, deletions: list[ProviderDeletion]) -> PlaceErasure:
    known = {it.deletion.id for it in place.deletions}
    new = tuple(erasure.DeletionRecord(deletion=it) for it in deletions if it.id not in known)
    return structs.replace(place, deletions=(*place.deletions, *new))


def _select_of(entries: Collection[Entry], session: Session) -> list[Entry]:
    return [entry for entry in entries if entry.session == session.id]
