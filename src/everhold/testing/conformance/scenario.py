"""A provider under test: creates its objects, items to store, and queries."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from everhold.core.entries import Stamp
from everhold.core.exchange import build_exchange_key, build_note_key
from everhold.engine.memory_client import MemoryClient
from everhold.ports.memory import (
    Exchange,
    JobResult,
    MemoryBatch,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryProvider,
    MemoryQuery,
    MemoryRetraction,
    MemoryUtterance,
)

MakeProvider: TypeAlias = Callable[[str, Path], MemoryProvider]
"""(agent, its directory) -> a provider as the gateway builds it. Equal arguments give an object for the same data."""

POLL_SECONDS: Final = 0.01
SETTLE_SECONDS: Final = 0.2
ADA_AUDIENCE: Final = ("person:ada",)
BOB_AUDIENCE: Final = ("person:bob",)
GROUP_AUDIENCE: Final = ("chat:agent:main:test:group:g",)
"""The members of a group."""


class CheckSkipped(Exception):
    """The check does not apply to this provider; the message says why."""


class CheckFailed(AssertionError):
    """The provider failed the check; the message says how."""


@runtime_checkable
class ServiceHarness(Protocol):
    """Breaks a provider's service and reads its contents. Without one, the checks that need it are skipped."""

    settings: Mapping[str, Any]
    """The settings with which the provider reaches this service."""

    async def disconnect(self) -> None:
        """Stop the service."""

    async def reconnect(self) -> None: ...

    async def list_stored_texts(self) -> Sequence[str]:
        """Return the texts of all items in the order of their arrival."""


class ProviderScenario:
    """The environment of one check: an empty provider with its own directory."""

    def __init__(
        self,
        path: Path,
        make: MakeProvider,
        *,
        harness: ServiceHarness | None = None,
        seconds: float = 2.0,
        patience: float = 5.0,
    ) -> None:
        """`seconds`: the limit of a call. `patience`: how long an item may take until it is found."""
        self.path = path
        self.make = make
        self.harness = harness
        self.seconds = seconds
        self.patience = patience
        self.mark = secrets.token_hex(3)
        """Part of every name, so that a service with data of an earlier run does not mix the runs."""
        self._built: list[MemoryClient] = []
        self._count = itertools.count(1)
        self._tokens = itertools.count(1)

    # -- the provider ------------------------------------------------------------------------------------------------

    def build_client(self, agent: str = "main") -> MemoryClient:
        """Make another object for an agent, with the same directory as the previous one."""
        return self.attach_provider(self.build_provider(agent), agent)

    def build_provider(self, agent: str = "main") -> MemoryProvider:
        directory = self.path / agent
        directory.mkdir(parents=True, exist_ok=True)
        return self.make(agent, directory)

    def attach_provider(self, provider: MemoryProvider, agent: str = "main") -> MemoryClient:
        attached = MemoryClient(provider, instance="it", agent=agent)
        attached.deadline = min(attached.deadline, self.seconds)
        self._built.append(attached)
        return attached

    async def close(self) -> None:
        for attached in self._built:
            async with asyncio.timeout(10):
                await attached.close()

    def require_harness(self) -> ServiceHarness:
        if self.harness is None:
            raise CheckSkipped("the check needs a service that can be broken: pass a harness")
        return self.harness

    # -- what is stored ----------------------------------------------------------------------------------------------

    def make_token(self) -> str:
        """Return a new unique word."""
        return f"zq{self.mark}x{next(self._tokens)}q"  # no token begins another one

    def make_person_id(self, name: str) -> str:
        return f"{name}-{self.mark}"

    def make_session_id(self, name: str) -> str:
        return f"{name}-{self.mark}"

    def _expand_audience(self, audience: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"{one}-{self.mark}" for one in audience)

    def _make_stamp(self, who: str, audience: Sequence[str], agent: str, session: str) -> Stamp:
        address = f"agent:{agent}:test:dm:{self.make_session_id(session)}"
        return Stamp(person=self.make_person_id(who), audience=self._expand_audience(audience), address=address)

    def make_exchange(
        self,
        text: str,
        *,
        session: str = "s1",
        who: str = "ada",
        audience: Sequence[str] = ADA_AUDIENCE,
        agent: str = "main",
    ) -> Exchange:
        op = next(self._count) * 10
        stamp, author = self._make_stamp(who, audience, agent, session), f"person:{self.make_person_id(who)}"
        session = self.make_session_id(session)
        return Exchange(
            key=build_exchange_key(session, op),
            session=session,
            agent=agent,
            op=op,
            heard=(MemoryUtterance(author=author, text=text, at=1_700_000_000.0 + op, stamp=stamp, seq=op - 1),),
            said=(
                MemoryUtterance(
                    author=f"agent:{agent}", text="Good.", at=1_700_000_001.0 + op, stamp=stamp, seq=op + 2
                ),
            ),
            at=1_700_000_001.0 + op,
            stamp=stamp,
        )

    def make_note(
        self,
        text: str,
        *,
        session: str = "s1",
        who: str = "ada",
        audience: Sequence[str] = ADA_AUDIENCE,
        agent: str = "main",
    ) -> MemoryNote:
        seq = next(self._count) * 10
        stamp, author = self._make_stamp(who, audience, agent, session), f"person:{self.make_person_id(who)}"
        session = self.make_session_id(session)
        return MemoryNote(
            key=build_note_key(session, seq),
            session=session,
            agent=agent,
            seq=seq,
            text=text,
            author=author,
            at=1_700_000_000.0 + seq,
            stamp=stamp,
        )

    def make_retraction(self, *items: MemoryItem) -> MemoryRetraction:
        seq = next(self._count) * 10
        session = items[0].session
        return MemoryRetraction(
            key=f"{session}:{seq}:retract", session=session, agent=items[0].agent, keys=tuple(it.key for it in items)
        )

    def make_job_batch(self, of: Exchange, task: str, result: str) -> MemoryBatch:
        """Make a job that was requested in the session of `of`."""
        seq = next(self._count) * 10
        job = JobResult(
            key=f"{of.session}:{seq}:job",
            session=of.session,
            agent=of.agent,
            seq=seq,
            task=task,
            result=result,
            at=1_700_000_000.0 + seq,
            stamp=of.stamp,
        )
        return MemoryBatch(name=self.make_batch(of).name, items=(), jobs=(job,))

    def make_batch(self, *items: MemoryItem) -> MemoryBatch:
        return MemoryBatch(name=f"memory-of-{items[0].session}", items=items)

    async def store_items(self, attached: MemoryClient, *items: MemoryItem) -> Mapping[str, str]:
        """Store items within the limit of a call."""
        async with asyncio.timeout(attached.deadline):
            return await attached.store(self.make_batch(*items))

    # -- what is found -----------------------------------------------------------------------------------------------

    def make_query(
        self,
        token: str,
        *,
        session: str = "s9",
        who: str = "ada",
        audience: Sequence[str] = ADA_AUDIENCE,
        agent: str = "main",
        limit: int = 20,
    ) -> MemoryQuery:
        return MemoryQuery(
            text=f"what about {token}?",
            agent=agent,
            session=self.make_session_id(session),
            name=f"memory-of-{self.make_session_id(session)}",
            audience=self._expand_audience(audience),
            person=self.make_person_id(who),
            limit=limit,
        )

    async def find_hits(self, attached: MemoryClient, token: str, **whose: Any) -> list[MemoryHit]:
        """Return the hits for a word now."""
        async with asyncio.timeout(attached.deadline):
            found = await attached.find(self.make_query(token, **whose))
        return [item for item in found if token in item.text]

    async def find_copies(self, attached: MemoryClient, token: str, **whose: Any) -> list[MemoryHit]:
        """Return the hits for a word now that are the item itself. A service may show beside it what it derived from
        it, which has no key.
        """
        found = await self.find_hits(attached, token, **whose)
        return [item for item in found if item.key] or found

    async def wait_until_found(
        self, attached: MemoryClient, token: str, *, times: int = 1, **whose: Any
    ) -> list[MemoryHit]:
        """Return the hits that are the item itself, once there are `times` of them, or the patience has ended."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.patience + attached.visible_after
        # poll, because the service sends no event when it has stored and indexed an item
        while len(found := await self.find_copies(attached, token, **whose)) < times and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(SETTLE_SECONDS)
        return found

    async def assert_found(self, attached: MemoryClient, *tokens: str, times: int = 1, **whose: Any) -> None:
        """Check that every word is found `times` times."""
        for token in tokens:
            found = await self.wait_until_found(attached, token, times=times, **whose)
            if len(found) != times:
                raise CheckFailed(
                    f"“{token}” was stored, and is found {_format_times(len(found))}, not {_format_times(times)}"
                )

    async def assert_not_found(self, attached: MemoryClient, token: str, **whose: Any) -> None:
        found = await self.find_hits(attached, token, **whose)
        if found:
            raise CheckFailed(f"“{token}” must not be found, and is: {found[0].text[:80]!r}")


def _format_times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
