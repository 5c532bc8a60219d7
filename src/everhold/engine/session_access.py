"""Find out to whom a session belongs, and who may bind an address to it. `core/access.py` decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from everhold.core import access
from everhold.core.entries import Entry, EntryKind, Heard, Stamp
from everhold.ports.store import Session, Store

PAGE_ENTRIES: Final = 100


async def find_session_owner(store: Store, session: Session) -> str | None:
    """Return the owner of a session (`person:<id>`), empty if it has none. It never changes. None: no message was heard
    yet.
    """
    first, _ = await _find_first_entry(store, session)
    return None if first is None else access.derive_session_owner(first)


async def find_last_stamp(store: Store, session: Session) -> Stamp:
    """Return the stamp for what happens in a session: that of the last speaker. A branch continues with its parent's."""
    one, upto, window = session, session.last_seq, PAGE_ENTRIES
    while True:
        while upto > 0:
            found = await store.list_entries(one.id, after=max(0, upto - window), upto=upto, kinds=(EntryKind.HEARD,))
            for entry in reversed(found):
                if isinstance(entry.body, Heard):
                    return entry.body.stamp
            upto, window = upto - window, window * 4
        if not one.parent:
            return Stamp(address=session.address, audience=(f"chat:{session.address}",))
        one, upto, window = await store.get_session(one.parent), one.parent_at, PAGE_ENTRIES


async def can_bind_address(store: Store, session: Session, *, author: str, here: str) -> bool:
    """Return whether `author` may bind the address `here` to a session, or to a branch of it."""
    first, began = await _find_first_entry(store, session)
    return access.can_bind_address(first, author=author, began=began, here=here)


async def list_bindable_sessions(store: Store, *, author: str, agent: str, here: str) -> AsyncIterator[Session]:
    """Return the sessions of an agent to which `author` may bind the address `here`, newest first."""
    after = ""
    while page := await store.list_sessions_begun_by(
        author=author, agent=agent, address=here, limit=PAGE_ENTRIES, after=after
    ):
        for session in page:
            if await can_bind_address(store, session, author=author, here=here):
                yield session
        after = page[-1].id


async def _find_first_entry(store: Store, session: Session) -> tuple[Entry | None, str]:
    """Return the first entry of a conversation, and its address. For a branch these are its parent's."""
    line = [session]
    while line[-1].parent:
        line.append(await store.get_session(line[-1].parent))
    for one in reversed(line):
        if found := await store.list_entries(one.id, kinds=(EntryKind.HEARD,), limit=1):
            body = found[0].body
            return found[0], body.stamp.address if isinstance(body, Heard) else one.address
    return None, line[-1].address
