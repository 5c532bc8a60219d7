"""Groups chains of hermes-agent sessions into conversations: one per chat, however many ids the chat had."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from everhold.core.access import compute_audience
from everhold.core.address import CHAT_KINDS, Address, derive_address
from everhold.core.entries import ChatLocation, Stamp
from everhold.core.ids import make_session_id
from everhold.hermes.reader.database import HermesSession
from everhold.hermes.reader.lineage import SessionChain, SessionLineage

TERMINAL_PLATFORM: Final = "terminal"
IMPORTED_PLATFORM: Final = "imported"
"""The address of a conversation that has no address of its own or whose address is taken."""


@dataclass
class ImportedConversation:
    """One session to import. Its chains follow one another, the one in use last."""

    agent: str
    address: Address
    person: str
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
            person=self.person,
            audience=compute_audience(self.address, self.person),
            address=str(self.address),
            directory=last.cwd,
            repo=last.repo,
        )


def build_conversations(
    found: SessionLineage,
    *,
    agent: str,
    routing: Mapping[str, Mapping[str, Any]],
    person: Callable[[str, str], str],
) -> list[ImportedConversation]:
    """Return the conversations of one agent, parents before their branches."""
    routed = {str(entry.get("session_id") or ""): key for key, entry in routing.items()}
    chats: dict[str, ImportedConversation] = {}
    branches: list[ImportedConversation] = []
    used: dict[str, SessionChain] = {}
    for chain in sorted(found.chains, key=lambda it: (it.root.started_at, it.root.id)):
        key = next((routed[id] for id in chain.ids if id in routed), "")
        address = derive_chain_address(chain, agent=agent)
        who = person(address.platform, chain.root.user_id or chain.tip.user_id)
        if chain.branch_of or chain.fork_of:
            branch = ImportedConversation(agent, address, who, [chain], branch_of=chain.branch_of or chain.fork_of)
            branch.forked, branch.routed = bool(chain.fork_of), bool(key)
            branches.append(branch)
            continue
        chat = chats.setdefault(str(address), ImportedConversation(agent, address, who))
        chat.chains.append(chain)
        if key:
            chat.routed = True
            used[str(address)] = chain
    for name, chain in used.items():  # the one in use comes last; the others keep their order
        chats[name].chains = [*(it for it in chats[name].chains if it is not chain), chain]
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


def derive_chain_address(chain: SessionChain, *, agent: str) -> Address:
    """Return the address of a chain: its routed chat, else a terminal of its own."""
    session = next((it for it in reversed(chain.sessions) if it.session_key or it.chat_id), None)
    if session is None or not session.session_key:
        platform = TERMINAL_PLATFORM if chain.root.source in ("", "cli", "tui") else chain.root.source
        return derive_address(agent=agent, platform=platform, account="", kind="dm", chat=chain.root.id)
    parts = session.session_key.split(":")
    platform = session.source or (parts[2] if len(parts) > 2 else IMPORTED_PLATFORM)
    kind = (
        session.chat_type
        if session.chat_type in CHAT_KINDS
        else (parts[3] if parts[3:4] and parts[3] in CHAT_KINDS else "group")
    )
    chat = session.chat_id or (parts[4] if len(parts) > 4 else chain.root.id)
    per_person = kind != "dm" and bool(session.user_id) and parts[-1] == session.user_id and len(parts) > 5
    whose = "per-person" if per_person else "shared"
    return derive_address(
        agent=agent,
        platform=platform,
        account="",
        kind=kind,
        chat=chat,
        thread=session.thread_id or "",
        sender=session.user_id,
        group=whose,
        threads=whose,
    )
