"""A log with several people, and the index over it."""

from __future__ import annotations

from pathlib import Path

from everhold.core.entries import (
    Changed,
    ChatLocation,
    EntryDraft,
    Heard,
    Noted,
    OperationsUndone,
    Said,
    Stamp,
    TextPiece,
)
from everhold.memories.builtin import BuiltinMemory, IndexHit, MemoryIndex
from everhold.memories.builtin.embeddings import EmbeddingsMode
from everhold.ports.store import Change, SessionOpening, Step
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import StoreScenario
from everhold.testing.seeded_random import SeededRandom

ADA = ("person:ada",)
PLACE = ChatLocation(platform="test", account="main", chat="c")


class IndexScenario(StoreScenario):
    """Creates a session on its first message; its agent is `main` unless the session's name is `agent/…`."""

    def __init__(self, home: Path, *, embeddings: EmbeddingsMode = "table", models: Path | None = None) -> None:
        self.home = home
        self.log = SqliteStore.open(home / "log.db", chance=SeededRandom(), inline=True, synchronous="OFF")
        super().__init__(self.log)
        self.path = home / "index.db"
        self.embeddings: EmbeddingsMode = embeddings
        self.index = MemoryIndex(self.path, inline=True, embeddings=embeddings, models=models)
        self._open: set[str] = set()

    async def say(
        self,
        text: str,
        *,
        session: str = "s",
        audience: tuple[str, ...] = ADA,
        who: str = "ada",
        name: str = "",
        op: int | None = None,
        at: float = 1.0,
        pieces: tuple[TextPiece, ...] = (),
    ) -> int:
        """Append a message and an answer by `agent`."""
        stamp = Stamp(person=who, audience=audience)
        if who == "agent":
            return await self._put(
                EntryDraft(body=Said(text=text, to=PLACE, stamp=stamp), author="agent:main", op=op), session, at
            )
        body = Heard(origin=PLACE, text=text, sender=name, stamp=stamp, pieces=pieces)
        return await self._put(EntryDraft(body=body, author=f"person:{who}"), session, at)

    async def note(
        self,
        text: str,
        *,
        session: str = "s",
        audience: tuple[str, ...] = ADA,
        action: str = "add",
        fact: str = "",
        supersedes: int = 0,
    ) -> int:
        stamp = Stamp(person="ada", audience=audience)
        body = Noted(text=text, action=action, fact=fact, supersedes=supersedes, stamp=stamp)
        return await self._put(EntryDraft(body=body, author="person:ada"), session, 1.0)

    async def undo(self, *ops: int, again: bool = False) -> None:
        await self.commit(Changed(change=OperationsUndone(ops=ops, again=again)))

    async def find(
        self,
        text: str,
        *,
        audience: tuple[str, ...] = ADA,
        agent: str = "main",
        session: str | None = None,
        limit: int = 20,
        here: str = "",
    ) -> list[str]:
        return [
            hit.text
            for hit in await self.hits(text, audience=audience, agent=agent, session=session, limit=limit, here=here)
        ]

    async def hits(
        self,
        text: str,
        *,
        audience: tuple[str, ...] = ADA,
        agent: str = "main",
        session: str | None = None,
        limit: int = 20,
        here: str = "",
        for_turn: bool = False,
    ) -> list[IndexHit]:
        return await self.index.search(
            self.log,
            text,
            agent=agent,
            audience=audience,
            session=session,
            limit=limit,
            here=here,
            for_turn=for_turn,
        )

    def provider(self, agent: str = "main") -> BuiltinMemory:
        return BuiltinMemory(index=self.index, store=self.log, agent=agent)

    async def reopen_index(self) -> None:
        """Open the index again, as another process would."""
        await self.index.close()
        self.index = MemoryIndex(self.path, inline=True, embeddings=self.embeddings)

    async def close(self) -> None:
        await self.index.close()
        await self.log.close()

    def files(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.home.glob("index.db*"))

    async def _put(self, draft: EntryDraft, session: str, at: float) -> int:
        opens = None
        if session not in self._open:
            self._open.add(session)
            agent = session.partition("/")[0] if "/" in session else "main"
            opens = SessionOpening(agent=agent, address=f"test:{session}")
        change = Change(step=Step.ACCEPT, session=session, at=at, op=draft.op, entries=(draft,), opens=opens)
        return (await self.log.commit(change)).seqs[0]
