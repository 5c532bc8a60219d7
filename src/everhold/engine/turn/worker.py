"""The turn worker: answers the pending messages of one session. It holds the claim of the `turn` cursor and acts only
from committed state.
"""

from __future__ import annotations

from everhold.core import compression
from everhold.core.consumers import TURN
from everhold.core.entries import (
    Began,
    Entry,
    EntryDraft,
    Heard,
)
from everhold.core.inbox import BeginTurn, decide_next_step, list_pending_messages
from everhold.engine import effects
from everhold.engine.agent_runtime import AgentRuntime
from everhold.engine.compression.worker import CompressionOutcome, SessionCompressor
from everhold.engine.turn.execution import INBOX_POLL_SECONDS, TurnContext, TurnExecution
from everhold.errors import Conflict, NotFound
from everhold.ports.store import CursorUpdate, RetryDelay, SessionSnapshot, Step


class TurnWorker:
    """Answers one session as long as it has messages to answer."""

    def __init__(self, context: TurnContext) -> None:
        self.context = context
        self.gates = context.gates
        self.store = context.store
        self.claim = context.claim
        self.log = context.log

    async def run(self) -> None:
        """Work until there is nothing to do, no model can be asked, or the claim is lost."""
        waited = False
        while True:
            glance = await self.store.get_session_snapshot(self.claim.session)
            session = glance.session
            mine = {op.type: op for op in glance.running if op.consumer == TURN}
            try:
                runtime = self.context.runtimes.get_runtime(session.agent, session.choices)
            except NotFound:
                if turn := mine.get("turn"):
                    # The agent was removed from the configuration and may come back, so this does not count as an
                    # attempt.
                    await self.context.commit(Step.PAUSE, (), op=turn.op, pause=True)
                raise
            if runtime.wait_for_tools is not None and not waited:
                waited = await effects.wait_for_tools(self.gates, runtime.wait_for_tools)
                continue
            if left := mine.get("compression"):
                # End the old compression before the turn continues, because the turn may need another one and only one
                # can run.
                await self._build_compressor(runtime).close_abandoned(left, "cut short by a restart")
                continue
            if turn := mine.get("turn"):
                if not await TurnExecution(self.context, session, runtime).resume(turn.op, turn.attempts):
                    return
                continue
            compressing = any(op.blocking for op in glance.running)
            match decide_next_step(
                list_pending_messages(glance.pending), compressing=compressing, busy=runtime.busy_policy
            ):
                case BeginTurn(takes):
                    try:
                        if not await self._run_turn(glance, runtime, takes):
                            return
                    except Conflict:
                        continue  # the state changed after we read it: read it again
                case _:
                    wait = RetryDelay(seconds=INBOX_POLL_SECONDS) if compressing else None
                    await self.settle_cursor(
                        CursorUpdate(idle_at=None if compressing else session.last_seq, wait=wait, release=True)
                    )
                    return

    async def _run_turn(self, glance: SessionSnapshot, runtime: AgentRuntime, takes: tuple[int, ...]) -> bool:
        """Begin a turn and work on it; return whether to check for more messages."""
        session = glance.session
        seen = await self.context.contexts.load_current(self.store, glance)
        used = runtime.meter.estimate_tokens(seen.tokens + runtime.overhead_weight)
        if compression.measure_urgency(
            used, runtime.models[0].context_tokens, soft=runtime.soft_share, hard=runtime.hard_share
        ) == "hard" and self.context.contexts.can_compress(session.id, self.gates.clock.monotonic()):
            tell = next((e.body.origin for e in glance.pending if isinstance(e.body, Heard) and e.body.asks), None)
            outcome = await self._build_compressor(runtime).compress(
                session, seen.context, trigger="hard", keep=runtime.keep_turns, blocking=True, tell=tell
            )
            if outcome is CompressionOutcome.DONE:
                self.context.contexts.record_compressed(session.id)
                return True
            if outcome is CompressionOutcome.REFUSED:
                # The turn is tried as it is; the next attempt to compress comes after a delay.
                self.context.contexts.record_compression_refused(
                    session.id, self.gates.clock.monotonic(), self.gates.chance.random()
                )
                return True
        pinned = (
            seen.context.compression.op or 0
            if seen.context.compression is not None and seen.context.compression.session == session.id
            else 0
        )
        people = await self.store.get_people()
        began = Began(
            type="turn",
            takes=takes,
            compression=pinned,
            generation=session.generation,
            consumer=TURN,
            trigger="heard",
            people=people.epoch,
        )
        taken = set(takes)
        done = await self.context.commit(
            Step.BEGIN,
            (EntryDraft(body=began, author=runtime.author),),
            generation=session.generation,
            durable=any(self._can_show_draft(entry) for entry in glance.pending if entry.seq in taken),
        )
        work = TurnExecution(self.context, session, runtime)
        heard = {entry.seq: entry for entry in glance.pending}
        left = glance.has_more_pending or any(
            it.asks and it.command is None and it.seq not in taken for it in list_pending_messages(glance.pending)
        )
        return await work.begin(done.seqs[0], began, seen, [heard[seq] for seq in takes], left=left, people=people)

    def _build_compressor(self, runtime: AgentRuntime) -> SessionCompressor:
        context = self.context
        return SessionCompressor(
            self.gates,
            self.claim,
            runtime,
            wakeups=context.wakeups,
            budgets=context.budgets,
            preparer=context.preparer,
        )

    def _can_show_draft(self, entry: Entry) -> bool:
        """Return whether a draft of the reply may be shown there. It is identified by the turn's id, which must not
        change.
        """
        if not isinstance(entry.body, Heard):
            return False
        origin = entry.body.origin
        return self.context.runtimes.find_draft_platform(origin.platform, origin.account) is not None

    async def settle_cursor(self, update: CursorUpdate) -> None:
        await self.context.commit(Step.CURSOR_SETTLE, (), update=update, durable=False)
