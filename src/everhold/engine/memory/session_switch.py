"""Session switches: a context reset, a summary, or another session at the same address. Memories are notified of them.

The notification is only information. What was said before is delivered independently, under its own name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from everhold.core.entries import (
    AddressUnbound,
    BranchCreated,
    Changed,
    Compressed,
    ContextReset,
    Entry,
    EntryKind,
    Heard,
    Stamp,
)
from everhold.ports.memory import MemoryScope, SessionSwitch
from everhold.ports.store import Session, Store

MAX_ENTRIES_BACK: Final = 500
"""How many entries back the last speaker is searched."""


def is_session_switch(entry: Entry) -> bool:
    """Return whether an entry is a session switch. The session that was left has it as a backlink."""
    match entry.body:
        case Compressed() | Changed(change=ContextReset()) | Changed(change=AddressUnbound()):
            return True
        case _:
            return False


async def build_session_switch(
    store: Store, session: Session, entry: Entry, *, memory: str, naming: Callable[[Session, Stamp], Awaitable[str]]
) -> SessionSwitch:
    """Describe the session switch at an entry, with the names that one memory uses or will use (`naming`)."""
    stamp = await _find_last_stamp(store, session.id, entry.seq)

    async def scope(session: Session) -> MemoryScope:
        return MemoryScope(
            agent=session.agent,
            session=session.id,
            name=session.names.get(memory) or await naming(session, stamp),
            person=stamp.person,
            audience=stamp.audience,
        )

    here = await scope(session)
    match entry.body:
        case Changed(change=AddressUnbound(session=other)):
            how = "branch" if await _is_branch_switch(store, session.id, entry.seq, other) else "resume"
            return SessionSwitch(how=how, before=here, after=await scope(await store.get_session(other)))
        case Compressed():
            return SessionSwitch(how="compression", before=here, after=here)
        case _:
            return SessionSwitch(how="new", before=here, after=here)


async def _find_last_stamp(store: Store, session: str, seq: int) -> Stamp:
    """Return the stamp of the last speaker."""
    heard = await store.list_entries(session, after=max(0, seq - MAX_ENTRIES_BACK), upto=seq, kinds=(EntryKind.HEARD,))
    return next((entry.body.stamp for entry in reversed(heard) if isinstance(entry.body, Heard)), Stamp())


async def _is_branch_switch(store: Store, session: str, seq: int, other: str) -> bool:
    """Return whether the switch was the branch itself, whose entry is right before. A later switch to the branch is a
    resumption.
    """
    changed = await store.list_entries(
        session, after=max(0, seq - MAX_ENTRIES_BACK), upto=seq - 1, kinds=(EntryKind.CHANGED,)
    )
    before = changed[-1].body if changed else None
    return isinstance(before, Changed) and isinstance(before.change, BranchCreated) and before.change.session == other
