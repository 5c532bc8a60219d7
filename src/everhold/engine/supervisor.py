"""The supervisor: finds due cursors, starts a worker for each, renews leases, restarts crashed tasks, drains and
stops.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import structs

from everhold.core import consumers
from everhold.core.retry import retry_delay_seconds
from everhold.engine import backlinks
from everhold.engine.agent_runtime import AgentRuntimes
from everhold.engine.approvals.worker import ApprovalWorker
from everhold.engine.budgets import BudgetLedger, SharedReservations
from everhold.engine.commands import worker as commands_worker
from everhold.engine.compression import worker as compression_worker
from everhold.engine.compression.preparation import MemoryCompressionPreparer
from everhold.engine.context_cache import ContextCache
from everhold.engine.gates import STORE_RETRY_SECONDS, Gates, Wakeups
from everhold.engine.jobs import worker as jobs_worker
from everhold.engine.jobs.sub_agent import SubAgentWorker
from everhold.engine.memory import backfill, rekey
from everhold.engine.memory.destination import MemoryDestination
from everhold.engine.memory.peers import PeerRegistry, build_peer_registry
from everhold.engine.memory.rekey_orders import load_rekey_orders
from everhold.engine.outbox import drafts as outbox_drafts
from everhold.engine.outbox.delivery import DeliveryWorker, Destination
from everhold.engine.outbox.platform import SEND_DEADLINE_SECONDS, PlatformDestination
from everhold.engine.roles import RoleSource, StampedRoles
from everhold.engine.suspects import TurnSuspects
from everhold.engine.turn import worker as turn_worker
from everhold.engine.turn.execution import TurnContext
from everhold.errors import (
    Conflict,
    EverholdError,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    Poisoned,
    StoreBusy,
    StoreError,
)
from everhold.ports.store import Change, Claim, CursorUpdate, RetryDelay, Step, Wakeup, name_cursor
from everhold.telemetry.metrics import CLAIM_LAG_SECONDS, LEASE_LOST_TOTAL, LEASE_TAKEOVERS_TOTAL

LEASE_SECONDS: Final = 120.0
"""Longer than the deadline of any outbound call with its wait, so a lease does not expire while a worker waits for an
answer.
"""
CROWDED_WORKERS: Final = 16
"""With more running workers than these, the start of others is spread over several rounds of the event loop."""
STARTS_PER_LOOP: Final = 4
"""How many queued workers start with each round of the event loop."""
CLOCK_JUMP_SECONDS: Final = 1.0
"""If the clock gained or lost more than this since the last check, it was set, or the machine slept."""
POLL_SECONDS: Final = 5.0
"""The longest time between two checks for due cursors. Wakeups are only hints; this is the guarantee."""
SHARED_POLL_SECONDS: Final = 0.5
"""The same on a store that other hosts use, too, because a hint of theirs may not arrive."""
SUSPECT_POLL_SECONDS: Final = 1.0
"""The shortest time between two checks while due cursors are held back, because of a turn that may end the process."""
UNAVAILABLE_RETRY_SECONDS: Final = 60.0
STRAY_SECONDS: Final = 10.0
"""How long after its caller lost the connection a commit may still be applied, and claim cursors."""
STRAY_POLL_SECONDS: Final = 2.0
HAND_OVER_SECONDS: Final = 5.0
"""How long a drain waits for cancelled workers before other hosts may take their cursors over."""
MEMORY_CONSUMERS: Final = (f"{consumers.MEMORY_PREFIX}*",)


class WorkerSupervisor:
    """Starts a worker for every due cursor, and limits the workers of each consumer."""

    def __init__(
        self,
        gates: Gates,
        *,
        runtimes: AgentRuntimes,
        wakeups: Wakeups,
        roles: RoleSource | None = None,
        get_today: Callable[[], str] = lambda: "",
        on_text: Callable[[str, int, str | None], None] | None = None,
        max_workers: int = 256,
        max_workers_per_consumer: int = 64,
        poll_seconds: float | None = None,
        lease_seconds: float = LEASE_SECONDS,
        peers: PeerRegistry | None = None,
        send_deadline: float = SEND_DEADLINE_SECONDS,
        draft_deadline: float = outbox_drafts.DRAFT_DEADLINE_SECONDS,
        has_no_rivals: bool | None = None,
    ) -> None:
        """`has_no_rivals`: no other process works on this store, so the worker that a cursor is taken over from has
        ended. Only what its platform had received may still be carried out. None: as the store says."""
        self.gates = gates
        self.runtimes = runtimes
        self.roles: RoleSource = roles or StampedRoles()
        self.wakeups = wakeups
        self.get_today = get_today
        self.on_text = on_text
        self.max_workers = max_workers
        self.max_workers_per_consumer = max_workers_per_consumer
        usual = POLL_SECONDS if gates.store.is_exclusive else SHARED_POLL_SECONDS
        self.poll_seconds = usual if poll_seconds is None else poll_seconds
        self.lease_seconds = lease_seconds
        self.send_deadline = send_deadline
        self.draft_deadline = draft_deadline
        self.has_no_rivals = gates.store.is_exclusive if has_no_rivals is None else has_no_rivals
        self.peers = peers or build_peer_registry(gates, runtimes)
        self.contexts = ContextCache()
        shared = None if gates.store.is_exclusive else SharedReservations(gates.store, chance=gates.chance)
        self.budgets = BudgetLedger(gates.store, get_today=get_today, shared=shared)
        self.preparer = MemoryCompressionPreparer(gates, runtimes=runtimes, wakeups=wakeups, budgets=self.budgets)
        self.backfill_rate_limits: dict[str, backfill.BackfillRateLimit] = {}
        """Memory -> when its next backfill batch may be sent."""
        self.tasks: dict[asyncio.Task[bool], Claim] = {}
        self.workers_by_consumer: Counter[str] = Counter()
        self.reserved_workers = 0
        self.reserved_by_consumer: Counter[str] = Counter()
        self.reserved_by_cursor: Counter[str] = Counter()
        """Workers that are reserved for commits in progress, because a burst of messages reserves before any worker
        starts.
        """
        self._waiting_starts: deque[asyncio.Future[None]] = deque()
        self.is_stopping = False
        self.released_upto = float("-inf")
        """What was said up to this time is not held back from memories, even if batches are not full."""
        self.suspects = TurnSuspects()
        self._failures_in_row: Counter[str] = Counter()
        """How often in a row the worker of a cursor failed in this process."""
        self.only_consumers: tuple[str, ...] = ()
        """The consumers whose cursors are claimed; empty: all."""
        self.is_dispatching = False
        self._clock_drift = float("-inf")
        """By how much the wall clock was ahead of the monotonic one at the last check."""
        self._strays_until: float | None = None
        """Until then on the monotonic clock, this process may come to hold cursors that it does not know of."""
        self._workers: dict[str, Callable[[Claim, str], Awaitable[bool]]] = {
            consumers.TURN: self._run_turns,
            consumers.COMMANDS: self._run_commands,
            consumers.COMPRESSION: self._run_compressions,
            consumers.TASKS: self._run_jobs,
            consumers.REVIEW: self._run_jobs,
            consumers.DELEGATE: self._run_sub_agent,
            consumers.BACKLINKS: self._run_backlinks,
            consumers.APPROVALS: self._run_approvals,
            consumers.PLATFORM: self._deliver_replies,
            consumers.MEMORY: self._deliver_to_memory,
            consumers.BACKFILL: self._deliver_history,
            consumers.REKEY: self._rekey_memory,
        }
        """Kind of consumer -> the function that works on a claimed cursor; its arguments are the claim and the rest of
        the name.
        """

    async def dispatch(self) -> None:
        """Claim due cursors and start a worker for each, until the supervisor stops."""
        gates = self.gates
        self.is_dispatching = True
        if gates.store.is_exclusive:  # the previous process may have had no time for it
            await gates.retry_write(self.release_held_memories)
        self.suspects = await TurnSuspects.find(gates.store, at=gates.clock.monotonic())
        self.wakeups.worker_pool = self
        while not self.is_stopping:
            self.wakeups.work_available.clear()
            try:
                wait = await self._claim_due_cursors()
            except (StoreBusy, OutcomeUnknown) as error:
                # A server that was away must not make the next claim wait for minutes.
                gates.log.warning("store.retrying", error=str(error))
                if isinstance(error, OutcomeUnknown):
                    self.expect_strays()
                await gates.sleep(STORE_RETRY_SECONDS)
                continue
            if wait > 0:
                await gates.sleep(wait, wakeup=self.wakeups.work_available)

    async def _claim_due_cursors(self) -> float:
        """Claim what is due and start its workers. Return after how many seconds to look again."""
        gates = self.gates
        if self._strays_until is not None:
            await self._hand_over_strays(self._strays_until)
        drift = gates.clock.now() - gates.clock.monotonic()
        by, self._clock_drift = drift - self._clock_drift, drift
        if abs(by) > CLOCK_JUMP_SECONDS:
            await self._renew_leases()  # after a jump of the store's clock, ours would look expired to other processes
        # The clock went back, perhaps while no process ran, so waits that began in the future must begin again.
        jumped = by < -CLOCK_JUMP_SECONDS or by == float("inf")
        taken = self.workers_by_consumer + self.reserved_by_consumer
        free_slots = self.max_workers - taken.total()
        full = [consumer for consumer, count in taken.items() if count >= self.max_workers_per_consumer]
        # The consumers of the claimed cursors are not known in advance, so claim no more than the fullest consumer can
        # take.
        share = self.max_workers_per_consumer - max(
            (taken[consumer] for consumer in taken if consumer not in full), default=0
        )
        due = await gates.store.get_next_due(skip=full, only=self.only_consumers)
        held_back: list[str] = []
        if free_slots > 0 and (jumped or (due is not None and due <= 0)):
            held_back = await self._list_held_back()
            claims = await gates.retry_write(
                functools.partial(self._claim_cursors, min(free_slots, share), full, held_back)
            )
            for claim in claims:
                self._start_worker(claim)
            if claims:
                return 0.0
        # A cursor that is due but could not be claimed belongs to another process: check again soon, not at once.
        soonest = SUSPECT_POLL_SECONDS if held_back else 0.05
        wait = self.poll_seconds if due is None or free_slots <= 0 else min(self.poll_seconds, max(due, soonest))
        return wait if self._strays_until is None else min(wait, STRAY_POLL_SECONDS)

    def expect_strays(self) -> None:
        self._strays_until = self.gates.clock.monotonic() + STRAY_SECONDS

    async def _hand_over_strays(self, until: float) -> None:
        """End the leases of cursors that this process holds without a worker, which it does not know of because the
        connection was lost. Nobody could claim them before their leases end.
        """
        is_last = self.gates.clock.monotonic() >= until
        store, owner = self.gates.store, self.gates.owner
        owned = [cursor for cursor in await store.list_cursors(waiting=True) if cursor.owner == owner]
        # Only now, because a worker may have started since. A worker may still run under an older fence.
        held = {(claim.name, claim.fence) for claim in self.tasks.values()}
        found = [Claim(cursor=cursor, agent="") for cursor in owned]
        strays = [it for it in found if (it.name, it.fence) not in held and it.name not in self.reserved_by_cursor]
        if strays:
            await store.hand_over_leases(strays, owner=owner)
        if is_last and self._strays_until == until:
            self._strays_until = None

    async def _list_held_back(self) -> list[str]:
        if not self.suspects:
            return []
        running = {task.get_name() for task in self.tasks}
        return await self.suspects.list_held_back(self.gates.store, at=self.gates.clock.monotonic(), running=running)

    async def _claim_cursors(self, free_slots: int, full: list[str], held_back: list[str]) -> list[Claim]:
        """Claim due cursors, except those that a worker of this process holds, even if the clock says that their lease
        expired.
        """
        return await self.gates.store.claim_cursors(
            owner=self.gates.owner,
            lease=self.lease_seconds,
            limit=free_slots,
            skip=full,
            only=self.only_consumers,
            list_held=self._list_held_cursors,
            held_back=held_back,
        )

    def _list_held_cursors(self) -> list[str]:
        """Return the cursors that workers hold, or will hold after a commit in progress. Any thread may call it."""
        return [*(task.get_name() for task in list(self.tasks)), *self.reserved_by_cursor]

    def reserve_worker(self, session: str, wakeup: Wakeup) -> Wakeup:
        if self.is_stopping or self.only_consumers or self._is_full(wakeup.consumer):
            return wakeup
        self.reserved_workers += 1
        self.reserved_by_consumer[wakeup.consumer] += 1
        self.reserved_by_cursor[name_cursor(session, wakeup.consumer)] += 1
        return structs.replace(wakeup, owner=self.gates.owner, lease=self.lease_seconds)

    def start_reserved(self, session: str, wakeups: tuple[Wakeup, ...], claims: tuple[Claim, ...]) -> None:
        reserved = [wakeup.consumer for wakeup in wakeups if wakeup.owner]
        if len(claims) < len(wakeups) and any(map(self._is_full, reserved)):
            # Another wakeup may have been refused because of a reservation that is not used.
            self.wakeups.work_available.set()
        self.reserved_workers -= len(reserved)
        for consumer in reserved:
            self.reserved_by_consumer[consumer] -= 1
        for claim in claims:
            self._start_worker(claim)
        for consumer in reserved:
            self._end_reservation(name_cursor(session, consumer))

    def _end_reservation(self, name: str) -> None:
        self.reserved_by_cursor[name] -= 1
        if not self.reserved_by_cursor[name]:
            self.reserved_by_cursor.pop(name)

    def _is_full(self, consumer: str) -> bool:
        promised, running = self.reserved_by_consumer, self.workers_by_consumer
        return (
            len(self.tasks) + self.reserved_workers >= self.max_workers
            # not by [], which is slow for a missing one
            or running.get(consumer, 0) + promised.get(consumer, 0) >= self.max_workers_per_consumer
        )

    async def keep_renewing_leases(self) -> None:
        """Renew the leases of all running workers."""
        while not self.is_stopping:
            await self.gates.sleep(self.lease_seconds / 3)
            await self._renew_leases()
            if not self.gates.store.is_exclusive:
                await self.suspects.refresh(self.gates.store)

    async def _renew_leases(self) -> None:
        await self.gates.retry_write(self.budgets.renew)
        if self.tasks:
            await self.gates.retry_write(
                lambda: self.gates.store.renew_leases(
                    list(self.tasks.values()),
                    owner=self.gates.owner,
                    lease=self.lease_seconds,
                )
            )

    async def keep_running(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` until the supervisor stops. After a crash, wait and start it again."""
        attempt = 0
        while not self.is_stopping:
            started = self.gates.clock.monotonic()
            try:
                await work()
                return
            except StoreError as error:
                self.gates.log.error("store.failed", what=what, error=error)
            except Exception as error:  # an adapter is foreign code: it is started again after any exception
                self.gates.log.error("worker.crashed", what=what, error=error)
            attempt = attempt + 1 if self.gates.clock.monotonic() - started < 60 else 1
            await self.gates.sleep(retry_delay_seconds(attempt, jitter=self.gates.chance.random()) or 300.0)

    async def drain(self, seconds: float) -> None:
        """Stop claiming cursors, and give running workers `seconds` to end. The rest resumes after a restart."""
        deadline = self.gates.clock.monotonic() + seconds
        if self.is_dispatching and seconds > 0 and self.gates.store.is_exclusive:  # otherwise other hosts go on
            await self._deliver_held_memories(deadline)
        self.is_stopping = True
        self.wakeups.work_available.set()
        while self.tasks and self.gates.clock.monotonic() < deadline:
            await self.gates.sleep(0.05)
        await self._pause_turns()
        for task in list(self.tasks):
            task.cancel()
        if not self.gates.store.is_exclusive:
            await self._hand_over_cursors()

    async def _hand_over_cursors(self) -> None:
        """End the leases of the workers that were cancelled, so that other hosts need not wait for their end."""
        left = dict(self.tasks)
        if not left:
            return
        await asyncio.wait(left, timeout=HAND_OVER_SECONDS)  # a worker that still commits must not lose its lease
        try:
            await self.gates.store.hand_over_leases(list(left.values()), owner=self.gates.owner)
        except StoreError as error:
            self.gates.log.error("store.failed", what="drain", error=error)

    async def _pause_turns(self) -> None:
        """Record that running turns did not end this process, so that their next start does not count."""
        for claim in [claim for claim in self.tasks.values() if claim.consumer == consumers.TURN]:
            try:
                for turn in await self.gates.store.list_operations(claim.session, types=("turn",), states=("running",)):
                    change = Change(
                        step=Step.PAUSE,
                        session=claim.session,
                        at=self.gates.clock.now(),
                        claim=claim,
                        op=turn.op,
                        pause=True,
                    )
                    await self.gates.commit(change)
            except (StoreError, LeaseLost, Conflict):
                continue  # it ended meanwhile, or nothing can be written

    async def release_held_memories(self) -> None:
        """Release what is held back from memories: after a start, after a change of configuration, before a stop."""
        self.released_upto = self.gates.clock.now()
        if await self.gates.store.retry_now(held=MEMORY_CONSUMERS):
            self.wakeups.work_available.set()

    async def _deliver_held_memories(self, deadline: float) -> None:
        """Before a stop, send to memories what was held back, and start no other work."""
        self.only_consumers = MEMORY_CONSUMERS
        try:
            await self.release_held_memories()
            while self.gates.clock.monotonic() < deadline:
                due = await self.gates.store.get_next_due(only=MEMORY_CONSUMERS)
                working = any(claim.consumer.startswith(consumers.MEMORY_PREFIX) for claim in self.tasks.values())
                if not working and (due is None or due > 0):
                    return
                await self.gates.sleep(0.05)
        except StoreError as error:
            self.gates.log.error("store.failed", what="drain", error=error)

    # -- workers -----------------------------------------------------------------------------------------------------

    def _start_worker(self, claim: Claim) -> None:
        task = asyncio.get_running_loop().create_task(self._run_worker(claim), name=claim.name)
        self.tasks[task] = claim
        self.workers_by_consumer[claim.consumer] += 1
        task.add_done_callback(self._on_worker_ended)

    def _on_worker_ended(self, task: asyncio.Task[bool]) -> None:
        claim = self.tasks[task]
        consumer = claim.consumer
        full = self._is_full(consumer)
        del self.tasks[task]
        self.workers_by_consumer[consumer] -= 1
        if not self.workers_by_consumer[consumer]:
            self.workers_by_consumer.pop(consumer)  # not by del, which is slow for a Counter
        was_suspect = self.suspects.clear(claim.name)
        # A worker that released an empty cursor leaves nothing to claim, but it may free a slot.
        if was_suspect or full or task.cancelled() or task.exception() is not None or not task.result():
            self.wakeups.work_available.set()

    async def _run_worker(self, claim: Claim) -> bool:
        """Work on a cursor; return whether nothing is left to do in it."""
        log = self.gates.log.bind(session=claim.session, consumer=claim.consumer)
        await self._wait_for_start()
        self._measure_claim(claim)
        try:
            is_idle = await self._work_on_cursor(claim)
            self._failures_in_row.pop(claim.name, None)
            return is_idle
        except LeaseLost:
            log.info("lease.lost")
            self.gates.metrics.count(LEASE_LOST_TOTAL, consumers.parse_consumer(claim.consumer).kind)
            # Perhaps only the operation was lost, because another worker ended it. In that case the cursor is still
            # ours to release.
            await self._release_cursor(claim, "", seconds=0.0, attempts=claim.cursor.attempts)
        except Poisoned as error:
            log.error("consumer.stopped", error=error)
            await self._release_cursor(claim, str(error), seconds=3600.0)
        except StoreError as error:
            log.error("store.failed", error=error)
            # If nothing can be written, the cursor cannot be released, either. The next process finds it.
            await self._release_cursor(claim, str(error), requested_wait=self._settle_unknown(error))
        except EverholdError as error:
            log.warning("consumer.failed", error=error)
            if not isinstance(error, NotFound):  # an agent that is not configured now may come back
                self._failures_in_row[claim.name] += 1
            await self._release_cursor(claim, str(error))
        except Exception as error:  # the last resort for one cursor: its bug must not stop the others
            log.error("consumer.failed", error=error)
            self._failures_in_row[claim.name] += 1
            await self._release_cursor(claim, f"{type(error).__name__}: {error}")
        return False

    def _settle_unknown(self, error: StoreError) -> float | None:
        """Prepare for what a commit of unknown outcome may have done. Return the delay that it should have stored."""
        if not isinstance(error, OutcomeUnknown):
            return None
        self.expect_strays()
        return error.requested_wait

    def _measure_claim(self, claim: Claim) -> None:
        kind, cursor = consumers.parse_consumer(claim.consumer).kind, claim.cursor
        if cursor.since is not None:
            lag = self.gates.clock.now() - cursor.since - cursor.wait
            self.gates.metrics.observe(CLAIM_LAG_SECONDS, lag, kind)
        if claim.taken_over:
            self.gates.metrics.count(LEASE_TAKEOVERS_TOTAL, kind)

    async def _wait_for_start(self) -> None:
        """If many workers run, start only a few with each round of the event loop, so that new messages are accepted in
        between.
        """
        if len(self.tasks) <= CROWDED_WORKERS:
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting_starts.append(turn)
        if len(self._waiting_starts) == 1:
            loop.call_soon(self._start_waiting, loop)
        await turn

    def _start_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(STARTS_PER_LOOP, len(self._waiting_starts))):
            turn = self._waiting_starts.popleft()
            if not turn.done():
                turn.set_result(None)
        if self._waiting_starts:
            loop.call_soon(self._start_waiting, loop)

    async def _work_on_cursor(self, claim: Claim) -> bool:
        """Work on a claimed cursor until nothing is due. True: it was released, and nothing is left to do in it."""
        kind, name = consumers.parse_consumer(claim.consumer)
        work = self._workers.get(kind)
        if work is None:
            await self._release_cursor(claim, f"there is no worker for the consumer {claim.consumer}", seconds=3600.0)
            return False
        return await work(claim, name)

    async def _run_turns(self, claim: Claim, _: str) -> bool:
        context = TurnContext(
            self.gates,
            claim,
            runtimes=self.runtimes,
            wakeups=self.wakeups,
            contexts=self.contexts,
            budgets=self.budgets,
            preparer=self.preparer,
            get_today=self.get_today,
            on_text=self.on_text,
            draft_deadline=self.draft_deadline,
            has_no_rivals=self.has_no_rivals,
            roles=self.roles,
            failures=self._failures_in_row.get(claim.name, 0),
        )
        await turn_worker.TurnWorker(context).run()
        return context.is_idle

    async def _run_commands(self, claim: Claim, _: str) -> bool:
        await commands_worker.CommandWorker(
            self.gates,
            claim,
            runtimes=self.runtimes,
            roles=self.roles,
            wakeups=self.wakeups,
            get_today=self.get_today,
        ).run()
        return False

    async def _run_compressions(self, claim: Claim, _: str) -> bool:
        await compression_worker.CompressionWorker(
            self.gates,
            claim,
            runtimes=self.runtimes,
            wakeups=self.wakeups,
            budgets=self.budgets,
            preparer=self.preparer,
            contexts=self.contexts,
        ).run()
        return False

    async def _run_jobs(self, claim: Claim, _: str) -> bool:
        await jobs_worker.JobWorker(
            self.gates,
            claim,
            runtimes=self.runtimes,
            wakeups=self.wakeups,
            budgets=self.budgets,
            contexts=self.contexts,
            roles=self.roles,
        ).run()
        return False

    async def _run_sub_agent(self, claim: Claim, _: str) -> bool:
        await SubAgentWorker(
            self.gates,
            claim,
            runtimes=self.runtimes,
            wakeups=self.wakeups,
            budgets=self.budgets,
            roles=self.roles,
            failures=self._failures_in_row.get(claim.name, 0),
        ).run()
        return False

    async def _run_backlinks(self, claim: Claim, _: str) -> bool:
        await backlinks.BacklinkWorker(self.gates, claim, runtimes=self.runtimes, wakeups=self.wakeups).run()
        return False

    async def _run_approvals(self, claim: Claim, _: str) -> bool:
        await self.build_approval_worker(claim).run()
        return False

    def build_approval_worker(self, claim: Claim) -> ApprovalWorker:
        return ApprovalWorker(self.gates, claim, runtimes=self.runtimes, wakeups=self.wakeups, roles=self.roles)

    async def _deliver_replies(self, claim: Claim, place: str) -> bool:
        name, _, account = place.partition(":")
        runtimes = self.runtimes
        platform = runtimes.find_platform(name, account)
        if platform is None:
            await self._release_cursor(claim, f"{place} is not connected", seconds=UNAVAILABLE_RETRY_SECONDS)
            return False
        drafts = runtimes.find_draft_platform(name, account) is not None
        policy = runtimes.get_in_doubt_policy(claim.consumer, claim.agent)
        destination = PlatformDestination(
            self.gates.store,
            platform,
            in_doubt_policy=policy,
            deadline=self.send_deadline,
            late_seconds=platform.settle_seconds if self.has_no_rivals else None,
            drafts=drafts,
        )
        return await self.build_delivery_worker(claim, destination).run()

    async def _deliver_history(self, claim: Claim, instance: str) -> bool:
        """Send to a memory what was said before it was attached."""
        runtimes = self.runtimes
        provider = runtimes.find_memory(instance, claim.agent)
        if provider is None:
            return await self._put_back_unattached(claim, instance)
        order = await backfill.load_backfill_order(self.gates.store, instance, claim.session)
        runtime = runtimes.get_runtime(claim.agent, {})
        destination = backfill.BackfillDestination(
            self.gates,
            provider,
            current_provider=functools.partial(runtimes.find_memory, instance, claim.agent),
            in_doubt_policy=runtimes.get_in_doubt_policy(consumers.memory_consumer(instance), claim.agent),
            instance=instance,
            choose_name=functools.partial(runtime.choose_memory_name, instance),
            rate_limit=self._get_backfill_rate_limit(instance),
            order=order,
            notes=runtime.note_cache,
            peers=self.peers,
        )
        return await self.build_delivery_worker(claim, destination).run()

    async def _rekey_memory(self, claim: Claim, instance: str) -> bool:
        """Move a person's items in a memory to another peer."""
        runtimes = self.runtimes
        provider = runtimes.find_memory(instance, claim.agent)
        if provider is None:
            return await self._put_back_unattached(claim, instance)
        orders, _ = await load_rekey_orders(self.gates.store, instance, claim.session)
        runtime = runtimes.get_runtime(claim.agent, {})
        destination = rekey.RekeyDestination(
            self.gates,
            provider,
            current_provider=functools.partial(runtimes.find_memory, instance, claim.agent),
            in_doubt_policy=runtimes.get_in_doubt_policy(consumers.memory_consumer(instance), claim.agent),
            instance=instance,
            choose_name=functools.partial(runtime.choose_memory_name, instance),
            orders=orders,
            notes=runtime.note_cache,
            peers=self.peers,
        )
        return await self.build_delivery_worker(claim, destination).run()

    async def _deliver_to_memory(self, claim: Claim, instance: str) -> bool:
        runtimes = self.runtimes
        provider = runtimes.find_memory(instance, claim.agent)
        if provider is None:
            return await self._put_back_unattached(claim, instance)
        runtime = runtimes.get_runtime(claim.agent, {})
        memory = MemoryDestination(
            self.gates,
            provider,
            current_provider=functools.partial(runtimes.find_memory, instance, claim.agent),
            in_doubt_policy=runtimes.get_in_doubt_policy(claim.consumer, claim.agent),
            instance=instance,
            choose_name=functools.partial(runtime.choose_memory_name, instance),
            pacing=runtime.pacing.get(instance),
            released_upto=self.released_upto,
            sends_notices=runtime.memory_notices,
            wakeups_for=runtime.list_platform_wakeups,
            peers=self.peers,
            on_rebuild=self.wakeups.rebuild_ordered.set,
        )
        worker = self.build_delivery_worker(claim, memory)
        rests = await worker.run()
        await memory.announce_switches(claim, upto=worker.settled_upto_seq)
        return rests

    def _get_backfill_rate_limit(self, instance: str) -> backfill.BackfillRateLimit:
        found = self.backfill_rate_limits.get(instance)
        if found is None:
            is_alone = self.gates.store.is_exclusive
            shared = None if is_alone else backfill.SharedBackfillRateLimit(self.gates, instance)
            found = self.backfill_rate_limits[instance] = shared or backfill.BackfillRateLimit(self.gates)
        return found

    async def _put_back_unattached(self, claim: Claim, instance: str) -> bool:
        await self._release_cursor(claim, f"memory {instance} is not attached", seconds=UNAVAILABLE_RETRY_SECONDS)
        return False

    def build_delivery_worker(self, claim: Claim, destination: Destination) -> DeliveryWorker:
        """Return the worker of a cursor with deliveries."""
        return DeliveryWorker(self.gates, claim, destination)

    async def _release_cursor(
        self,
        claim: Claim,
        error: str,
        *,
        seconds: float | None = None,
        attempts: int | None = None,
        requested_wait: float | None = None,
    ) -> None:
        """Release a cursor that cannot be worked on now. A `requested_wait` is mandatory."""
        attempts = claim.cursor.attempts + 1 if attempts is None else attempts
        wait = seconds if seconds is not None else retry_delay_seconds(attempts, jitter=self.gates.chance.random())
        delay = RetryDelay(seconds=300.0 if wait is None else wait)
        if requested_wait is not None:
            delay = RetryDelay(seconds=requested_wait, mandatory=True)
        update = CursorUpdate(attempts=attempts, error=error, wait=delay, release=True)
        try:
            await self.gates.commit(
                Change(
                    step=Step.DELIVERY_RETRY,
                    session=claim.session,
                    at=self.gates.clock.now(),
                    claim=claim,
                    cursor=update,
                )
            )
        except LeaseLost:
            return  # another process holds it now
        except EverholdError as failure:
            if isinstance(failure, OutcomeUnknown):
                self.expect_strays()
            self.gates.log.warning("lease.lost", session=claim.session, consumer=claim.consumer, error=failure)
