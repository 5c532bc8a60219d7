"""The facts of agents, computed from the notes in the log. They are cached in memory and never stored."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from everhold.core.entries import Entry, Erased, Noted
from everhold.core.facts import Fact, build_fact_versions, find_version, is_fact_note, select_valid_facts
from everhold.ports.store import Store

PAGE_ENTRIES = 500


class FactCache:
    """One per process. It reads the notes that were committed since the last call, so a committed note is a fact at
    once.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._read_upto_pos = 0
        self._notes: dict[str, dict[tuple[str, int], Entry]] = {}
        """Agent -> its notes about facts, in commit order."""
        self._superseding: dict[tuple[str, int], dict[int, frozenset[str]]] = {}
        """(session, seq) of a note -> the notes of its session that replace it, and their audiences."""
        self._agents: dict[str, str] = {}
        self._facts_by_agent: dict[str, list[Fact]] = {}
        self._read_lock = asyncio.Lock()

    async def list_valid(self, agent: str, present: Collection[str]) -> list[Fact]:
        """Return the valid facts that everybody present may see."""
        return select_valid_facts(await self.list_versions(agent), present)

    async def list_versions(self, agent: str) -> list[Fact]:
        """Return every version of every fact of an agent."""
        await self._read_new_notes()
        if agent not in self._facts_by_agent:
            self._facts_by_agent[agent] = build_fact_versions(self._notes.get(agent, {}).values(), agent=agent)
        return self._facts_by_agent[agent]

    async def find_retracted(self, agent: str, entries: Iterable[Entry]) -> set[tuple[str, int]]:
        """Return the places of those notes among the entries that were replaced or taken back."""
        noted = [entry for entry in entries if isinstance(entry.body, Noted)]
        facts = await self.list_versions(agent) if noted else []
        return {(entry.session, entry.seq) for entry in noted if not self._is_in_force(entry, facts)}

    def _is_in_force(self, entry: Entry, facts: Iterable[Fact]) -> bool:
        assert isinstance(entry.body, Noted)
        if is_fact_note(entry):
            return find_version(entry, facts) is not None
        superseding = self._superseding.get((entry.session, entry.seq), {}).values()
        # A note cannot take back another note whose audience includes people who are not in its own audience.
        taken_back = any(audience and audience <= set(entry.body.stamp.audience) for audience in superseding)
        return entry.body.action != "remove" and not taken_back

    async def _read_new_notes(self) -> None:
        async with self._read_lock:
            while page := await self.store.list_notes(after=self._read_upto_pos, limit=PAGE_ENTRIES):
                for entry in page:
                    await self._add_entry(entry)
                self._read_upto_pos = page[-1].pos

    async def _add_entry(self, entry: Entry) -> None:
        if isinstance(entry.body, Noted) and entry.body.supersedes:
            place = entry.session, entry.body.supersedes
            self._superseding.setdefault(place, {})[entry.seq] = frozenset(entry.body.stamp.audience)
        if isinstance(entry.body, Erased):
            for (session, _), superseding in self._superseding.items():
                for seq in entry.body.seqs if session == entry.session else ():
                    superseding.pop(seq, None)
            agent = self._agents.get(entry.session)
            for seq in entry.body.seqs if agent is not None else ():
                if agent is not None and self._notes[agent].pop((entry.session, seq), None) is not None:
                    self._facts_by_agent.pop(agent, None)
        elif is_fact_note(entry):
            if entry.session not in self._agents:
                self._agents[entry.session] = (await self.store.get_session(entry.session)).agent
            agent = self._agents[entry.session]
            self._notes.setdefault(agent, {})[entry.session, entry.seq] = entry
            self._facts_by_agent.pop(agent, None)
