"""Finds the sessions that form one conversation: continuations after a compression, branches, forks and delegations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from everhold.hermes.reader.database import HermesSession

COMPRESSION_END_REASONS: Final = ("compression", "orphaned_compression")


@dataclass
class SessionChain:
    """Sessions that continue each other after a compression, oldest first; usually there is one."""

    sessions: list[HermesSession]
    branch_of: str = ""
    """The session that this one is a branch of."""
    fork_of: str = ""
    """The session that was continued twice, if this is the continuation that was not used further."""

    @property
    def root(self) -> HermesSession:
        return self.sessions[0]

    @property
    def tip(self) -> HermesSession:
        return self.sessions[-1]

    @property
    def ids(self) -> list[str]:
        return [session.id for session in self.sessions]

    @property
    def title(self) -> str:
        """The title that a person gave; a continuation has a number after it."""
        return next((session.title for session in self.sessions if session.title), "")


@dataclass
class SessionLineage:
    chains: list[SessionChain]
    chain_by_session: dict[str, SessionChain] = field(default_factory=dict)
    """Session id -> its chain."""
    forks: dict[str, list[str]] = field(default_factory=dict)
    """Parent -> its continuations, the used one first."""
    orphans: list[HermesSession] = field(default_factory=list)
    """Ended by a compression, without a continuation."""


def is_continuation(child: HermesSession, parent: HermesSession | None) -> bool:
    """Whether `child` is `parent` after a compression, and not a branch or a delegation of it."""
    return bool(
        parent is not None
        and parent.end_reason in COMPRESSION_END_REASONS
        and not child.branched_from
        and not child.is_delegated
    )


def trace_lineage(sessions: Iterable[HermesSession], newest: Mapping[str, float]) -> SessionLineage:
    """Return the conversations among `sessions`. `newest` is the time of the last message of each session."""
    known = {session.id: session for session in sessions}
    heirs: dict[str, list[HermesSession]] = {}
    for session in known.values():
        if is_continuation(session, known.get(session.parent)) and session.parent != session.id:
            heirs.setdefault(session.parent, []).append(session)
    for parent, children in heirs.items():
        children.sort(key=lambda child: _rank_continuation(child, newest), reverse=True)
        assert parent in known
    found = SessionLineage(chains=[])
    found.forks = {parent: [c.id for c in children] for parent, children in heirs.items() if len(children) > 1}
    forked = {child for children in found.forks.values() for child in children}
    followed = {children[0].id for children in heirs.values()}
    beginnings = [session for session in known.values() if session.id not in followed]
    # What no beginning leads to is a cycle of parents. It has no beginning, so any of its sessions can start it.
    for session in (*beginnings, *known.values()):
        if session.id in found.chain_by_session:
            continue
        chain = SessionChain([session])
        found.chain_by_session[session.id] = chain
        while (next_ones := heirs.get(chain.tip.id)) and next_ones[0].id not in found.chain_by_session:
            chain.sessions.append(next_ones[0])
            found.chain_by_session[next_ones[0].id] = chain
        if session.branched_from or (session.parent and not session.is_delegated and session.id not in followed):
            chain.branch_of = session.branched_from or session.parent
        if session.id in forked:
            chain.fork_of, chain.branch_of = session.parent, ""
        found.chains.append(chain)
    found.orphans = [s for s in known.values() if s.end_reason in COMPRESSION_END_REASONS and s.id not in heirs]
    return found


def _rank_continuation(child: HermesSession, newest: Mapping[str, float]) -> tuple[int, float, float, str]:
    """Return a sort key for continuations: one that was itself continued, then an open one, then the latest."""
    rank = 2 if child.end_reason == "compression" else 1 if child.ended_at is None else 0
    return rank, newest.get(child.id, child.started_at), child.started_at, child.id
