"""Work beside the conversation: background tasks and reviews. A model call over a view, with tools that change nothing.

A job is no agent. It makes no session anywhere; what it learns is written to the session it works for, citing the
entries it rests on, and what it found out is heard there by the next turn.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from everhold.core import claims, consumers, review
from everhold.core.context import View, messages, stubbed
from everhold.core.entries import (
    OWN,
    Began,
    Body,
    Changed,
    Draft,
    Ended,
    Entry,
    Heard,
    Kind,
    Noted,
    Notified,
    Place,
    Returned,
    Said,
    Stamp,
    TaskRequested,
    Thought,
    Usage,
)
from everhold.core.exchange import TASKS, report
from everhold.core.split import split
from everhold.core.turn import Answered, Broken, Event, Overlong, Run, Unreachable
from everhold.errors import Conflict, LeaseLost, Refused
from everhold.flow import perform, waits
from everhold.flow.gates import Bells, Gates
from everhold.flow.purse import Purses, Reservation, Worst
from everhold.flow.runtime import Runtime, Runtimes, background
from everhold.flow.view import Views, view_at
from everhold.ports.model import Answer, Message, Request
from everhold.ports.store import Change, Claim, CursorUpdate, RetryDelay, Session, Spend, Step, Store, Wakeup
from everhold.ports.tool import Effect, ToolContext

MOST_ROUNDS: Final = 8
DEADLINE_SECONDS: Final = 300.0
CUT: Final = " … (cut off at the model's length limit)"
BEYOND: Final = 2**62
"""Further than any session goes: a lane that is idle at it is idle whatever was said meanwhile."""

TASK: Final = (
    "You work on a task beside the conversation above; nobody is waiting for you and you cannot ask back. Use tools to "
    "find things out; you cannot change anything. Answer with the result, short and complete. The task: "
)


class Failed(Exception):
    """The job cannot be done now (`again`), or at all."""

    def __init__(self, reason: str, *, again: bool, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.retry_after = retry_after


class Jobs:
    """The lane of a session's jobs: tasks that were asked for, or the review of what was said since the last one."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        *,
        runtimes: Runtimes,
        bells: Bells,
        purses: Purses,
        views: Views | None = None,
    ) -> None:
        self.gates = gates
        self.store = gates.store
        self.claim = claim
        self.runtimes = runtimes
        self.bells = bells
        self.purses = purses
        self.views = views or Views()
        self.asked: list[Thought] = []
        """Every answer so far: it was paid for, whatever becomes of the job."""
        self.held: list[Reservation] = []
        self.log = gates.log.bind(session=claim.session)

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self._settle()

    async def _run(self) -> None:
        session = await self.store.get_session(self.claim.session)
        runtime = self.runtimes.runtime(session.agent, session.choices)
        try:
            if self.claim.consumer == consumers.REVIEW:
                await self._review(session, runtime)
            else:
                await self._task(session, runtime)
        except Failed as failure:
            attempts = self.claim.cursor.attempts + 1
            self.log.warning("job.later", reader=self.claim.consumer, reason=failure.reason, attempt=attempts)
            chance = self.gates.chance
            await self._commit(
                Step.DELIVERY_RETRY,
                (),
                lane=CursorUpdate(
                    attempts=attempts,
                    error=failure.reason,
                    wait=waits.for_models(failure.retry_after, attempts, chance=chance, whom=runtime.whom),
                    release=True,
                ),
                spends=background(runtime, tuple(self.asked), day=self.purses.day()),
            )

    # -- a task somebody asked for -----------------------------------------------------------------------------------

    async def _task(self, session: Session, runtime: Runtime) -> None:
        entry = await self._next(session)
        if entry is None:
            update = CursorUpdate(
                processed_seq=session.last_seq, idle_at=session.last_seq, attempts=0, error="", release=True
            )
            await self._commit(Step.CURSOR_SETTLE, (), lane=update)
            return
        assert isinstance(entry.body, Changed)
        assert isinstance(entry.body.change, TaskRequested)
        task = entry.body.change
        view = await view_at(self.store, session, at=entry.seq)
        try:
            text, thoughts = await self._work(session, runtime, view, task)
        except Failed as failure:
            if failure.again:
                raise
            text, thoughts = f"The task could not be done: {failure.reason}", ()
        result = report(task.text, text)
        place = task.tell
        bodies: tuple[Body, ...] = (
            Began(type="job", consumer=consumers.TASKS, trigger="background"),
            *thoughts,
            *(
                (Notified(text=result, about="background", to=place, parts=split(result, runtime.text_limit(place))),)
                if place
                else ()
            ),
            Ended(usage=sum((thought.usage for thought in self.asked), Usage())),
        )
        heard = Heard(
            origin=Place(platform=TASKS, chat=session.id, message=str(entry.seq)),
            text=result,
            asks=False,
            sender="background task",
            bot=True,
            stamp=task.stamp,
        )
        await self._commit(
            Step.JOB,
            bodies,
            generation=session.generation,
            heard=(Draft(body=heard, author=runtime.author, dedup=f"job:{session.id}:{entry.seq}"),),
            lane=CursorUpdate(processed_seq=entry.seq, attempts=0, error="", wait=RetryDelay(), release=True),
            wakes=runtime.voices(bodies) + runtime.overseers(),
            spends=background(runtime, tuple(self.asked), day=self.purses.day()),
        )
        self.log.info("job.done", task=entry.seq)

    async def _next(self, session: Session) -> Entry | None:
        for entry in await self.store.list_entries(
            session.id, after=self.claim.cursor.processed_seq, kinds=(Kind.CHANGED,)
        ):
            if isinstance(entry.body, Changed) and isinstance(entry.body.change, TaskRequested):
                return entry
        return None

    async def _work(
        self, session: Session, runtime: Runtime, view: View, task: TaskRequested
    ) -> tuple[str, tuple[Thought, ...]]:
        """Ask, run what changes nothing, ask again, until there is a result."""
        tools = {name: tool for name, tool in runtime.tools.items() if tool.effect is Effect.PURE}
        shown = (*messages(view, stubs=stubbed(view)), Message(role="user", name="everhold", text=TASK + task.text))
        thoughts: tuple[Thought, ...] = ()
        for round_ in range(MOST_ROUNDS):
            specs = tuple(tool.spec for tool in tools.values())
            thought = await self._ask(runtime, Request(system=runtime.system, messages=shown, tools=specs), session)
            thoughts = (*thoughts, thought)
            if not thought.calls:
                cut = CUT if thought.finish == "length" else ""
                return (thought.text or "(nothing)") + cut, thoughts
            shown = (*shown, Message(role="assistant", text=thought.text, calls=thought.calls))
            for call in thought.calls:
                context = ToolContext(
                    session=session.id,
                    agent=session.agent,
                    op=0,
                    key=f"{session.id}:job:{self.claim.fence}:{round_}:{call.id}",
                    stamp=task.stamp,
                )
                run = Run(call=call, key=context.key)
                _, result = await perform.run(self.gates, tools.get(call.tool), run, context)
                shown = (*shown, Message(role="tool", call=call.id, text=result.text, error=result.error))
        raise Failed(f"no result after {MOST_ROUNDS} rounds", again=False)

    # -- the review of what was said -----------------------------------------------------------------------------------

    async def _review(self, session: Session, runtime: Runtime) -> None:
        view = await self.unreviewed(session, after=self.claim.cursor.processed_seq)
        notes, thought = await self.notes(session, runtime, view)
        bodies: tuple[Body, ...] = ()
        if thought is not None:
            bodies = (
                Began(type="job", consumer=consumers.REVIEW, trigger="review"),
                thought,
                *notes,
                Ended(usage=thought.usage),
            )
        await self._commit(
            Step.JOB,
            bodies,
            generation=session.generation,
            lane=CursorUpdate(
                processed_seq=session.last_seq,
                idle_at=session.last_seq if await self._enough(session, runtime) else BEYOND,
                attempts=0,
                error="",
                release=True,
            ),
            wakes=runtime.remembers() if notes else (),
            spends=background(runtime, (thought,) if thought else (), day=self.purses.day()),
        )
        self.log.info("review.done", notes=len(notes))

    async def _enough(self, session: Session, runtime: Runtime) -> bool:
        """Whether so much was said during a review that the next one is due: a few words wait for their turn."""
        every = max(1, runtime.review_every)
        turns = await self.store.list_operations(
            session.id, types=("turn",), states=("done",), after=session.last_seq, limit=every
        )
        return len(turns) >= every

    async def flush(self, session: Session, part: View, *, advice: str = "") -> None:
        """Note what a part of the conversation holds before a summary stands for it. Never holds the summary up: what
        cannot be noted now is left to the next review, and the originals stay in the log."""
        try:
            await self._flush(session, part, advice=advice)
        finally:
            self._settle()

    async def _flush(self, session: Session, part: View, *, advice: str) -> None:
        runtime = self.runtimes.runtime(session.agent, session.choices)
        if not runtime.review_every:
            return
        lane = await self.store.get_cursor(consumers.REVIEW, session.id)
        after = lane.processed_seq if lane is not None else 0
        fresh = View(exchanges=tuple(e for e in part.exchanges if e.op > after and e.steps[0].session == session.id))
        try:
            notes, thought = await self.notes(session, runtime, fresh, advice=advice)
        except (Failed, Conflict) as failure:
            self.log.warning("review.skipped", reason=str(failure))
            return
        if thought is None or not notes:
            return
        bodies: tuple[Body, ...] = (
            Began(type="job", consumer=self.claim.consumer, trigger="flush"),
            thought,
            *notes,
            Ended(usage=thought.usage),
        )
        try:
            await self._commit(
                Step.JOB,
                bodies,
                generation=session.generation,
                # a fold that is tried again notes nothing twice
                dedup=f"flush:{session.id}:{after}:{fresh.exchanges[-1].op}",
                lane=None,
                wakes=runtime.remembers(),
                spends=background(runtime, (thought,), day=self.purses.day()),
            )
        except Conflict as error:
            self.log.warning("review.skipped", reason=str(error))

    async def unreviewed(self, session: Session, *, after: int) -> View:
        """What was said since the last review, as far as it is still in the view."""
        seen = self.views.known(await self.store.get_session_snapshot(session.id))
        if seen is not None:
            view = seen.view
        else:
            view = await view_at(self.store, session, at=session.last_seq + 1, since=after)
        return View(
            exchanges=tuple(
                exchange
                for exchange in view.exchanges
                if exchange.op > after and exchange.steps and exchange.steps[0].session == session.id
            )
        )

    async def notes(
        self, session: Session, runtime: Runtime, view: View, *, advice: str = ""
    ) -> tuple[tuple[Noted, ...], Thought | None]:
        """What is worth noting about a view: facts that cite what they rest on, and no false claim of absence."""
        request = review.request(view, advice=advice)
        if request is None:
            return (), None
        thought = await self._ask(runtime, request, session)
        stamps = {
            entry.seq: entry.body.stamp
            for exchange in view.exchanges
            for entry in (*exchange.heard, *exchange.steps)
            if isinstance(entry.body, Heard | Said)
        }
        bots = {
            entry.seq: f"bot:{entry.body.sender or entry.author}"
            for exchange in view.exchanges
            for entry in exchange.heard
            if isinstance(entry.body, Heard) and entry.body.bot
        }
        notes = []
        for finding in review.findings(thought.text, stamps):
            if (contradiction := await contradicted(self.store, session.id, finding.text)) is not None:
                # what was said is in the log of the session, and nowhere that no erasure reaches
                self.log.warning("note.refused", cites=list(finding.cites), because=f"entry {contradiction}")
                continue
            origin = next((bots[seq] for seq in finding.cites if seq in bots), "")
            stamp = _stamp(stamps, finding.cites)
            notes.append(Noted(text=finding.text, cites=finding.cites, origin=origin, stamp=stamp))
        return tuple(notes), thought

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _ask(self, runtime: Runtime, request: Request, session: Session) -> Thought:
        """One question to the model that works beside the conversation, out of its own purse."""
        await self._unchanged(session)

        def record(answer: Answer) -> Thought:
            return Thought(
                text=answer.text, calls=answer.calls, model=answer.model, usage=answer.usage, finish=answer.finish
            )

        weight = runtime.weigh(request)
        reading = runtime.meter.most(weight)
        worst = Worst(usd=runtime.price(reading, runtime.most_output), tokens=reading + runtime.most_output)
        reservation = self.purses.reserved(runtime.job_limits(), worst)
        try:
            await reservation.take()
        except Refused as error:
            raise Failed(str(error), again=False) from error
        self.held.append(reservation)
        event: Event = await perform.ask(self.gates, runtime.models, request, deadline=DEADLINE_SECONDS, record=record)
        match event:
            case Answered(thought):
                self.asked.append(thought)
                return thought
            case Unreachable(reason=reason, retry_after=retry_after):
                raise Failed(reason, again=True, retry_after=retry_after)
            case Overlong(reason=reason) | Broken(reason=reason):
                raise Failed(reason, again=False)
            case _:
                raise Failed("it was cut short", again=True)

    def _settle(self) -> None:
        """What was asked is booked, or never will be."""
        for reservation in self.held:
            reservation.give_back()
        self.held.clear()

    async def _unchanged(self, session: Session) -> None:
        """Between its questions a job commits nothing that would tell it that it was taken over, or that something
        it has read was erased."""
        lane = await self.store.get_cursor(self.claim.consumer, session.id)
        if lane is None or lane.fence != self.claim.fence:
            raise LeaseLost(f"session {session.id}: {self.claim.consumer} is in other hands")
        if (await self.store.get_session(session.id)).generation != session.generation:
            raise Conflict(f"session {session.id} changed its view while a job was at work")

    async def _commit(
        self,
        step: Step,
        bodies: tuple[Body, ...],
        *,
        generation: int | None = None,
        dedup: str | None = None,
        heard: tuple[Draft, ...] = (),
        lane: CursorUpdate | None,
        wakes: tuple[Wakeup, ...] = (),
        spends: tuple[Spend, ...] = (),
    ) -> None:
        own = [Draft(body=body, author="system", op=OWN) for body in bodies]
        if dedup is not None:
            own[0] = structs.replace(own[0], dedup=dedup)
        await self.gates.commit(
            Change(
                step=step,
                session=self.claim.session,
                at=self.gates.clock.now(),
                entries=(*own, *heard),
                claim=self.claim,
                # what a job read may have been erased while it worked: then nothing it made of it may be kept
                generation=generation,
                cursor=lane,
                wakeups=wakes,
                spends=spends,
            )
        )
        self.bells.ring(self.claim.session)


async def contradicted(store: Store, session: str, text: str) -> int | None:
    """The entry that contradicts a claim that something was never said; None if none does, or nothing is claimed."""
    about = claims.absence(text)
    if not about:
        return None
    for entry in await store.list_entries(session, kinds=(Kind.HEARD, Kind.SAID, Kind.NOTED, Kind.RETURNED)):
        match entry.body:
            case Heard(text=said) | Said(text=said) | Noted(text=said) | Returned(text=said):
                if claims.contradicts(about, said):
                    return entry.seq
            case _:
                continue  # erased
    return None


def _stamp(stamps: dict[int, Stamp], cites: tuple[int, ...]) -> Stamp:
    """The identity a note is filed under: that of the last entry it rests on, for those who heard all of them."""
    last = stamps[cites[-1]]
    heard_all = tuple(one for one in last.audience if all(one in stamps[seq].audience for seq in cites))
    return last if heard_all == last.audience else structs.replace(last, audience=heard_all)
