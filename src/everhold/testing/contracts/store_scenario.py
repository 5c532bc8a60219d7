"""A scenario for store suites: performs usual changes with one call. It uses only the port."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from everhold.core.entries import (
    OWN_OPERATION,
    Began,
    ChangeBody,
    Changed,
    ChatLocation,
    Compressed,
    Ended,
    Entry,
    EntryBody,
    EntryDraft,
    Erased,
    Heard,
    Took,
)
from everhold.ports.store import (
    Change,
    Claim,
    CommitResult,
    ConsumerCursor,
    CursorUpdate,
    RetryDelay,
    SessionOpening,
    Step,
    Store,
    Wakeup,
)
from everhold.testing.seeded_random import SeededRandom as SeededRandom


class StoreClock:
    """The clock of a store under test. A test sets it."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class StoreScenario:
    """One store with session `s` of agent `main`, and the clock that it was opened with."""

    def __init__(self, store: Store, clock: StoreClock | None = None, *, skew: float = 0.0) -> None:
        """`skew`: by how much the caller's clock is ahead of the store's."""
        self.store = store
        self.clock = clock or StoreClock()
        self.skew = skew

    def at(self, time: float) -> Store:
        """Set the store's clock, and return the store."""
        self.clock.time = time
        return self.store

    async def commit(
        self, *bodies: EntryBody | EntryDraft, session: str = "s", at: float = 1.0, step: Step = Step.NOTE, **rest: Any
    ) -> CommitResult:
        drafts = tuple(
            one if isinstance(one, EntryDraft) else EntryDraft(body=one, author="person:ada") for one in bodies
        )
        return await self.at(at).commit(Change(step=step, session=session, at=at + self.skew, entries=drafts, **rest))

    async def open_session(self, session: str, *, address: str = "", at: float = 0.0, **opening: Any) -> CommitResult:
        opens = SessionOpening(agent="main", address=address or f"test:{session}", **opening)
        return await self.commit(session=session, at=at, step=Step.ACCEPT, opens=opens)

    async def commit_heard(
        self,
        text: str = "hello",
        *,
        session: str = "s",
        at: float = 1.0,
        dedup: str | None = None,
        asks: bool = True,
        wake: str = "turn",
        **rest: Any,
    ) -> int:
        wakes = (Wakeup(consumer=wake),) if wake else ()
        draft = EntryDraft(body=make_heard(text, asks=asks), author="person:ada", dedup=dedup)
        done = await self.commit(draft, session=session, at=at, step=Step.ACCEPT, wakeups=wakes, **rest)
        return done.seqs[0]

    async def claim_cursor(
        self, consumer: str = "turn", *, at: float = 1.0, owner: str = "me", lease: float = 60.0, limit: int = 1
    ) -> Claim:
        claims = await self.at(at).claim_cursors(owner=owner, lease=lease, limit=limit, only=(consumer,))
        assert len(claims) == 1, f"{consumer} is not due"
        return claims[0]

    async def claim_consumers(self, *, at: float = 1.0, owner: str = "me", limit: int = 99, **rest: Any) -> list[str]:
        """Return the consumers of the cursors that can be claimed now, in order."""
        claims = await self.at(at).claim_cursors(owner=owner, lease=60.0, limit=limit, **rest)
        return [claim.consumer for claim in claims]

    async def begin_operation(
        self,
        *takes: int,
        claim: Claim | None = None,
        type: Any = "turn",
        session: str = "s",
        at: float = 1.0,
        consumer: str = "turn",
        blocking: bool = False,
        compression: int = 0,
        **rest: Any,
    ) -> int:
        began = Began(type=type, takes=takes, consumer=consumer, blocking=blocking, compression=compression)
        done = await self.commit(began, claim=claim, session=session, at=at, step=Step.BEGIN, **rest)
        return done.seqs[0]

    async def take_messages(self, op: int, *takes: int, claim: Claim | None = None, session: str = "s") -> int:
        draft = EntryDraft(body=Took(takes=takes), author="agent:main", op=op)
        return (await self.commit(draft, claim=claim, op=op, session=session, step=Step.TAKE)).seqs[0]

    async def end_operation(
        self,
        op: int,
        outcome: Any = "done",
        *,
        claim: Claim | None = None,
        session: str = "s",
        at: float = 1.0,
        **rest: Any,
    ) -> int:
        draft = EntryDraft(body=Ended(outcome=outcome), author="agent:main", op=op)
        done = await self.commit(draft, claim=claim, op=op, session=session, at=at, step=Step.END, **rest)
        return done.seqs[-1]

    async def commit_turn(self, text: str = "hello", *, session: str = "s") -> int:
        """Commit a message and its finished turn."""
        op = await self.begin_operation(await self.commit_heard(text, session=session, wake=""), session=session)
        await self.end_operation(op, session=session)
        return op

    async def commit_compression(self, covers: int, *, session: str = "s", **rest: Any) -> int:
        """Commit a compression of everything up to `covers`."""
        op = await self.begin_operation(type="compression", session=session, consumer="compression")
        compressed = EntryDraft(body=Compressed(summary="so far", covers=covers), author="system", op=op)
        ended = EntryDraft(body=Ended(), author="system", op=op)
        await self.commit(compressed, ended, op=op, session=session, step=Step.COMPRESSION_END, **rest)
        return op

    async def commit_change(self, change: ChangeBody, *, session: str = "s", **rest: Any) -> int:
        return (await self.commit(Changed(change=change), session=session, **rest)).seqs[0]

    async def erase_entries(
        self, *seqs: int, session: str = "s", compressions: tuple[int, ...] = (), **rest: Any
    ) -> CommitResult:
        return await self.commit(
            Erased(seqs=seqs, compressions=compressions), session=session, step=Step.ERASE, erase=seqs, **rest
        )

    async def update_cursor(self, claim: Claim, *, at: float = 1.0, session: str = "s", **update: Any) -> CommitResult:
        return await self.commit(
            session=session, at=at, step=Step.CURSOR_SETTLE, claim=claim, cursor=CursorUpdate(**update)
        )

    async def wake_consumer(
        self, consumer: str, seconds: float = 0.0, *, at: float = 1.0, mandatory: bool = False
    ) -> None:
        await self.commit(
            at=at, wakeups=(Wakeup(consumer=consumer, wait=RetryDelay(seconds=seconds, mandatory=mandatory)),)
        )

    async def read_cursor(self, consumer: str = "turn", session: str = "s") -> ConsumerCursor:
        cursor = await self.store.get_cursor(consumer, session)
        assert cursor is not None, f"there is no cursor of {consumer}"
        return cursor

    async def list_pending_seqs(self, session: str = "s") -> list[int]:
        return [entry.seq for entry in await self.store.list_pending(session)]

    async def read_texts(self, session: str = "s") -> list[str]:
        return [
            get_heard_text(entry) for entry in await self.store.list_entries(session) if isinstance(entry.body, Heard)
        ]

    async def read_generation(self, session: str = "s") -> int:
        return (await self.store.get_session(session)).generation


def make_heard(text: str = "hello", *, asks: bool = True, message: str = "") -> Heard:
    return Heard(origin=ChatLocation(platform="test", account="bot", chat="c", message=message), text=text, asks=asks)


def make_own_draft(body: EntryBody) -> EntryDraft:
    """Make a draft for the operation that begins in the same change."""
    return EntryDraft(body=body, author="agent:main", op=OWN_OPERATION)


def get_heard_text(entry: Entry) -> str:
    assert isinstance(entry.body, Heard)
    return entry.body.text


class OpensStore(Protocol):
    def open(self, home: Path, now: Callable[[], float]) -> Store | Awaitable[Store]: ...


def store_promise(test: Callable[[Any, StoreScenario], Awaitable[None]]) -> Callable[[Any, Path], None]:
    """Run an async test with its own store, and verify the store afterwards."""

    def run(self: OpensStore, tmp_path: Path) -> None:
        async def play() -> None:
            clock = StoreClock()
            opened = self.open(tmp_path, clock)
            store = await opened if isinstance(opened, Awaitable) else opened
            try:
                scenario = StoreScenario(store, clock)
                await scenario.open_session("s")
                await test(self, scenario)
                assert await store.verify() == []
            finally:
                await store.close()

        asyncio.run(play())

    functools.update_wrapper(run, test)
    del run.__dict__["__wrapped__"]  # otherwise pytest would ask for the inner test's arguments
    return run
