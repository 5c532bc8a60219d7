"""Start, drain, stop, and restart what fell. Finds due lanes and puts somebody to work on each."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import structs

from everhold.core import consumers
from everhold.core.retry import wait_seconds
from everhold.errors import EverholdError, LeaseLost, Poisoned, StoreError
from everhold.flow import backfill, desk, draft, fold, job, mind, tie
from everhold.flow.beforehand import Beforehand
from everhold.flow.gates import Bells, Gates
from everhold.flow.lane import Courier, Lane
from everhold.flow.purse import Purses
from everhold.flow.remember import Remember
from everhold.flow.runtime import Runtimes
from everhold.flow.seat import Seat
from everhold.flow.view import Views
from everhold.flow.voice import DEADLINE_SECONDS, Voice
from everhold.ports.store import Change, Claim, CursorUpdate, RetryDelay, Step, Wakeup

LEASE_SECONDS: Final = 120.0
"""Longer than any outbound call's deadline with its hold, so that a lease is never lost by waiting for an answer."""
CROWD: Final = 16
"""With more than these at work, others have to line up."""
AT_ONCE: Final = 4
"""How many of those in line begin with each round of the loop."""
JUMP_SECONDS: Final = 1.0
"""A clock that gained or lost more than this since somebody looked was set, or the machine slept."""
POLL_SECONDS: Final = 5.0
"""How long at most nobody looks for due lanes. The bell is the hint, this is the truth."""
UNAVAILABLE_SECONDS: Final = 60.0
MEMORIES: Final = (f"{consumers.MEMORY_PREFIX}*",)


class Supervisor:
    """Keeps every due lane worked on, each by one task, and no reader by more than its share."""

    def __init__(
        self,
        gates: Gates,
        *,
        runtimes: Runtimes,
        bells: Bells,
        day: Callable[[], str] = lambda: "",
        on_text: Callable[[str, int, str | None], None] | None = None,
        most: int = 256,
        most_per_reader: int = 64,
        poll: float = POLL_SECONDS,
        lease: float = LEASE_SECONDS,
        send_deadline: float = DEADLINE_SECONDS,
        draft_deadline: float = draft.DEADLINE_SECONDS,
    ) -> None:
        self.gates = gates
        self.runtimes = runtimes
        self.bells = bells
        self.day = day
        self.on_text = on_text
        self.most = most
        self.most_per_reader = most_per_reader
        self.poll = poll
        self.lease = lease
        self.send_deadline = send_deadline
        self.draft_deadline = draft_deadline
        self.views = Views()
        self.purses = Purses(gates.store, day=day)
        self.beforehand = Beforehand(gates, runtimes=runtimes, bells=bells, purses=self.purses)
        self.meters: dict[str, backfill.Meter] = {}
        """How soon each memory may be handed more of the past."""
        self.tasks: dict[asyncio.Task[bool], Claim] = {}
        self.busy: Counter[str] = Counter()
        self.promised: Counter[str] = Counter()
        """Hands that were offered to whoever is about to commit: a crowd does so at once, before anybody is at work."""
        self._line: deque[asyncio.Future[None]] = deque()
        self.stopping = False
        self.released = float("-inf")
        """What was said up to then is not held back from memories, however empty their batches are."""
        self.only: tuple[str, ...] = ()
        """Whose lanes are taken up; everybody's if nobody is named."""
        self.dispatching = False

    async def dispatch(self) -> None:
        """Claim due lanes and start a worker for each, until told to stop."""
        gates = self.gates
        ahead = float("-inf")
        self.dispatching = True
        await gates.patiently(self.release)  # whoever was here before may have had no time for it
        self.bells.hands = self
        while not self.stopping:
            self.bells.work.clear()
            drift = gates.clock.now() - gates.clock.monotonic()
            by, ahead = drift - ahead, drift
            if abs(by) > JUMP_SECONDS:
                await self._renew()  # leases go by the wall's clock: to others, ours would look as if they were over
            # a clock that went back, perhaps while nobody ran: waits that began in the future have to begin anew
            jumped = by < -JUMP_SECONDS or by == float("inf")
            taken = self.busy + self.promised
            room = self.most - taken.total()
            full = [reader for reader, count in taken.items() if count >= self.most_per_reader]
            # whose lanes will be found is not known yet: no more than fit whoever has the least room
            share = self.most_per_reader - max((taken[reader] for reader in taken if reader not in full), default=0)
            due = await gates.store.get_next_due(at=gates.clock.now(), skip=full, only=self.only)
            if room > 0 and (jumped or (due is not None and due <= 0)):
                claims = await gates.patiently(functools.partial(self._claim, min(room, share), full))
                for claim in claims:
                    self._start(claim)
                if claims:
                    continue
            # a lane that is due but could not be claimed is somebody else's: look again soon, not at once
            wait = self.poll if due is None or room <= 0 else min(self.poll, max(due, 0.05))
            await gates.sleep(wait, bell=self.bells.work)

    async def _claim(self, room: int, full: list[str]) -> list[Claim]:
        """Take what is due, but nothing that somebody here is at work on, whatever the clock makes of its lease."""
        return await self.gates.store.claim_cursors(
            owner=self.gates.owner,
            at=self.gates.clock.now,
            lease=self.lease,
            limit=room,
            skip=[*full, *(task.get_name() for task in self.tasks)],  # each is called what its lane is
            only=self.only,
        )

    def offer(self, wake: Wakeup) -> Wakeup:
        if self.stopping or self.only or self._is_full(wake.consumer):
            return wake
        self.promised[wake.consumer] += 1
        return structs.replace(wake, owner=self.gates.owner, lease=self.lease)

    def take(self, wakes: tuple[Wakeup, ...], claims: tuple[Claim, ...]) -> None:
        spare = False
        for wake in wakes:
            if wake.owner:
                spare = spare or self._is_full(wake.consumer)
                self.promised[wake.consumer] -= 1
        for claim in claims:
            self._start(claim)
        if spare and len(claims) < len(wakes):
            self.bells.work.set()  # somebody may have been turned away for a hand that was not needed

    def _is_full(self, reader: str) -> bool:
        promised = self.promised
        return (
            len(self.tasks) + promised.total() >= self.most
            or self.busy[reader] + promised[reader] >= self.most_per_reader
        )

    async def renew(self) -> None:
        """Keep the leases of everybody at work."""
        while not self.stopping:
            await self.gates.sleep(self.lease / 3)
            await self._renew()

    async def _renew(self) -> None:
        if self.tasks:
            await self.gates.patiently(
                lambda: self.gates.store.renew_leases(
                    list(self.tasks.values()), owner=self.gates.owner, at=self.gates.clock.now(), lease=self.lease
                )
            )

    async def keep(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` for ever: start it again, after a wait, whenever it falls."""
        attempt = 0
        while not self.stopping:
            started = self.gates.clock.monotonic()
            try:
                await work()
                return
            except StoreError as error:
                self.gates.log.error("store.failed", what=what, error=error)
            except Exception as error:  # a listener is foreign code: whatever it raises, it is started again
                self.gates.log.error("task.fell", what=what, error=error)
            attempt = attempt + 1 if self.gates.clock.monotonic() - started < 60 else 1
            await self.gates.sleep(wait_seconds(attempt, jitter=self.gates.chance.random()) or 300.0)

    async def drain(self, seconds: float) -> None:
        """Stop taking on work and give what runs `seconds` to come to an end; the rest resumes after a restart."""
        deadline = self.gates.clock.monotonic() + seconds
        if self.dispatching and seconds > 0:
            await self._hand_over_held(deadline)
        self.stopping = True
        self.bells.work.set()
        while self.tasks and self.gates.clock.monotonic() < deadline:
            await self.gates.sleep(0.05)
        for task in list(self.tasks):
            task.cancel()

    async def release(self) -> None:
        """Let go of what is held back from memories: there was a change, or nobody knows when the next chance comes."""
        self.released = self.gates.clock.now()
        if await self.gates.store.retry_now(at=self.released, held=MEMORIES):
            self.bells.work.set()

    async def _hand_over_held(self, deadline: float) -> None:
        """Before a stop: nothing new is begun, but memories get what was held back from them."""
        self.only = MEMORIES
        try:
            await self.release()
            while self.gates.clock.monotonic() < deadline:
                due = await self.gates.store.get_next_due(at=self.gates.clock.now(), only=MEMORIES)
                working = any(claim.consumer.startswith(consumers.MEMORY_PREFIX) for claim in self.tasks.values())
                if not working and (due is None or due > 0):
                    return
                await self.gates.sleep(0.05)
        except StoreError as error:
            self.gates.log.error("store.failed", what="drain", error=error)

    # -- workers -----------------------------------------------------------------------------------------------------

    def _start(self, claim: Claim) -> None:
        task = asyncio.get_running_loop().create_task(self._work(claim), name=claim.name)
        self.tasks[task] = claim
        self.busy[claim.consumer] += 1
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[bool]) -> None:
        full = self._is_full(self.tasks[task].consumer)
        claim = self.tasks.pop(task)
        self.busy[claim.consumer] -= 1
        if not self.busy[claim.consumer]:
            del self.busy[claim.consumer]
        # who let go of a lane with nothing to do in it leaves nothing to be found, but perhaps a place
        if full or task.cancelled() or task.exception() is not None or not task.result():
            self.bells.work.set()

    async def _work(self, claim: Claim) -> bool:
        """Work on a lane. Whether nothing is left to do in it."""
        log = self.gates.log.bind(session=claim.session, reader=claim.consumer)
        await self._line_up()
        try:
            return await self._worker(claim)
        except LeaseLost:
            log.info("lane.lost")
            # what was lost may be the operation alone, ended by somebody else: then the lane is still ours to let go
            await self._put_back(claim, "", seconds=0.0, attempts=claim.cursor.attempts)
        except Poisoned as error:
            log.error("lane.stopped", error=error)
            await self._put_back(claim, str(error), seconds=3600.0)
        except StoreError as error:
            log.error("store.failed", error=error)
            # where nothing can be written any more, it cannot be put back, either: who starts anew finds it
            await self._put_back(claim, str(error))
        except EverholdError as error:
            log.warning("lane.failed", error=error)
            await self._put_back(claim, str(error))
        except Exception as error:  # the last resort for one lane: no bug in it may stop the others
            log.error("lane.failed", error=error)
            await self._put_back(claim, f"{type(error).__name__}: {error}")
        return False

    async def _line_up(self) -> None:
        """Where many are at work, begin a few with each round of the loop: whoever knocks is let in between."""
        if len(self.tasks) <= CROWD:
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._line.append(turn)
        if len(self._line) == 1:
            loop.call_soon(self._let_begin, loop)
        await turn

    def _let_begin(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(AT_ONCE, len(self._line))):
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
        if self._line:
            loop.call_soon(self._let_begin, loop)

    async def _worker(self, claim: Claim) -> bool:
        gates, runtimes, bells = self.gates, self.runtimes, self.bells
        consumer = consumers.parse_consumer(claim.consumer)
        kind, rest = consumer
        match kind:
            case consumers.TURN:
                seat = Seat(
                    gates,
                    claim,
                    runtimes=runtimes,
                    bells=bells,
                    views=self.views,
                    purses=self.purses,
                    before=self.beforehand,
                    day=self.day,
                    on_text=self.on_text,
                    draft_deadline=self.draft_deadline,
                )
                await mind.Mind(seat).run()
                return seat.rests
            case consumers.COMMANDS:
                await desk.Desk(gates, claim, runtimes=runtimes, bells=bells, day=self.day).run()
            case consumers.COMPRESSION:
                await fold.Ahead(
                    gates,
                    claim,
                    runtimes=runtimes,
                    bells=bells,
                    purses=self.purses,
                    before=self.beforehand,
                    views=self.views,
                ).run()
            case consumers.TASKS | consumers.REVIEW:
                await job.Jobs(gates, claim, runtimes=runtimes, bells=bells, purses=self.purses, views=self.views).run()
            case consumers.BACKLINKS:
                await tie.Tie(gates, claim, runtimes=runtimes, bells=bells).run()
            case consumers.PLATFORM:
                name, account = consumer.platform, consumer.account
                platform = runtimes.platform(name, account)
                if platform is None:
                    await self._put_back(claim, f"{rest} is not connected", seconds=UNAVAILABLE_SECONDS)
                    return False
                drafts = runtimes.drafting(name, account) is not None
                policy = runtimes.in_doubt(claim.consumer, claim.agent)
                voice = Voice(gates.store, platform, policy=policy, deadline=self.send_deadline, drafts=drafts)
                return await self.lane(claim, voice).run()
            case consumers.BACKFILL:
                past = runtimes.memory(rest, claim.agent)
                if past is None:
                    await self._put_back(claim, f"memory {rest} is not attached", seconds=UNAVAILABLE_SECONDS)
                    return False
                order = await backfill.order_of(gates.store, rest, claim.session)
                runtime = runtimes.runtime(claim.agent, {})
                courier = backfill.Backfill(
                    gates,
                    past,
                    now=functools.partial(runtimes.memory, rest, claim.agent),
                    policy=runtimes.in_doubt(consumers.memory_consumer(rest), claim.agent),
                    instance=rest,
                    naming=functools.partial(runtime.naming, rest),
                    meter=self.meters.setdefault(rest, backfill.Meter()),
                    order=order,
                    notes=runtime.notes,
                )
                return await self.lane(claim, courier).run()
            case consumers.MEMORY:
                provider = runtimes.memory(rest, claim.agent)
                if provider is None:
                    await self._put_back(claim, f"memory {rest} is not attached", seconds=UNAVAILABLE_SECONDS)
                    return False
                runtime = runtimes.runtime(claim.agent, {})
                memory = Remember(
                    gates,
                    provider,
                    now=functools.partial(runtimes.memory, rest, claim.agent),
                    policy=runtimes.in_doubt(claim.consumer, claim.agent),
                    instance=rest,
                    naming=functools.partial(runtime.naming, rest),
                    pace=runtime.paces.get(rest),
                    released=self.released,
                    tells=runtime.memory_notices,
                    voices=runtime.voices,
                )
                lane = self.lane(claim, memory)
                rests = await lane.run()
                await memory.announce(claim, upto=lane.settled)
                return rests
            case _:
                await self._put_back(claim, f"there is no consumer {claim.consumer}", seconds=3600.0)
        return False

    def lane(self, claim: Claim, courier: Courier) -> Lane:
        """Who works a lane that hands something over."""
        return Lane(self.gates, claim, courier)

    async def _put_back(
        self, claim: Claim, error: str, *, seconds: float | None = None, attempts: int | None = None
    ) -> None:
        """Let go of a lane that cannot be worked on now."""
        attempts = claim.cursor.attempts + 1 if attempts is None else attempts
        wait = seconds if seconds is not None else wait_seconds(attempts, jitter=self.gates.chance.random())
        wait = 300.0 if wait is None else wait
        update = CursorUpdate(attempts=attempts, error=error, wait=RetryDelay(seconds=wait), release=True)
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
            return  # it is somebody else's, who knows better
        except EverholdError as failure:
            self.gates.log.warning("lane.lost", session=claim.session, reader=claim.consumer, error=failure)
