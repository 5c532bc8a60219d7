"""The worker of one of a conversation's sub-agents. Its steps are recorded like those of a turn, so a task continues
after a crash, and nothing that it did runs a second time.

A sub-agent has no session and no chat, and memories receive nothing of its work. Its result is heard once, in the
conversation that gave the task.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from everhold.core import consumers
from everhold.core.access import find_address_place
from everhold.core.address import parse_address
from everhold.core.builtin_tools import DELEGABLE_TOOLS, find_builtin_tool
from everhold.core.context import (
    SessionContext,
    TurnEntries,
    build_model_request,
    find_oversized,
    render_messages,
)
from everhold.core.entries import (
    BODY_VERSION,
    Began,
    Changed,
    Ended,
    Entry,
    EntryBody,
    EntryDraft,
    EntryKind,
    Heard,
    TaskDelegation,
    TaskRequested,
    Thought,
    get_body_kind,
)
from everhold.core.exchange import render_delegate_report
from everhold.core.roles import ChatPlace, PersonRole, ToolAccess, list_role_refusals, lower_role
from everhold.core.turn import (
    AskModel,
    BodiesRecorded,
    FinishTurn,
    RecordBodies,
    RunTool,
    ShrinkContext,
    TurnBroken,
    TurnEvent,
    TurnOpened,
    TurnState,
    WaitForModel,
    advance_turn,
    find_next_call,
    rebuild_turn,
)
from everhold.engine import effects as engine_effects, model_waits
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes, build_job_spends
from everhold.engine.budgets import BudgetLedger, BudgetReservation, WorstCaseCost
from everhold.engine.context_cache import STEP_KINDS
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.roles import RoleSource, StampedRoles
from everhold.engine.tool_policy import build_delegate_scope, judge_tool_call
from everhold.errors import LeaseLost, Refused
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse, ToolSpec
from everhold.ports.store import (
    BudgetSpend,
    Change,
    Claim,
    CommitResult,
    CursorUpdate,
    Operation,
    RetryDelay,
    Session,
    Step,
    Wakeup,
)
from everhold.ports.tool import Tool, ToolContext, get_access

MAX_REPORT_CHARS: Final = 40_000
SUB_AGENT_PROMPT: Final = (
    "You are a sub-agent. Another agent gave you the task below. You see nothing else of its conversation, nobody can "
    "answer questions, and nobody reads what you write before your last message. Use your tools until the task is "
    "done. A call that needs a person's permission is refused. Your last message is the result: complete, with "
    "what you found, what you did, and what you could not do."
)
LAST_ROUND_TEXT: Final = (
    "[Your limit of {limit} is reached. You have no tools any more. Answer now with the result so far, and say what is "
    "missing.]"
)
STOPPED_TEXT: Final = "It was stopped."

_STEP_BY_KIND: Final = {
    EntryKind.THOUGHT: Step.THINK,
    EntryKind.CALLED: Step.CALL,
    EntryKind.RETURNED: Step.RETURN,
}


class SubAgentWorker:
    """Works on the tasks of one slot of a session, one after the other."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        *,
        runtimes: AgentRuntimes,
        wakeups: Wakeups,
        budgets: BudgetLedger,
        roles: RoleSource | None = None,
        failures: int = 0,
    ) -> None:
        self.gates = gates
        self.store = gates.store
        self.claim = claim
        self.runtimes = runtimes
        self.wakeups = wakeups
        self.budgets = budgets
        self.roles: RoleSource = roles or StampedRoles()
        self.failures = failures
        self.log = gates.log.bind(session=claim.session)

    async def run(self) -> None:
        session = await self.store.get_session(self.claim.session)
        entry = await self._find_next_task()
        left = await self._find_left_operation()
        if entry is None:
            if left is not None:  # its task was erased
                ended = EntryDraft(body=Ended(outcome="erased"), author="system", op=left.op)
                await self.commit(Step.END, (ended,), op=left.op)
            update = CursorUpdate(
                processed_seq=session.last_seq, idle_at=session.last_seq, attempts=0, error="", release=True
            )
            await self.commit(Step.CURSOR_SETTLE, (), update=update)
            return
        runtime = self.runtimes.get_runtime(session.agent, session.choices)
        if runtime.wait_for_tools is not None:
            await engine_effects.wait_for_tools(self.gates, runtime.wait_for_tools)
            runtime = self.runtimes.get_runtime(session.agent, session.choices)
        await SubAgentTask(self, session, runtime, entry).run(left)

    async def _find_next_task(self) -> Entry | None:
        changes = await self.store.list_entries(
            self.claim.session, after=self.claim.cursor.processed_seq, kinds=(EntryKind.CHANGED,)
        )
        for entry in changes:
            match entry.body:
                case Changed(change=TaskRequested() as task) if consumers.task_consumer(task) == self.claim.consumer:
                    return entry
        return None

    async def _find_left_operation(self) -> Operation | None:
        """Return the operation of this slot that an earlier worker left."""
        running = await self.store.list_operations(self.claim.session, types=("job",), states=("running",))
        return next((it for it in running if it.consumer == self.claim.consumer), None)

    async def commit(
        self,
        step_: Step,
        entries: tuple[EntryDraft, ...],
        *,
        op: int | None = None,
        update: CursorUpdate | None = None,
        wakeups: tuple[Wakeup, ...] = (),
        spends: tuple[BudgetSpend, ...] = (),
        files: tuple[bytes, ...] = (),
        pause: bool = False,
    ) -> CommitResult:
        done = await self.gates.commit(
            Change(
                step=step_,
                session=self.claim.session,
                at=self.gates.clock.now(),
                entries=entries,
                claim=self.claim,
                op=op,
                cursor=update,
                wakeups=wakeups,
                spends=spends,
                blobs=files,
                pause=pause,
            )
        )
        if wakeups or update is not None:
            self.wakeups.notify(self.claim.session)
        return done


class SubAgentTask:
    """One task: its recorded steps, and what it may do."""

    def __init__(self, worker: SubAgentWorker, session: Session, runtime: AgentRuntime, entry: Entry) -> None:
        assert isinstance(entry.body, Changed)
        assert isinstance(entry.body.change, TaskRequested)
        assert entry.body.change.delegation is not None
        self.worker = worker
        self.gates = worker.gates
        self.store = worker.store
        self.session = session
        self.runtime = runtime
        self.entry = entry
        self.task: TaskRequested = entry.body.change
        self.delegation: TaskDelegation = entry.body.change.delegation
        self.op = 0
        self.steps: list[Entry] = []
        self.stubs: frozenset[int] = frozenset()
        self.state = TurnState(session=session.id, op=0)
        self.role: PersonRole | None = None
        self.place = ChatPlace.DIRECT
        self.tools = self._select_tools()
        self.effects = {name: tool.effect for name, tool in self.tools.items()}
        self.refusals: dict[str, str] = {}
        self.reservation: BudgetReservation | None = None
        self.log = worker.log

    async def run(self, left: Operation | None) -> None:
        if left is None:
            await self._begin()
        else:
            self._set_operation(left.op)
            entries = await self.store.list_entries(self.session.id, after=left.op - 1, kinds=STEP_KINDS)
            self.steps = [entry for entry in entries if entry.op == left.op]
        self.state = rebuild_turn(
            self.steps,
            session=self.session.id,
            op=self.op,
            attempts=self.worker.failures + 1,
            left_over=left is not None,
        )
        try:
            await self._run_steps()
        finally:
            self._release_reservation()

    async def _begin(self) -> None:
        began = Began(
            type="job",
            consumer=self.worker.claim.consumer,
            trigger="delegate",
            generation=self.session.generation,
            clock=self.runtime.describe_time(self.task.stamp),
        )
        done = await self.worker.commit(Step.BEGIN, (EntryDraft(body=began, author=self.runtime.author),))
        self._set_operation(done.seqs[0])
        self._append_step(done.seqs[0], began)
        self.log.info("delegate.started", task=self.entry.seq)

    def _set_operation(self, op: int) -> None:
        self.op = op
        self.log = self.worker.log.bind(op=op)

    def _select_tools(self) -> dict[str, Tool]:
        """Return the tools that this sub-agent may have: what a sub-agent may use, among those that were named."""
        named = set(self.delegation.tools)
        return {
            name: tool
            for name, tool in self.runtime.tools.items()
            if (not named or name in named)
            and (name in DELEGABLE_TOOLS or (find_builtin_tool(name) is None and get_access(tool) is ToolAccess.ACT))
        }

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def _run_steps(self) -> None:
        event: TurnEvent = TurnOpened()
        while True:
            ending = await self._check_rights()
            refusals, because = self._judge_next_call(event)
            self.state, action = advance_turn(self.state, event, self.effects, refusals, because=because)
            match action:
                case FinishTurn():
                    return await self._finish(action)
                case RecordBodies(bodies):
                    event = await self._commit_bodies(bodies)
                case AskModel() if ending is not None:
                    return await self._finish(ending)
                case AskModel():
                    event = await self._ask_model()
                case RunTool():
                    event = await self._run_tool(action)
                case ShrinkContext(reason=reason):
                    event = self._shrink(reason)
                case WaitForModel():
                    return await self._wait_for_model(action)

    async def _check_rights(self) -> FinishTurn | None:
        """Find the role with which the next step runs: the lower of the stamped and the current one. Return how to end
        if there is none, or if somebody stopped it.
        """
        operation = await self._load_own_operation()
        address = self.task.stamp.address
        self.role = self.task.role
        if address:
            self.place = find_address_place(parse_address(address))
            standing = await self.worker.roles.find_person_role(self.task.stamp.person, address=address)
            self.role = lower_role(self.task.role, standing.role)
        if operation.stop:
            return FinishTurn(ended=Ended(outcome="stopped", usage=self.state.usage), reply=STOPPED_TEXT)
        if self.role is None:
            why = "the person for whom it was given may no longer speak there"
            return FinishTurn(
                ended=Ended(outcome="refused", reason=why, usage=self.state.usage), reply=f"Not done: {why}."
            )
        rules = {name: rule for name, rule in self.runtime.tool_rules.items() if name in self.tools}
        self.refusals = list_role_refusals(rules, self.role, self.place)
        return None

    def _judge_next_call(self, event: TurnEvent) -> tuple[dict[str, str], str]:
        call = find_next_call(self.state, event)
        if call is None or call.tool in self.refusals or call.tool not in self.tools or self.role is None:
            return self.refusals, ""
        scope = build_delegate_scope(self.runtime, self.role, self.task, self.delegation, steps=self.steps)
        verdict = judge_tool_call(self.runtime, call, scope, ())
        if not verdict.refusal:
            return self.refusals, verdict.because
        self.log.info("tool.refused", tool=call.tool, reason=verdict.because)
        return {**self.refusals, call.tool: verdict.refusal}, ""

    def _find_reached_limit(self) -> str:
        """Return the limit that this sub-agent has reached; empty if it may go on."""
        limits = self.runtime.delegate_limits
        minutes = (self.gates.clock.now() - (self.steps[0].at if self.steps else self.gates.clock.now())) / 60
        if self.state.rounds >= limits.rounds:
            return f"{limits.rounds} rounds"
        if minutes >= limits.minutes:
            return f"{limits.minutes:g} minutes"
        if self.state.usage.input + self.state.usage.output >= limits.tokens:
            return f"{limits.tokens:,} tokens"
        return ""

    # -- steps -------------------------------------------------------------------------------------------------------

    async def _ask_model(self) -> TurnEvent:
        limit = self._find_reached_limit()
        request = self._build_request(limit)
        runtime = self.runtime
        reading = runtime.meter.estimate_max_tokens(runtime.weigh_request(request))
        worst = WorstCaseCost(
            usd=runtime.price_usd(reading, runtime.max_output_tokens), tokens=reading + runtime.max_output_tokens
        )
        self._release_reservation()
        limits = runtime.list_asked_job_limits(self.task.stamp, self.task.role or PersonRole.STRANGER)
        self.reservation = self.worker.budgets.prepare_reservation(limits, worst)
        try:
            await self.reservation.reserve()
        except Refused as error:
            return TurnBroken(reason=str(error))

        def record(answer: ModelResponse) -> Thought:
            return Thought(
                text=answer.text,
                calls=() if limit else answer.calls,
                reasoning=answer.reasoning,
                model=answer.model,
                generation=self.session.generation,
                usage=answer.usage,
                finish=answer.finish,
            )

        return await engine_effects.ask_models(
            self.gates,
            runtime.models,
            request,
            agent=runtime.agent,
            deadline=runtime.model_deadline_seconds,
            record=record,
        )

    def _build_request(self, limit: str) -> ModelRequest:
        view = SessionContext(turns=(TurnEntries(op=self.op, heard=(), steps=tuple(self.steps)),))
        shown: tuple[ModelMessage, ...] = (ModelMessage(role="user", name="everhold", text=self._render_task()),)
        shown += render_messages(view, stubs=self.stubs)
        if limit:
            shown += (ModelMessage(role="user", name="everhold", text=LAST_ROUND_TEXT.format(limit=limit)),)
        specs: tuple[ToolSpec, ...] = (
            () if limit else tuple(tool.spec for name, tool in self.tools.items() if name not in self.refusals)
        )
        return build_model_request(shown, system=f"{self.runtime.system}\n\n{SUB_AGENT_PROMPT}", tools=specs)

    def _render_task(self) -> str:
        missing = sorted(set(self.delegation.tools) - set(self.tools))
        parts = [f"The task: {self.task.text}"]
        if self.delegation.context:
            parts.append(f"What you have to know:\n{self.delegation.context}")
        if missing:
            parts.append(f"These tools do not exist, or no sub-agent may use them: {', '.join(missing)[:500]}")
        return "\n\n".join(parts)

    async def _run_tool(self, action: RunTool) -> TurnEvent:
        person = self.task.stamp.person
        context = ToolContext(
            session=self.session.id,
            agent=self.session.agent,
            op=self.op,
            key=action.key,
            stamp=self.task.stamp,
            hops=self.delegation.hops,
            role=build_delegate_scope(
                self.runtime, self.role or PersonRole.STRANGER, self.task, self.delegation, steps=()
            ).role,
            place=self.place,
            speakers=(person,) if person else (),
            is_asked=False,
        )
        event, result = await engine_effects.run_tool(
            self.gates, self.tools.get(action.call.tool), action, context, still_ours=self._load_own_operation
        )
        _, recorded = advance_turn(self.state, event, self.effects)
        assert isinstance(recorded, RecordBodies)
        # Notes, messages and tasks of a result are not committed: a sub-agent has none of the tools that make them.
        return await self._commit_bodies(recorded.bodies, files=tuple(file.data for file in result.files))

    def _shrink(self, reason: str) -> TurnEvent:
        """Show long results as stubs; if that was done before, end."""
        view = SessionContext(turns=(TurnEntries(op=self.op, heard=(), steps=tuple(self.steps)),))
        new = frozenset(find_oversized(view)) - self.stubs
        if not new:
            return TurnBroken(reason=f"the work does not fit the model: {reason}")
        self.stubs |= new
        return TurnOpened()

    async def _wait_for_model(self, action: WaitForModel) -> None:
        attempts = self.worker.claim.cursor.attempts + 1
        wait = model_waits.build_model_delay(
            action.retry_after, attempts, chance=self.gates.chance, waits_for=self.runtime.waits_for
        )
        self.log.warning("delegate.waiting", reason=action.reason, seconds=wait.seconds)
        update = CursorUpdate(attempts=attempts, error=action.reason, wait=wait, release=True)
        await self.worker.commit(Step.PAUSE, (), op=self.op, pause=True, update=update)

    async def _finish(self, action: FinishTurn) -> None:
        """Commit the end, and the one message that reports the result."""
        text = action.reply or f"Not done: {action.ended.reason or action.notice}"
        if len(text) > MAX_REPORT_CHARS:
            text = f"{text[:MAX_REPORT_CHARS]}\n[… cut off after {MAX_REPORT_CHARS:,} characters]"
        bodies = (*action.bodies, action.ended)
        is_undone = await self._is_turn_undone()
        origin = self.task.tell
        assert origin is not None
        heard = Heard(
            origin=structs.replace(origin, message=""),
            text=render_delegate_report(self.delegation.slot + 1, self.task.text, text),
            asks=not is_undone,
            sender=self.delegation.sender,
            speaker=self.delegation.speaker,
            hops=self.delegation.hops,
            stamp=self.task.stamp,
            role=self.task.role,
            delegated=self.delegation.origin,
        )
        dedup = f"job:{self.session.id}:{self.entry.seq}"
        await self.worker.commit(
            Step.JOB,
            (
                *(EntryDraft(body=body, author=self._get_author(body), op=self.op) for body in bodies),
                EntryDraft(body=heard, author=self.delegation.author, dedup=dedup),
            ),
            op=self.op,
            update=CursorUpdate(processed_seq=self.entry.seq, attempts=0, error="", wait=RetryDelay(), release=True),
            wakeups=() if is_undone else (Wakeup(consumer=consumers.TURN),),
            spends=self._build_spends(bodies),
        )
        self.log.info("delegate.completed", task=self.entry.seq, outcome=action.ended.outcome)

    async def _is_turn_undone(self) -> bool:
        """Return whether the turn that gave the task was taken back, so that nobody wants an answer."""
        turn = self.entry.op
        if turn is None:
            return False
        found = await self.store.list_operations(self.session.id, after=turn - 1, before=turn + 1)
        return bool(found) and bool(found[0].undone_at)

    # -- helpers -----------------------------------------------------------------------------------------------------

    async def _load_own_operation(self) -> Operation:
        found = await self.store.list_operations(self.session.id, after=self.op - 1, before=self.op + 1)
        if not found or found[0].state != "running" or found[0].fence != self.worker.claim.fence:
            raise LeaseLost(f"session {self.session.id}: another worker holds operation {self.op}")
        return found[0]

    async def _commit_bodies(self, bodies: tuple[EntryBody, ...], *, files: tuple[bytes, ...] = ()) -> TurnEvent:
        done = await self.worker.commit(
            _STEP_BY_KIND[get_body_kind(bodies[0])],
            tuple(EntryDraft(body=body, author=self._get_author(body), op=self.op) for body in bodies),
            op=self.op,
            spends=self._build_spends(bodies),
            files=files,
        )
        self._release_reservation()
        for seq, body in zip(done.seqs, bodies, strict=True):
            self._append_step(seq, body)
        return BodiesRecorded(bodies)

    def _append_step(self, seq: int, body: EntryBody) -> None:
        self.steps.append(
            Entry(
                session=self.session.id,
                seq=seq,
                pos=0,
                kind=get_body_kind(body),
                op=self.op,
                author=self._get_author(body),
                at=self.gates.clock.now(),
                version=BODY_VERSION,
                body=body,
                digest=b"",
            )
        )

    def _get_author(self, body: EntryBody) -> str:
        return "system" if isinstance(body, Ended) else self.runtime.author

    def _build_spends(self, bodies: tuple[EntryBody, ...]) -> tuple[BudgetSpend, ...]:
        thoughts = [body for body in bodies if isinstance(body, Thought)]
        day = self.worker.budgets.get_today()
        return build_job_spends(self.runtime, thoughts, day=day, asked_by=self.task.stamp)

    def _release_reservation(self) -> None:
        if self.reservation is not None:
            self.reservation.release()
            self.reservation = None
