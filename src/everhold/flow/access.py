"""Whose a session is, and who may lead an address to it. Reads the log's beginnings; core/access.py decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from everhold.core import access
from everhold.core.entries import Entry, Heard, Kind, Stamp
from everhold.ports.store import Session, Store

PAGE: Final = 100


async def owner(store: Store, session: Session) -> str | None:
    """Whose a session is (`person:<id>`), empty if nobody's. That never changes; None: nobody has spoken yet."""
    first, _ = await _beginning(store, session)
    return None if first is None else access.whose(first)


async def spoke_last(store: Store, session: Session) -> Stamp:
    """Whom what happens in a session is for: whoever spoke last, however long ago. A branch goes on from its parent."""
    one, upto, window = session, session.last_seq, PAGE
    while True:
        while upto > 0:
            found = await store.list_entries(one.id, after=max(0, upto - window), upto=upto, kinds=(Kind.HEARD,))
            for entry in reversed(found):
                if isinstance(entry.body, Heard):
                    return entry.body.stamp
            upto, window = upto - window, window * 4
        if not one.parent:
            return Stamp(address=session.address, audience=(f"chat:{session.address}",))
        one, upto, window = await store.get_session(one.parent), one.parent_at, PAGE


async def may_lead(store: Store, session: Session, *, author: str, here: str) -> bool:
    """Whether somebody may lead the address `here` to a session, or to a branch of it."""
    first, began = await _beginning(store, session)
    return access.may_lead(first, author=author, began=began, here=here)


async def open_to(store: Store, *, author: str, agent: str, here: str) -> AsyncIterator[Session]:
    """The sessions of an agent that somebody may lead the address `here` to, newest first."""
    after = ""
    while page := await store.list_sessions_begun_by(author=author, agent=agent, address=here, limit=PAGE, after=after):
        for session in page:
            if await may_lead(store, session, author=author, here=here):
                yield session
        after = page[-1].id


async def _beginning(store: Store, session: Session) -> tuple[Entry | None, str]:
    """What was said first in a conversation, and at which address. A branch goes on with what its parent began."""
    line = [session]
    while line[-1].parent:
        line.append(await store.get_session(line[-1].parent))
    for one in reversed(line):
        if found := await store.list_entries(one.id, kinds=(Kind.HEARD,), limit=1):
            body = found[0].body
            return found[0], body.stamp.address if isinstance(body, Heard) else one.address
    return None, line[-1].address
