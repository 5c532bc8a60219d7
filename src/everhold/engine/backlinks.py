"""Write backlinks: the entry in the other session that matches a binding or a branch."""

from __future__ import annotations

from everhold.core.entries import (
    AddressBound,
    AddressUnbound,
    BranchCreated,
    BranchedFrom,
    Changed,
    EntryDraft,
    EntryKind,
)
from everhold.engine.agent_runtime import AgentRuntimes
from everhold.engine.gates import Gates, Wakeups
from everhold.ports.store import Change, Claim, CursorUpdate, Step


class BacklinkWorker:
    """Writes backlinks into the other session. The dedup key makes a repeat harmless."""

    def __init__(self, gates: Gates, claim: Claim, *, runtimes: AgentRuntimes, wakeups: Wakeups) -> None:
        self.gates = gates
        self.runtimes = runtimes
        self.claim = claim
        self.wakeups = wakeups

    async def run(self) -> None:
        store, cursor = self.gates.store, self.claim.cursor
        session = await store.get_session(self.claim.session)
        for entry in await store.list_entries(
            session.id, after=cursor.processed_seq, upto=session.last_seq, kinds=(EntryKind.CHANGED,)
        ):
            match entry.body:
                case Changed(change=AddressBound(address=address, previous=previous)) if previous:
                    other, record = previous, Changed(change=AddressUnbound(address=address, session=session.id))
                case Changed(change=BranchedFrom(parent=parent, at=at)):
                    other, record = parent, Changed(change=BranchCreated(session=session.id, at=at))
                case _:
                    continue
            key = f"tie:{session.id}:{entry.seq}"
            await self.gates.commit(
                Change(
                    step=Step.BACKLINK,
                    session=other,
                    at=self.gates.clock.now(),
                    entries=(EntryDraft(body=record, author=entry.author, dedup=key),),
                    # Both sessions belong to one agent, so they have the same memories.
                    wakeups=self.runtimes.get_runtime(self.claim.agent, {}).list_switch_wakeups(),
                )
            )
            self.wakeups.notify(other)
        update = CursorUpdate(
            processed_seq=session.last_seq, idle_at=session.last_seq, attempts=0, error="", release=True
        )
        await self.gates.commit(
            Change(
                step=Step.CURSOR_SETTLE, session=session.id, at=self.gates.clock.now(), claim=self.claim, cursor=update
            )
        )
