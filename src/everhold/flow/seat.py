"""Where a turn is worked on: under whose claim, with what at hand, and how it commits."""

from __future__ import annotations

from collections.abc import Callable

from everhold.core.entries import Draft
from everhold.flow import draft
from everhold.flow.fold import Before
from everhold.flow.gates import Bells, Gates
from everhold.flow.purse import Purses
from everhold.flow.records import Beside
from everhold.flow.runtime import Runtimes
from everhold.flow.view import Views
from everhold.ports.store import Change, Claim, Committed, CursorUpdate, Spend, Step, Wakeup


class Seat:
    """Where a turn is worked on: under whose claim, and with what at hand."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        *,
        runtimes: Runtimes,
        bells: Bells,
        views: Views,
        purses: Purses,
        before: Before | None = None,
        day: Callable[[], str] = lambda: "",
        on_text: Callable[[str, int, str | None], None] | None = None,
        draft_deadline: float = draft.DEADLINE_SECONDS,
    ) -> None:
        self.gates = gates
        self.store = gates.store
        self.claim = claim
        self.runtimes = runtimes
        self.bells = bells
        self.views = views
        self.purses = purses
        self.before = before
        self.day = day
        self.on_text = on_text
        self.draft_deadline = draft_deadline
        self.log = gates.log.bind(session=claim.session)
        self.at = 0.0
        """When it committed last."""
        self.rests = False
        """Nobody need look for this lane: it has nothing left to do."""

    async def commit(
        self,
        step_: Step,
        entries: tuple[Draft, ...],
        *,
        op: int | None = None,
        generation: int | None = None,
        lane: CursorUpdate | None = None,
        wakes: tuple[Wakeup, ...] = (),
        spends: tuple[Spend, ...] = (),
        beside: Beside | None = None,
        files: tuple[bytes, ...] = (),
        pause: bool = False,
        durable: bool = True,
    ) -> Committed:
        """Commit under this mind's claim."""
        beside = beside or Beside()
        self.at = self.gates.clock.now()
        change = Change(
            step=step_,
            session=self.claim.session,
            at=self.at,
            entries=entries,
            claim=self.claim,
            op=op,
            generation=generation,
            cursor=lane,
            wakeups=self.bells.offer(wakes),
            spends=spends,
            blobs=self.views.unkept(beside.blobs) + files,
            records=beside.records,
            pause=pause,
            durable=durable,
        )
        try:
            done = await self.gates.commit(change)
        except BaseException:
            self.bells.hand_over(change.wakeups)
            raise
        self.views.kept(beside.blobs)
        self.rests = done.rests
        if wakes:
            self.bells.hand_over(change.wakeups, done.claims)
            self.bells.ring(self.claim.session, work=len(done.claims) < len(wakes))
        return done
