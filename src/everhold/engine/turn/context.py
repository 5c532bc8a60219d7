"""The turn context: the claim of a turn worker, the objects it works with, and how it commits."""

from __future__ import annotations

from collections.abc import Callable

from everhold.core.entries import EntryDraft
from everhold.engine.agent_runtime import AgentRuntimes
from everhold.engine.budgets import BudgetLedger
from everhold.engine.compression.worker import CompressionPreparer
from everhold.engine.context_cache import ContextCache
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.outbox import drafts
from everhold.engine.recall_records import ThoughtBlobs
from everhold.ports.store import BudgetSpend, Change, Claim, CommitResult, CursorUpdate, Step, Wakeup


class TurnContext:
    """The claim of a turn worker, and the objects it works with."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        *,
        runtimes: AgentRuntimes,
        wakeups: Wakeups,
        contexts: ContextCache,
        budgets: BudgetLedger,
        preparer: CompressionPreparer | None = None,
        get_today: Callable[[], str] = lambda: "",
        on_text: Callable[[str, int, str | None], None] | None = None,
        draft_deadline: float = drafts.DRAFT_DEADLINE_SECONDS,
    ) -> None:
        self.gates = gates
        self.store = gates.store
        self.claim = claim
        self.runtimes = runtimes
        self.wakeups = wakeups
        self.contexts = contexts
        self.budgets = budgets
        self.preparer = preparer
        self.get_today = get_today
        self.on_text = on_text
        self.draft_deadline = draft_deadline
        self.log = gates.log.bind(session=claim.session)
        self.last_commit_at = 0.0
        """When it committed last."""
        self.is_idle = False
        """The cursor has nothing left to do, so it need not be checked."""

    async def commit(
        self,
        step_: Step,
        entries: tuple[EntryDraft, ...],
        *,
        op: int | None = None,
        generation: int | None = None,
        update: CursorUpdate | None = None,
        wakeups: tuple[Wakeup, ...] = (),
        spends: tuple[BudgetSpend, ...] = (),
        beside: ThoughtBlobs | None = None,
        files: tuple[bytes, ...] = (),
        pause: bool = False,
        durable: bool = True,
    ) -> CommitResult:
        """Commit under the claim of this worker."""
        beside = beside or ThoughtBlobs()
        self.last_commit_at = self.gates.clock.now()
        change = Change(
            step=step_,
            session=self.claim.session,
            at=self.last_commit_at,
            entries=entries,
            claim=self.claim,
            op=op,
            generation=generation,
            cursor=update,
            wakeups=self.wakeups.reserve_workers(wakeups),
            spends=spends,
            blobs=self.contexts.filter_unstored_blobs(beside.blobs) + files,
            records=beside.records,
            pause=pause,
            durable=durable,
        )
        try:
            done = await self.gates.commit(change)
        except BaseException:
            self.wakeups.start_reserved(change.wakeups)
            raise
        self.contexts.mark_blobs_stored(beside.blobs)
        self.is_idle = done.rests
        if wakeups:
            self.wakeups.start_reserved(change.wakeups, done.claims)
            self.wakeups.notify(self.claim.session, work=len(done.claims) < len(wakeups))
        return done
