"""One simulated process: its own connection to the disk, and gates where it can crash, stall, or be cut off.

A crash marks the process dead, and every further gate waits for ever, so no `finally` runs, as after a kill -9. A
stalled process waits at its gates and continues later, even if another process has taken over.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from everhold.core.entries import Entry, EntryKind
from everhold.engine.gates import Gates, Wakeups
from everhold.errors import InDoubt, Transient
from everhold.ports.store import (
    BudgetSpend,
    Change,
    CitedEntry,
    Claim,
    CommitResult,
    ConsumerCursor,
    DeadLetter,
    MemoryBacklog,
    Now,
    Operation,
    Receipt,
    ReceiptCount,
    Session,
    SessionSnapshot,
    StateNamespace,
    StateRecord,
    Step,
    Store,
)
from everhold.stores.sqlite import SqliteStore
from everhold.testing.sim.world import RequestOrigin, SimLogger, SimRandom, SimWorld

if TYPE_CHECKING:
    from everhold.testing.sim.invariants import InvariantWitness

T = TypeVar("T")

CURRENT_CLAIM: contextvars.ContextVar[Claim | None] = contextvars.ContextVar("WORKING", default=None)
"""The claim under which the running code acts. It is set in a worker's task and inherited by the tasks it starts."""

READ_YIELD_PROBABILITY = 0.1
"""The probability that a read lets other tasks run first, as with a remote store."""


class SimProcess:
    """A process that may die or stall at any gate."""

    def __init__(self, world: SimWorld, witness: InvariantWitness, number: int, disk: SqliteStore) -> None:
        self.world = world
        self.witness = witness
        self.name = f"p{number}"
        self.dead = False
        self.stalled: asyncio.Event | None = None
        self.disk = disk
        self.chance = SimRandom(world.seed, self.name)
        self.wakeups = Wakeups()
        self.store: Store = GatedStore(self)
        self.workers: Mapping[asyncio.Task[bool], Claim] = {}
        """The tasks of its supervisor."""
        self.on_commit: Callable[[Change], None] = lambda change: None

    @property
    def alive(self) -> bool:
        """Whether the process is neither dead nor stalled."""
        return not self.dead and self.stalled is None

    def die(self) -> None:
        self.dead = True
        self.world.record(self.name, "DIES")

    async def wait_until_alive(self) -> None:
        """Wait while the process is stalled, and for ever if it is dead."""
        task = asyncio.current_task()
        if task is not None and task in self.workers:
            CURRENT_CLAIM.set(self.workers[task])
        while True:
            if self.dead:
                await self.world.wait_forever()
            if self.stalled is None:
                return
            await self.stalled.wait()

    async def pass_gate(self, name: str, moment: str) -> None:
        """Pass a gate, where the process may crash or stall."""
        await self.wait_until_alive()
        match self.world.draw_fate(name, moment):
            case "crash":
                self.world.stats["crashes"] += 1
                self.world.crashed[name, moment] += 1
                self.world.record(self.name, f"crashes {moment} {name}")
                self.die()
                if self.world.draw_chance(self.world.profile.power):
                    self.world.cut_power()
            case "stall":
                self.stall(f"{moment} {name}")
        await self.wait_until_alive()

    def stall(self, where: str) -> None:
        seconds = self.world.draw_stall_seconds()
        self.world.stats["stalls"] += 1
        self.world.record(self.name, f"stalls for {seconds:.1f} s, {where}")
        self.stalled = asyncio.Event()
        self.world.loop.call_later(seconds, self._end_stall, self.stalled)

    def _end_stall(self, event: asyncio.Event) -> None:
        self.stalled = None
        self.world.woke_at[self.name] = self.world.loop.time()
        if not self.dead:
            self.world.record(self.name, "goes on")
        event.set()

    def make_logger(self, complaints: list[str]) -> SimLogger:
        return SimLogger(self.world, self.name, complaints)


class SimGates(Gates):
    """Gates whose calls go through the simulated world."""

    def __init__(self, process: SimProcess, *, store: Store, log: SimLogger) -> None:
        super().__init__(store=store, clock=process.world, chance=process.chance, log=log, owner=process.name)
        self.process = process

    async def call(self, what: str, work: Callable[[], Awaitable[T]], *, deadline: float) -> T:
        process, world, loop = self.process, self.process.world, self.process.world.loop
        kind = what.partition(" ")[0].partition(":")[0]
        started = loop.time()
        expires = started + deadline
        await process.pass_gate(f"call {kind}", "before")
        if loop.time() >= expires:
            raise InDoubt(f"{what} did not begin within {deadline:g} s")
        trip = world.draw_trip(kind, deadline)
        claim = CURRENT_CLAIM.get()
        sent = RequestOrigin(process.name, started, claim.fence if claim is not None else 0)
        answer = world.carry_request(work, trip, sent=sent, expires=expires)
        ends = expires if trip.breaks_after_seconds is None else min(expires, loop.time() + trip.breaks_after_seconds)
        try:
            async with asyncio.timeout_at(ends):
                result = await answer
        except TimeoutError as error:
            await process.pass_gate(f"call {kind}", "after")
            raise InDoubt(f"{what} gave no answer within {ends - started:g} s") from error
        except Transient as error:
            await process.pass_gate(f"call {kind}", "after")
            process.witness.record_wait_request(CURRENT_CLAIM.get(), error)
            raise
        finally:
            answer.cancel()
        await process.pass_gate(f"call {kind}", "after")
        return result

    async def sleep(self, seconds: float, *, wakeup: asyncio.Event | None = None) -> None:
        await self.process.wait_until_alive()
        await super().sleep(seconds, wakeup=wakeup)
        # a crash or stall before or during the sleep takes effect at its end
        await self.process.pass_gate("sleep", "after")


class GatedStore:
    """The store as a process sees it: every writing method is a gate, and every read may be delayed."""

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self.world = process.world
        self.witness = process.witness
        self.disk = process.disk

    # -- writing

    async def commit(self, change: Change) -> CommitResult:
        await self._before(change.step)
        done = await self.disk.commit(change)
        self.witness.record_commit(self.process, change, done)
        self.witness.record_claims(self.process, list(done.claims))
        await self._after(change.step)
        self.process.on_commit(change)
        return done

    async def claim_cursors(
        self, *, owner: str, at: Now, lease: float, limit: int, skip: Sequence[str] = (), only: Sequence[str] = ()
    ) -> list[Claim]:
        await self._before(Step.CLAIM)
        claims = await self.disk.claim_cursors(owner=owner, at=at, lease=lease, limit=limit, skip=skip, only=only)
        self.witness.record_claims(self.process, claims)
        await self._after(Step.CLAIM)
        return claims

    async def renew_leases(self, claims: Collection[Claim], *, owner: str, at: float, lease: float) -> int:
        await self._before(Step.RENEW)
        count = await self.disk.renew_leases(claims, owner=owner, at=at, lease=lease)
        await self._after(Step.RENEW)
        return count

    async def retry_now(self, *, at: float, held: Sequence[str] = ()) -> int:
        await self._before(Step.RETRY_NOW)
        count = await self.disk.retry_now(at=at, held=held)
        await self._after(Step.RETRY_NOW)
        return count

    async def revoke_leases(self, *, owner: str, at: float) -> int:
        await self._before(Step.REVOKE_LEASES)
        count = await self.disk.revoke_leases(owner=owner, at=at)
        self.world.record(self.process.name, f"seizes {count} leases")
        await self._after(Step.REVOKE_LEASES)
        return count

    async def replay_dead_letters(self, ids: Sequence[int], *, at: float) -> int:
        await self._before(Step.REPLAY)
        count = await self.disk.replay_dead_letters(ids, at=at)
        await self._after(Step.REPLAY)
        return count

    async def link_identity(self, identity: str, person: str, *, at: float) -> None:
        await self._before(Step.PEOPLE)
        await self.disk.link_identity(identity, person, at=at)
        await self._after(Step.PEOPLE)

    async def _before(self, step: Step) -> None:
        await asyncio.sleep(self.process.chance.random() * 0.01)
        await self.process.pass_gate(step, "before")

    async def _after(self, step: Step) -> None:
        await self.process.pass_gate(step, "after")
        await asyncio.sleep(self.process.chance.random() * 0.01)
        await self.process.wait_until_alive()

    async def _yield_sometimes(self) -> None:
        if self.process.chance.random() < READ_YIELD_PROBABILITY:
            await asyncio.sleep(self.process.chance.random() * 0.02)
        await self.process.wait_until_alive()

    # -- reading

    async def get_session(self, id: str) -> Session:
        await self._yield_sometimes()
        return await self.disk.get_session(id)

    async def get_session_snapshot(self, id: str) -> SessionSnapshot:
        await self._yield_sometimes()
        return await self.disk.get_session_snapshot(id)

    async def list_sessions(self, *, limit: int = 100, after: str = "", newest_first: bool = False) -> list[Session]:
        await self._yield_sometimes()
        return await self.disk.list_sessions(limit=limit, after=after, newest_first=newest_first)

    async def list_sessions_begun_by(
        self, *, author: str, agent: str = "", address: str = "", limit: int = 100, after: str = ""
    ) -> list[Session]:
        await self._yield_sometimes()
        return await self.disk.list_sessions_begun_by(
            author=author, agent=agent, address=address, limit=limit, after=after
        )

    async def list_branches(self, id: str) -> list[Session]:
        await self._yield_sometimes()
        return await self.disk.list_branches(id)

    async def resolve_address(self, address: str) -> str | None:
        await self._yield_sometimes()
        return await self.disk.resolve_address(address)

    async def get_session_head(self, id: str) -> tuple[int, int]:
        await self._yield_sometimes()
        return await self.disk.get_session_head(id)

    async def get_bound_session(self, address: str) -> tuple[str, str] | None:
        await self._yield_sometimes()
        return await self.disk.get_bound_session(address)

    async def find_sessions(self, name: str) -> list[str]:
        await self._yield_sometimes()
        return await self.disk.find_sessions(name)

    async def list_entries(
        self,
        session: str,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: Sequence[EntryKind] = (),
        limit: int | None = None,
    ) -> list[Entry]:
        await self._yield_sometimes()
        return await self.disk.list_entries(session, after=after, upto=upto, kinds=kinds, limit=limit)

    async def get_entry(self, session: str, seq: int) -> Entry:
        await self._yield_sometimes()
        return await self.disk.get_entry(session, seq)

    async def get_cited_entries(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], CitedEntry]:
        await self._yield_sometimes()
        return await self.disk.get_cited_entries(places)

    async def read_feed(self, *, after: int = 0, limit: int = 500) -> list[Entry]:
        await self._yield_sometimes()
        return await self.disk.read_feed(after=after, limit=limit)

    async def list_notes(self, *, after: int = 0, limit: int = 500) -> list[Entry]:
        await self._yield_sometimes()
        return await self.disk.list_notes(after=after, limit=limit)

    async def list_compressions(self, *, limit: int) -> list[Entry]:
        await self._yield_sometimes()
        return await self.disk.list_compressions(limit=limit)

    async def list_pending(self, session: str, *, after: int = 0) -> list[Entry]:
        await self._yield_sometimes()
        return await self.disk.list_pending(session, after=after)

    async def count_waiting(self) -> int:
        await self._yield_sometimes()
        return await self.disk.count_waiting()

    async def list_operations(
        self,
        session: str,
        *,
        types: Sequence[str] = (),
        after: int = 0,
        before: int | None = None,
        states: Sequence[str] = (),
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Operation]:
        await self._yield_sometimes()
        return await self.disk.list_operations(
            session, types=types, after=after, before=before, states=states, newest_first=newest_first, limit=limit
        )

    async def get_cursor(self, consumer: str, session: str) -> ConsumerCursor | None:
        await self._yield_sometimes()
        return await self.disk.get_cursor(consumer, session)

    async def list_cursors(
        self, *, consumer: str = "", session: str = "", waiting: bool = False
    ) -> list[ConsumerCursor]:
        await self._yield_sometimes()
        return await self.disk.list_cursors(consumer=consumer, session=session, waiting=waiting)

    async def list_backlogs(self, prefix: str) -> list[MemoryBacklog]:
        await self._yield_sometimes()
        return await self.disk.list_backlogs(prefix)

    async def get_next_due(self, *, at: float, skip: Sequence[str] = (), only: Sequence[str] = ()) -> float | None:
        await self._yield_sometimes()
        return await self.disk.get_next_due(at=at, skip=skip, only=only)

    async def list_dead_letters(
        self, *, session: str = "", consumer: str = "", state: str = "dead"
    ) -> list[DeadLetter]:
        await self._yield_sometimes()
        return await self.disk.list_dead_letters(session=session, consumer=consumer, state=state)

    async def count_receipts(self, consumers: Sequence[str]) -> list[ReceiptCount]:
        await self._yield_sometimes()
        return await self.disk.count_receipts(consumers)

    async def count_receipts_in_doubt(self) -> int:
        await self._yield_sometimes()
        return await self.disk.count_receipts_in_doubt()

    async def list_receipts(self, session: str, *, seq: int | None = None, consumer: str = "") -> list[Receipt]:
        await self._yield_sometimes()
        return await self.disk.list_receipts(session, seq=seq, consumer=consumer)

    async def get_state_record(self, namespace: StateNamespace, key: str, *, scope: str = "") -> StateRecord | None:
        await self._yield_sometimes()
        return await self.disk.get_state_record(namespace, key, scope=scope)

    async def list_state_records(
        self, namespace: StateNamespace | None = None, *, scope: str | None = None
    ) -> list[StateRecord]:
        await self._yield_sometimes()
        return await self.disk.list_state_records(namespace, scope=scope)

    async def get_spend(self, budget: str, day: str) -> BudgetSpend:
        await self._yield_sometimes()
        return await self.disk.get_spend(budget, day)

    async def list_spends(self, prefix: str, day: str) -> list[BudgetSpend]:
        await self._yield_sometimes()
        return await self.disk.list_spends(prefix, day)

    async def find_entry_place(self, dedup: str) -> tuple[str, int, int | None] | None:
        await self._yield_sometimes()
        return await self.disk.find_entry_place(dedup)

    async def get_blob(self, digest: str) -> bytes | None:
        await self._yield_sometimes()
        return await self.disk.get_blob(digest)

    async def get_person(self, identity: str) -> str | None:
        await self._yield_sometimes()
        return await self.disk.get_person(identity)

    async def list_identity_links(self) -> list[tuple[str, str]]:
        await self._yield_sometimes()
        return await self.disk.list_identity_links()

    async def list_identities(self, person: str) -> list[str]:
        await self._yield_sometimes()
        return await self.disk.list_identities(person)

    async def verify(self, session: str | None = None) -> list[str]:
        await self._yield_sometimes()
        return await self.disk.verify(session)

    async def close(self) -> None:
        await self.disk.close()
