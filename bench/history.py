"""Write the history of a long session directly into the store: entries, operations and compressions as in use."""

from __future__ import annotations

import time

from bench.in_process import MESSAGE, REPLY
from everhold.core.entries import (
    Began,
    ChatLocation,
    Compressed,
    Ended,
    EntryDraft,
    Heard,
    ModelUsage,
    Said,
    Stamp,
    Thought,
)
from everhold.ports.store import Change, SessionOpening, Step
from everhold.stores.sqlite import SqliteStore

ENTRIES_PER_TURN = 5
SUMMARY = "They went through the list, one by one, and agreed on most of it. " * 12


def address(chat: str, *, platform: str = "table") -> str:
    return f"agent:main:{platform}:dm:{chat}"


class SessionHistory:
    """Writes one session's history, turn by turn."""

    def __init__(
        self,
        store: SqliteStore,
        session: str,
        *,
        chat: str = "old",
        compress_every_turns: int = 0,
        keep: int = 6,
        platform: str = "table",
        account: str = "main",
        person: str = "ada",
    ) -> None:
        self.store = store
        self.session = session
        self.chat = chat
        self.platform = platform
        self.account = account
        self.author = f"person:{person}"
        self.compress_every_turns = compress_every_turns
        """Turns from one compression to the next; 0: never."""
        self.keep = keep
        self.seq = 0
        self.generation = 0
        self.compression = 0
        self.turns: list[int] = []
        self.stamp = Stamp(person=person, audience=(self.author,), address=address(chat, platform=platform))

    async def live(self, turns: int) -> None:
        """Add `turns` turns."""
        for _ in range(turns):
            await self.turn()
            if self.compress_every_turns and len(self.turns) % self.compress_every_turns == 0:
                await self.compress()

    async def turn(self) -> None:
        """Commit a message and the turn that answers it, in two commits as in use."""
        await self._commit(Step.ACCEPT, EntryDraft(body=self._heard(), author=self.author))
        heard, op = self.seq, self.seq + 1
        self.turns.append(op)
        bodies = (
            Began(
                type="turn", takes=(heard,), compression=self.compression, generation=self.generation, consumer="turn"
            ),
            Thought(
                text=REPLY, model="instant", generation=self.generation, request="0" * 64, usage=ModelUsage(input=9)
            ),
            Said(text=REPLY, to=self._place(), parts=(REPLY,), stamp=self.stamp),
            Ended(usage=ModelUsage(input=9)),
        )
        await self._commit(Step.END, *(EntryDraft(body=body, author="agent:main", op=op) for body in bodies))

    async def compress(self) -> None:
        op = self.seq + 1
        covers = self.turns[-1 - self.keep]
        bodies = (
            Began(type="compression", compression=self.compression, generation=self.generation, consumer="compression"),
            Compressed(summary=SUMMARY, covers=covers, based_on=self.compression, generation=self.generation),
            Ended(),
        )
        await self._commit(Step.COMPRESSION_END, *(EntryDraft(body=body, author="system", op=op) for body in bodies))
        self.compression = op
        self.generation += 1

    def _place(self) -> ChatLocation:
        return ChatLocation(platform=self.platform, account=self.account, chat=self.chat, message=str(self.seq))

    def _heard(self) -> Heard:
        return Heard(origin=self._place(), text=MESSAGE, stamp=self.stamp)

    async def _commit(self, step: Step, *drafts: EntryDraft) -> None:
        opens = SessionOpening(agent="main", address=self.stamp.address) if not self.seq else None
        change = Change(step=step, session=self.session, at=time.time(), entries=drafts, opens=opens)
        done = await self.store.commit(change)
        self.seq = done.seqs[-1]
