"""What was erased, undone or taken back stays hidden until the memory that has it has confirmed the deletion.

A hit with a key or a place is judged by the log. A hit without one, and text that a memory reasons out, is withheld
from everybody for whom the memory may have concluded something from such text.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Struct

from everhold.core.consumers import memory_consumer
from everhold.core.entries import Changed, Entry, Noted, OperationsUndone
from everhold.core.erasure import PersonErasure, is_concerned, list_erased_keys, list_kept_keys
from everhold.core.exchange import get_original_key
from everhold.core.forgetting import get_stamp
from everhold.core.session_rebuild import is_member
from everhold.engine.facts import FactCache
from everhold.engine.memory.rebuilds import load_rebuilds
from everhold.ports.memory import MemoryHit
from everhold.ports.store import StateNamespace, Store

UNCONFIRMED_ERASURE: Final = "the memory has not confirmed a deletion"
"""Why a hit without a key is not shown."""


async def load_erasures(store: Store) -> list[PersonErasure]:
    """Return every forgetting that has begun."""
    found = await store.list_state_records(StateNamespace.ERASURE)
    return [msgspec.json.decode(it.value, type=PersonErasure) for it in found]


async def is_withheld(store: Store, memory: str, *, agent: str, audience: Collection[str]) -> bool:
    """Return whether a memory may still tell these people something that is being erased, or that was undone or taken
    back and that it was not told yet.
    """
    members = {*audience, *(await store.get_people()).expand_audience(tuple(audience)).list_members()}
    erasures = [it for it in await load_erasures(store) if _has_unconfirmed(it, memory, agent)]
    if any(is_concerned(it, members) for it in erasures):
        return True
    if any(it.place.memory == memory and is_member(it, members) for it in await load_rebuilds(store)):
        return True
    return await _has_pending_retraction(store, memory, agent=agent, members=members)


async def _has_pending_retraction(store: Store, memory: str, *, agent: str, members: Collection[str]) -> bool:
    """Return whether something that these people could hear was undone or taken back, and is not delivered yet."""
    consumer = memory_consumer(memory)
    pending = {
        cursor.session
        for cursor in await store.list_cursors(consumer=consumer, waiting=True)
        if any(map(_is_retraction, await store.list_entries(cursor.session, after=cursor.processed_seq)))
    }
    for refused in await store.list_dead_letters(consumer=consumer):
        if _is_retraction(await store.get_entry(refused.session, refused.seq)):
            pending.add(refused.session)
    for id in pending:
        stamps = (get_stamp(entry) for entry in await store.list_entries(id))
        heard_by = {member for stamp in stamps if stamp is not None for member in stamp.audience}
        if not heard_by.isdisjoint(members) and (await store.get_session(id)).agent == agent:
            return True
    return False


def _is_retraction(entry: Entry) -> bool:
    match entry.body:
        case Changed(change=OperationsUndone()):
            return True
        case Noted(action=action):
            return action != "add"
        case _:
            return False


def _has_unconfirmed(erasure: PersonErasure, memory: str, agent: str) -> bool:
    return any(it.can_show for it in erasure.places if (it.memory, it.agent) == (memory, agent))


class TombstoneFilter(Struct):
    """Judges the hits of one search: for one agent and audience."""

    store: Store
    notes: FactCache | None
    agent: str
    audience: tuple[str, ...]
    _erasure_counts: dict[str, int] = {}
    """By session."""
    _withheld: dict[str, bool] = {}
    _retracted: frozenset[str] | None = None

    async def find_objection(self, memory: str, hit: MemoryHit, *, is_in_log: bool) -> str:
        """Return why a hit must not be shown, whatever its place says; empty if it may. `is_in_log`: its place was
        judged.
        """
        if hit.key:
            key = get_original_key(hit.key)
            session = hit.session or key.rsplit(":", 2 if key.endswith(":note") else 1)[0]
            if not is_in_log or await self._count_erasures(session):
                entries = await self._list_item_entries(session, key)
                if key in list_erased_keys(session, entries):
                    return "erased"
                is_in_log = is_in_log or key in list_kept_keys(session, entries)
        elif hit.text.strip() in await self._list_retracted_texts():
            return "taken back"
        if is_in_log:
            return ""
        # it has no key, or the log does not know it: the store was restored, or another one wrote it
        if memory not in self._withheld:
            self._withheld[memory] = await is_withheld(self.store, memory, agent=self.agent, audience=self.audience)
        return UNCONFIRMED_ERASURE if self._withheld[memory] else ""

    async def _count_erasures(self, session: str) -> int:
        if session not in self._erasure_counts:
            self._erasure_counts[session] = await self.store.count_erasures(session)
        return self._erasure_counts[session]

    async def _list_item_entries(self, session: str, key: str) -> list[Entry]:
        """Return the entries that an item was made of. A session may be long, so nothing else of it is read."""
        number = key.removeprefix(f"{session}:").removesuffix(":note")
        if not number.isdecimal():
            return []
        seq = int(number)
        if key.endswith(":note"):
            return await self.store.list_entries(session, after=seq - 1, upto=seq)
        turns = await self.store.list_operations(session, after=seq - 1, before=seq + 1, limit=1)
        if not turns:
            return []
        return await self.store.list_entries(session, after=turns[0].first - 1, upto=turns[0].last or None)

    async def _list_retracted_texts(self) -> frozenset[str]:
        """The texts of notes that were replaced or taken back. Some services keep a note without its key."""
        if self._retracted is None:
            self._retracted = await self.notes.list_retracted_texts(self.agent) if self.notes else frozenset()
        return self._retracted
