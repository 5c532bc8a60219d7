"""Records the peers of people in memories, and looks them up.

A peer is recorded with the first message of an identity, so an edit of the configuration never applies to messages that
were accepted before. After an edit, a link or an unlink, the peers of later entries are recorded before the next
message is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from everhold.core.entries import Entry
from everhold.core.peers import (
    OPERATOR,
    PeerBook,
    PeerRule,
    choose_peer,
    find_peer_at,
    list_ambiguous_aliases,
    plan_peer_changes,
)
from everhold.core.people import PERSON_MEMBER, PresentAudience
from everhold.engine.agent_runtime import AgentRuntimes
from everhold.engine.gates import Gates
from everhold.engine.memory_client import MemoryClient
from everhold.engine.state_updates import MOST_CONFLICTS
from everhold.errors import Conflict, NotFound
from everhold.ports.store import FROM_COMMIT, Change, PeerRecord, Step, Store


class PeerRegistry:
    """The peers of every memory of every agent."""

    def __init__(
        self,
        gates: Gates,
        *,
        find_client: Callable[[str, str], MemoryClient | None],
        list_memories: Callable[[str], Sequence[str]],
        list_agents: Callable[[], Collection[str]] = tuple,
        get_revision: Callable[[], object] = lambda: None,
    ) -> None:
        """`find_client` takes a memory and an agent, `list_memories` an agent. `get_revision` returns the present
        settings.
        """
        self._gates = gates
        self.store: Store = gates.store
        self._find_client = find_client
        self._list_memories = list_memories
        self._list_agents = list_agents
        self._get_revision = get_revision
        self._settled: tuple[object, int] = (None, -1)
        self._settled_pairs: dict[tuple[str, str], tuple[PeerRule, int]] = {}
        """(memory, agent) -> the rule and the version of the people that the recorded peers agree with."""
        self._known: set[tuple[str, str]] = set()
        """(agent, identity) pairs that have a peer in every memory of the agent."""
        self._lock = asyncio.Lock()
        self.alias_problems: list[tuple[str, str, tuple[str, ...]]] = []
        """(memory, bare id, identities) for every alias that could mean several people."""

    def find_rule(self, memory: str, agent: str) -> PeerRule | None:
        """Return how a memory names people; None if it does not, or is not available now."""
        client = self._find_client(memory, agent)
        return None if client is None else client.peer_rule

    # -- recording -----------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Record the peers that an edit, a link or an unlink has changed, for the entries from now on. It costs nothing
        if nothing has changed.
        """
        present = (self._get_revision(), (await self.store.get_people()).version)
        if self._is_settled(present[1]):
            return
        pairs = {(row.memory, row.agent) for row in await self.store.list_peers()}
        for memory, agent in sorted(pairs):
            await self.settle_memory(memory, agent)
        self._known.clear()
        self._settled = present
        await self._check_aliases(pairs)

    def _is_settled(self, people_version: int | None) -> bool:
        return self._settled[0] is self._get_revision() and self._settled[1] == people_version

    async def settle_memory(self, memory: str, agent: str) -> None:
        """Like `settle`, for one memory of one agent."""
        rule = self.find_rule(memory, agent)
        if rule is None:
            return  # it is not available now, so its rule is unknown
        async with self._lock:
            people = await self.store.get_people()
            if self._settled_pairs.get((memory, agent)) == (rule, people.version):
                return
            book = PeerBook(await self.store.list_peers(memory=memory, agent=agent))
            changed = plan_peer_changes(rule, memory=memory, agent=agent, people=people, book=book)
            if changed:
                await self._commit(changed)
            self._settled_pairs[memory, agent] = (rule, people.version)
        for row in changed:
            self._gates.log.info(
                "peer.changed", memory=memory, agent=agent, identity=row.identity, peer=row.peer, source=row.source
            )

    async def _check_aliases(self, pairs: Collection[tuple[str, str]]) -> None:
        """Find the aliases that could mean several people, in memories that are in use, and log each once."""
        found = await self.list_alias_problems(pairs)
        for problem in found:
            if problem not in self.alias_problems:
                memory, key, identities = problem
                self._gates.log.warning("peer.ambiguous", memory=memory, alias=key, identities=list(identities))
        self.alias_problems = found

    async def list_first_records(
        self, agent: str, identity: str, *, people_version: int | None = None
    ) -> tuple[PeerRecord, ...]:
        """Return the records to commit with a message of an identity, for the memories in which it has no peer yet. The
        message was admitted with the people of `people_version`."""
        if not self._is_settled(people_version):
            await self.settle()
        if not identity or (agent, identity) in self._known:
            return ()
        found = []
        for memory in self._list_memories(agent):
            rule = self.find_rule(memory, agent)
            own = await self.store.list_peers(memory=memory, agent=agent, identities=(identity,))
            if rule is not None and all(row.shared for row in own):
                found.append(await self._choose_record(memory, agent, rule, identity))
        if found:
            # the new identity may have the same id as another one
            await self._check_aliases({(row.memory, row.agent) for row in (*found, *await self.store.list_peers())})
        else:
            if len(self._known) >= 100_000:
                self._known.clear()
            self._known.add((agent, identity))
        return tuple(found)

    async def _choose_record(
        self, memory: str, agent: str, rule: PeerRule, identity: str, *, from_pos: int = FROM_COMMIT
    ) -> PeerRecord:
        book = PeerBook(await self.store.list_peers(memory=memory, agent=agent))
        choice = choose_peer(rule, identity, people=await self.store.get_people(), book=book)
        return PeerRecord(
            memory=memory, agent=agent, identity=identity, peer=choice.peer, source=choice.source, from_pos=from_pos
        )

    async def load_records(self, memory: str, agent: str, first_use: Mapping[str, int]) -> dict[str, list[PeerRecord]]:
        """Return the records of identities. An identity without a peer gets one, from its entry in `first_use` on. It
        is committed before this returns.
        """
        rule = self.find_rule(memory, agent)
        if rule is None or not first_use:
            return {}
        await self.settle_memory(memory, agent)
        for _ in range(MOST_CONFLICTS):
            found: dict[str, list[PeerRecord]] = {}
            for row in await self.store.list_peers(memory=memory, agent=agent, identities=tuple(first_use)):
                if not row.shared:
                    found.setdefault(row.identity, []).append(row)
            missing = [identity for identity in first_use if identity not in found]
            if not missing:
                return found
            try:
                for identity in missing:
                    record = await self._choose_record(memory, agent, rule, identity, from_pos=first_use[identity])
                    await self._commit([record])
            except Conflict:
                continue  # another writer recorded a peer first, so read it
        raise Conflict(f"the peers of memory {memory} keep changing")

    async def assign_peer(self, memory: str, peer: str, identity: str, *, agents: Iterable[str]) -> list[PeerRecord]:
        """Make a peer that was nobody's or several people's belong to one identity. Raises NotFound if no agent has
        such a peer.
        """
        made = []
        for agent in agents:
            rows = await self.store.list_peers(memory=memory, agent=agent)
            if any(row.peer == peer for row in rows):
                made.append(
                    PeerRecord(
                        memory=memory,
                        agent=agent,
                        identity=identity,
                        peer=peer,
                        source=OPERATOR,
                        from_pos=FROM_COMMIT,
                    )
                )
        if not made:
            raise NotFound(
                f"memory {memory!r} has no recorded peer {peer!r}", remedy="`everhold people peers` lists them"
            )
        await self._commit(made)
        self._settled, self._settled_pairs = (None, -1), {}
        await self.settle()
        return made

    async def _commit(self, records: Sequence[PeerRecord]) -> None:
        change = Change(step=Step.PEOPLE, session="", at=self._gates.clock.now(), peers=tuple(records))
        await self.store.commit(change)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def list_present_peers(self, memory: str, agent: str, present: PresentAudience) -> dict[str, tuple[str, ...]]:
        """Return identity -> all peers under which a memory ever stored it, for everybody present."""
        rule = self.find_rule(memory, agent)
        if rule is None:
            return {}
        people = await self.store.get_people()
        members = [it.removeprefix(PERSON_MEMBER) for it in present.list_members() if it.startswith(PERSON_MEMBER)]
        if not members:
            return {}
        book = PeerBook(await self.store.list_peers(memory=memory, agent=agent))
        found = {}
        for identity in members:
            peers = book.list_recalled_peers(identity, people)
            # Before anything is stored, it is asked for under the peer that it will get.
            found[identity] = peers or (choose_peer(rule, identity, people=people, book=book).peer,)
        return found

    async def find_current_peer(self, memory: str, agent: str, identity: str) -> str:
        """Return the peer for new entries of an identity; empty if the memory has no peers."""
        rule = self.find_rule(memory, agent)
        if rule is None or not identity:
            return ""
        book = PeerBook(await self.store.list_peers(memory=memory, agent=agent))
        latest = book.find_latest(identity)
        if latest is not None:
            return latest.peer
        return choose_peer(rule, identity, people=await self.store.get_people(), book=book).peer

    async def list_alias_problems(
        self, pairs: Collection[tuple[str, str]] | None = None
    ) -> list[tuple[str, str, tuple[str, ...]]]:
        """Return (memory, bare id, identities) for every alias that could mean several people, in these memories of
        these agents (None: in all).
        """
        if pairs is None:
            pairs = [(memory, agent) for agent in self._list_agents() for memory in self._list_memories(agent)]
        people = await self.store.get_people()
        found: dict[tuple[str, str], tuple[str, ...]] = {}
        for memory, agent in sorted(pairs):
            rule = self.find_rule(memory, agent)
            if rule is None or not rule.aliases:
                continue
            book = PeerBook(await self.store.list_peers(memory=memory, agent=agent))
            for key, identities in list_ambiguous_aliases(rule, people=people, book=book):
                found[memory, key] = identities
        return [(memory, key, identities) for (memory, key), identities in sorted(found.items())]


def build_peer_registry(gates: Gates, runtimes: AgentRuntimes) -> PeerRegistry:
    """Return a registry for the memories of these agents. It compares their rules whenever it is asked."""
    return PeerRegistry(
        gates,
        find_client=runtimes.find_memory,
        list_memories=lambda agent: runtimes.get_runtime(agent, {}).memories,
        get_revision=object,
    )


class PeerLookup:
    """Finds the peers of one batch, and keeps those that it used, so that a retry uses the same."""

    def __init__(
        self, registry: PeerRegistry | None, memory: str, agent: str, stored: Iterable[tuple[str, str]] = ()
    ) -> None:
        """`stored` are the peers of a batch that may have been sent before."""
        self._registry = registry
        self._memory = memory
        self._agent = agent
        self._records: dict[str, list[PeerRecord]] = {}
        self._stored = dict(stored)
        self._used: dict[str, str] = {}

    async def load(self, needs: Iterable[tuple[str, int]]) -> None:
        """Prepare `find` for these pairs of identity and pos."""
        first_use: dict[str, int] = {}
        for identity, pos in needs:
            if identity and identity not in self._records:
                first_use[identity] = min(pos, first_use.get(identity, pos))
        if self._registry is not None and first_use:
            self._records |= await self._registry.load_records(self._memory, self._agent, first_use)

    def find(self, identity: str, entry: Entry) -> str:
        """Return the peer in force at an entry; empty if the memory has no peers."""
        use = f"{entry.pos} {identity}"
        found = self._stored.get(use)
        if found is None:
            record = find_peer_at(self._records.get(identity, ()), entry.pos)
            found = "" if record is None else record.peer
        if found:
            self._used[use] = found
        return found

    def list_used(self) -> tuple[tuple[str, str], ...]:
        """Return the peers that were found, to be stored with the batch."""
        return tuple(sorted(self._used.items()))
