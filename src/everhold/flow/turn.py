"""One turn being worked on: performs what core/turn.py decides, and records it before anything else happens."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Iterable
from typing import Any, Final

import msgspec

from everhold.core import compression, consumers, facts
from everhold.core.access import hops_of
from everhold.core.context import LONG_RESULT, SHORT_TEXT, Exchange, View, build, fingerprint, messages, oversized
from everhold.core.entries import (
    OUTAGE,
    VERSION,
    Began,
    Body,
    Draft,
    Ended,
    Entry,
    Heard,
    Kind,
    Noted,
    Notified,
    Place,
    Stamp,
    Thought,
    Took,
    Usage,
    kind_of,
    takes_of,
)
from everhold.core.mailbox import Cut, Decision, Running, Steer, decide, letters
from everhold.core.recall import Why
from everhold.core.split import split
from everhold.core.turn import (
    SEND_LESS,
    START_OVER,
    Ask,
    Broken,
    CutShort,
    Event,
    Finish,
    Opened,
    Overlong,
    Record,
    Recorded,
    Run,
    Shrink,
    Turn,
    Wait as WaitForModel,
    replay,
    step,
)
from everhold.errors import LeaseLost, Refused
from everhold.flow import draft, perform, waits
from everhold.flow.draft import Sketch
from everhold.flow.fold import Fold, Outcome
from everhold.flow.purse import Reservation, Worst
from everhold.flow.recall import Recalled, recall
from everhold.flow.records import Beside
from everhold.flow.runtime import Runtime, purses_of
from everhold.flow.seat import Seat
from everhold.flow.view import NOTHING, Seen, see, view_at
from everhold.ports.model import Answer, Message
from everhold.ports.store import CursorUpdate, Operation, Session, Spend, Step, Wakeup
from everhold.ports.tool import Effect, Result, ToolContext

LOOK_SECONDS: Final = 1.0
"""How often a running turn looks at its mailbox when no bell rings."""

_STEPS: Final = {
    Kind.THOUGHT: Step.THINK,
    Kind.CALLED: Step.CALL,
    Kind.RETURNED: Step.RETURN,
    Kind.TOOK: Step.TAKE,
}


class TurnWork:
    """One turn being worked on: what is recorded of it, and the view it is answered from."""

    def __init__(self, seat: Seat, session: Session, runtime: Runtime) -> None:
        self.seat = seat
        self.gates = seat.gates
        self.store = seat.store
        self.session = session
        self.runtime = runtime
        self.op = 0
        self.seen = NOTHING
        self.heard: dict[int, Entry] = {}
        self.steps: list[Entry] = []
        self.stubs: frozenset[int] = frozenset()
        """What this turn shows as stubs besides what its view does."""
        self.origin: Place | None = None
        self.stamp = Stamp()
        self.hops, self.scheduled = 0, False
        self.turn = Turn(session=session.id, op=0)
        self.tail: int | None = None
        """The session's last seq as far as all after our last look is our own; None once somebody else wrote."""
        self.fresh = False
        self.sketch: draft.Sketch | None = None
        self.recalled: Recalled | None = None
        """What memories said about this turn's messages; None until they were asked."""
        self.weighed = 0, 0
        """With how many steps the model was asked last, and what the request weighed."""
        self.beside = Beside()
        self.held: Reservation | None = None
        """What purses hold back for the last call, until what it came to is committed."""
        self.log = seat.log

    async def begin(self, op: int, began: Began, seen: Seen, heard: list[Entry], *, left: bool) -> bool:
        self._open(op)
        self.seen = seen
        self.tail = None if left else self.session.last_seq
        self._remember(op, began)
        self._hear(heard)
        self.turn = Turn(session=self.session.id, op=op, takes=began.takes)
        self.fresh = True
        self.log.info("turn.started", messages=len(began.takes))
        return await self._work()

    async def resume(self, op: int, first: int, attempts: int) -> bool:
        """Go on with a turn somebody left: at the first thing that is not recorded."""
        self._open(op)
        entries = await self.store.list_entries(self.session.id, after=first - 1)
        self.steps = [entry for entry in entries if entry.op == op]
        await self._fetch(takes_of(self.steps))
        await self._see(await self._before(self.session))
        self.turn = replay(self.steps, session=self.session.id, op=op, attempts=attempts, left_over=True)
        if self.turn.over:
            return True  # somebody else ended it while we looked: look again
        self.log.info("turn.resumed", attempt=attempts, rounds=self.turn.rounds)
        if self.origin is not None and await draft.left_behind(self.store, self.session.id, op, self.origin):
            # whoever showed it may be stalled, not dead: its last edit must not land on the final text
            await self.gates.sleep(self.seat.draft_deadline)
        return await self._work()

    async def _before(self, session: Session) -> View:
        """What came before this turn, as the log tells it now."""
        pins = [
            e.body.compression
            for e in self.steps
            if isinstance(e.body, Began | Took) and e.body.compression is not None
        ]
        return await view_at(self.store, session, at=self.op, fold=pins[-1] if pins else None)

    async def _see(self, view: View) -> None:
        """Answer from this view of what came before."""
        self.seen = see(view, self.session.id, generation=-1, newest=0)

    def _open(self, op: int) -> None:
        self.op = op
        self.log = self.seat.log.bind(op=op)

    async def _fetch(self, takes: tuple[int, ...]) -> None:
        self._hear([await self.store.get_entry(self.session.id, seq) for seq in takes])

    def _hear(self, heard: list[Entry]) -> None:
        """What the turn consumed; the reply goes to where the last one that asks came from."""
        for entry in heard:
            self.heard[entry.seq] = entry
            if isinstance(entry.body, Heard):
                if entry.body.asks or self.origin is None:
                    self.origin, self.stamp = entry.body.origin, entry.body.stamp
        self.hops = hops_of(self.heard.values())
        self.scheduled = all(isinstance(it.body, Heard) and it.body.scheduled for it in self.heard.values())

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def _work(self) -> bool:
        with draft.typing(self.gates, self.seat.runtimes, self.origin):
            try:
                return await self._go_on()
            finally:
                self._settle()

    async def _go_on(self) -> bool:
        event: Event = Opened()
        effects = self.runtime.effects
        while True:
            self.turn, task = step(self.turn, event, effects)
            match task:
                case Ask():
                    event = await self._boundary() or await self._ask()
                case Record(bodies):
                    event = await self._record(bodies)
                case Run():
                    event = await self._run(task)
                case Shrink(reason=reason):
                    event = await self._boundary() or await self._shrink(reason)
                case WaitForModel():
                    await self._wait(task)
                    return False
                case Finish():
                    return await self._finish(task)

    async def _boundary(self) -> Event | None:
        """Between two steps: be stopped, or take what wants to steer."""
        if self.fresh:
            self.fresh = False  # it has just taken everything there was
            return None
        decision, _ = await self._look(boundary=self.turn.rounds > 0)
        if isinstance(decision, Cut):
            return CutShort(decision.outcome)
        if isinstance(decision, Steer):
            event = await self._record((Took(takes=decision.takes),))
            await self._fetch(decision.takes)
            return event
        return None

    async def _look(self, *, boundary: bool, after: int = 0) -> tuple[Decision, int]:
        """What to do about the letters behind `after`, and the last of these: nobody has to read them again."""
        box = letters(await self.store.list_pending(self.session.id, after=after))
        running = Running(op=self.op, boundary=boundary, stop=(await self._ours()).stop)
        return decide(box, running=running, busy=self.runtime.busy), box[-1].seq if box else after

    async def _ask(self) -> Event:
        runtime = self.runtime
        stubs = self.seen.stubs | self.stubs
        shown = self.seen.messages if not self.stubs else messages(self.seen.view, stubs=stubs)
        if self.recalled is None:
            self.recalled = await self._recall()
        current = messages(View(exchanges=(self._current(),)), stubs=stubs, recalled=self.recalled.text)
        request = build(shown + current, system=runtime.system, tools=runtime.offers)
        sealed = self.seat.views.sealed(self.session.id, shown, system=runtime.system)
        digest = fingerprint(request, sealed)
        prompt, offered = runtime.prompt, runtime.offered
        beside = self.recalled.text.encode()
        why = msgspec.json.encode(self.recalled.why) if self.recalled.why is not None else b""
        self.beside = Beside(
            blobs=tuple(filter(None, (prompt.data, offered.data))), records=tuple(filter(None, (beside, why)))
        )

        weight = self.seen.tokens + compression.tokens(current) + runtime.overhead
        self.weighed = len(self.steps), weight

        def record(answer: Answer) -> Thought:
            runtime.meter.learn(weight, answer.usage)
            return Thought(
                text=answer.text,
                calls=answer.calls,
                reasoning=answer.reasoning,
                model=answer.model,
                generation=self.session.generation,
                request=digest,
                prompt=prompt.digest,
                tools=offered.digest,
                recall=hashlib.sha256(beside).hexdigest() if beside else "",
                why=hashlib.sha256(why).hexdigest() if why else "",
                stubs=tuple(sorted(stubs)),
                usage=answer.usage,
                finish=answer.finish,
            )

        sketch = self.sketch = self._sketch()
        watcher = self.seat.on_text
        grown: list[str] = []

        def on_text(piece: str | None) -> None:
            grown.append(piece or "")
            if sketch is not None:
                sketch.add(piece)
            if watcher is not None:
                watcher(self.session.id, self.op, piece)

        asked = perform.ask(
            self.gates,
            runtime.models,
            request,
            deadline=runtime.model_deadline,
            record=record,
            on_text=on_text if sketch or watcher else None,
        )
        reading, writing = runtime.meter.most(weight), runtime.most_output
        worst = Worst(usd=runtime.price(reading, writing), tokens=reading + writing)
        self._settle()
        limits = runtime.job_limits() if self.scheduled else runtime.limits(self.stamp)
        self.held = self.seat.purses.reserved(limits, worst)
        try:
            await self.held.take()
            event = await self._unless_cut(asked)
        except Refused as error:
            asked.close()
            return Broken(reason=str(error))
        except BaseException:
            if sketch is not None:
                sketch.abandon()
            raise
        if sketch is not None:
            await sketch.close()
        if isinstance(event, CutShort):
            return msgspec.structs.replace(event, usage=runtime.given_up(weight, "".join(grown)))
        return event

    async def _recall(self) -> Recalled:
        """What memories have to say about this turn's messages: what it was shown first, if it was shown something."""
        for entry in self.steps:
            if isinstance(entry.body, Thought):
                kept = await self.store.get_blob(entry.body.recall) if entry.body.recall else None
                why = await self.store.get_blob(entry.body.why) if entry.body.why else None
                return Recalled(text=(kept or b"").decode(), why=msgspec.json.decode(why, type=Why) if why else None)
        heard = [entry.body.text for entry in self.heard.values() if isinstance(entry.body, Heard)]
        return await recall(
            self.gates,
            self.seat.runtimes,
            self.runtime,
            self.session,
            op=self.op,
            takes=tuple(self.heard),
            text="\n".join(heard),
            stamp=self.stamp,
            visible=self.seen.seqs | self.heard.keys(),
        )

    def _sketch(self) -> Sketch | None:
        """Where the growing reply can be shown, if its platform can show one."""
        if self.origin is None:
            return None
        platform = self.seat.runtimes.drafting(self.origin.platform, self.origin.account)
        if platform is None:
            return None
        return Sketch(
            self.gates,
            self.seat.claim,
            op=self.op,
            place=self.origin,
            platform=platform,
            limit=self.runtime.text_limit(self.origin),
            deadline=self.seat.draft_deadline,
        )

    async def _unless_cut(self, work: Coroutine[Any, Any, Event], *, cancel: bool = True) -> Event:
        """Wait for `work`, but look at the mailbox whenever something arrives: the turn may be cut short."""
        task = asyncio.ensure_future(work)
        seen = 0
        with self.seat.bells.listening(self.session.id) as bell:
            task.add_done_callback(lambda _: bell.set())
            while not task.done():
                await self.gates.sleep(LOOK_SECONDS, bell=bell)
                bell.clear()
                if task.done() or not cancel:
                    continue
                try:
                    decision, seen = await self._look(boundary=False, after=seen)
                except LeaseLost:  # perhaps because something it has read was erased: it must not be sent once more
                    task.cancel()
                    raise
                if isinstance(decision, Cut) and not task.done():
                    task.cancel()
                    return CutShort(decision.outcome)
        return task.result()

    async def _run(self, task: Run) -> Event:
        tool = self.runtime.tools.get(task.call.tool)
        said, sources = facts.voices(self.heard.values(), self.steps, self.recalled.why if self.recalled else None)
        context = ToolContext(
            session=self.session.id,
            agent=self.session.agent,
            op=self.op,
            key=task.key,
            stamp=self.stamp,
            origin=self.origin,
            hops=self.hops,
            said=said,
            sources=sources,
        )
        result = Result(text="")

        async def work() -> Event:
            nonlocal result
            event, result = await perform.run(self.gates, tool, task, context, still_ours=self._ours)
            return event

        # a tool that changes something is waited for: what it did must be recorded before anybody stops the turn
        event = await self._unless_cut(work(), cancel=tool is not None and tool.effect is Effect.PURE)
        if isinstance(event, CutShort):
            return event
        _, recorded = step(self.turn, event, self.runtime.effects)
        assert isinstance(recorded, Record)
        notes = tuple(facts.kept(note, tool=task.call.tool, context=context) for note in result.notes)
        sayings = tuple(self.runtime.said(it.text, it.to, hops=it.hops, stamp=self.stamp) for it in result.sayings)
        files = tuple(file.data for file in result.files)
        return await self._record((*recorded.bodies, *notes, *sayings, *self._noticed(notes)), files=files)

    def _noticed(self, notes: tuple[Noted, ...]) -> tuple[Notified, ...]:
        """A word in the chat about what was remembered, true once it is committed, whatever the providers do."""
        if not notes or not self.runtime.memory_notices or self.origin is None:
            return ()
        text = "\n".join(facts.notice(note) for note in notes)
        limit = self.runtime.text_limit(self.origin)
        return (Notified(text=text, about="memory", to=self.origin, parts=split(text, limit)),)

    async def _ours(self) -> Operation:
        found = await self.store.list_operations(self.session.id, after=self.op - 1, before=self.op + 1)
        if not found or found[0].state != "running" or found[0].fence != self.seat.claim.fence:
            raise LeaseLost(f"session {self.session.id}: operation {self.op} is in other hands")
        return found[0]

    async def _record(self, bodies: tuple[Body, ...], *, files: tuple[bytes, ...] = ()) -> Event:
        """Commit what happened, so that it is never done again."""
        step_ = _STEPS[kind_of(bodies[0])]
        drafts = tuple(Draft(body=body, author=self._author(body), op=self.op) for body in bodies)
        wakes, spends, beside = self._wakes(bodies), self._spends(bodies), self._beside(bodies)
        done = await self.seat.commit(step_, drafts, op=self.op, wakes=wakes, spends=spends, beside=beside, files=files)
        self._settle()
        for seq, body in zip(done.seqs, bodies, strict=True):
            self._remember(seq, body)
        return Recorded(bodies)

    def _beside(self, bodies: Iterable[Body]) -> Beside | None:
        # what was recalled for an answer that never came is kept nowhere: no erasure would find it
        return self.beside if any(isinstance(body, Thought) for body in bodies) else None

    async def _shrink(self, reason: str) -> Event:
        """Too long: first long results become stubs, and earlier messages that fill much of the window; then what came
        before is folded; then all of it that is long becomes stubs; then it fails, visibly."""
        before, current = self.seen.view, View(exchanges=(self._current(),))
        # a character is a quarter of a token: what is longer than this fills a quarter of the window
        much = max(LONG_RESULT, self.runtime.models[0].context_tokens)
        if self._stub(oversized(before + current, most=SHORT_TEXT) + oversized(before, most=much, what=Heard)):
            return Opened()
        unfit = oversized(current, most=SHORT_TEXT, what=Heard)
        if unfit and self._weighs(current) > self.runtime.models[0].context_tokens:
            return self._unfit(reason, unfit)  # a summary of what came before would not help
        session = await self.store.get_session(self.session.id)
        await self._ours()
        view = await self._before(session)  # read anew: something of what this turn has seen may have been erased since
        fold = Fold(self.gates, self.seat.claim, self.runtime, bells=self.seat.bells, purses=self.seat.purses)
        outcome = await fold.compress(session, view, trigger="too long", keep=0) if view.exchanges else Outcome.NOTHING
        if outcome is Outcome.BUSY:
            # a summary is being made ahead of need, or the view has just changed: once that is over, decide anew
            await self.gates.sleep(LOOK_SECONDS)
            return Overlong(reason=reason)
        if outcome is Outcome.DONE:
            self.session = await self.store.get_session(self.session.id)
            # not through the view: a fresh context that somebody began meanwhile does not show what came before it
            made = await self.store.list_operations(
                session.id, types=("compression",), states=("done",), newest_first=True, limit=1
            )
            found = await self.store.list_entries(
                session.id, after=made[0].op, upto=made[0].last, kinds=(Kind.COMPRESSED,)
            )
            await self._see(View(fold=found[0]))
            return await self._record((Took(compression=made[0].op),))
        if self._stub(oversized(before, most=SHORT_TEXT, what=Heard)):
            return Opened()
        if unfit:
            return self._unfit(reason, unfit)
        return Broken(reason=f"the conversation does not fit the model: {reason}", remedy=START_OVER)

    def _unfit(self, reason: str, seqs: tuple[int, ...]) -> Broken:
        return Broken(reason=f"the message does not fit the model: {reason}", remedy=SEND_LESS, stubs=seqs)

    def _weighs(self, view: View) -> int:
        """About how many tokens a request has that shows nothing else."""
        shown = messages(view, stubs=self.seen.stubs | self.stubs)
        return self.runtime.meter.tokens(compression.tokens(shown) + self.runtime.overhead)

    def _stub(self, longer: tuple[int, ...]) -> bool:
        """Show these as stubs from now on. Whether that is anything new."""
        new = frozenset(longer) - self.seen.stubs - self.stubs
        self.stubs |= new
        return bool(new)

    # -- endings -----------------------------------------------------------------------------------------------------

    async def _wait(self, task: WaitForModel) -> None:
        """No model can be asked. The messages stay pending; the chat hears once that they are kept."""
        attempts = self.seat.claim.cursor.attempts + 1
        wait = waits.for_models(task.retry_after, attempts, chance=self.gates.chance, whom=self.runtime.whom)
        told: tuple[Body, ...] = ()
        if self.origin is not None and (attempts == 1 or (task.release and await self._half_shown(self.origin))):
            text = "The model cannot be reached right now. Your message is kept and will be answered."
            told = (Notified(text=text, about=OUTAGE, to=self.origin, parts=(text,)),)
        ended: tuple[Body, ...] = (Ended(outcome="released", reason=task.reason),) if task.release else ()
        bodies = (*told, *ended)
        self.log.warning("turn.waiting", reason=task.reason, seconds=wait.seconds, released=task.release)
        update = CursorUpdate(attempts=attempts, error=task.reason, wait=wait, release=True)
        try:
            await self.seat.commit(
                Step.END if task.release else Step.PAUSE,
                tuple(Draft(body=body, author="system", op=self.op) for body in bodies),
                op=self.op,
                wakes=self._wakes(bodies),
                pause=not task.release,
                lane=update,
            )
        except LeaseLost:
            # if only the operation was ended by somebody else, the model's word still counts for the next one
            await self.seat.commit(Step.DELIVERY_RETRY, (), lane=update)
        if self.runtime.whom:
            await waits.look_at(self.gates, self.seat.runtimes, self.seat.bells, self.seat.claim)

    async def _half_shown(self, place: Place) -> bool:
        """Whether people look at the beginning of a reply that this turn will not end."""
        return self.sketch is not None and bool(await draft.left_behind(self.store, self.session.id, self.op, place))

    async def _finish(self, task: Finish) -> bool:
        """The turn's end is one commit: said, ended, usage, and every lane that has to know."""
        bodies: list[Body] = list(task.bodies)
        if task.reply and self.origin is not None:
            hops, files = self.hops + 1, task.attached
            bodies.append(self.runtime.said(task.reply, self.origin, hops=hops, files=files, stamp=self.stamp))
        notice = task.notice or await draft.cut_off(task.ended, self.sketch or self._sketch())
        if notice and self.origin is not None:
            parts = split(notice, self.runtime.text_limit(self.origin))
            # what stands beside a reply must not take the place of its draft
            about = "reply" if task.reply else "turn"
            bodies.append(Notified(text=notice, about=about, to=self.origin, parts=parts))
        bodies.append(task.ended)
        # if nobody else wrote since the turn took all there was, the lane can be let go of in the same commit; the
        # store keeps it due should something arrive before that
        lane = CursorUpdate(attempts=0, error="", idle_at=self.tail, release=self.tail is not None)
        wakes = self.runtime.voices(bodies) + self.runtime.remembers()
        done = await self.seat.commit(
            Step.END,
            tuple(Draft(body=body, author=self._author(body), op=self.op) for body in bodies),
            op=self.op,
            lane=lane,
            wakes=wakes + self._fold_wake(task.reply) + self._review_wake(),
            spends=self._spends(tuple(bodies), given_up=task.given_up),
            beside=self._beside(bodies),
        )
        more = self.tail is None
        for seq, body in zip(done.seqs, bodies, strict=True):
            self._remember(seq, body)
        if self.seen.generation == done.generation:
            self.seat.views.keep(self.session.id, self.seen.plus(self._current()))
        self.log.info("turn.done", outcome=task.ended.outcome, tokens=task.ended.usage.input + task.ended.usage.output)
        return more

    # -- small things ------------------------------------------------------------------------------------------------

    def _current(self) -> Exchange:
        return Exchange(
            op=self.op,
            heard=tuple(self.heard[seq] for seq in takes_of(self.steps) if seq in self.heard),
            steps=tuple(self.steps),
        )

    def _remember(self, seq: int, body: Body) -> None:
        entry = Entry(
            session=self.session.id,
            seq=seq,
            pos=0,
            kind=kind_of(body),
            op=self.op,
            author=self._author(body),
            at=self.seat.at,
            version=VERSION,
            body=body,
            digest=b"",
        )
        self.steps.append(entry)
        self.tail = seq if self.tail == seq - 1 else None

    def _author(self, body: Body) -> str:
        return "system" if isinstance(body, Notified | Ended) else self.runtime.author

    def _wakes(self, bodies: Iterable[Body]) -> tuple[Wakeup, ...]:
        bodies = tuple(bodies)
        noted = any(isinstance(body, Noted) for body in bodies)
        return self.runtime.voices(bodies) + (self.runtime.remembers() if noted else ())

    def _fold_wake(self, reply: str) -> tuple[Wakeup, ...]:
        """Above the soft mark a fold is made ahead of need, beside the conversation."""
        runtime = self.runtime
        if not runtime.ahead:
            return ()
        answer = (Message(role="assistant", text=reply),)
        steps, asked = self.weighed
        # what was recalled goes with the turn: with it the weight is never less than without
        if steps == len(self.steps) and not self._is_due(asked + compression.tokens(answer)):
            return ()
        new = messages(View(exchanges=(self._current(),))) + answer
        due = self._is_due(self.seen.tokens + compression.tokens(new) + runtime.overhead)
        return (Wakeup(consumer=consumers.COMPRESSION),) if due else ()

    def _is_due(self, weight: int) -> bool:
        runtime = self.runtime
        used, window = runtime.meter.tokens(weight), runtime.models[0].context_tokens
        return bool(compression.due(used, window, soft=runtime.soft, hard=runtime.hard))

    def _review_wake(self) -> tuple[Wakeup, ...]:
        """Every so many turns somebody looks through what was said for what to remember."""
        every = self.runtime.review_every
        due = bool(every) and self.seat.views.count(self.session.id) % every == 0
        return (Wakeup(consumer=consumers.REVIEW, start=0),) if due else ()

    def _settle(self) -> None:
        """What the last call came to is committed, or will never be: its purses need not hold it back any longer."""
        if self.held is not None:
            self.held.give_back()
            self.held = None

    def _spends(self, bodies: tuple[Body, ...], *, given_up: Usage | None = None) -> tuple[Spend, ...]:
        spends = []
        for usage in (given_up, *(body.usage for body in bodies if isinstance(body, Thought))):
            if usage is not None and (usage.input or usage.output):
                tokens = usage.input + usage.output
                for purse in purses_of(self.runtime.agent, self.stamp, scheduled=self.scheduled):
                    spends.append(Spend(budget=purse, day=self.seat.day(), usd=usage.usd, tokens=tokens))
        return tuple(spends)
