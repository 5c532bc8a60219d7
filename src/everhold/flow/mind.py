"""What was heard -> turn -> one commit. Holds its session's mind lane, and acts only from committed state."""

from __future__ import annotations

from everhold.core import compression
from everhold.core.consumers import TURN
from everhold.core.entries import (
    Began,
    Draft,
    Entry,
    Heard,
)
from everhold.core.mailbox import Begin, decide, letters
from everhold.errors import Conflict, NotFound
from everhold.flow import perform
from everhold.flow.fold import Fold, Outcome
from everhold.flow.runtime import Runtime
from everhold.flow.seat import Seat
from everhold.flow.turn import LOOK_SECONDS, TurnWork
from everhold.ports.store import CursorUpdate, Glance, RetryDelay, Step


class Mind:
    """Answers one session for as long as it has something to answer."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.gates = seat.gates
        self.store = seat.store
        self.claim = seat.claim
        self.log = seat.log

    async def run(self) -> None:
        """Work until there is nothing to do, the model cannot be asked, or the lane is lost."""
        waited = False
        while True:
            glance = await self.store.get_session_snapshot(self.claim.session)
            session = glance.session
            mine = {op.type: op for op in glance.running if op.consumer == TURN}
            try:
                runtime = self.seat.runtimes.runtime(session.agent, session.choices)
            except NotFound:
                if turn := mine.get("turn"):
                    # its agent left the configuration and may come back: to find it away is no attempt at the turn
                    await self.seat.commit(Step.PAUSE, (), op=turn.op, pause=True)
                raise
            if runtime.coming is not None and not waited:
                waited = await perform.wait_for_tools(self.gates, runtime.coming)
                continue
            seat = self.seat
            fold = Fold(self.gates, self.claim, runtime, bells=seat.bells, purses=seat.purses, before=seat.before)
            if left := mine.get("compression"):
                # before the turn it was made for goes on: that may need another, and there is only one at a time
                await fold.close(left, "cut short by a restart")
                continue
            if turn := mine.get("turn"):
                if not await TurnWork(seat, session, runtime).resume(turn.op, turn.first, turn.attempts):
                    return
                continue
            folding = any(op.blocking for op in glance.running)
            match decide(letters(glance.pending), folding=folding, busy=runtime.busy):
                case Begin(takes):
                    try:
                        if not await self._turn(glance, runtime, takes, fold):
                            return
                    except Conflict:
                        continue  # the state moved while we looked: look again
                case _:
                    wait = RetryDelay(seconds=LOOK_SECONDS) if folding else None
                    await self.settle(
                        CursorUpdate(idle_at=None if folding else session.last_seq, wait=wait, release=True)
                    )
                    return

    async def _turn(self, glance: Glance, runtime: Runtime, takes: tuple[int, ...], fold: Fold) -> bool:
        """Begin and work a turn. Whether to look for more afterwards."""
        session = glance.session
        seen = await self.seat.views.now(self.store, glance)
        used = runtime.meter.tokens(seen.tokens + runtime.overhead)
        if compression.due(
            used, runtime.models[0].context_tokens, soft=runtime.soft, hard=runtime.hard
        ) == "hard" and self.seat.views.may_fold(session.id, self.gates.clock.monotonic()):
            tell = next((e.body.origin for e in glance.pending if isinstance(e.body, Heard) and e.body.asks), None)
            outcome = await fold.compress(
                session, seen.view, trigger="hard", keep=runtime.keep, blocking=True, tell=tell
            )
            if outcome is Outcome.DONE:
                self.seat.views.folded(session.id)
                return True
            if outcome is Outcome.REFUSED:
                # the turn is tried as it is; the next attempt to compress comes after a wait
                self.seat.views.fold_refused(session.id, self.gates.clock.monotonic(), self.gates.chance.random())
                return True
        pinned = seen.view.fold.op or 0 if seen.view.fold is not None and seen.view.fold.session == session.id else 0
        began = Began(
            type="turn", takes=takes, compression=pinned, generation=session.generation, consumer=TURN, trigger="heard"
        )
        taken = set(takes)
        done = await self.seat.commit(
            Step.BEGIN,
            (Draft(body=began, author=runtime.author),),
            generation=session.generation,
            durable=any(self._drafts(entry) for entry in glance.pending if entry.seq in taken),
        )
        work = TurnWork(self.seat, session, runtime)
        heard = {entry.seq: entry for entry in glance.pending}
        left = any(it.asks and it.command is None and it.seq not in taken for it in letters(glance.pending))
        return await work.begin(done.seqs[0], began, seen, [heard[seq] for seq in takes], left=left)

    def _drafts(self, entry: Entry) -> bool:
        """Whether a draft of the reply may be shown there: it is known by the turn's number, which must not change."""
        if not isinstance(entry.body, Heard):
            return False
        origin = entry.body.origin
        return self.seat.runtimes.drafting(origin.platform, origin.account) is not None

    async def settle(self, update: CursorUpdate) -> None:
        await self.seat.commit(Step.CURSOR_SETTLE, (), lane=update, durable=False)
