"""Whose a session is, and who may lead an address to it. Reads the log's beginnings; core/access.py decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from everhold.core import access
from everhold.core.entries import Entry, EntryKind, Heard, Stamp
from everhold.ports.store import Session, Store

PAGE_ENTRIES: Final = 100


async def find_session_owner(store: Store, session: Session) -> str | None:
    """Whose a session is (`person:<id>`), empty if nobody's. That never changes; None: nobody has spoken yet."""
    first, _ = await _find_first_entry(store, session)
    return None if first is None else access.derive_session_owner(first)


async def find_last_stamp(store: Store, session: Session) -> Stamp:
    """Whom what happens in a session is for: whoever spoke last, however long ago. A branch goes on from its parent."""
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
    """Whether somebody may lead the address `here` to a session, or to a branch of it."""
    first, began = await _find_first_entry(store, session)
    return access.can_bind_address(first, author=author, began=began, here=here)


async def list_bindable_sessions(store: Store, *, author: str, agent: str, here: str) -> AsyncIterator[Session]:
    """The sessions of an agent that somebody may lead the address `here` to, newest first."""
    after = ""
    while page := await store.list_sessions_begun_by(
        author=author, agent=agent, address=here, limit=PAGE_ENTRIES, after=after
    ):
        for session in page:
            if await can_bind_address(store, session, author=author, here=here):
                yield session
        after = page[-1].id


async def _find_first_entry(store: Store, session: Session) -> tuple[Entry | None, str]:
    """What was said first in a conversation, and at which address. A branch goes on with what its parent began."""
    line = [session]
    while line[-1].parent:
        line.append(await store.get_session(line[-1].parent))
    for one in reversed(line):
        if found := await store.list_entries(one.id, kinds=(EntryKind.HEARD,), limit=1):
            body = found[0].body
            return found[0], body.stamp.address if isinstance(body, Heard) else one.address
    return None, line[-1].address
