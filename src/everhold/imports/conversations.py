"""Chains of foreign sessions -> conversations here: one for each chat, whatever ids it went through there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from everhold.core.access import audience
from everhold.core.address import KINDS, Address, derive
from everhold.core.entries import Place, Stamp
from everhold.core.ids import session_id
from everhold.hermes.database import Session
from everhold.hermes.lineage import Chain, Lineage

TERMINAL: Final = "terminal"
AWAY: Final = "imported"
"""Where a conversation is filed whose own place is taken, or was none."""


@dataclass
class Conversation:
    """One session here. Its chains stand one behind the other, the one in use last."""

    agent: str
    address: Address
    person: str
    chains: list[Chain] = field(default_factory=list)
    branch_of: str = ""
    """The foreign session it is a branch of."""
    forked: bool = False
    routed: bool = False
    """The chat leads here."""

    @property
    def root(self) -> Session:
        return self.chains[0].root

    @property
    def id(self) -> str:
        """The same however often it is imported: from when it began, and what it was called."""
        chance = hashlib.blake2b(f"{self.agent}\0{self.root.id}".encode(), digest_size=10).digest()
        return session_id(self.root.started_at, chance)

    @property
    def ids(self) -> list[str]:
        return [id for chain in self.chains for id in chain.ids]

    @property
    def place(self) -> Place:
        return Place(
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
            audience=audience(self.address, self.person),
            address=str(self.address),
            directory=last.cwd,
            repo=last.repo,
        )


def conversations(
    found: Lineage,
    *,
    agent: str,
    routing: Mapping[str, Mapping[str, Any]],
    person: Callable[[str, str], str],
) -> list[Conversation]:
    """What the chains of one agent become, parents before their branches."""
    routed = {str(entry.get("session_id") or ""): key for key, entry in routing.items()}
    chats: dict[str, Conversation] = {}
    branches: list[Conversation] = []
    used: dict[str, Chain] = {}
    for chain in sorted(found.chains, key=lambda it: (it.root.started_at, it.root.id)):
        key = next((routed[id] for id in chain.ids if id in routed), "")
        address = address_of(chain, agent=agent)
        who = person(address.platform, chain.root.user_id or chain.tip.user_id)
        if chain.branch_of or chain.fork_of:
            branch = Conversation(agent, address, who, [chain], branch_of=chain.branch_of or chain.fork_of)
            branch.forked, branch.routed = bool(chain.fork_of), bool(key)
            branches.append(branch)
            continue
        chat = chats.setdefault(str(address), Conversation(agent, address, who))
        chat.chains.append(chain)
        if key:
            chat.routed = True
            used[str(address)] = chain
    for name, chain in used.items():  # the one in use last; the others keep their order
        chats[name].chains = [*(it for it in chats[name].chains if it is not chain), chain]
    return [*chats.values(), *_parents_first(branches)]


def _parents_first(branches: list[Conversation]) -> list[Conversation]:
    waiting = list(branches)
    ordered: list[Conversation] = []
    while waiting:
        inside = {id for branch in waiting for id in branch.ids}
        ready = [branch for branch in waiting if branch.branch_of not in inside] or waiting[:1]
        ordered += ready
        waiting = [branch for branch in waiting if branch not in ready]
    return ordered


def address_of(chain: Chain, *, agent: str) -> Address:
    """Where a chain happens: the chat it was routed by, else a terminal of its own."""
    session = next((it for it in reversed(chain.sessions) if it.session_key or it.chat_id), None)
    if session is None or not session.session_key:
        platform = TERMINAL if chain.root.source in ("", "cli", "tui") else chain.root.source
        return derive(agent=agent, platform=platform, account="", kind="dm", chat=chain.root.id)
    parts = session.session_key.split(":")
    platform = session.source or (parts[2] if len(parts) > 2 else AWAY)
    kind = (
        session.chat_type if session.chat_type in KINDS else (parts[3] if parts[3:4] and parts[3] in KINDS else "group")
    )
    chat = session.chat_id or (parts[4] if len(parts) > 4 else chain.root.id)
    per_person = kind != "dm" and bool(session.user_id) and parts[-1] == session.user_id and len(parts) > 5
    whose = "per-person" if per_person else "shared"
    return derive(
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
