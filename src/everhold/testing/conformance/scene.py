"""A provider under test: objects of it on demand, things to store in it, and a look at what it has."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from everhold.core.entries import Stamp
from everhold.core.exchange import exchange_key, note_key
from everhold.flow.memory import Attached
from everhold.ports.memory import (
    Batch,
    Exchange,
    Found,
    Job,
    Memory,
    MemoryProvider,
    Note,
    Query,
    Retraction,
    Utterance,
)

Make: TypeAlias = Callable[[str, Path], MemoryProvider]
"""(agent, its directory) -> a provider as the gateway would build it; with the same two, one that goes on with it."""

MOMENT: Final = 0.01
SOON: Final = 0.2
ADA: Final = ("person:ada",)
BOB: Final = ("person:bob",)
GROUP: Final = ("chat:agent:main:test:group:g",)
"""Those present in a group, whoever they are."""


class Skipped(Exception):
    """A check that says nothing about this provider, and why."""


class Failed(AssertionError):
    """What the provider did not do."""


@runtime_checkable
class Harness(Protocol):
    """Breaks a provider's far side and looks into it. Optional: checks that need one are skipped without."""

    settings: Mapping[str, Any]
    """What the provider has to be configured with to reach this far side."""

    async def down(self) -> None:
        """From now on nobody answers there."""

    async def up(self) -> None: ...

    async def kept(self) -> Sequence[str]:
        """The words of everything that is there, in the order it came."""


class Scene:
    """One check's world: a provider that starts empty, in a directory of its own."""

    def __init__(
        self, path: Path, make: Make, *, harness: Harness | None = None, seconds: float = 2.0, patience: float = 5.0
    ) -> None:
        """`seconds` is what a call may take here, `patience` how long something may need to be found."""
        self.path = path
        self.make = make
        self.harness = harness
        self.seconds = seconds
        self.patience = patience
        self.mark = secrets.token_hex(3)
        """In every name here: a far side that remembers an earlier run must not take this one for it."""
        self._built: list[Attached] = []
        self._count = itertools.count(1)
        self._tokens = itertools.count(1)

    # -- the provider ------------------------------------------------------------------------------------------------

    def build(self, agent: str = "main") -> Attached:
        """Another object for an agent. Its directory is the one the object before it had."""
        return self.attach(self.raw(agent), agent)

    def raw(self, agent: str = "main") -> MemoryProvider:
        directory = self.path / agent
        directory.mkdir(parents=True, exist_ok=True)
        return self.make(agent, directory)

    def attach(self, provider: MemoryProvider, agent: str = "main") -> Attached:
        attached = Attached(provider, instance="it", agent=agent)
        attached.deadline = min(attached.deadline, self.seconds)
        self._built.append(attached)
        return attached

    async def close(self) -> None:
        for attached in self._built:
            async with asyncio.timeout(10):
                await attached.close()

    def needs_harness(self) -> Harness:
        if self.harness is None:
            raise Skipped("needs a far side that can be broken: give a harness")
        return self.harness

    # -- what is stored ----------------------------------------------------------------------------------------------

    def token(self) -> str:
        """A word nobody has used before."""
        return f"zq{self.mark}x{next(self._tokens)}"

    def person(self, name: str) -> str:
        return f"{name}-{self.mark}"

    def session(self, name: str) -> str:
        return f"{name}-{self.mark}"

    def _present(self, audience: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"{one}-{self.mark}" for one in audience)

    def _stamp(self, who: str, audience: Sequence[str], agent: str, session: str) -> Stamp:
        address = f"agent:{agent}:test:dm:{self.session(session)}"
        return Stamp(person=self.person(who), audience=self._present(audience), address=address)

    def exchange(
        self, text: str, *, session: str = "s1", who: str = "ada", audience: Sequence[str] = ADA, agent: str = "main"
    ) -> Exchange:
        op = next(self._count) * 10
        stamp, author = self._stamp(who, audience, agent, session), f"person:{self.person(who)}"
        session = self.session(session)
        return Exchange(
            key=exchange_key(session, op),
            session=session,
            agent=agent,
            op=op,
            heard=(Utterance(author=author, text=text, at=1_700_000_000.0 + op, stamp=stamp, seq=op - 1),),
            said=(Utterance(author=f"agent:{agent}", text="Good.", at=1_700_000_001.0 + op, stamp=stamp, seq=op + 2),),
            at=1_700_000_001.0 + op,
            stamp=stamp,
        )

    def note(
        self, text: str, *, session: str = "s1", who: str = "ada", audience: Sequence[str] = ADA, agent: str = "main"
    ) -> Note:
        seq = next(self._count) * 10
        stamp, author = self._stamp(who, audience, agent, session), f"person:{self.person(who)}"
        session = self.session(session)
        return Note(
            key=note_key(session, seq),
            session=session,
            agent=agent,
            seq=seq,
            text=text,
            author=author,
            at=1_700_000_000.0 + seq,
            stamp=stamp,
        )

    def retraction(self, *items: Memory) -> Retraction:
        seq = next(self._count) * 10
        session = items[0].session
        return Retraction(
            key=f"{session}:{seq}:retract", session=session, agent=items[0].agent, keys=tuple(it.key for it in items)
        )

    def jobs(self, of: Exchange, task: str, result: str) -> Batch:
        """A job that was asked for where `of` was said."""
        seq = next(self._count) * 10
        job = Job(
            key=f"{of.session}:{seq}:job",
            session=of.session,
            agent=of.agent,
            seq=seq,
            task=task,
            result=result,
            at=1_700_000_000.0 + seq,
            stamp=of.stamp,
        )
        return Batch(name=self.batch(of).name, items=(), jobs=(job,))

    def batch(self, *items: Memory) -> Batch:
        return Batch(name=f"memory-of-{items[0].session}", items=items)

    async def put(self, attached: Attached, *items: Memory) -> Mapping[str, str]:
        """Store something, within the time a call may take."""
        async with asyncio.timeout(attached.deadline):
            return await attached.store(self.batch(*items))

    # -- what is found -----------------------------------------------------------------------------------------------

    def query(
        self,
        token: str,
        *,
        session: str = "s9",
        who: str = "ada",
        audience: Sequence[str] = ADA,
        agent: str = "main",
        limit: int = 20,
    ) -> Query:
        return Query(
            text=f"what about {token}?",
            agent=agent,
            session=self.session(session),
            name=f"memory-of-{self.session(session)}",
            audience=self._present(audience),
            person=self.person(who),
            limit=limit,
        )

    async def look(self, attached: Attached, token: str, **whose: Any) -> list[Found]:
        """What it finds of a word now."""
        async with asyncio.timeout(attached.deadline):
            found = await attached.find(self.query(token, **whose))
        return [item for item in found if token in item.text]

    async def finds(self, attached: Attached, *tokens: str, times: int = 1, **whose: Any) -> None:
        """Every word is found, each so many times, and stays so."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.patience + attached.visible_after
        for token in tokens:
            # nobody rings a bell when a service has taken something in
            while len(found := await self.look(attached, token, **whose)) < times and loop.time() < until:  # noqa: ASYNC110
                await asyncio.sleep(SOON)  # nobody rings a bell when a service has indexed something
            if len(found) != times:
                raise Failed(f"“{token}” was stored, and is found {_times(len(found))}, not {_times(times)}")

    async def lacks(self, attached: Attached, token: str, **whose: Any) -> None:
        found = await self.look(attached, token, **whose)
        if found:
            raise Failed(f"“{token}” is found, and must not be: {found[0].text[:80]!r}")


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
