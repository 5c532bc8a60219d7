"""The facts an agent keeps in mind, as the log has them now. Derived in memory and never stored: the notes are."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from everhold.core.entries import Entry, Erased
from everhold.core.facts import Fact, curated, fold, holding
from everhold.ports.store import Store

PAGE = 500


class Facts:
    """One per process. Reads what was noted since it last looked; a note that is committed is a fact at once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._position = 0
        self._notes: dict[str, dict[tuple[str, int], Entry]] = {}
        """Agent -> its notes about facts, in commit order."""
        self._agents: dict[str, str] = {}
        self._folded: dict[str, list[Fact]] = {}
        self._looking = asyncio.Lock()

    async def holding(self, agent: str, present: Collection[str]) -> list[Fact]:
        """The facts that hold, as far as everybody present may hear of them."""
        return holding(await self.all(agent), present)

    async def all(self, agent: str) -> list[Fact]:
        """Every version of every fact an agent was told to keep in mind."""
        await self._look()
        if agent not in self._folded:
            self._folded[agent] = fold(self._notes.get(agent, {}).values(), agent=agent)
        return self._folded[agent]

    async def _look(self) -> None:
        async with self._looking:
            while page := await self.store.notes(after=self._position, limit=PAGE):
                for entry in page:
                    await self._take(entry)
                self._position = page[-1].pos

    async def _take(self, entry: Entry) -> None:
        if isinstance(entry.body, Erased):
            agent = self._agents.get(entry.session)
            for seq in entry.body.seqs if agent is not None else ():
                if agent is not None and self._notes[agent].pop((entry.session, seq), None) is not None:
                    self._folded.pop(agent, None)
        elif curated(entry):
            if entry.session not in self._agents:
                self._agents[entry.session] = (await self.store.session(entry.session)).agent
            agent = self._agents[entry.session]
            self._notes.setdefault(agent, {})[entry.session, entry.seq] = entry
            self._folded.pop(agent, None)
