"""Groups chains of hermes-agent sessions into conversations: one per chat, however many ids the chat had."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everhold.core.access import compute_audience
from everhold.core.address import Address
from everhold.core.entries import ChatLocation, Stamp
from everhold.core.ids import make_session_id
from everhold.hermes.importer.places import (
    IMPORTED_PLATFORM,
    HermesChat,
    build_chat_identity,
    locate_chain,
)
from everhold.hermes.reader.database import HermesSession
from everhold.hermes.reader.lineage import SessionChain, SessionLineage


@dataclass
class ImportedConversation:
    """One session to import. Its chains follow one another, the one in use last."""

    agent: str
    address: Address
    identity: str
    """Whose words it has, as a live message of the same person is stamped."""
    chats: list[HermesChat] = field(default_factory=list)
    """Where each of its chains took place."""
    chains: list[SessionChain] = field(default_factory=list)
    branch_of: str = ""
    """The hermes-agent session that it is a branch of."""
    forked: bool = False
    routed: bool = False
    """The chat is bound to this session."""

    @property
    def root(self) -> HermesSession:
        return self.chains[0].root

    @property
    def id(self) -> str:
        """Return the session id, which is the same in every import, because it is made from the start time and the
        name.
        """
        chance = hashlib.blake2b(f"{self.agent}\0{self.root.id}".encode(), digest_size=10).digest()
        return make_session_id(self.root.started_at, chance)

    @property
    def ids(self) -> list[str]:
        return [id for chain in self.chains for id in chain.ids]

    @property
    def location(self) -> ChatLocation:
        return ChatLocation(
            platform=self.address.platform,
            account=self.address.account,
            chat=self.address.chat,
            thread=self.address.thread,
        )

    @property
    def stamp(self) -> Stamp:
        last = self.chains[-1].tip
        return Stamp(
            person=self.identity,
            audience=compute_audience(self.address, self.identity),
            address=str(self.address),
            directory=last.cwd,
            repo=last.repo,
        )


def build_conversations(
    found: SessionLineage,
    *,
    agent: str,
    routing: Mapping[str, Mapping[str, Any]],
    local: str,
) -> list[ImportedConversation]:
    """Return the conversations of one agent, parents before their branches. `local` is the user of the terminal."""
    routed = {str(entry.get("session_id") or ""): {"session_key": key, **entry} for key, entry in routing.items()}
    chats: dict[str, ImportedConversation] = {}
    branches: list[ImportedConversation] = []
    used: dict[str, SessionChain] = {}
    for chain in sorted(found.chains, key=lambda it: (it.root.started_at, it.root.id)):
        entry = next((routed[id] for id in chain.ids if id in routed), {})
        chat = locate_chain(chain, agent=agent, routing=entry)
        identity = build_chat_identity(chat, chain, agent=agent, local=local)
        if chain.branch_of or chain.fork_of:
            branch = ImportedConversation(agent, chat.address, identity, [chat], [chain])
            branch.branch_of = chain.branch_of or chain.fork_of
            branch.forked, branch.routed = bool(chain.fork_of), bool(entry)
            branches.append(branch)
            continue
        name = str(chat.address)
        there = chats.setdefault(name, ImportedConversation(agent, chat.address, identity))
        if there.identity.startswith(f"{IMPORTED_PLATFORM}:"):
            there.identity = identity  # an older session of the same chat did not record the sender
        there.chats.append(chat)
        there.chains.append(chain)
        if entry:
            there.routed = True
            used[name] = chain
    for name, chain in used.items():  # the one in use comes last; the others keep their order
        there = chats[name]
        pairs = sorted(zip(there.chats, there.chains, strict=True), key=lambda pair: pair[1] is chain)
        there.chats, there.chains = [chat for chat, _ in pairs], [it for _, it in pairs]
    return [*chats.values(), *_sort_parents_first(branches)]


def _sort_parents_first(branches: list[ImportedConversation]) -> list[ImportedConversation]:
    waiting = list(branches)
    ordered: list[ImportedConversation] = []
    while waiting:
        inside = {id for branch in waiting for id in branch.ids}
        ready = [branch for branch in waiting if branch.branch_of not in inside] or waiting[:1]
        ordered += ready
        waiting = [branch for branch in waiting if branch not in ready]
    return ordered
