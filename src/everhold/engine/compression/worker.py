"""The compression worker: replaces old operations by a summary, which is appended to the same log. If it fails, the
context stays as it was.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from msgspec import structs

from everhold.core import compression
from everhold.core.compression import CompressionPlan
from everhold.core.consumers import COMPRESSION
from everhold.core.context import SessionContext
from everhold.core.entries import (
    Began,
    Changed,
    ChatLocation,
    Compressed,
    CompressionRequested,
    Ended,
    Entry,
    EntryBody,
    EntryDraft,
    EntryKind,
    ModelUsage,
    Notified,
    OperationsUndone,
    Thought,
)
from everhold.core.retry import retry_delay_seconds
from everhold.core.tokens import weigh_request
from everhold.core.turn import ModelAnswered, ModelUnreachable, RequestTooLong, TurnBroken, TurnEvent
from everhold.core.wording import describe_count
from everhold.engine import effects
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes, build_job_spends
from everhold.engine.budgets import BudgetLedger, BudgetReservation, WorstCaseCost
from everhold.engine.context_cache import ContextCache, build_cached_context, load_context_at
from everhold.engine.gates import Gates, Wakeups
from everhold.errors import Conflict, Refused
from everhold.ports.log import EventLogger
from everhold.ports.model import ModelRequest
from everhold.ports.store import Change, Claim, CursorUpdate, Operation, RetryDelay, Session, Step, Store, Wakeup
from everhold.telemetry.metrics import COMPRESSION_SECONDS

MAX_REFUSALS: Final = 5
"""How often in a row a background compression is tried. Every try is an operation in the log."""
SUMMARY_DEADLINE_SECONDS: Final = 180.0
BUSY_RETRY_SECONDS: Final = 1.0
"""How long a requested compression waits for a running turn before it checks again."""


class CompressionOutcome(StrEnum):
    """How an attempt to compress ended."""

    DONE = "done"
    REFUSED = "refused"
    """It was tried, and the context did not change."""
    BUSY = "busy"
    """It could not begin now."""
    NOTHING = "nothing"
    """There was nothing to compress."""


class CompressionPreparer(Protocol):
    """Prepares a part of the conversation for its compression."""

    async def collect_advice(self, session: Session, part: SessionContext) -> str:
        """Return what the summary should keep, according to the memories."""

    async def note_before_compression(
        self, claim: Claim, session: Session, part: SessionContext, *, advice: str
    ) -> None:
        """Note facts of a part of the conversation."""


class SessionCompressor:
    """Makes one compression at a time, for the session of its claim."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        runtime: AgentRuntime,
        *,
        wakeups: Wakeups,
        budgets: BudgetLedger,
        preparer: CompressionPreparer | None = None,
    ) -> None:
        self.gates = gates
        self.store = gates.store
        self.claim = claim
        self.runtime = runtime
        self.wakeups = wakeups
        self.budgets = budgets
        self.preparer = preparer
        self.log = gates.log.bind(session=claim.session)
        self.thoughts: list[Thought] = []
        """Usage of answered calls that is not committed yet."""
        self.reservation: list[BudgetReservation] = []
        self.refusal = ""
        """Why the last compression was refused."""

    async def compress(
        self,
        session: Session,
        view: SessionContext,
        *,
        trigger: str,
        keep: int,
        blocking: bool = False,
        focus: str = "",
        tell: ChatLocation | None = None,
        available_tokens: float = 0.0,
        used: int | None = None,
    ) -> CompressionOutcome:
        """Compress what `view` shows, if that is possible and helps; with `available_tokens`, only if enough is new.
        `used` is the size of the context.

        The last covered operation is fixed before the summariser is asked. What arrives later comes after it and stays
        in the context. If the context changes before the commit, the summary is discarded.
        """
        # A model that refused the request takes less than it says, so only pins and unanswered messages stay beside the
        # summary.
        window = 0 if trigger == "too long" else self.runtime.models[0].context_tokens
        plan = compression.plan_compression(view, keep=keep, session=session.id, used=used, window=window)
        if plan is None or not compression.is_worthwhile(plan, available_tokens):
            return CompressionOutcome.NOTHING
        messages_ = sum(len(exchange.heard) for exchange in plan.covered_context.turns)
        began = Began(
            type="compression",
            compression=plan.based_on,
            generation=session.generation,
            blocking=blocking,
            consumer=self.claim.consumer,
            trigger=trigger,
            covers=plan.covers,
            messages=messages_,
            model=self.runtime.summariser.name,
        )
        notice: tuple[EntryBody, ...] = ()
        if tell is not None:
            text = "I am compressing our conversation. I answer your message right after."
            notice = (Notified(text=text, about="compression", to=tell, parts=(text,)),)
        try:
            op = await self._commit(Step.COMPRESSION_BEGIN, (began, *notice), op=None, generation=session.generation)
        except Conflict:
            return CompressionOutcome.BUSY  # another operation is running, or the context has changed
        log = self._bind_log(op, began)
        log.info("compression.started", tokens=plan.tokens_before)
        try:
            with self.gates.metrics.time_call(COMPRESSION_SECONDS, self.runtime.agent) as timer:
                outcome = await self._make_summary(
                    session, plan, op=op, trigger=trigger, messages=messages_, focus=focus, log=log
                )
                timer.outcome = outcome
            return outcome
        finally:
            for reservation in self.reservation:
                reservation.release()
            self.reservation.clear()

    async def _make_summary(
        self,
        session: Session,
        plan: CompressionPlan,
        *,
        op: int,
        trigger: str,
        messages: int,
        focus: str,
        log: EventLogger,
    ) -> CompressionOutcome:
        advice = await self.preparer.collect_advice(session, plan.covered_context) if self.preparer is not None else ""
        asked = await self._summarise_plan(plan, focus=focus, advice=advice)
        if not isinstance(asked, ModelAnswered):
            reason = asked.reason if isinstance(asked, ModelUnreachable | RequestTooLong | TurnBroken) else ""
            return await self._end_refused(op, f"no summary: {reason or 'cut short'}", log)
        if reason := compression.find_summary_objection(asked.thought.text, plan):
            return await self._end_refused(op, reason, log)
        if self.preparer is not None:
            await self.preparer.note_before_compression(self.claim, session, plan.covered_context, advice=advice)
        compressed = Compressed(
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
        compressed = structs.replace(compressed, tokens_after=compression.estimate_tokens_after(compressed, plan))
        try:
            await self._commit(
                Step.COMPRESSION_END,
                (compressed, Ended(usage=asked.thought.usage)),
                op=op,
                generation=session.generation,
            )
        except Conflict:
            return await self._end_refused(op, "the context changed while the summary was made", log)
        log.info("compression.completed", tokens_before=compressed.tokens_before, tokens_after=compressed.tokens_after)
        return CompressionOutcome.DONE

    async def _summarise_plan(self, plan: CompressionPlan, *, focus: str, advice: str) -> TurnEvent:
        """Return the summary of a plan, or why there is none.

        A plan that does not fit the summariser is summarised in portions, each with the summary of the portions before
        it. Only the last summary is used. If one call fails, the context stays as it was.
        """
        most = self.runtime.summariser.context_tokens
        used = ModelUsage()
        while True:
            portion = compression.take_portion(plan, most=most, focus=focus, advice=advice)
            asked = await self._ask_summariser(compression.build_summary_request(portion, focus=focus, advice=advice))
            if isinstance(asked, RequestTooLong):
                tight = compression.build_summary_request(portion, focus=focus, advice=advice, tight=True)
                asked = await self._ask_summariser(tight)
                if isinstance(asked, RequestTooLong) and len(portion.covered_context.turns) > 1:
                    most = (
                        min(most, weigh_request(tight)) // 2
                    )  # the model's window is smaller than configured, or it counts tokens differently
                    continue
            if not isinstance(asked, ModelAnswered):
                return asked
            used += asked.thought.usage
            summary = asked.thought.text
            left = compression.build_remaining_plan(plan, portion, summary) if summary.strip() else None
            if left is None:
                return structs.replace(asked, thought=structs.replace(asked.thought, usage=used))
            plan = left

    async def _ask_summariser(self, request: ModelRequest) -> TurnEvent:
        """Ask the summariser once, paid from the budget for background work."""
        runtime = self.runtime
        reading, writing = runtime.meter.estimate_max_tokens(runtime.weigh_request(request)), runtime.max_output_tokens
        worst = WorstCaseCost(usd=runtime.price_usd(reading, writing), tokens=reading + writing)
        reservation = self.budgets.prepare_reservation(runtime.job_limits(), worst)
        try:
            await reservation.reserve()
        except Refused as error:
            return TurnBroken(reason=str(error))
        self.reservation.append(reservation)
        asked = await effects.ask_models(
            self.gates,
            (runtime.summariser,),
            request,
            agent=runtime.agent,
            deadline=SUMMARY_DEADLINE_SECONDS,
            record=lambda answer: Thought(text=answer.text, model=answer.model, usage=answer.usage),
        )
        if isinstance(asked, ModelAnswered):
            self.thoughts.append(asked.thought)
        return asked

    async def close_abandoned(self, operation: Operation, reason: str) -> None:
        """End a compression that another worker left running."""
        body = (await self.store.get_entry(self.claim.session, operation.op)).body
        assert isinstance(body, Began)
        await self._end_refused(operation.op, reason, self._bind_log(operation.op, body))

    def _bind_log(self, op: int, began: Began) -> EventLogger:
        """Return a log whose lines say which compression they are about, also after a restart."""
        return self.log.bind(
            op=op, trigger=began.trigger, mark=began.covers, messages=began.messages, model=began.model
        )

    async def _end_refused(self, op: int, reason: str, log: EventLogger) -> CompressionOutcome:
        await self._commit(Step.COMPRESSION_END, (Ended(outcome="refused", reason=reason),), op=op)
        log.warning("compression.refused", reason=reason)
        self.refusal = reason
        return CompressionOutcome.REFUSED

    async def _commit(
        self, step: Step, bodies: tuple[EntryBody, ...], *, op: int | None, generation: int | None = None
    ) -> int:
        own = -1 if op is None else op
        spends = build_job_spends(self.runtime, self.thoughts, day=self.budgets.get_today())
        done = await self.gates.commit(
            Change(
                step=step,
                session=self.claim.session,
                at=self.gates.clock.now(),
                entries=tuple(EntryDraft(body=body, author="system", op=own) for body in bodies),
                claim=self.claim,
                op=op,
                generation=generation,
                spends=spends,
                wakeups=self.runtime.list_platform_wakeups(bodies)
                + (self.runtime.list_switch_wakeups() if isinstance(bodies[0], Compressed) else ()),
            )
        )
        self.thoughts.clear()
        self.wakeups.notify(self.claim.session)
        return done.seqs[0]


async def is_held_by_undo(store: Store, session: Session) -> bool:
    """Return whether a person undid the newest compression of this context. Then only the hard limit or a request makes
    another one.
    """
    newest = await store.list_operations(
        session.id, types=("compression",), states=("done",), newest_first=True, limit=1
    )
    if not newest or not newest[0].undone_at:
        return False
    compressed, undone_at = newest[0], newest[0].undone_at
    undoing = (await store.get_entry(session.id, undone_at)).body
    if not isinstance(undoing, Changed) or not isinstance(undoing.change, OperationsUndone):
        return False  # an erasure removed it
    if compressed.op not in undoing.change.ops:
        return False  # a turn was undone that it covered
    resets = await store.list_operations(session.id, types=("context_reset",), newest_first=True, limit=1)
    return not resets or resets[0].op < undone_at


class CompressionWorker:
    """The worker of the compression consumer: makes a summary in background, before it is needed."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        *,
        runtimes: AgentRuntimes,
        wakeups: Wakeups,
        budgets: BudgetLedger,
        preparer: CompressionPreparer | None = None,
        contexts: ContextCache | None = None,
    ) -> None:
        self.gates = gates
        self.claim = claim
        self.runtimes = runtimes
        self.wakeups = wakeups
        self.budgets = budgets
        self.preparer = preparer
        self.contexts = contexts or ContextCache()

    async def run(self) -> None:
        store = self.gates.store
        session = await store.get_session(self.claim.session)
        runtime = self.runtimes.get_runtime(session.agent, session.choices)
        compressor = SessionCompressor(
            self.gates, self.claim, runtime, wakeups=self.wakeups, budgets=self.budgets, preparer=self.preparer
        )
        for operation in await store.list_operations(session.id, types=("compression",), states=("running",)):
            if operation.consumer == COMPRESSION:
                await compressor.close_abandoned(operation, "cut short by a restart")
        glance = await store.get_session_snapshot(self.claim.session)
        session = glance.session
        wanted = await self._find_request(session)
        if wanted is not None:
            await self._compress_on_request(compressor, session, runtime, wanted)
            return
        seen = self.contexts.get_cached(glance)
        if seen is None:
            view = await load_context_at(store, session, at=session.last_seq + 1, shorten=True)
            seen = build_cached_context(view, generation=session.generation, newest=glance.newest_turn)
        used = runtime.meter.estimate_tokens(seen.tokens + runtime.overhead_weight)
        outcome = CompressionOutcome.NOTHING
        window = runtime.models[0].context_tokens
        due = compression.measure_urgency(used, window, soft=runtime.soft_share, hard=runtime.hard_share)
        if due == "soft" and await is_held_by_undo(store, session):
            due = ""
        if due:
            available_tokens = window * (runtime.hard_share - runtime.soft_share) if due == "soft" else 0.0
            outcome = await compressor.compress(
                session,
                seen.context,
                trigger="soft",
                keep=runtime.keep_turns,
                available_tokens=available_tokens,
                used=seen.tokens,
            )
        # After repeated refusals the next try waits until there is more to summarise.
        tired = outcome is CompressionOutcome.REFUSED and self.claim.cursor.attempts + 1 >= MAX_REFUSALS
        again = outcome in (CompressionOutcome.REFUSED, CompressionOutcome.BUSY) and not tired
        if not again:
            session = await self._reload_session(session)
        await self._settle_cursor(session, position=session.last_seq, again=again)

    async def _reload_session(self, session: Session) -> Session:
        """Return the session as it is now, unless a compression was requested since.

        A longer log alone is no reason to check again, because the turn that makes a compression necessary wakes this
        consumer.
        """
        now = await self.gates.store.get_session(session.id)
        return now if await self._find_request(now) is None else session

    async def _find_request(self, session: Session) -> Entry | None:
        """Return the next requested compression."""
        after = self.claim.cursor.processed_seq
        for entry in await self.gates.store.list_entries(session.id, after=after, kinds=(EntryKind.CHANGED,)):
            if isinstance(entry.body, Changed) and isinstance(entry.body.change, CompressionRequested):
                return entry
        return None

    async def _compress_on_request(
        self, compressor: SessionCompressor, session: Session, runtime: AgentRuntime, entry: Entry
    ) -> None:
        """Make a requested compression. The chat waits for it and gets a notice with the result."""
        assert isinstance(entry.body, Changed)
        assert isinstance(entry.body.change, CompressionRequested)
        wanted = entry.body.change
        keep = runtime.keep_turns if wanted.keep is None else wanted.keep
        view = await load_context_at(self.gates.store, session, at=session.last_seq + 1)
        outcome = await compressor.compress(
            session, view, trigger="command", keep=keep, blocking=True, focus=wanted.focus
        )
        if outcome is CompressionOutcome.BUSY:
            await self._settle_cursor(session, position=None, again=True, seconds=BUSY_RETRY_SECONDS)
            return
        notices: tuple[EntryBody, ...] = ()
        if wanted.tell is not None:
            text = await self._render_outcome(session, outcome, refusal=compressor.refusal)
            notices = (Notified(text=text, about="compress", to=wanted.tell, parts=(text,)),)
        await self._settle_cursor(
            session, position=entry.seq, again=False, told=notices, wakeups=runtime.list_platform_wakeups(notices)
        )

    async def _render_outcome(self, session: Session, outcome: CompressionOutcome, *, refusal: str) -> str:
        if outcome is CompressionOutcome.NOTHING:
            return "There is nothing to compress."
        if outcome is CompressionOutcome.REFUSED:
            return f"Not compressed: {refusal}. The context is unchanged."
        done = await self.gates.store.list_operations(
            session.id, types=("compression",), states=("done",), newest_first=True, limit=1
        )
        entries = await self.gates.store.list_entries(session.id, after=done[0].op, upto=done[0].last) if done else []
        compressed = next((entry.body for entry in entries if isinstance(entry.body, Compressed)), None)
        if compressed is None:
            return "Compressed. Its summary was erased since."
        return (
            f"Compressed {describe_count(compressed.messages, 'message')}: "
            f"{compressed.tokens_before} tokens are now {compressed.tokens_after}. "
            "/undo compress brings the originals back."
        )

    async def _settle_cursor(
        self,
        session: Session,
        *,
        position: int | None,
        again: bool,
        seconds: float | None = None,
        told: tuple[EntryBody, ...] = (),
        wakeups: tuple[Wakeup, ...] = (),
    ) -> None:
        attempts = self.claim.cursor.attempts + 1 if again else 0
        wait = (seconds or retry_delay_seconds(attempts, jitter=self.gates.chance.random())) if again else None
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
                entries=tuple(EntryDraft(body=body, author="system") for body in told),
                claim=self.claim,
                cursor=update,
                wakeups=wakeups,
                durable=bool(told),
            )
        )
        self.wakeups.notify(session.id)
