"""The job worker: background tasks and reviews. A job calls a model with a context, and with tools that change nothing.

A job opens no session. Its notes are written to the session it works for and cite entries. Its result is heard in that
session by the next turn.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from everhold.core import consumers, review
from everhold.core.access import find_address_place
from everhold.core.address import parse_address
from everhold.core.context import SessionContext, list_context_stubs, render_messages
from everhold.core.entries import (
    OWN_OPERATION,
    Began,
    Changed,
    ChatLocation,
    Ended,
    Entry,
    EntryBody,
    EntryDraft,
    EntryKind,
    Heard,
    ModelUsage,
    Noted,
    Notified,
    Said,
    Stamp,
    TaskRequested,
    Thought,
)
from everhold.core.exchange import TASKS_PLATFORM, merge_audiences, render_task_report
from everhold.core.facts import build_stranger_origin, find_cited_source
from everhold.core.message_split import split_text
from everhold.core.people import PeopleDirectory
from everhold.core.roles import ChatPlace, PersonRole, ToolAccess, explain_lost_access, list_role_refusals, lower_role
from everhold.core.turn import ModelAnswered, ModelUnreachable, RequestTooLong, RunTool, TurnBroken, TurnEvent
from everhold.engine import effects, model_waits
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes, build_job_spends
from everhold.engine.budgets import BudgetLedger, BudgetReservation, WorstCaseCost
from everhold.engine.context_cache import ContextCache, has_words_of_others, load_context_at
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.roles import RoleSource, StampedRoles
from everhold.engine.session_access import is_foreign_session
from everhold.engine.tool_policy import build_task_scope, judge_tool_call
from everhold.errors import Conflict, LeaseLost, Refused
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse
from everhold.ports.store import BudgetSpend, Change, Claim, CursorUpdate, RetryDelay, Session, Step, Wakeup
from everhold.ports.tool import SupportsAccess, ToolContext, ToolEffect, ToolResult

MAX_JOB_ROUNDS: Final = 8
JOB_DEADLINE_SECONDS: Final = 300.0
CUT_OFF_SUFFIX: Final = " … (cut off at the model's length limit)"
BEYOND_ANY_SEQ: Final = 2**62
"""Higher than any seq: a cursor that is idle at this seq stays idle whatever is committed."""

TASK_PROMPT: Final = (
    "You work on a task beside the conversation above; you cannot ask questions. Use tools to "
    "find things out; you cannot change anything. Answer with the result, short and complete. The task: "
)


class JobFailed(Exception):
    """The job cannot be done now (`again`), or at all."""

    def __init__(self, reason: str, *, can_retry: bool, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.can_retry = can_retry
        self.retry_after = retry_after


class JobWorker:
    """Works on a session's jobs: requested tasks, or the review of what was said since the last review."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        *,
        runtimes: AgentRuntimes,
        wakeups: Wakeups,
        budgets: BudgetLedger,
        contexts: ContextCache | None = None,
        roles: RoleSource | None = None,
    ) -> None:
        self.gates = gates
        self.store = gates.store
        self.claim = claim
        self.runtimes = runtimes
        self.wakeups = wakeups
        self.budgets = budgets
        self.contexts = contexts or ContextCache()
        self.roles: RoleSource = roles or StampedRoles()
        self.thoughts: list[Thought] = []
        """Every answer so far. They are paid for, whatever the outcome of the job."""
        self.reservation: list[BudgetReservation] = []
        self.task: TaskRequested | None = None
        """The task that is worked on; None for a review."""
        self.log = gates.log.bind(session=claim.session)

    async def run(self) -> None:
        try:
            await self._run_once()
        finally:
            self._release_reservation()

    async def _run_once(self) -> None:
        session = await self.store.get_session(self.claim.session)
        runtime = self.runtimes.get_runtime(session.agent, session.choices)
        try:
            if self.claim.consumer == consumers.REVIEW:
                await self._run_review(session, runtime)
            else:
                await self._run_task(session, runtime)
        except JobFailed as failure:
            attempts = self.claim.cursor.attempts + 1
            self.log.warning("job.retrying", consumer=self.claim.consumer, reason=failure.reason, attempt=attempts)
            chance = self.gates.chance
            await self._commit(
                Step.DELIVERY_RETRY,
                (),
                update=CursorUpdate(
                    attempts=attempts,
                    error=failure.reason,
                    wait=model_waits.build_model_delay(
                        failure.retry_after, attempts, chance=chance, waits_for=runtime.waits_for
                    ),
                    release=True,
                ),
                spends=self._build_spends(runtime),
            )

    def _build_spends(self, runtime: AgentRuntime) -> tuple[BudgetSpend, ...]:
        """Return what the job has cost so far."""
        asked_by = self.task.stamp if self.task is not None else None
        return build_job_spends(runtime, self.thoughts, day=self.budgets.get_today(), asked_by=asked_by)

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def _run_task(self, session: Session, runtime: AgentRuntime) -> None:
        entry = await self._find_next_task(session)
        if entry is None:
            update = CursorUpdate(
                processed_seq=session.last_seq, idle_at=session.last_seq, attempts=0, error="", release=True
            )
            await self._commit(Step.CURSOR_SETTLE, (), update=update)
            return
        assert isinstance(entry.body, Changed)
        assert isinstance(entry.body.change, TaskRequested)
        self.task = task = entry.body.change
        view = await load_context_at(self.store, session, at=entry.seq)
        if await self._has_parted_words(session, view, task.stamp):
            view = SessionContext()
        try:
            text, thoughts = await self._work_on_task(session, runtime, view, task)
        except JobFailed as failure:
            if failure.can_retry:
                raise
            text, thoughts = f"The task could not be done: {failure.reason}", ()
        result = render_task_report(task.text, text)
        place = task.tell
        bodies: tuple[EntryBody, ...] = (
            Began(type="job", consumer=consumers.TASKS, trigger="background"),
            *thoughts,
            *(
                (
                    Notified(
                        text=result, about="background", to=place, parts=split_text(result, runtime.text_limit(place))
                    ),
                )
                if place
                else ()
            ),
            Ended(usage=sum((thought.usage for thought in self.thoughts), ModelUsage())),
        )
        heard = Heard(
            origin=ChatLocation(platform=TASKS_PLATFORM, chat=session.id, message=str(entry.seq)),
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
            heard=(EntryDraft(body=heard, author=runtime.author, dedup=f"job:{session.id}:{entry.seq}"),),
            update=CursorUpdate(processed_seq=entry.seq, attempts=0, error="", wait=RetryDelay(), release=True),
            wakeups=runtime.list_platform_wakeups(bodies) + runtime.list_job_wakeups(),
            spends=self._build_spends(runtime),
        )
        self.log.info("job.completed", task=entry.seq)

    async def _has_parted_words(self, session: Session, view: SessionContext, stamp: Stamp) -> bool:
        """Return whether the context shows words of somebody who was the same person as the one who asks, and is not
        any more.
        """
        people = await self.store.get_people()
        if not people.has_parted_since(stamp.person):
            return False
        return await is_foreign_session(self.store, session, people, (stamp.person,)) or await has_words_of_others(
            self.store, session, view, people, audience=stamp.audience
        )

    async def _find_next_task(self, session: Session) -> Entry | None:
        for entry in await self.store.list_entries(
            session.id, after=self.claim.cursor.processed_seq, kinds=(EntryKind.CHANGED,)
        ):
            if isinstance(entry.body, Changed) and isinstance(entry.body.change, TaskRequested):
                return entry
        return None

    async def _work_on_task(
        self, session: Session, runtime: AgentRuntime, view: SessionContext, task: TaskRequested
    ) -> tuple[str, tuple[Thought, ...]]:
        """Ask the model, run tools that change nothing, and repeat until there is a result."""
        role, place = await self._find_task_role(task)
        refused = list_role_refusals(runtime.tool_rules, role, place)
        tools = {
            name: tool
            for name, tool in runtime.tools.items()
            if tool.effect is ToolEffect.PURE
            and name not in refused
            and not (isinstance(tool, SupportsAccess) and tool.access is ToolAccess.ACT)
        }
        shown = (
            *render_messages(view, stubs=list_context_stubs(view)),
            ModelMessage(role="user", name="everhold", text=TASK_PROMPT + task.text),
        )
        thoughts: tuple[Thought, ...] = ()
        for round_ in range(MAX_JOB_ROUNDS):
            specs = tuple(tool.spec for tool in tools.values())
            thought = await self._ask_model(
                runtime, ModelRequest(system=runtime.system, messages=shown, tools=specs), session
            )
            thoughts = (*thoughts, thought)
            if not thought.calls:
                cut = CUT_OFF_SUFFIX if thought.finish == "length" else ""
                return (thought.text or "(nothing)") + cut, thoughts
            shown = (*shown, ModelMessage(role="assistant", text=thought.text, calls=thought.calls))
            for call in thought.calls:
                context = ToolContext(
                    session=session.id,
                    agent=session.agent,
                    op=0,
                    key=f"{session.id}:job:{self.claim.fence}:{round_}:{call.id}",
                    stamp=task.stamp,
                    role=role,
                    place=place,
                    speakers=(task.stamp.person,),
                )
                run = RunTool(call=call, key=context.key)
                scope = build_task_scope(
                    runtime, role, task.stamp.person, text=task.text, context=view, used_tools=round_ > 0
                )
                verdict = judge_tool_call(runtime, call, scope, ())
                if verdict.refusal and call.tool in tools:
                    result = ToolResult(text=verdict.refusal, error=True)
                else:
                    _, result = await effects.run_tool(self.gates, tools.get(call.tool), run, context)
                shown = (*shown, ModelMessage(role="tool", call=call.id, text=result.text, error=result.error))
        raise JobFailed(f"no result after {MAX_JOB_ROUNDS} rounds", can_retry=False)

    async def _find_task_role(self, task: TaskRequested) -> tuple[PersonRole, ChatPlace]:
        """Return the role with which a task runs: the lower of the stamped and the current one."""
        address = task.stamp.address
        if not address:
            return task.role, ChatPlace.DIRECT
        place = find_address_place(parse_address(address))
        standing = await self.roles.find_person_role(task.stamp.person, address=address)
        role = lower_role(task.role, standing.role)
        if role is None:
            raise JobFailed(explain_lost_access(standing.owners), can_retry=False)
        return role, place

    # -- reviews ------------------------------------------------------------------------------------------------------

    async def _run_review(self, session: Session, runtime: AgentRuntime) -> None:
        view = await self.load_unreviewed(session, after=self.claim.cursor.processed_seq)
        notes, thought = await self.extract_notes(session, runtime, view)
        bodies: tuple[EntryBody, ...] = ()
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
            update=CursorUpdate(
                processed_seq=session.last_seq,
                idle_at=session.last_seq if await self._is_review_due(session, runtime) else BEYOND_ANY_SEQ,
                attempts=0,
                error="",
                release=True,
            ),
            wakeups=runtime.list_memory_wakeups() if notes else (),
            spends=build_job_spends(runtime, (thought,) if thought else (), day=self.budgets.get_today()),
        )
        self.log.info("review.completed", notes=len(notes))

    async def _is_review_due(self, session: Session, runtime: AgentRuntime) -> bool:
        """Return whether so much was said during a review that the next one is due."""
        every = max(1, runtime.review_every_turns)
        turns = await self.store.list_operations(
            session.id, types=("turn",), states=("done",), after=session.last_seq, limit=every
        )
        return len(turns) >= every

    async def note_before_compression(self, session: Session, part: SessionContext, *, advice: str = "") -> None:
        """Note facts of a part of the conversation before it is compressed. It never delays the summary: what cannot be
        noted now is left to the next review, and the originals stay in the log.
        """
        try:
            await self._note_context(session, part, advice=advice)
        finally:
            self._release_reservation()

    async def _note_context(self, session: Session, part: SessionContext, *, advice: str) -> None:
        runtime = self.runtimes.get_runtime(session.agent, session.choices)
        if not runtime.review_every_turns:
            return
        cursor = await self.store.get_cursor(consumers.REVIEW, session.id)
        after = cursor.processed_seq if cursor is not None else 0
        fresh = SessionContext(turns=tuple(e for e in part.turns if e.op > after and e.steps[0].session == session.id))
        try:
            notes, thought = await self.extract_notes(session, runtime, fresh, advice=advice)
        except (JobFailed, Conflict) as failure:
            self.log.warning("review.skipped", reason=str(failure))
            return
        if thought is None or not notes:
            return
        bodies: tuple[EntryBody, ...] = (
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
                # A repeated compression notes nothing twice.
                dedup=f"flush:{session.id}:{after}:{fresh.turns[-1].op}",
                update=None,
                wakeups=runtime.list_memory_wakeups(),
                spends=build_job_spends(runtime, (thought,), day=self.budgets.get_today()),
            )
        except Conflict as error:
            self.log.warning("review.skipped", reason=str(error))

    async def load_unreviewed(self, session: Session, *, after: int) -> SessionContext:
        """Return what was said since the last review and is still in the context."""
        seen = self.contexts.get_cached(await self.store.get_session_snapshot(session.id))
        if seen is not None:
            view = seen.context
        else:
            view = await load_context_at(self.store, session, at=session.last_seq + 1, since=after, shorten=True)
        return SessionContext(
            turns=tuple(
                exchange
                for exchange in view.turns
                if exchange.op > after and exchange.steps and exchange.steps[0].session == session.id
            )
        )

    async def extract_notes(
        self, session: Session, runtime: AgentRuntime, view: SessionContext, *, advice: str = ""
    ) -> tuple[tuple[Noted, ...], Thought | None]:
        """Return the notes about a context. Their words are those of the people they cite, never the model's."""
        request = review.build_review_request(view, advice=advice)
        if request is None:
            return (), None
        thought = await self._ask_model(runtime, request, session)
        stamps = {
            entry.seq: (entry.body.stamp, entry.at)
            for exchange in view.turns
            for entry in (*exchange.heard, *exchange.steps)
            if isinstance(entry.body, Heard | Said)
        }
        heard = {entry.seq: entry for exchange in view.turns for entry in exchange.heard}
        strangers = {
            seq: build_stranger_origin(entry.author)
            for seq, entry in heard.items()
            if isinstance(entry.body, Heard) and entry.body.role < PersonRole.KNOWN
        }
        notes: dict[int, Noted] = {}
        people = await self.store.get_people()
        for finding in review.parse_findings(thought.text, stamps):
            quotes = review.quote_cited(finding, heard)
            if not quotes:
                # The text is not logged, because erasure would not reach it there.
                self.log.warning(
                    "note.refused", cites=list(finding.cites), because="no message that it cites states it"
                )
            for quote in quotes:
                (seq,) = quote.cites
                origin = find_cited_source(quote.text, [heard[seq]]) or strangers.get(seq, "")
                stamp = _merge_stamps(stamps, quote.cites, people)
                notes[seq] = Noted(text=quote.text, cites=quote.cites, origin=origin, stamp=stamp)
        return tuple(notes.values()), thought

    # -- model calls -------------------------------------------------------------------------------------------------

    async def _ask_model(self, runtime: AgentRuntime, request: ModelRequest, session: Session) -> Thought:
        """Ask the model for jobs once, paid from the budget for background work."""
        await self._check_unchanged(session)

        def record(answer: ModelResponse) -> Thought:
            return Thought(
                text=answer.text, calls=answer.calls, model=answer.model, usage=answer.usage, finish=answer.finish
            )

        weight = runtime.weigh_request(request)
        reading = runtime.meter.estimate_max_tokens(weight)
        worst = WorstCaseCost(
            usd=runtime.price_usd(reading, runtime.max_output_tokens), tokens=reading + runtime.max_output_tokens
        )
        task = self.task
        limits = runtime.job_limits() if task is None else runtime.list_asked_job_limits(task.stamp, task.role)
        reservation = self.budgets.prepare_reservation(limits, worst)
        try:
            await reservation.reserve()
        except Refused as error:
            raise JobFailed(str(error), can_retry=False) from error
        self.reservation.append(reservation)
        event: TurnEvent = await effects.ask_models(
            self.gates, runtime.models, request, agent=runtime.agent, deadline=JOB_DEADLINE_SECONDS, record=record
        )
        match event:
            case ModelAnswered(thought):
                self.thoughts.append(thought)
                return thought
            case ModelUnreachable(reason=reason, retry_after=retry_after):
                raise JobFailed(reason, can_retry=True, retry_after=retry_after)
            case RequestTooLong(reason=reason) | TurnBroken(reason=reason):
                raise JobFailed(reason, can_retry=False)
            case _:
                raise JobFailed("it was cut off", can_retry=True)

    def _release_reservation(self) -> None:
        """Release the reservation, after its cost was committed or if it never will be."""
        for reservation in self.reservation:
            reservation.release()
        self.reservation.clear()

    async def _check_unchanged(self, session: Session) -> None:
        """Check between model calls that the claim still holds and that nothing was erased, because a job commits
        nothing in between that would show it.
        """
        cursor = await self.store.get_cursor(self.claim.consumer, session.id)
        if cursor is None or cursor.fence != self.claim.fence:
            raise LeaseLost(f"session {session.id}: another worker holds {self.claim.consumer}")
        if (await self.store.get_session(session.id)).generation != session.generation:
            raise Conflict(f"the context of session {session.id} changed while a job was running")

    async def _commit(
        self,
        step: Step,
        bodies: tuple[EntryBody, ...],
        *,
        generation: int | None = None,
        dedup: str | None = None,
        heard: tuple[EntryDraft, ...] = (),
        update: CursorUpdate | None,
        wakeups: tuple[Wakeup, ...] = (),
        spends: tuple[BudgetSpend, ...] = (),
    ) -> None:
        own = [EntryDraft(body=body, author="system", op=OWN_OPERATION) for body in bodies]
        if dedup is not None:
            own[0] = structs.replace(own[0], dedup=dedup)
        await self.gates.commit(
            Change(
                step=step,
                session=self.claim.session,
                at=self.gates.clock.now(),
                entries=(*own, *heard),
                claim=self.claim,
                # An entry that the job read may have been erased since. In that case nothing of its result may be
                # stored.
                generation=generation,
                cursor=update,
                wakeups=wakeups,
                spends=spends,
            )
        )
        self.wakeups.notify(self.claim.session)


def _merge_stamps(stamps: dict[int, tuple[Stamp, float]], cites: tuple[int, ...], people: PeopleDirectory) -> Stamp:
    """Return the stamp of a note: that of the last cited entry, with the audience that heard all cited entries."""
    cited = [stamps[seq] for seq in cites]
    return merge_audiences(cited[-1][0], [(stamp.audience, at) for stamp, at in cited], people)
