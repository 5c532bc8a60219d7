"""Reads the newest questions whose answers have a record of recall, for the comparison of memories."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from everhold.core.entries import Entry, Heard, Said, Thought
from everhold.core.memory_comparison import QuestionRecord
from everhold.core.provenance import join_all_text
from everhold.core.recall import RecallRecord
from everhold.core.recall_blobs import read_record
from everhold.engine.commands.memory import read_cited_texts
from everhold.ports.store import Operation, Session, Store

MAX_SESSIONS: Final = 500
"""How many sessions are looked through, the newest first."""
MAX_TURNS: Final = 2_000
"""How many turns are looked through."""


class QuestionReader:
    """Reads with the rights of an operator."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def read_newest(self, agent: str, *, identities: Collection[str], limit: int) -> list[QuestionRecord]:
        """Return the questions to an agent, the newest sessions first, only of these identities if any are given."""
        found: list[QuestionRecord] = []
        turns = 0
        sessions = await self.store.list_sessions(limit=MAX_SESSIONS, newest_first=True)
        for session in sessions:
            if session.agent != agent:
                continue
            for turn in await self.store.list_operations(
                session.id, types=("turn",), newest_first=True, limit=limit - len(found)
            ):
                turns += 1
                question = await self._read_question(session, turn, identities)
                if question is not None:
                    found.append(question)
            if len(found) >= limit or turns >= MAX_TURNS:
                break
        return sorted(found, key=lambda one: -one.at)

    async def _read_question(
        self, session: Session, turn: Operation, identities: Collection[str]
    ) -> QuestionRecord | None:
        """Return the question of a turn; None if nothing was asked of memories, or it was erased or undone."""
        entries = await self.store.list_entries(session.id, after=turn.first - 1, upto=turn.last or None)
        own = [entry for entry in entries if entry.op == turn.op]
        record = await self._find_record(own)
        said = [entry for entry in own if isinstance(entry.body, Said)]
        if record is None or not record.answers or not said or turn.undone_at:
            return None
        asked = [await self.store.get_entry(session.id, seq) for seq in record.asked.takes]
        heard = [entry.body for entry in asked if isinstance(entry.body, Heard)]
        if not heard or (identities and heard[-1].stamp.person not in identities):
            return None
        return QuestionRecord(
            session=session.id,
            seq=said[-1].seq,
            at=said[-1].at,
            question="\n".join(map(join_all_text, heard)),
            answer="\n".join(entry.body.text for entry in said if isinstance(entry.body, Said)),
            record=record,
            texts=await read_cited_texts(self.store, record, session.agent),
        )

    async def _find_record(self, entries: Collection[Entry]) -> RecallRecord | None:
        for entry in entries:
            if isinstance(entry.body, Thought) and entry.body.why:
                blob = await self.store.get_blob(entry.body.why)
                if blob is not None:
                    return read_record(blob)
        return None
