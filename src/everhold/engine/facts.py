"""The facts of agents, computed from the notes in the log. They are cached in memory and never stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from everhold.core.entries import Entry, Erased, Noted
from everhold.core.facts import Fact, build_fact_versions, find_version, is_fact_note, select_valid_facts
from everhold.core.people import PeopleDirectory, can_hear
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
        self._plain_notes: dict[str, dict[tuple[str, int], Entry]] = {}
        """Agent -> its other notes."""
        self._superseding: dict[tuple[str, int], dict[int, tuple[str, ...]]] = {}
        """(session, seq) of a note -> the notes of its session that replace it, and their audiences."""
        self._agents: dict[str, str] = {}
        self._facts_by_agent: dict[str, list[Fact]] = {}
        self._people_version = -1
        """The version of the people directory that the facts were computed with."""
        self._read_lock = asyncio.Lock()

    async def list_valid(self, agent: str, audience: Collection[str]) -> list[Fact]:
        """Return the valid facts that everybody in an audience may see."""
        facts, people = await self._load_versions(agent)
        return select_valid_facts(facts, people.expand_audience(audience))

    async def list_versions(self, agent: str) -> list[Fact]:
        """Return every version of every fact of an agent."""
        return (await self._load_versions(agent))[0]

    async def _load_versions(self, agent: str) -> tuple[list[Fact], PeopleDirectory]:
        """Return every version of every fact of an agent, and the people with whom they were computed."""
        await self._read_new_notes()
        people = await self.store.get_people()
        if people.version != self._people_version:
            self._facts_by_agent.clear()
            self._people_version = people.version
        if agent not in self._facts_by_agent:
            notes = self._notes.get(agent, {}).values()
            self._facts_by_agent[agent] = build_fact_versions(notes, agent=agent, people=people)
        return self._facts_by_agent[agent], people

    async def get_people(self) -> PeopleDirectory:
        return await self.store.get_people()

    async def find_retracted(self, agent: str, entries: Iterable[Entry]) -> set[tuple[str, int]]:
        """Return the places of those notes among the entries that were replaced or taken back."""
        noted = [entry for entry in entries if isinstance(entry.body, Noted)]
        if not noted:
            return set()
        facts, people = await self._load_versions(agent)
        return {(entry.session, entry.seq) for entry in noted if not self._is_in_force(entry, facts, people)}

    async def list_notes(self, agent: str, *, limit: int, is_wanted: Callable[[Entry], bool]) -> list[Entry]:
        """Return the newest notes in force that are no facts and that are wanted, the newest first."""
        facts, people = await self._load_versions(agent)
        found: list[Entry] = []
        for entry in reversed(self._plain_notes.get(agent, {}).values()):
            if len(found) >= limit:
                break
            if is_wanted(entry) and self._is_in_force(entry, facts, people):
                found.append(entry)
        return found

    async def list_retracted_texts(self, agent: str) -> frozenset[str]:
        """Return the texts of notes that were replaced or taken back, and that no note in force has."""
        facts, people = await self._load_versions(agent)
        valid = {it.text.strip() for it in facts if it.valid_until is None}
        gone = {it.text.strip() for it in facts if it.valid_until is not None}
        for entry in self._plain_notes.get(agent, {}).values():
            assert isinstance(entry.body, Noted)
            (valid if self._is_in_force(entry, facts, people) else gone).add(entry.body.text.strip())
        return frozenset(gone - valid)

    def _is_in_force(self, entry: Entry, facts: Iterable[Fact], people: PeopleDirectory) -> bool:
        assert isinstance(entry.body, Noted)
        if is_fact_note(entry):
            return find_version(entry, facts, people) is not None
        superseding = self._superseding.get((entry.session, entry.seq), {}).values()
        # A note cannot take back another note whose audience includes people who are not in its own audience.
        heard_by = entry.body.stamp.audience
        taken_back = any(can_hear(people.expand_audience(audience), heard_by, entry.at) for audience in superseding)
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
            self._superseding.setdefault(place, {})[entry.seq] = entry.body.stamp.audience
        if isinstance(entry.body, Erased):
            for (session, _), superseding in self._superseding.items():
                for seq in entry.body.seqs if session == entry.session else ():
                    superseding.pop(seq, None)
            agent = self._agents.get(entry.session, "")
            for seq in entry.body.seqs:
                self._plain_notes.get(agent, {}).pop((entry.session, seq), None)
                if self._notes.get(agent, {}).pop((entry.session, seq), None) is not None:
                    self._facts_by_agent.pop(agent, None)
        elif isinstance(entry.body, Noted):
            if entry.session not in self._agents:
                self._agents[entry.session] = (await self.store.get_session(entry.session)).agent
            agent = self._agents[entry.session]
            is_fact = is_fact_note(entry)
            (self._notes if is_fact else self._plain_notes).setdefault(agent, {})[entry.session, entry.seq] = entry
            if is_fact:
                self._facts_by_agent.pop(agent, None)
