"""What was erased, undone or taken back stays hidden until the memory that has it has confirmed the deletion.

A hit with a key or a place is judged by the log. A hit without one, and text that a memory reasons out, is withheld
from everybody for whom the memory may have concluded something from erased text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from everhold.core.entries import EntryKind
from everhold.core.erasure import PersonErasure, PlaceErasure, is_concerned, list_erased_keys
from everhold.core.exchange import get_original_key
from everhold.engine.facts import FactCache
from everhold.errors import NotFound
from everhold.ports.memory import ErasureState, MemoryHit
from everhold.ports.store import StateNamespace, Store

UNCONFIRMED_ERASURE: Final = "the memory has not confirmed an erasure"
"""Why a hit without a key is not shown."""


async def load_erasures(store: Store) -> list[PersonErasure]:
    """Return every forgetting that has begun."""
    found = await store.list_state_records(StateNamespace.ERASURE)
    return [msgspec.json.decode(it.value, type=PersonErasure) for it in found]


async def is_withheld(store: Store, memory: str, *, agent: str, audience: Collection[str]) -> bool:
    """Return whether a memory may still tell these people something that is being erased."""
    erasures = [it for it in await load_erasures(store) if _has_unconfirmed(it, memory, agent)]
    if not erasures:
        return False
    present = (await store.get_people()).expand_audience(tuple(audience)).list_members()
    return any(is_concerned(it, {*audience, *present}) for it in erasures)


def _has_unconfirmed(erasure: PersonErasure, memory: str, agent: str) -> bool:
    place = next((it for it in erasure.places if (it.memory, it.agent) == (memory, agent)), None)
    return place is not None and _can_show(place)


def _can_show(place: PlaceErasure) -> bool:
    if not place.asked_at:
        return True
    return any(it.state is not ErasureState.CONFIRMED and not it.deletion.hidden for it in place.deletions)


class TombstoneFilter(Struct):
    """Judges the hits of one search: for one agent and audience."""

    store: Store
    notes: FactCache | None
    agent: str
    audience: tuple[str, ...]
    _erased_keys: dict[str, frozenset[str]] = {}
    """Session -> the keys of items that contain something erased."""
    _withheld: dict[str, bool] = {}
    _retracted: frozenset[str] | None = None

    async def find_objection(self, memory: str, hit: MemoryHit) -> str:
        """Return why a hit must not be shown, whatever its place says; empty if it may."""
        if hit.key:
            key = get_original_key(hit.key)
            session = hit.session or key.rsplit(":", 2 if key.endswith(":note") else 1)[0]
            return "erased" if key in await self._list_erased_keys(session) else ""
        if hit.session and hit.seq:
            return ""
        if hit.text.strip() in await self._list_retracted_texts():
            return "taken back"
        if memory not in self._withheld:
            self._withheld[memory] = await is_withheld(self.store, memory, agent=self.agent, audience=self.audience)
        return UNCONFIRMED_ERASURE if self._withheld[memory] else ""

    async def _list_erased_keys(self, session: str) -> frozenset[str]:
        if session not in self._erased_keys:
            self._erased_keys[session] = frozenset(await self._read_erased_keys(session))
        return self._erased_keys[session]

    async def _read_erased_keys(self, session: str) -> Sequence[str]:
        try:
            if not await self.store.list_entries(session, kinds=(EntryKind.ERASED,), limit=1):
                return ()
        except NotFound:
            return ()  # another store's session, which only its memory can judge
        return list_erased_keys(session, await self.store.list_entries(session))

    async def _list_retracted_texts(self) -> frozenset[str]:
        """The texts of notes that were replaced or taken back. Some services keep a note without its key."""
        if self._retracted is None:
            versions = await self.notes.list_versions(self.agent) if self.notes is not None else []
            valid = {it.text.strip() for it in versions if it.valid_until is None}
            self._retracted = frozenset(it.text.strip() for it in versions if it.valid_until is not None) - valid
        return self._retracted
