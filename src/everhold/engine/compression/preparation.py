"""Prepare a compression: memories advise what the summary should keep, and the review notes facts.

The preparation never delays the summary for long. A memory that does not answer in time is skipped.
"""

from __future__ import annotations

import asyncio
from typing import Final

from everhold.core.context import SessionContext
from everhold.core.entries import Heard, Said, Stamp
from everhold.core.provenance import has_own_words
from everhold.engine.agent_runtime import AgentRuntimes
from everhold.engine.budgets import BudgetLedger
from everhold.engine.effects import deliver_outside
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.jobs import worker as jobs_worker
from everhold.engine.memory.tombstones import is_withheld
from everhold.engine.memory_client import MemoryClient
from everhold.errors import EverholdError
from everhold.ports.memory import MemoryCapability, MemoryScope, MemoryUtterance
from everhold.ports.store import Claim, Session

ADVICE_DEADLINE_SECONDS: Final = 10.0


class MemoryCompressionPreparer:
    """Prepares the compressions of all sessions of a process."""

    def __init__(self, gates: Gates, *, runtimes: AgentRuntimes, wakeups: Wakeups, budgets: BudgetLedger) -> None:
        self.gates = gates
        self.runtimes = runtimes
        self.wakeups = wakeups
        self.budgets = budgets

    async def collect_advice(self, session: Session, part: SessionContext) -> str:
        """Return what the agent's memories want to keep of a part of the conversation; empty if nothing."""
        runtime = self.runtimes.get_runtime(session.agent, session.choices)
        asked = [
            (name, provider)
            for name in runtime.shown_memories
            if (provider := self.runtimes.find_memory(name, session.agent)) is not None
            and provider.has_capability(MemoryCapability.BEFORE_COMPRESS)
        ]
        view = list_utterances(part)
        if not asked or not view:
            return ""
        stamp = view[-1].stamp
        said = await asyncio.gather(
            *(self._ask_memory(session, name, provider, stamp, view) for name, provider in asked)
        )
        return "\n".join(f"{name}: {text}" for (name, _), text in zip(asked, said, strict=True) if text)

    async def note_before_compression(
        self, claim: Claim, session: Session, part: SessionContext, *, advice: str
    ) -> None:
        """Note facts of a part of the conversation."""
        jobs = jobs_worker.JobWorker(
            self.gates, claim, runtimes=self.runtimes, wakeups=self.wakeups, budgets=self.budgets
        )
        await jobs.note_before_compression(session, part, advice=advice)

    async def _ask_memory(
        self, session: Session, name: str, provider: MemoryClient, stamp: Stamp, view: tuple[MemoryUtterance, ...]
    ) -> str:
        if await is_withheld(self.gates.store, name, agent=session.agent, audience=stamp.audience):
            return ""  # it may repeat something that is being erased
        scope = MemoryScope(
            agent=session.agent,
            session=session.id,
            name=session.names.get(name, session.id),
            person=stamp.person,
            audience=stamp.audience,
        )
        try:
            text = await deliver_outside(
                f"before_compress of {name}",
                lambda: provider.before_compress(scope, view),
                self.gates,
                deadline=min(provider.deadline, ADVICE_DEADLINE_SECONDS),
            )
        except EverholdError as error:
            self.gates.log.warning(
                "memory.hook_failed", hook="before_compress", memory=name, session=session.id, error=str(error)
            )
            provider.record_hook("before_compress", str(error))
            return ""
        provider.record_hook("before_compress", "")
        return text.strip()


def list_utterances(part: SessionContext) -> tuple[MemoryUtterance, ...]:
    """Return the messages and replies of a part of the conversation, in order."""
    return tuple(
        MemoryUtterance(author=entry.author, text=entry.body.text, at=entry.at, stamp=entry.body.stamp, seq=entry.seq)
        for exchange in part.turns
        for entry in (*exchange.heard, *exchange.steps)
        if isinstance(entry.body, Said)
        or (isinstance(entry.body, Heard) and has_own_words(entry.body.text, (), entry.body.pieces))
    )
