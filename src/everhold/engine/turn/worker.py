"""The turn worker: answers the pending messages of one session. It holds the claim of the `turn` cursor and acts only
from committed state.
"""

from __future__ import annotations

from collections.abc import Sequence

from everhold.core import compression
from everhold.core.consumers import TURN
from everhold.core.context import SessionContext
from everhold.core.entries import (
    Began,
    Changed,
    ContextReset,
    Entry,
    EntryDraft,
    Heard,
    Stamp,
)
from everhold.core.inbox import BeginTurn, decide_next_step, list_pending_messages
from everhold.core.people import PERSON_MEMBER, PeopleDirectory
from everhold.engine import effects
from everhold.engine.agent_runtime import AgentRuntime
from everhold.engine.compression.worker import CompressionOutcome, SessionCompressor
from everhold.engine.context_cache import has_words_of_others
from everhold.engine.session_access import is_foreign_session
from everhold.engine.turn.execution import INBOX_POLL_SECONDS, TurnContext, TurnExecution
from everhold.errors import Conflict, NotFound
from everhold.ports.store import CursorUpdate, RetryDelay, Session, SessionSnapshot, Step


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
        people = glance.people
        asking = [entry for entry in glance.pending if entry.seq in takes]
        if await self._has_parted_words(session, seen.context, asking, people):
            await self._start_fresh_context(session, runtime)
            return True
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
        began = Began(
            type="turn",
            takes=takes,
            compression=pinned,
            generation=session.generation,
            consumer=TURN,
            trigger="heard",
            people=people.epoch,
            clock=runtime.describe_time(_find_asking_stamp(asking)),
        )
        taken = set(takes)
        done = await self.context.commit(
            Step.BEGIN,
            (EntryDraft(body=began, author=runtime.author),),
            generation=session.generation,
            durable=False,  # what it allows to be seen, a draft or a reply, is committed to the disk after it
        )
        work = TurnExecution(self.context, session, runtime)
        heard = {entry.seq: entry for entry in glance.pending}
        left = glance.has_more_pending or any(
            it.asks and it.command is None and it.seq not in taken for it in list_pending_messages(glance.pending)
        )
        return await work.begin(done.seqs[0], began, seen, [heard[seq] for seq in takes], left=left, people=people)

    async def _has_parted_words(
        self, session: Session, view: SessionContext, asking: Sequence[Entry], people: PeopleDirectory
    ) -> bool:
        """Return whether the context shows words of an identity that was unlinked since from the person who asks. Both
        wrote into this session while they were one person.
        """
        senders = {entry.author.removeprefix(PERSON_MEMBER) for entry in asking}
        parted = [identity for identity in senders if people.has_parted_since(identity)]
        if not parted or await is_foreign_session(self.store, session, people, parted):
            return False  # a turn in the session of another person ends by itself
        audiences = {entry.body.stamp.audience for entry in asking if isinstance(entry.body, Heard)}
        return any([await has_words_of_others(self.store, session, view, people, audience=it) for it in audiences])

    async def _start_fresh_context(self, session: Session, runtime: AgentRuntime) -> None:
        """Empty the context, as `/new` does. What the person said stays in the log, and is recalled."""
        reset = EntryDraft(body=Changed(change=ContextReset()), author="system")
        await self.context.commit(
            Step.COMMAND, (reset,), generation=session.generation, wakeups=tuple(runtime.list_switch_wakeups())
        )
        self.log.info("context.emptied")

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

    async def settle_cursor(self, update: CursorUpdate) -> None:
        await self.context.commit(Step.CURSOR_SETTLE, (), update=update, durable=False)


def _find_asking_stamp(entries: Sequence[Entry]) -> Stamp:
    """Return the stamp of the last message that asks, to whose sender the turn answers."""
    stamps = [entry.body.stamp for entry in entries if isinstance(entry.body, Heard) and entry.body.asks]
    return stamps[-1] if stamps else Stamp()
