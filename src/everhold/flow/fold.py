"""Old operations -> one summary, appended to the log they came from. Fails closed: what people said stays as it is."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from msgspec import structs

from everhold.core import compression
from everhold.core.compression import Plan
from everhold.core.consumers import COMPRESSION
from everhold.core.context import View
from everhold.core.entries import (
    Began,
    Body,
    Changed,
    Compressed,
    CompressionRequested,
    Draft,
    Ended,
    Entry,
    Kind,
    Notified,
    Place,
    Thought,
    Usage,
)
from everhold.core.retry import wait_seconds
from everhold.core.tokens import weigh_request
from everhold.core.turn import Answered, Broken, Event, Overlong, Unreachable
from everhold.errors import Conflict, Refused
from everhold.flow import perform
from everhold.flow.gates import Bells, Gates
from everhold.flow.purse import Purses, Reservation, Worst
from everhold.flow.runtime import Runtime, Runtimes, background
from everhold.flow.view import Views, see, view_at
from everhold.ports.log import Log
from everhold.ports.model import Request
from everhold.ports.store import Change, Claim, CursorUpdate, Operation, RetryDelay, Session, Step, Wakeup

MOST_REFUSALS: Final = 5
"""So often in a row a fold ahead of need is tried; every try is an operation in the log."""
DEADLINE_SECONDS: Final = 180.0
BUSY_SECONDS: Final = 1.0
"""How long a compression that was asked for waits for a running turn before it looks again."""


class Outcome(StrEnum):
    """How an attempt to compress ended."""

    DONE = "done"
    REFUSED = "refused"
    """It was tried, and the context is as it was."""
    BUSY = "busy"
    """It could not be begun now."""
    NOTHING = "nothing"
    """There was nothing to fold."""


class Before(Protocol):
    """What is done with a part of the conversation before a summary stands for it."""

    async def advice(self, session: Session, part: View) -> str:
        """What the summary should not lose, as memories see it."""

    async def flush(self, claim: Claim, session: Session, part: View, *, advice: str) -> None:
        """Note what is worth remembering."""


class Fold:
    """Makes one fold at a time, for the session of its claim and no other."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        runtime: Runtime,
        *,
        bells: Bells,
        purses: Purses,
        before: Before | None = None,
    ) -> None:
        self.gates = gates
        self.store = gates.store
        self.claim = claim
        self.runtime = runtime
        self.bells = bells
        self.purses = purses
        self.before = before
        self.log = gates.log.bind(session=claim.session)
        self.asked: list[Thought] = []
        """What was answered and is not yet paid for."""
        self.held: list[Reservation] = []

    async def compress(
        self,
        session: Session,
        view: View,
        *,
        trigger: str,
        keep: int,
        blocking: bool = False,
        focus: str = "",
        tell: Place | None = None,
        room: float = 0.0,
        used: int | None = None,
    ) -> Outcome:
        """Fold what `view` shows, if it can be and helps; with `room`, only if enough is new. `used`: what it weighs.

        The mark is taken before the summary is asked for; what arrives meanwhile is after it, and stays live. A view
        that was changed by somebody else meanwhile makes the summary void.
        """
        plan = compression.plan(view, keep=keep, session=session.id, used=used)
        if plan is None or not compression.worthwhile(plan, room):
            return Outcome.NOTHING
        began = Began(
            type="compression",
            compression=plan.based_on,
            generation=session.generation,
            blocking=blocking,
            consumer=self.claim.consumer,
            trigger=trigger,
        )
        notice: tuple[Body, ...] = ()
        if tell is not None:
            text = "I am compressing our conversation. Your message is kept and will be answered right after."
            notice = (Notified(text=text, about="compression", to=tell, parts=(text,)),)
        try:
            op = await self._commit(Step.COMPRESSION_BEGIN, (began, *notice), op=None, generation=session.generation)
        except Conflict:
            return Outcome.BUSY  # something runs that must not run beside it, or the view moved: decide anew
        messages_ = sum(len(exchange.heard) for exchange in plan.part.exchanges)
        log = self.log.bind(
            op=op, trigger=trigger, mark=plan.covers, messages=messages_, model=self.runtime.summariser.name
        )
        log.info("compression.started", tokens=plan.tokens_before)
        try:
            return await self._make(session, plan, op=op, trigger=trigger, messages=messages_, focus=focus, log=log)
        finally:
            for reservation in self.held:
                reservation.give_back()
            self.held.clear()

    async def _make(
        self, session: Session, plan: Plan, *, op: int, trigger: str, messages: int, focus: str, log: Log
    ) -> Outcome:
        advice = await self.before.advice(session, plan.part) if self.before is not None else ""
        asked = await self._summarise(plan, focus=focus, advice=advice)
        if not isinstance(asked, Answered):
            reason = asked.reason if isinstance(asked, Unreachable | Overlong | Broken) else "cut short"
            return await self._refuse(op, f"no summary: {reason}", log)
        if reason := compression.objection(asked.thought.text, plan):
            return await self._refuse(op, reason, log)
        if self.before is not None:
            await self.before.flush(self.claim, session, plan.part, advice=advice)
        folded = Compressed(
            summary=asked.thought.text,
            covers=plan.covers,
            kept=plan.kept,
            effects=plan.effects,
            based_on=plan.based_on,
            generation=session.generation,
            model=asked.thought.model,
            trigger=trigger,
            messages=messages,
            tokens_before=plan.tokens_before,
        )
        folded = structs.replace(folded, tokens_after=compression.tokens_after(folded, plan))
        try:
            await self._commit(
                Step.COMPRESSION_END, (folded, Ended(usage=asked.thought.usage)), op=op, generation=session.generation
            )
        except Conflict:
            return await self._refuse(op, "the view changed while the summary was made", log)
        log.info("compression.done", tokens_before=folded.tokens_before, tokens_after=folded.tokens_after)
        return Outcome.DONE

    async def _summarise(self, plan: Plan, *, focus: str, advice: str) -> Event:
        """The summary of all of a plan, or why there is none.

        What does not fit the summariser at once is summarised a portion at a time, each from the summary of those
        before it. Only the last summary is ever shown to anybody: if one of them fails, nothing has happened.
        """
        most = self.runtime.summariser.context_tokens
        used = Usage()
        while True:
            portion = compression.portion(plan, most=most, focus=focus, advice=advice)
            asked = await self._summary(compression.request(portion, focus=focus, advice=advice))
            if isinstance(asked, Overlong):
                tight = compression.request(portion, focus=focus, advice=advice, tight=True)
                asked = await self._summary(tight)
                if isinstance(asked, Overlong) and len(portion.part.exchanges) > 1:
                    most = min(most, weigh_request(tight)) // 2  # it holds less than it says, or counts otherwise
                    continue
            if not isinstance(asked, Answered):
                return asked
            used += asked.thought.usage
            summary = asked.thought.text
            left = compression.remaining(plan, portion, summary) if summary.strip() else None
            if left is None:
                return structs.replace(asked, thought=structs.replace(asked.thought, usage=used))
            plan = left

    async def _summary(self, request: Request) -> Event:
        """One question to the summariser, out of the purse for work beside the conversation."""
        runtime = self.runtime
        reading, writing = runtime.meter.most(runtime.weigh(request)), runtime.most_output
        worst = Worst(usd=runtime.price(reading, writing), tokens=reading + writing)
        reservation = self.purses.reserved(runtime.job_limits(), worst)
        try:
            await reservation.take()
        except Refused as error:
            return Broken(reason=str(error))
        self.held.append(reservation)
        asked = await perform.ask(
            self.gates,
            (runtime.summariser,),
            request,
            deadline=DEADLINE_SECONDS,
            record=lambda answer: Thought(text=answer.text, model=answer.model, usage=answer.usage),
        )
        if isinstance(asked, Answered):
            self.asked.append(asked.thought)
        return asked

    async def close(self, operation: Operation, reason: str) -> None:
        """End a fold that somebody left running."""
        await self._refuse(operation.op, reason, self.log.bind(op=operation.op))

    async def _refuse(self, op: int, reason: str, log: Log) -> Outcome:
        await self._commit(Step.COMPRESSION_END, (Ended(outcome="refused", reason=reason),), op=op)
        log.warning("compression.refused", reason=reason)
        return Outcome.REFUSED

    async def _commit(
        self, step: Step, bodies: tuple[Body, ...], *, op: int | None, generation: int | None = None
    ) -> int:
        own = -1 if op is None else op
        spends = background(self.runtime, self.asked, day=self.purses.day())
        done = await self.gates.commit(
            Change(
                step=step,
                session=self.claim.session,
                at=self.gates.clock.now(),
                entries=tuple(Draft(body=body, author="system", op=own) for body in bodies),
                claim=self.claim,
                op=op,
                generation=generation,
                spends=spends,
                wakeups=self.runtime.voices(bodies)
                + (self.runtime.turning() if isinstance(bodies[0], Compressed) else ()),
            )
        )
        self.asked.clear()
        self.bells.ring(self.claim.session)
        return done.seqs[0]


class Ahead:
    """The fold lane: makes a summary beside the conversation, before it is needed."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        *,
        runtimes: Runtimes,
        bells: Bells,
        purses: Purses,
        before: Before | None = None,
        views: Views | None = None,
    ) -> None:
        self.gates = gates
        self.claim = claim
        self.runtimes = runtimes
        self.bells = bells
        self.purses = purses
        self.before = before
        self.views = views or Views()

    async def run(self) -> None:
        store = self.gates.store
        session = await store.get_session(self.claim.session)
        runtime = self.runtimes.runtime(session.agent, session.choices)
        fold = Fold(self.gates, self.claim, runtime, bells=self.bells, purses=self.purses, before=self.before)
        for operation in await store.list_operations(session.id, types=("compression",), states=("running",)):
            if operation.consumer == COMPRESSION:
                await fold.close(operation, "cut short by a restart")
        glance = await store.get_session_snapshot(self.claim.session)
        session = glance.session
        wanted = await self._wanted(session)
        if wanted is not None:
            await self._obey(fold, session, runtime, wanted)
            return
        seen = self.views.known(glance)
        if seen is None:
            view = await view_at(store, session, at=session.last_seq + 1)
            seen = see(view, session.id, generation=session.generation, newest=glance.newest_turn)
        used = runtime.meter.tokens(seen.tokens + runtime.overhead)
        outcome = Outcome.NOTHING
        window = runtime.models[0].context_tokens
        if due := compression.due(used, window, soft=runtime.soft, hard=runtime.hard):
            room = window * (runtime.hard - runtime.soft) if due == "soft" else 0.0
            outcome = await fold.compress(
                session, seen.view, trigger="soft", keep=runtime.keep, room=room, used=seen.tokens
            )
        # a summary that was refused again and again waits until there is more to summarise
        tired = outcome is Outcome.REFUSED and self.claim.cursor.attempts + 1 >= MOST_REFUSALS
        again = outcome in (Outcome.REFUSED, Outcome.BUSY) and not tired
        if not again:
            session = await self._by_now(session)
        await self._settle(session, position=session.last_seq, again=again)

    async def _by_now(self, session: Session) -> Session:
        """The session as it is by now, unless somebody asked for a compression meanwhile: then there is more to do.

        That it has grown is no reason to look once more: a turn that makes a summary needful says so at its end.
        """
        now = await self.gates.store.get_session(session.id)
        return now if await self._wanted(now) is None else session

    async def _wanted(self, session: Session) -> Entry | None:
        """The next compression that somebody asked for."""
        after = self.claim.cursor.processed_seq
        for entry in await self.gates.store.list_entries(session.id, after=after, kinds=(Kind.CHANGED,)):
            if isinstance(entry.body, Changed) and isinstance(entry.body.change, CompressionRequested):
                return entry
        return None

    async def _obey(self, fold: Fold, session: Session, runtime: Runtime, entry: Entry) -> None:
        """Make a compression that was asked for. The chat waits for it, and hears how it went."""
        assert isinstance(entry.body, Changed)
        assert isinstance(entry.body.change, CompressionRequested)
        wanted = entry.body.change
        keep = runtime.keep if wanted.keep is None else wanted.keep
        view = await view_at(self.gates.store, session, at=session.last_seq + 1)
        outcome = await fold.compress(session, view, trigger="command", keep=keep, blocking=True, focus=wanted.focus)
        if outcome is Outcome.BUSY:
            await self._settle(session, position=None, again=True, seconds=BUSY_SECONDS)
            return
        told: tuple[Body, ...] = ()
        if wanted.tell is not None:
            text = await self._report(session, outcome)
            told = (Notified(text=text, about="compress", to=wanted.tell, parts=(text,)),)
        await self._settle(session, position=entry.seq, again=False, told=told, wakes=runtime.voices(told))

    async def _report(self, session: Session, outcome: Outcome) -> str:
        newest = await self.gates.store.list_operations(session.id, types=("compression",), newest_first=True, limit=1)
        entries = (
            await self.gates.store.list_entries(session.id, after=newest[0].op, upto=newest[0].last) if newest else []
        )
        if outcome is Outcome.DONE:
            folded = next(entry.body for entry in entries if isinstance(entry.body, Compressed))
            return (
                f"Compressed {folded.messages} messages: {folded.tokens_before} tokens are now {folded.tokens_after}. "
                "/undo compress brings the originals back."
            )
        if outcome is Outcome.NOTHING:
            return "There is nothing to compress."
        reason = next((entry.body.reason for entry in entries if isinstance(entry.body, Ended)), "")
        return f"Not compressed: {reason}. Everything is as it was."

    async def _settle(
        self,
        session: Session,
        *,
        position: int | None,
        again: bool,
        seconds: float | None = None,
        told: tuple[Body, ...] = (),
        wakes: tuple[Wakeup, ...] = (),
    ) -> None:
        attempts = self.claim.cursor.attempts + 1 if again else 0
        wait = (seconds or wait_seconds(attempts, jitter=self.gates.chance.random())) if again else None
        update = CursorUpdate(
            processed_seq=position,
            attempts=attempts,
            wait=RetryDelay(seconds=wait) if wait is not None else None,
            idle_at=session.last_seq if wait is None else None,
            release=True,
        )
        await self.gates.commit(
            Change(
                step=Step.CURSOR_SETTLE,
                session=session.id,
                at=self.gates.clock.now(),
                entries=tuple(Draft(body=body, author="system") for body in told),
                claim=self.claim,
                cursor=update,
                wakeups=wakes,
                durable=bool(told),
            )
        )
        self.bells.ring(session.id)
