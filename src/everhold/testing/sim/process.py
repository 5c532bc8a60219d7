"""One simulated process: its own connection to the disk, and gates where it can crash, stall, or be cut off.

A crash marks the process dead, and every further gate waits for ever, so no `finally` runs, as after a kill -9. A
stalled process waits at its gates and continues later, even if another process has taken over.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from everhold.core.budget import BudgetHold, BudgetRefusal
from everhold.core.hosts import build_commit_hint
from everhold.engine.gates import Gates, Wakeups
from everhold.errors import EverholdError, InDoubt, OutcomeUnknown, StoreBusy, Transient
from everhold.ports.hosts import AccountClaim, CommitHint, HostRecord, HostStatus
from everhold.ports.store import Change, Claim, CommitResult, Step, Store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.sim.power_loss import record_next_commit
from everhold.testing.sim.world import MAX_HANG_SECONDS, RequestOrigin, SimLogger, SimRandom, SimWorld

if TYPE_CHECKING:
    from everhold.testing.sim.invariants import InvariantWitness

    _StoreMethods = SqliteStore
else:
    _StoreMethods = object

T = TypeVar("T")

CURRENT_CLAIM: contextvars.ContextVar[Claim | None] = contextvars.ContextVar("WORKING", default=None)
"""The claim under which the running code acts. It is set in a worker's task and inherited by the tasks it starts."""

READ_PREFIXES: Final = (
    "audit",
    "count_",
    "find_",
    "get_",
    "last_",
    "list_",
    "measure_",
    "read_",
    "resolve_",
    "scan_",
    "verify",
)
STORE_PROPERTIES: Final = {name for name, value in vars(Store).items() if isinstance(value, property)}
HANG_PROBABILITY: Final = 0.3
"""The probability that a call to an unreachable store does not fail at once."""
MAX_LATE_SECONDS: Final = 3.0
"""How long after its caller lost the connection a commit may still be applied."""
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
        self.cut_off_until = 0.0
        """Until then the store cannot be reached."""
        self.disk = disk
        self.is_remote = world.profile.mode == "hosts"
        """The store is reached over a network."""
        self.clock = HostClock(world, self.name)
        self.chance = SimRandom(world.seed, self.name)
        self.wakeups = Wakeups()
        self.store: Store = GatedStore(self)
        self.workers: Mapping[asyncio.Task[bool], Claim] = {}
        """The tasks of its supervisor."""
        self.on_commit: Callable[[CommitHint], None] = lambda hint: None
        self.receive_hint: Callable[[CommitHint], None] = lambda hint: None
        """What it does with a hint of another host."""

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

    def take_hint(self, hint: CommitHint) -> None:
        if self.alive:
            self.receive_hint(hint)

    def cut_off(self, seconds: float) -> None:
        """Cut the host off from the store."""
        self.world.stats["partitions"] += 1
        self.world.record(self.name, f"is cut off from the store for {seconds:.1f} s")
        self.cut_off_until = self.world.loop.time() + seconds

    async def reach_store(self) -> None:
        """Take a call to the store. Raises StoreBusy if the host is cut off, at once or after some time."""
        world = self.world
        if world.profile.store_delay:
            await asyncio.sleep(self.chance.random() * world.profile.store_delay)
        if world.loop.time() < self.cut_off_until:
            if self.chance.random() < HANG_PROBABILITY:
                await asyncio.sleep(self.chance.random() * MAX_HANG_SECONDS)
            await self.wait_until_alive()
            raise StoreBusy("the store cannot be reached")

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


class HostClock:
    """The clock of a host, which differs from the store's."""

    def __init__(self, world: SimWorld, name: str) -> None:
        self.world = world
        most = world.profile.clock_skew
        self.skew = random.Random(f"{world.seed}/clock {name}").uniform(-most, most)

    def now(self) -> float:
        return self.world.now() + self.skew

    def monotonic(self) -> float:
        return self.world.monotonic()


class SimGates(Gates):
    """Gates whose calls go through the simulated world."""

    def __init__(self, process: SimProcess, *, store: Store, log: SimLogger) -> None:
        super().__init__(
            store=store,
            clock=process.clock,
            chance=process.chance,
            log=log,
            owner=process.name,
        )
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


class GatedStore(_StoreMethods):
    """The store as a process sees it: every writing method is a gate, and every read may be delayed.

    The reading methods are added below. For the type checker they are those of the SQLite store.
    """

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self.world = process.world
        self.witness = process.witness
        self.disk = process.disk

    def __getattr__(self, name: str) -> Any:
        """Return one of the store's properties."""
        if name in STORE_PROPERTIES:
            return getattr(self.disk, name)
        raise AttributeError(name)

    # -- writing

    async def commit(self, change: Change) -> CommitResult:
        await self._before(change.step)
        if self._loses_connection():
            if self.process.chance.random() < 0.5:
                self.world.loop.create_task(self._commit_late(change))
            raise OutcomeUnknown(f"the connection was lost during {change.step}")
        record_next_commit(self.disk, functools.partial(self._record_commit, change))
        done = await self.disk.commit(change)
        if self._loses_connection():
            raise OutcomeUnknown(f"the connection was lost after {change.step}")
        await self._after(change.step)
        self.process.on_commit(build_commit_hint(change, done.claims))
        return done

    async def _commit_late(self, change: Change) -> None:
        """Apply a change whose caller no longer waits for it."""
        await asyncio.sleep(self.process.chance.random() * MAX_LATE_SECONDS)
        record_next_commit(self.disk, functools.partial(self._record_commit, change))
        try:
            await self.disk.commit(change)
        except EverholdError as error:
            self.world.record(self.process.name, f"{change.step} was late: {error}")
        else:
            self.world.stats["late commits"] += 1

    def _loses_connection(self) -> bool:
        lost = self.world.draw_chance(self.world.profile.unknown_outcome)
        self.world.stats["unknown outcomes"] += lost
        return lost

    async def claim_cursors(self, **wanted: Any) -> list[Claim]:
        await self._before(Step.CLAIM)
        record_next_commit(
            self.disk, functools.partial(self.witness.record_claims, self.process, lease=wanted["lease"])
        )
        claims = await self.disk.claim_cursors(**wanted)
        if self._loses_connection():
            raise OutcomeUnknown("the connection was lost after a claim")
        await self._after(Step.CLAIM)
        return claims

    async def renew_leases(self, claims: Collection[Claim], *, owner: str, lease: float) -> int:
        await self._before(Step.RENEW)
        record_next_commit(
            self.disk, functools.partial(self.witness.record_renewal, list(claims), owner=owner, lease=lease)
        )
        count = await self.disk.renew_leases(claims, owner=owner, lease=lease)
        await self._after(Step.RENEW)
        return count

    async def reserve_spending(self, holds: Sequence[BudgetHold], **wanted: Any) -> BudgetRefusal | None:
        await self._before(Step.SPEND)
        refusal = await self.disk.reserve_spending(holds, **wanted)
        await self._after(Step.SPEND)
        return refusal

    async def renew_reservations(self, ids: Collection[str], *, lease: float) -> int:
        await self._before(Step.SPEND)
        count = await self.disk.renew_reservations(ids, lease=lease)
        await self._after(Step.SPEND)
        return count

    async def release_reservations(self, ids: Collection[str]) -> None:
        await self._before(Step.SPEND)
        await self.disk.release_reservations(ids)
        await self._after(Step.SPEND)

    async def retry_now(self, *, held: Sequence[str] = ()) -> int:
        await self._before(Step.RETRY_NOW)
        count = await self.disk.retry_now(held=held)
        await self._after(Step.RETRY_NOW)
        return count

    async def revoke_leases(self, *, owner: str) -> int:
        await self._before(Step.REVOKE_LEASES)
        count = await self.disk.revoke_leases(owner=owner)
        self.world.record(self.process.name, f"seizes {count} leases")
        await self._after(Step.REVOKE_LEASES)
        return count

    async def hand_over_leases(self, claims: Collection[Claim], *, owner: str) -> int:
        await self._before(Step.RENEW)
        record_next_commit(
            self.disk, functools.partial(self.witness.record_renewal, list(claims), owner=owner, lease=0.0)
        )
        count = await self.disk.hand_over_leases(claims, owner=owner)
        await self._after(Step.RENEW)
        return count

    async def claim_account(self, account: str, *, owner: str, lease: float) -> AccountClaim | None:
        await self._before(Step.ACCOUNT_LEASE)
        record_next_commit(self.disk, functools.partial(self.witness.record_account_claim, lease=lease))
        claim = await self.disk.claim_account(account, owner=owner, lease=lease)
        if self._loses_connection():
            raise OutcomeUnknown("the connection was lost after an account was claimed")
        await self._after(Step.ACCOUNT_LEASE)
        return claim

    async def renew_accounts(self, claims: Collection[AccountClaim], *, lease: float) -> list[AccountClaim]:
        await self._before(Step.ACCOUNT_LEASE)
        record_next_commit(self.disk, functools.partial(self.witness.record_account_renewal, lease=lease))
        held = await self.disk.renew_accounts(claims, lease=lease)
        await self._after(Step.ACCOUNT_LEASE)
        return held

    async def release_account(self, claim: AccountClaim) -> bool:
        await self._before(Step.ACCOUNT_LEASE)
        record_next_commit(self.disk, functools.partial(self.witness.record_account_release, claim))
        done = await self.disk.release_account(claim)
        await self._after(Step.ACCOUNT_LEASE)
        return done

    async def register_host(self, host: HostRecord, *, lease: float) -> list[HostStatus]:
        await self._before(Step.HOST_RECORD)
        others = await self.disk.register_host(host, lease=lease)
        await self._after(Step.HOST_RECORD)
        return others

    async def renew_host(self, id: str, *, lease: float, is_draining: bool = False) -> bool:
        await self._before(Step.HOST_RECORD)
        done = await self.disk.renew_host(id, lease=lease, is_draining=is_draining)
        await self._after(Step.HOST_RECORD)
        return done

    async def remove_host(self, id: str) -> None:
        await self._before(Step.HOST_RECORD)
        await self.disk.remove_host(id)
        await self._after(Step.HOST_RECORD)

    async def replay_dead_letters(self, ids: Sequence[int]) -> int:
        await self._before(Step.REPLAY)
        count = await self.disk.replay_dead_letters(ids)
        await self._after(Step.REPLAY)
        return count

    async def drop_dead_letters(self, ids: Sequence[int]) -> int:
        await self._before(Step.REPLAY)
        count = await self.disk.drop_dead_letters(ids)
        await self._after(Step.REPLAY)
        return count

    def _record_commit(self, change: Change, done: CommitResult) -> None:
        self.witness.record_commit(self.process, change, done)
        leases = {wakeup.consumer: wakeup.lease for wakeup in change.wakeups}
        for claim in done.claims:
            self.witness.record_claims(self.process, [claim], lease=leases[claim.consumer])

    async def _before(self, step: Step) -> None:
        await asyncio.sleep(self.process.chance.random() * 0.01)
        await self.process.pass_gate(step, "before")
        if self.process.is_remote:
            await self.process.reach_store()

    async def _after(self, step: Step) -> None:
        await self.process.pass_gate(step, "after")
        if self.process.is_remote:
            await asyncio.sleep(self.process.chance.random() * self.world.profile.store_delay)
        await asyncio.sleep(self.process.chance.random() * 0.01)
        await self.process.wait_until_alive()

    async def _yield_sometimes(self) -> None:
        if self.process.is_remote:
            await self.process.reach_store()
        elif self.process.chance.random() < READ_YIELD_PROBABILITY:
            await asyncio.sleep(self.process.chance.random() * 0.02)
        await self.process.wait_until_alive()

    async def close(self) -> None:
        await self.disk.close()


def _build_read(name: str) -> Callable[..., Awaitable[Any]]:
    async def read(self: GatedStore, *args: Any, **options: Any) -> Any:
        await self._yield_sometimes()
        found = await getattr(self.disk, name)(*args, **options)
        if self.process.is_remote:
            await asyncio.sleep(self.process.chance.random() * self.world.profile.store_delay)
            await self.process.wait_until_alive()
        return found

    return read


for _name in sorted(vars(Store).keys() - vars(GatedStore).keys() - STORE_PROPERTIES):
    if not _name.startswith("_"):
        assert _name.startswith(READ_PREFIXES), f"GatedStore needs gates for {_name}, because it writes"
        setattr(GatedStore, _name, _build_read(_name))
