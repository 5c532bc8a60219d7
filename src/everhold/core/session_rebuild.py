"""The durable state of a session that a memory stores anew without items that were undone. Pure.

A memory that deletes items only together with their session may have concluded something from them. Its conclusions
name no source, so the session is stored under a new name without the undone items, and the old one is deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

from msgspec import structs

from everhold.core.entries import StoredRecord
from everhold.core.erasure import PlaceErasure

MAX_MEMORY_NAME_CHARS: Final = 100
NEW_NAME_DIGITS: Final = 8


class SessionRebuild(StoredRecord, frozen=True, kw_only=True):
    """One session of a memory, and how far its rebuild has come."""

    place: PlaceErasure
    name: str
    """The memory's name of the session."""
    keys: tuple[str, ...]
    """The keys of the undone items."""
    members: tuple[str, ...]
    """Everybody who could hear something in the session. The memory may have concluded something for any of them."""
    since: float
    """When the first undone word was said."""
    copied_keys: tuple[str, ...] = ()
    """The keys that were known when copying began. A key that came later may have been copied."""

    @property
    def key(self) -> str:
        return make_rebuild_key(self.place.memory, self.name)

    @property
    def new_name(self) -> str:
        """The name of the session that takes the place of the old one. It stays the same after a crash."""
        return make_new_name(self.name, "\0".join(self.copied_keys))

    @property
    def is_stale(self) -> bool:
        """Whether an item was undone after copying began."""
        return not set(self.keys) <= set(self.copied_keys)


def make_rebuild_key(memory: str, name: str) -> str:
    return f"{memory}:{name}"


def merge_rebuilds(known: SessionRebuild, other: SessionRebuild) -> SessionRebuild:
    """Return `known` with everything that `other` knows to be undone."""
    return structs.replace(
        known,
        keys=tuple(dict.fromkeys((*known.keys, *other.keys))),
        members=tuple(dict.fromkeys((*known.members, *other.members))),
        since=min(known.since, other.since),
    )


def begin_copying(rebuild: SessionRebuild) -> SessionRebuild:
    """Return the rebuild before anything is copied. It is stored, because the new name depends on it."""
    return rebuild if rebuild.copied_keys else structs.replace(rebuild, copied_keys=rebuild.keys)


def continue_rebuild(rebuild: SessionRebuild) -> SessionRebuild | None:
    """Return the rebuild of the new session, if something that was copied has been undone since."""
    if not rebuild.is_stale:
        return None
    place = PlaceErasure(agent=rebuild.place.agent, memory=rebuild.place.memory)
    return structs.replace(rebuild, name=rebuild.new_name, place=place, copied_keys=())


def is_member(rebuild: SessionRebuild, members: Collection[str]) -> bool:
    return not set(rebuild.members).isdisjoint(members)


def make_new_name(name: str, salt: str) -> str:
    """Return a name that was never used, for the session that continues a deleted one."""
    digits = hashlib.sha256(f"{salt}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:NEW_NAME_DIGITS]
    return f"{name[: MAX_MEMORY_NAME_CHARS - NEW_NAME_DIGITS - 1].rstrip('-')}-{digits}"
