"""What is done with a part of a conversation before a summary stands for it: memories are asked, and things are noted.

Never holds the summary up for long: a memory that does not answer in time is gone without.
"""

from __future__ import annotations

import asyncio
from typing import Final

from everhold.core.context import View
from everhold.core.entries import Heard, Said, Stamp
from everhold.errors import EverholdError
from everhold.flow import job
from everhold.flow.gates import Bells, Gates
from everhold.flow.memory import Attached
from everhold.flow.perform import hand_over
from everhold.flow.purse import Purses
from everhold.flow.runtime import Runtimes
from everhold.ports.memory import Capability, Scope, Utterance
from everhold.ports.store import Claim, Session

HOOK_SECONDS: Final = 10.0


class Beforehand:
    """One for all sessions of a process."""

    def __init__(self, gates: Gates, *, runtimes: Runtimes, bells: Bells, purses: Purses) -> None:
        self.gates = gates
        self.runtimes = runtimes
        self.bells = bells
        self.purses = purses

    async def advice(self, session: Session, part: View) -> str:
        """What the memories of an agent do not want lost of a part of the conversation; empty if nothing."""
        runtime = self.runtimes.runtime(session.agent, session.choices)
        asked = [
            (name, provider)
            for name in runtime.known
            if (provider := self.runtimes.memory(name, session.agent)) is not None
            and provider.can(Capability.BEFORE_COMPRESS)
        ]
        view = utterances(part)
        if not asked or not view:
            return ""
        stamp = view[-1].stamp
        said = await asyncio.gather(*(self._ask(session, name, provider, stamp, view) for name, provider in asked))
        return "\n".join(f"{name}: {text}" for (name, _), text in zip(asked, said, strict=True) if text)

    async def flush(self, claim: Claim, session: Session, part: View, *, advice: str) -> None:
        """Note what is worth remembering."""
        jobs = job.Jobs(self.gates, claim, runtimes=self.runtimes, bells=self.bells, purses=self.purses)
        await jobs.flush(session, part, advice=advice)

    async def _ask(
        self, session: Session, name: str, provider: Attached, stamp: Stamp, view: tuple[Utterance, ...]
    ) -> str:
        scope = Scope(
            agent=session.agent,
            session=session.id,
            name=session.names.get(name, session.id),
            person=stamp.person,
            audience=stamp.audience,
        )
        try:
            text = await hand_over(
                f"before_compress of {name}",
                lambda: provider.before_compress(scope, view),
                self.gates,
                deadline=min(provider.deadline, HOOK_SECONDS),
            )
        except EverholdError as error:
            self.gates.log.warning(
                "memory.hook_failed", hook="before_compress", memory=name, session=session.id, error=str(error)
            )
            provider.hook("before_compress", str(error))
            return ""
        provider.hook("before_compress", "")
        return text.strip()


def utterances(part: View) -> tuple[Utterance, ...]:
    """Who said what, in order."""
    return tuple(
        Utterance(author=entry.author, text=entry.body.text, at=entry.at, stamp=entry.body.stamp, seq=entry.seq)
        for exchange in part.exchanges
        for entry in (*exchange.heard, *exchange.steps)
        if isinstance(entry.body, Heard | Said)
    )
