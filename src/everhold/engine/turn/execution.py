"""The execution of one turn: performs the actions that `core/turn.py` decides, and records each before the next."""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.core import compression, consumers, facts
from everhold.core.access import count_turn_hops
from everhold.core.approvals import request_key
from everhold.core.budget import list_turn_budgets, name_person_budget
from everhold.core.builtin_tools import DELEGATE_TOOL, STATE_WRITING_TOOLS
from everhold.core.context import (
    LONG_RESULT_CHARS,
    SHORT_TEXT_CHARS,
    SessionContext,
    TurnEntries,
    build_model_request,
    find_oversized,
    fingerprint_request,
    render_messages,
)
from everhold.core.entries import (
    BODY_VERSION,
    OUTAGE_NOTICE,
    RELEASING_OUTCOMES,
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
    Returned,
    Stamp,
    TaskDelegation,
    TaskRequested,
    Thought,
    Took,
    get_body_kind,
    list_consumed_seqs,
)
from everhold.core.inbox import CutTurn, InboxDecision, RunningTurn, SteerTurn, decide_next_step
from everhold.core.message_split import split_text
from everhold.core.people import PeopleDirectory
from everhold.core.policy import PolicyScope, ScopeOrigin, find_scope_origin
from everhold.core.provenance import join_all_text, list_tool_refusals
from everhold.core.recall_blobs import pack_record, read_record
from everhold.core.roles import ChatPlace, PersonRole, ToolAccess, explain_lost_access, list_role_refusals
from everhold.core.turn import (
    SEND_LESS_REMEDY,
    START_OVER_REMEDY,
    AskModel,
    BodiesRecorded,
    FinishTurn,
    ModelAnswered,
    ModelUnreachable,
    RecordBodies,
    RequestTooLong,
    RunTool,
    ShrinkContext,
    TurnBroken,
    TurnCutShort,
    TurnEvent,
    TurnOpened,
    TurnState,
    WaitForModel,
    advance_turn,
    find_next_call,
    is_final_answer,
    list_new_calls,
    list_spent_tools,
    rebuild_turn,
)
from everhold.core.wording import describe_duration
from everhold.engine import effects as engine_effects, model_waits
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.approvals.requests import ApprovalPlan, plan_request
from everhold.engine.budgets import BudgetLedger, BudgetLimit, BudgetReservation, WorstCaseCost
from everhold.engine.compression.worker import CompressionOutcome, CompressionPreparer, SessionCompressor
from everhold.engine.context_cache import (
    EMPTY_CONTEXT,
    STEP_KINDS,
    CachedContext,
    ContextCache,
    build_cached_context,
    load_context_at,
)
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.memory.recall import TurnRecall, recall_for_turn
from everhold.engine.outbox import drafts as outbox_drafts
from everhold.engine.outbox.drafts import ReplyDraft
from everhold.engine.recall_records import ThoughtBlobs, load_recalled_text
from everhold.engine.roles import RoleSource, StampedRoles, TurnRights, compute_turn_rights
from everhold.engine.session_access import is_foreign_session
from everhold.engine.tool_policy import build_turn_scope, find_policy_role, judge_tool_call
from everhold.errors import Conflict, LeaseLost, Refused
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import (
    BudgetSpend,
    Change,
    Claim,
    CommitResult,
    CursorUpdate,
    Operation,
    Session,
    StateWrite,
    Step,
    Wakeup,
)
from everhold.ports.tool import DelegatedTask, ToolContext, ToolEffect, ToolResult
from everhold.telemetry.metrics import ANSWER_SECONDS, FIRST_WORDS_SECONDS

INBOX_POLL_SECONDS: Final = 1.0
"""How often a running turn checks its inbox without a wakeup."""

LOST_ACCESS_REASON: Final = "the sender may no longer speak in this chat"
PARTED_REASON: Final = "an identity was unlinked from this person"
MAX_CAUSE_CHARS: Final = 1_000
"""How much of a cause and its remedy an owner is told in a chat."""
RESTART_NOTICE: Final = "An identity was unlinked from you while I answered, so I start again."
"""Replaces the draft of a reply that the sender must not see."""
WITHDRAWN_NOTICE: Final = "I stopped. An identity was unlinked from you meanwhile, so I show no part of my answer."
PARTED_NOTICE: Final = (
    "I did not answer, because this chat no longer belongs to the person of that conversation. "
    "Please send your message again."
)

CHANGED_MEANWHILE_TEXT: Final = (
    "Not done: it changed at this moment. List it again, and repeat the call if it still applies."
)

_SYSTEM_BODIES: Final = (Notified, Ended)
"""What a turn records that its agent did not say."""
_NO_BLOBS: Final = ThoughtBlobs()
_STEP_BY_KIND: Final = {
    EntryKind.THOUGHT: Step.THINK,
    EntryKind.CALLED: Step.CALL,
    EntryKind.RETURNED: Step.RETURN,
    EntryKind.TOOK: Step.TAKE,
    EntryKind.APPROVAL_REQUESTED: Step.REQUEST,
}


class TurnContext:
    """The claim of a turn worker, the objects it works with, and how it commits."""

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
        draft_deadline: float = outbox_drafts.DRAFT_DEADLINE_SECONDS,
        has_no_rivals: bool = False,
        roles: RoleSource | None = None,
        failures: int = 0,
    ) -> None:
        """`has_no_rivals`: as in `WorkerSupervisor`."""
        self.gates = gates
        self.store = gates.store
        self.claim = claim
        self.failures = failures
        """How often in a row a worker of this cursor failed in this process."""
        self.runtimes = runtimes
        self.roles: RoleSource = roles or StampedRoles()
        self.wakeups = wakeups
        self.contexts = contexts
        self.budgets = budgets
        self.preparer = preparer
        self.get_today = get_today
        self.on_text = on_text
        self.draft_deadline = draft_deadline
        self.has_no_rivals = has_no_rivals
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
        state_writes: tuple[StateWrite, ...] = (),
        pause: bool = False,
        people_seen: int | None = None,
        durable: bool = True,
    ) -> CommitResult:
        """Commit under the claim of this worker."""
        beside = beside or _NO_BLOBS
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
            wakeups=self.wakeups.reserve_workers(self.claim.session, wakeups),
            spends=spends,
            blobs=self.contexts.filter_unstored_blobs(beside.blobs) + files,
            records=beside.records,
            state_writes=state_writes,
            pause=pause,
            people_seen=people_seen,
            durable=durable,
        )
        try:
            done = await self.gates.commit(change)
        except BaseException:
            self.wakeups.start_reserved(change.session, change.wakeups)
            raise
        self.contexts.mark_blobs_stored(beside.blobs)
        self.is_idle = done.rests
        if wakeups:
            self.wakeups.start_reserved(change.session, change.wakeups, done.claims)
            self.wakeups.notify(self.claim.session, work=len(done.claims) < len(wakeups))
        return done


class PreparedRequest(Struct, frozen=True, kw_only=True):
    """A request to the model, and what the entry of its answer says about it."""

    request: ModelRequest
    digest: str
    weight: int
    """Its estimated size, in tokens."""
    stubs: tuple[int, ...]
    recall: str
    why: str
    prompt: str
    tools: str
    """Digests of the recalled text, of its record, of the system prompt and of the tools. The blobs are stored with the
    entry.
    """


class TurnExecution:
    """One turn: its recorded state, and the context it is answered from."""

    def __init__(self, context: TurnContext, session: Session, runtime: AgentRuntime) -> None:
        self.context = context
        self.gates = context.gates
        self.store = context.store
        self.session = session
        self.runtime = runtime
        self.op = 0
        self.cached_context = EMPTY_CONTEXT
        self.heard: dict[int, Entry] = {}
        self.steps: list[Entry] = []
        self.stubs: frozenset[int] = frozenset()
        """Entries that this turn shows as stubs, in addition to those of its context."""
        self.origin: ChatLocation | None = None
        self.stamp = Stamp()
        self.payer_role = PersonRole.MEMBER
        """The role of the person who pays for the turn, whom the stamp names."""
        self.hops, self.scheduled = 0, False
        self.state = TurnState(session=session.id, op=0)
        self.own_upto_seq: int | None = None
        """The session's last seq, if all entries since the last check are our own; None after another writer committed.
        """
        self.is_first_step = False
        self.people_at_start: PeopleDirectory | None = None
        """The people as they were just now, when the turn began; None after the first step."""
        self.people_seen: int | None = None
        """The epoch of the people at the last check."""
        self.draft: outbox_drafts.ReplyDraft | None = None
        self.recalled: TurnRecall | None = None
        """The recall of this turn; None until the memories were asked."""
        self.last_request_weight = 0, 0
        """The number of steps at the last model call, and the weight of that request."""
        self.blobs = ThoughtBlobs()
        self.rights = TurnRights()
        self.refusals: dict[str, str] = {}
        """What the turn may do. The roles of the people whose words it takes decide. They are read before every step
        that may ask a model or use a tool."""
        self.reservation: BudgetReservation | None = None
        """The reservation for the last model call, until its cost is committed."""
        self.log = context.log
        self.has_shown_words = False
        """Some text of the answer was shown."""

    async def begin(
        self,
        op: int,
        began: Began,
        seen: CachedContext,
        heard: list[Entry],
        *,
        left: bool,
        people: PeopleDirectory,
    ) -> bool:
        self._set_operation(op)
        self.people_at_start = people
        self.cached_context = seen
        self.own_upto_seq = None if left else self.session.last_seq
        self._append_step(op, began)
        self._consume_entries(heard)
        self.state = TurnState(session=self.session.id, op=op, takes=began.takes)
        self.is_first_step = True
        self.log.info("turn.started", messages=len(began.takes))
        return await self._run_to_end()

    async def resume(self, op: int, attempts: int) -> bool:
        """Continue a turn that another worker left, at the first step that is not recorded."""
        self._set_operation(op)
        entries = await self.store.list_entries(self.session.id, after=op - 1, kinds=STEP_KINDS)
        self.steps = [entry for entry in entries if entry.op == op]
        await self._consume_seqs(list_consumed_seqs(self.steps))
        await self._use_context(await self._load_earlier_context(self.session))
        tries = self.context.failures + 1  # the starts of processes that ended are not the turn's failures
        self.state = rebuild_turn(self.steps, session=self.session.id, op=op, attempts=tries, left_over=True)
        if self.state.ended:
            return True  # another worker ended it: check again
        self.log.info("turn.resumed", attempt=attempts, rounds=self.state.rounds)
        await self._wait_for_left_draft()
        return await self._run_to_end()

    async def _wait_for_left_draft(self) -> None:
        """Wait until no request of the worker that sent a draft can arrive, because its last edit must not overwrite
        the final text. If the answer to the draft was lost, count it."""
        if self.origin is None:
            return
        left = await outbox_drafts.find_left_draft(self.store, self.session.id, self.op, self.origin)
        if left is None:
            return
        platform = self.context.runtimes.find_platform(self.origin.platform, self.origin.account)
        is_keyed = platform is not None and platform.delivery is DeliveryGuarantee.KEYED
        if not left.remote and not left.in_doubt and not is_keyed:
            lost = msgspec.structs.replace(left, in_doubt=True)
            await self.gates.commit(outbox_drafts.build_draft_change(self.gates, self.context.claim, lost))
        seconds = self.context.draft_deadline  # the worker may be stalled and not dead
        if platform is not None:
            seconds = platform.settle_seconds if self.context.has_no_rivals else seconds
            seconds += 0.0 if left.remote else platform.visible_after
        await self.gates.sleep(seconds)

    async def _load_earlier_context(self, session: Session) -> SessionContext:
        """Return the context before this turn, from the log."""
        pins = [
            e.body.compression
            for e in self.steps
            if isinstance(e.body, Began | Took) and e.body.compression is not None
        ]
        pinned = pins[-1] if pins else None
        return await load_context_at(self.store, session, at=self.op, compression=pinned, shorten=True)

    async def _use_context(self, view: SessionContext) -> None:
        """Answer from this context."""
        self.cached_context = build_cached_context(view, generation=-1, newest=0)

    def _set_operation(self, op: int) -> None:
        self.op = op
        self.log = self.context.log.bind(op=op)

    async def _consume_seqs(self, takes: tuple[int, ...]) -> None:
        self._consume_entries([await self.store.get_entry(self.session.id, seq) for seq in takes])

    def _consume_entries(self, heard: list[Entry]) -> None:
        """Consume entries. The reply goes to the chat of the last one that asks."""
        for entry in heard:
            self.heard[entry.seq] = entry
            if isinstance(entry.body, Heard):
                if entry.body.asks or self.origin is None:
                    self.origin, self.stamp, self.payer_role = entry.body.origin, entry.body.stamp, entry.body.role
        self.hops = count_turn_hops(self.heard.values())
        self.scheduled = all(isinstance(it.body, Heard) and it.body.is_automatic for it in self.heard.values())

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def _run_to_end(self) -> bool:
        with outbox_drafts.show_typing(self.gates, self.context.runtimes, self.origin):
            try:
                return await self._run_steps()
            finally:
                self._release_reservation()

    async def _run_steps(self) -> bool:
        event: TurnEvent = TurnOpened()
        effects = self.runtime.tool_effects
        while True:
            if not is_final_answer(event):
                self.rights = await compute_turn_rights(self.context.roles, self.heard.values())
                self.refusals = {**self._list_refusals(), **await self._find_spent_tools(event)}
            refusals, because, plan = await self._judge_next_call(event)
            self.state, task = advance_turn(
                self.state, event, effects, refusals, because=because, request=plan.request if plan else None
            )
            match task:
                case AskModel():
                    if (ending := self._check_rights()) is not None:
                        return await self._finish_turn(ending)
                    if (cut := await self._check_inbox()) is not None:
                        event = cut
                    elif (ending := await self._check_people()) is not None:
                        return await self._finish_turn(ending)
                    else:
                        event = await self._ask_model()
                case RecordBodies(bodies) if plan is not None and plan.request in bodies:
                    event = await self._commit_request(bodies, plan)
                case RecordBodies(bodies):
                    event = await self._commit_bodies(bodies)
                case RunTool():
                    event = await self._run_tool(task)
                case ShrinkContext(reason=reason):
                    event = await self._check_inbox() or await self._shrink_context(reason)
                case WaitForModel():
                    await self._wait_for_model(task)
                    return False
                case FinishTurn():
                    return await self._finish_unless_withheld(task)

    def _list_refusals(self) -> dict[str, str]:
        """Return the tools that this turn may not use, by whose words it took and by their roles. Both are in the log,
        and a role that was lowered since counts, too.
        """
        if not self.runtime.tool_rules:
            return {}
        return {
            **list_role_refusals(self.runtime.tool_rules, self.rights.role, self.rights.place),
            **list_tool_refusals(self.heard.values(), self.runtime.tool_rules),
        }

    async def _find_spent_tools(self, event: TurnEvent) -> dict[str, str]:
        """Return the tools about to be called with which a turn that was taken back has already acted for a message of
        this one.
        """
        calls = (*self.state.open_calls, *list_new_calls(event))
        if not calls:
            return {}
        tools = {it.tool for it in calls if self._can_act(it.tool)}
        if not tools or not self.heard:
            return {}
        found: dict[str, str] = {}
        for turn in await self.store.list_operations(
            self.session.id, types=("turn",), states=sorted(RELEASING_OUTCOMES), after=min(self.heard), before=self.op
        ):
            entries = await self.store.list_entries(self.session.id, after=turn.first - 1, upto=turn.last)
            found |= list_spent_tools([it for it in entries if it.op == turn.op], self.heard, tools)
        return found

    async def _judge_next_call(self, event: TurnEvent) -> tuple[dict[str, str], str, ApprovalPlan | None]:
        """Return the refusals with that of the policy for the call that comes next, why that call may run, and the
        request for it if a person has to approve it. The policy looks at the arguments, so the tool stays on offer.
        """
        call = find_next_call(self.state, event)
        if call is None or call.tool in self.refusals:
            return self.refusals, "", None
        scope = self._build_scope()
        verdict = judge_tool_call(self.runtime, call, scope, self.rights.owners)
        if verdict.asks and isinstance(event, ModelAnswered):
            # A request needs the entry of the answer, which is recorded first.
            return {**self.refusals, call.tool: verdict.refusal}, "", None
        if verdict.asks:
            rounds = sum(isinstance(step.body, Thought) for step in self.steps)
            context = self._build_tool_context(f"{self.session.id}:{self.op}:{rounds}:{call.id}")
            plan = await plan_request(
                self.gates, self.runtime, call, verdict, scope, context, heard=self.heard.values()
            )
            if plan.rule:
                return self.refusals, plan.rule, None
            return {**self.refusals, call.tool: plan.text}, "", plan
        if not verdict.refusal:
            return self.refusals, verdict.because, None
        self.log.info("tool.refused", tool=call.tool, reason=verdict.because)
        return {**self.refusals, call.tool: verdict.refusal}, "", None

    def _build_scope(self) -> PolicyScope:
        return build_turn_scope(
            self.runtime,
            self.rights,
            self.origin,
            heard=self.heard.values(),
            steps=self.steps,
            context=self.cached_context.context,
            recalled=self.recalled.record if self.recalled else None,
        )

    def _build_tool_context(self, key: str) -> ToolContext:
        said, sources = facts.collect_turn_sources(
            self.heard.values(), self.steps, self.recalled.record if self.recalled else None
        )
        return ToolContext(
            session=self.session.id,
            agent=self.session.agent,
            op=self.op,
            key=key,
            stamp=self.stamp,
            origin=self.origin,
            hops=self.hops,
            said=said,
            sources=sources,
            role=find_policy_role(self.runtime, self.rights.role, self.rights.speakers),
            place=self.rights.place,
            speakers=self.rights.speakers,
            is_asked=find_scope_origin(self.heard.values()) is ScopeOrigin.CHAT,
        )

    async def _commit_request(self, bodies: tuple[EntryBody, ...], plan: ApprovalPlan) -> TurnEvent:
        """Commit a request, what the model is told, and the notice that shows it. Nothing waits for the answer."""
        assert plan.request is not None
        assert plan.state_write is not None
        assert plan.wakeup is not None
        self.log.info(
            "approval.requested", request=plan.request.id, tool=plan.request.tool, reason=plan.request.because
        )
        return await self._commit_bodies(
            (*bodies, *plan.notices),
            state_writes=(plan.state_write,),
            wakeups=(plan.wakeup,),
            dedup=request_key(plan.request.id),
        )

    def _can_act(self, tool: str) -> bool:
        """Return whether a second call could have a second effect. A note that is stored again has none."""
        if self.runtime.tool_effects.get(tool, ToolEffect.ONCE) is not ToolEffect.PURE:
            return True
        return self.runtime.tool_rules[tool].access is ToolAccess.ACT

    def _check_rights(self) -> FinishTurn | None:
        """Return how to end the turn if nobody who asks may still speak in the chat; None if it continues."""
        if not self.rights.is_refused:
            return None
        notice = f"I did not answer. {explain_lost_access(self.rights.owners)}"
        return FinishTurn(ended=Ended(outcome="refused", reason=LOST_ACCESS_REASON), notice=notice)

    async def _check_people(self) -> FinishTurn | None:
        """Return how to end the turn if an identity was unlinked from the person of a sender; None if it continues.

        The context may contain what the sender must not see any more. In the sender's own session another turn answers
        without it. A session of another person is left at once.
        """
        people, self.people_at_start = self.people_at_start or await self.store.get_people(), None
        self.people_seen = people.epoch
        senders = {entry.author.removeprefix("person:") for entry in self.heard.values()}
        parted = [identity for identity in senders if people.has_parted_since(identity)]
        if not parted:
            return None
        if await is_foreign_session(self.store, self.session, people, parted):
            ended = Ended(outcome="stopped", reason=PARTED_REASON, usage=self.state.usage)
            return FinishTurn(ended=ended, notice=PARTED_NOTICE)
        began = self.steps[0].body
        epoch = began.people if isinstance(began, Began) else 0
        if any(people.has_parted_since(identity, epoch) for identity in parted):
            self.own_upto_seq = None  # the messages are pending again, so the cursor stays due
            ended = Ended(outcome="released", reason=PARTED_REASON, usage=self.state.usage)
            return FinishTurn(ended=ended, notice=RESTART_NOTICE if await self._has_visible_draft() else "")
        return None

    async def _finish_unless_withheld(self, task: FinishTurn) -> bool:
        """End the turn as planned, or without its reply if the people changed. The commit fails if they changed since
        the last check, so none can go unnoticed.
        """
        seen = self.people_seen
        while True:
            if seen is None:
                if (withheld := await self._withhold_reply(task)) is not None:
                    return await self._finish_turn(withheld)
                seen = self.people_seen
            try:
                return await self._finish_turn(task, people_seen=seen)
            except Conflict:
                seen = None

    async def _withhold_reply(self, task: FinishTurn) -> FinishTurn | None:
        """Return how to end the turn without its reply if the people changed; None if it ends as planned.

        A turn that was stopped or failed stays so, because who stopped it wants no other answer. Only its draft is not
        repeated. The cost of a withheld answer is booked.
        """
        ending = await self._check_people()
        if ending is None:
            return None
        if not task.reply:
            withheld = WITHDRAWN_NOTICE if await self._has_visible_draft() else ""
            return msgspec.structs.replace(task, notice=task.notice or withheld)
        spent = sum((body.usage for body in task.bodies if isinstance(body, Thought)), ModelUsage())
        ended = msgspec.structs.replace(ending.ended, usage=task.ended.usage)
        return msgspec.structs.replace(ending, ended=ended, abandoned_usage=spent)

    async def _check_inbox(self) -> TurnEvent | None:
        """Check the inbox between two steps: the turn may be stopped, or take messages that steer it."""
        if self.is_first_step:
            self.is_first_step = False  # it has just consumed all pending messages
            return None
        decision, _ = await self._decide_next_step(boundary=self.state.rounds > 0)
        if isinstance(decision, CutTurn):
            return TurnCutShort(decision.outcome)
        if isinstance(decision, SteerTurn):
            clock = self.runtime.describe_time(self.stamp)
            event = await self._commit_bodies((Took(takes=decision.takes, clock=clock),))
            await self._consume_seqs(decision.takes)
            return event
        return None

    async def _decide_next_step(self, *, boundary: bool, after: int = 0) -> tuple[InboxDecision, int]:
        """Return the decision about the messages after `after`, and the seq of the last message, so that they are not
        read again.
        """
        box = tuple(await self.store.scan_pending(self.session.id, after=after))
        running = RunningTurn(op=self.op, at_boundary=boundary, stop_requested=(await self._load_own_operation()).stop)
        return decide_next_step(box, running=running, busy=self.runtime.busy_policy), box[-1].seq if box else after

    async def _ask_model(self) -> TurnEvent:
        """Ask the model for the next step: build the request, reserve its cost, and record the answer."""
        prepared = await self._prepare_request()
        self.draft = self._build_draft()
        grown: list[str] = []
        asked = engine_effects.ask_models(
            self.gates,
            self.runtime.models,
            prepared.request,
            agent=self.session.agent,
            deadline=self.runtime.model_deadline_seconds,
            record=functools.partial(self._build_thought, prepared),
            on_text=self._make_text_callback(self.draft, grown),
        )
        event = await self._ask_within_budget(asked, prepared.weight, self.draft)
        if isinstance(event, TurnCutShort):
            return msgspec.structs.replace(
                event, usage=self.runtime.estimate_abandoned_usage(prepared.weight, "".join(grown))
            )
        return event

    async def _prepare_request(self) -> PreparedRequest:
        """Build the next request. What cannot be derived from the log again is stored with the answer."""
        runtime = self.runtime
        stubs = self.cached_context.stubs | self.stubs
        shown = (
            self.cached_context.messages
            if not self.stubs
            else render_messages(self.cached_context.context, stubs=stubs)
        )
        if self.recalled is None or (self.recalled.text and self.state.rounds > 0):
            self.recalled = await self._recall_once()
        current = render_messages(
            SessionContext(turns=(self._build_current_turn(),)), stubs=stubs, recalled=self.recalled.text
        )
        offer = runtime.offer_tools(self.refusals)
        request = build_model_request(shown + current, system=runtime.system, tools=offer.specs)
        sealed = self.context.contexts.extend_prefix(self.session.id, shown, system=runtime.system)
        recalled = self.recalled.stored_text
        why = pack_record(self.recalled.record) if self.recalled.record is not None else b""
        self.blobs = ThoughtBlobs(
            blobs=tuple(filter(None, (runtime.prompt_blob.data, offer.blob.data))),
            records=tuple(filter(None, (recalled, why))),
        )
        weight = self.cached_context.tokens + compression.estimate_message_tokens(current) + runtime.overhead_weight
        self.last_request_weight = len(self.steps), weight
        return PreparedRequest(
            request=request,
            digest=fingerprint_request(request, sealed),
            weight=weight,
            stubs=tuple(sorted(stubs)),
            recall=hashlib.sha256(recalled).hexdigest() if recalled else "",
            why=hashlib.sha256(why).hexdigest() if why else "",
            prompt=runtime.prompt_blob.digest,
            tools=offer.blob.digest,
        )

    def _build_thought(self, prepared: PreparedRequest, answer: ModelResponse) -> Thought:
        """Return the entry of an answer."""
        self.runtime.meter.learn(prepared.weight, answer.usage)
        return Thought(
            text=answer.text,
            calls=answer.calls,
            reasoning=answer.reasoning,
            model=answer.model,
            generation=self.session.generation,
            request=prepared.digest,
            prompt=prepared.prompt,
            tools=prepared.tools,
            recall=prepared.recall,
            why=prepared.why,
            stubs=prepared.stubs,
            usage=answer.usage,
            finish=answer.finish,
        )

    def _make_text_callback(self, draft: ReplyDraft | None, grown: list[str]) -> Callable[[str | None], None] | None:
        """Return the callback for the pieces of a growing answer; None if no draft or client shows them."""
        watcher = self.context.on_text
        if draft is None and watcher is None:
            return None

        def on_text(piece: str | None) -> None:
            grown.append(piece or "")
            if piece and not self.has_shown_words:
                self.has_shown_words = True
                self.gates.metrics.observe(FIRST_WORDS_SECONDS, self._get_seconds_since_message(), self.session.agent)
            if draft is not None:
                draft.add_text(piece)
            if watcher is not None:
                watcher(self.session.id, self.op, piece)

        return on_text

    def _get_seconds_since_message(self) -> float:
        """Return how long ago the first message that the turn answers was committed."""
        now = self.gates.clock.now()
        return now - min((entry.at for entry in self.heard.values()), default=now)

    async def _ask_within_budget(
        self, asked: Coroutine[Any, Any, TurnEvent], weight: int, draft: ReplyDraft | None
    ) -> TurnEvent:
        """Reserve the highest cost of the request, then wait for the answer."""
        runtime = self.runtime
        reading, writing = runtime.meter.estimate_max_tokens(weight), runtime.max_output_tokens
        worst = WorstCaseCost(usd=runtime.price_usd(reading, writing), tokens=reading + writing)
        self._release_reservation()
        self.reservation = self.context.budgets.prepare_reservation(self._list_limits(), worst)
        try:
            await self.reservation.reserve()
            event = await self._run_unless_cut(asked)
        except Refused as error:
            asked.close()
            return TurnBroken(reason=str(error))
        except BaseException:
            if draft is not None:
                draft.abandon()
            raise
        if draft is not None:
            await draft.close()
        return event

    async def _recall_once(self) -> TurnRecall:
        """Return the recall of this turn. A resumed turn uses what was recalled at first, and so does every later
        request of a turn, from the store: an erasure in another session removes it there.
        """
        for entry in self.steps:
            if isinstance(entry.body, Thought):
                text, stored = await load_recalled_text(self.store, entry.body.recall)
                why = await self.store.get_blob(entry.body.why) if entry.body.why else None
                return TurnRecall(
                    text=text or "", record=read_record(why) if why else None, stored_text=stored if text else b""
                )
        heard = [join_all_text(entry.body) for entry in self.heard.values() if isinstance(entry.body, Heard)]
        return await recall_for_turn(
            self.gates,
            self.context.runtimes,
            self.runtime,
            self.session,
            op=self.op,
            takes=tuple(self.heard),
            text="\n".join(heard),
            stamp=self.stamp,
            list_visible=lambda: self.cached_context.list_seqs(self.session.id) | self.heard.keys(),
        )

    def _build_draft(self) -> ReplyDraft | None:
        """Return a draft for the growing reply, if its platform supports drafts."""
        if self.origin is None:
            return None
        platform = self.context.runtimes.find_draft_platform(self.origin.platform, self.origin.account)
        if platform is None:
            return None
        sender = self.context.runtimes.find_platform(self.origin.platform, self.origin.account)
        return ReplyDraft(
            self.gates,
            self.context.claim,
            op=self.op,
            place=self.origin,
            platform=platform,
            limit=self.runtime.text_limit(self.origin),
            is_keyed=sender is not None and sender.delivery is DeliveryGuarantee.KEYED,
            visible_after=sender.visible_after if sender is not None else 0.0,
            deadline=self.context.draft_deadline,
        )

    async def _run_unless_cut(self, work: Coroutine[Any, Any, TurnEvent], *, cancel: bool = True) -> TurnEvent:
        """Wait for `work`, and check the inbox whenever something arrives, because the turn may be stopped or
        interrupted.
        """
        task = asyncio.get_running_loop().create_task(work)
        seen = 0
        with self.context.wakeups.subscribe(self.session.id) as event:
            task.add_done_callback(lambda _: event.set())
            while not task.done():
                await self.gates.sleep(INBOX_POLL_SECONDS, wakeup=event)
                event.clear()
                if task.done() or not cancel:
                    continue
                try:
                    decision, seen = await self._decide_next_step(boundary=False, after=seen)
                except LeaseLost:  # perhaps because an entry it has read was erased: the result must not be sent
                    if _is_unanswered(task):
                        break  # the model may have asked for a delay, which must be recorded
                    task.cancel()
                    raise
                if isinstance(decision, CutTurn) and not task.done():
                    task.cancel()
                    return TurnCutShort(decision.outcome)
        return task.result()

    async def _run_tool(self, task: RunTool) -> TurnEvent:
        tool = self.runtime.tools.get(task.call.tool)
        context = self._build_tool_context(task.key)
        result = ToolResult(text="")

        async def work() -> TurnEvent:
            nonlocal result
            event, result = await engine_effects.run_tool(
                self.gates, tool, task, context, still_ours=self._load_own_operation
            )
            return event

        # A tool that changes something is awaited, because its result must be recorded before the turn ends.
        event = await self._run_unless_cut(work(), cancel=tool is not None and tool.effect is ToolEffect.PURE)
        if isinstance(event, TurnCutShort):
            return event
        _, recorded = advance_turn(self.state, event, self.runtime.tool_effects)
        assert isinstance(recorded, RecordBodies)
        notes = tuple(facts.prepare_tool_note(note, tool=task.call.tool, context=context) for note in result.notes)
        sayings = tuple(
            self.runtime.build_said(it.text, it.to, hops=it.hops, stamp=self.stamp) for it in result.send_requests
        )
        files = tuple(file.data for file in result.files)
        tasks = self._build_tasks(result.delegated) if task.call.tool == DELEGATE_TOOL else ()
        bodies = (*recorded.bodies, *notes, *sayings, *tasks, *self._build_note_notices(notes))
        writes = tuple(result.state_writes) if task.call.tool in STATE_WRITING_TOOLS else ()
        try:
            return await self._commit_bodies(bodies, files=files, state_writes=writes)
        except Conflict:
            if not writes:
                raise
            return await self._commit_bodies((Returned(call=task.call.id, text=CHANGED_MEANWHILE_TEXT, error=True),))

    def _build_tasks(self, delegated: Iterable[DelegatedTask]) -> tuple[Changed, ...]:
        """Return the tasks for sub-agents, with the rights of this turn. They are for whoever asked last."""
        asking = [it for it in self.heard.values() if isinstance(it.body, Heard) and it.body.asks]
        if not asking or self.origin is None:
            return ()  # what asked was erased
        last = asking[-1]
        assert isinstance(last.body, Heard)
        scope = self._build_scope()
        return tuple(
            Changed(
                change=TaskRequested(
                    text=one.task,
                    tell=self.origin,
                    stamp=self.stamp,
                    role=self.rights.role,
                    delegation=TaskDelegation(
                        slot=one.slot,
                        context=one.context,
                        tools=one.tools,
                        author=last.author,
                        speaker=last.body.speaker,
                        sender=last.body.sender,
                        place=scope.place,
                        origin=scope.origin,
                        foreign=scope.is_foreign_shown,
                        hops=self.hops,
                    ),
                )
            )
            for one in delegated
        )

    def _build_note_notices(self, notes: tuple[Noted, ...]) -> tuple[Notified, ...]:
        """Return notices to the chat about committed notes. They are true whatever the providers do."""
        if not notes or not self.runtime.memory_notices or self.origin is None:
            return ()
        text = "\n".join(facts.render_note_notice(note) for note in notes)
        limit = self.runtime.text_limit(self.origin)
        return (Notified(text=text, about="memory", to=self.origin, parts=split_text(text, limit)),)

    async def _load_own_operation(self) -> Operation:
        found = await self.store.list_operations(self.session.id, after=self.op - 1, before=self.op + 1)
        if not found or found[0].state != "running" or found[0].fence != self.context.claim.fence:
            raise LeaseLost(f"session {self.session.id}: another worker holds operation {self.op}")
        return found[0]

    async def _commit_bodies(
        self,
        bodies: tuple[EntryBody, ...],
        *,
        files: tuple[bytes, ...] = (),
        state_writes: tuple[StateWrite, ...] = (),
        wakeups: tuple[Wakeup, ...] = (),
        dedup: str | None = None,
    ) -> TurnEvent:
        """Commit what happened, so that it is not done again. `dedup` is the key of the first entry."""
        step_ = _STEP_BY_KIND[get_body_kind(bodies[0])]
        drafts = tuple(
            EntryDraft(body=body, author=self._get_author(body), op=self.op, dedup=None if number else dedup)
            for number, body in enumerate(bodies)
        )
        listed, spends, beside = self._list_wakeups(bodies), self._build_spends(bodies), self._select_blobs(bodies)
        done = await self.context.commit(
            step_,
            drafts,
            op=self.op,
            wakeups=(*listed, *wakeups),
            spends=spends,
            beside=beside,
            files=files,
            state_writes=state_writes,
        )
        self._release_reservation()
        for seq, body in zip(done.seqs, bodies, strict=True):
            self._append_step(seq, body)
        return BodiesRecorded(bodies)

    def _select_blobs(self, bodies: Iterable[EntryBody]) -> ThoughtBlobs | None:
        # The recall of an answer that never came is not stored, because no erasure would find it.
        return self.blobs if any(isinstance(body, Thought) for body in bodies) else None

    async def _shrink_context(self, reason: str) -> TurnEvent:
        """Make the request smaller: first show long results, and earlier messages that fill much of the window, as
        stubs; then compress what came before; then show all long texts as stubs; then fail with a notice.
        """
        before, current = self.cached_context.context, SessionContext(turns=(self._build_current_turn(),))
        # A character is about a quarter of a token, so a longer text fills a quarter of the window.
        much = max(LONG_RESULT_CHARS, self.runtime.models[0].context_tokens)
        if self._add_stubs(
            find_oversized(before + current, most=SHORT_TEXT_CHARS) + find_oversized(before, most=much, what=Heard)
        ):
            return TurnOpened()
        unfit = find_oversized(current, most=SHORT_TEXT_CHARS, what=Heard)
        if unfit and self._estimate_tokens(current) > self.runtime.models[0].context_tokens:
            return self._build_unfit_message(reason, unfit)  # a summary of earlier turns would not help
        session = await self.store.get_session(self.session.id)
        await self._load_own_operation()
        view = await self._load_earlier_context(
            session
        )  # loaded again, because an entry of this turn may have been erased
        compressor = SessionCompressor(
            self.gates, self.context.claim, self.runtime, wakeups=self.context.wakeups, budgets=self.context.budgets
        )
        outcome = (
            await compressor.compress(session, view, trigger="too long", keep=0)
            if view.turns
            else CompressionOutcome.NOTHING
        )
        if outcome is CompressionOutcome.BUSY:
            # A background compression is running, or the context has just changed: decide again after that.
            await self.gates.sleep(INBOX_POLL_SECONDS)
            return RequestTooLong(reason=reason)
        if outcome is CompressionOutcome.DONE:
            self.session = await self.store.get_session(self.session.id)
            # Not through the context, because a context reset since then hides what came before it.
            made = await self.store.list_operations(
                session.id, types=("compression",), states=("done",), newest_first=True, limit=1
            )
            found = await self.store.list_entries(
                session.id, after=made[0].op, upto=made[0].last, kinds=(EntryKind.COMPRESSED,)
            )
            await self._use_context(SessionContext(compression=found[0], pins=view.pins))
            return await self._commit_bodies((Took(compression=made[0].op),))
        if self._add_stubs(find_oversized(before, most=SHORT_TEXT_CHARS, what=Heard)):
            return TurnOpened()
        if unfit:
            return self._build_unfit_message(reason, unfit)
        return TurnBroken(reason=f"the conversation does not fit the model: {reason}", remedy=START_OVER_REMEDY)

    def _build_unfit_message(self, reason: str, seqs: tuple[int, ...]) -> TurnBroken:
        return TurnBroken(reason=f"the message does not fit the model: {reason}", remedy=SEND_LESS_REMEDY, stubs=seqs)

    def _estimate_tokens(self, view: SessionContext) -> int:
        """Estimate the tokens of a request that shows only this context."""
        shown = render_messages(view, stubs=self.cached_context.stubs | self.stubs)
        return self.runtime.meter.estimate_tokens(
            compression.estimate_message_tokens(shown) + self.runtime.overhead_weight
        )

    def _add_stubs(self, longer: tuple[int, ...]) -> bool:
        """Show these entries as stubs from now on; return whether that adds any."""
        new = frozenset(longer) - self.cached_context.stubs - self.stubs
        self.stubs |= new
        return bool(new)

    # -- endings -----------------------------------------------------------------------------------------------------

    async def _wait_for_model(self, task: WaitForModel) -> None:
        """Wait for a model. The messages stay pending, and the chat gets one notice that they are kept."""
        attempts = self.context.claim.cursor.attempts + 1
        wait = model_waits.build_model_delay(
            task.retry_after, attempts, chance=self.gates.chance, waits_for=self.runtime.waits_for
        )
        notices: tuple[EntryBody, ...] = ()
        if self.origin is not None and (attempts == 1 or (task.release and await self._has_visible_draft())):
            text = self._explain_wait(task, wait.seconds)
            notices = (Notified(text=text, about=OUTAGE_NOTICE, to=self.origin, parts=(text,)),)
        ended: tuple[EntryBody, ...] = (Ended(outcome="released", reason=task.reason),) if task.release else ()
        bodies = (*notices, *ended)
        self.log.warning("turn.waiting", reason=task.reason, seconds=wait.seconds, released=task.release)
        update = CursorUpdate(attempts=attempts, error=task.reason, wait=wait, release=True)
        try:
            await self.context.commit(
                Step.END if task.release else Step.PAUSE,
                tuple(EntryDraft(body=body, author="system", op=self.op) for body in bodies),
                op=self.op,
                wakeups=self._list_wakeups(bodies),
                pause=not task.release,
                update=update,
            )
        except LeaseLost:
            # If only the operation was ended by another worker, the delay that the model asked for still applies.
            await self.context.commit(Step.DELIVERY_RETRY, (), update=update)
        if self.runtime.waits_for:
            await model_waits.recheck_wait(self.gates, self.context.runtimes, self.context.wakeups, self.context.claim)

    def _explain_wait(self, task: WaitForModel, seconds: float) -> str:
        """Return what the chat is told about a message that waits. Only an owner who is alone hears the cause."""
        if not task.remedy:
            return (
                "The model cannot be reached right now. Your message is kept and will be answered. "
                f"I retry in about {describe_duration(seconds)}; /stop puts the message aside."
            )
        kept = "Your message is kept, and I answer it when that is done; /stop puts it aside."
        role = find_policy_role(self.runtime, self.rights.role, self.rights.speakers)
        if role is PersonRole.OWNER and self.rights.place is ChatPlace.DIRECT:
            why, remedy = task.reason[:MAX_CAUSE_CHARS], task.remedy[:MAX_CAUSE_CHARS]
            return f"I cannot answer, because my model is not set up correctly. {why}. What to do: {remedy}. {kept}"
        return (
            "I cannot answer, because my model is not set up correctly. The operator of this gateway has to act: "
            f"`everhold status` names the cause. {kept}"
        )

    async def _has_visible_draft(self) -> bool:
        """Return whether a draft of this turn may be visible, perhaps one of an earlier worker."""
        return self.origin is not None and (
            await outbox_drafts.find_left_draft(self.store, self.session.id, self.op, self.origin) is not None
        )

    async def _finish_turn(self, task: FinishTurn, *, people_seen: int | None = None) -> bool:
        """End the turn in one commit: the reply, the end, the usage, and the wakeups of all consumers of it. Raises
        Conflict if the people changed after the epoch `people_seen`.
        """
        bodies: list[EntryBody] = list(task.bodies)
        if task.reply and self.origin is not None:
            hops, files = self.hops + 1, task.attached
            bodies.append(self.runtime.build_said(task.reply, self.origin, hops=hops, files=files, stamp=self.stamp))
        notice = task.notice or await outbox_drafts.render_cut_off_notice(task.ended, self.draft or self._build_draft())
        if notice and self.origin is not None:
            parts = split_text(notice, self.runtime.text_limit(self.origin))
            # A notice in addition to a reply must not replace the draft of the reply.
            about = "reply" if task.reply else "turn"
            bodies.append(Notified(text=notice, about=about, to=self.origin, parts=parts))
        bodies.append(task.ended)
        # If no other writer committed since the turn took all messages, the same commit releases the cursor. The store
        # keeps it due if something arrives before that.
        update = CursorUpdate(attempts=0, error="", idle_at=self.own_upto_seq, release=self.own_upto_seq is not None)
        wakeups = self.runtime.list_platform_wakeups(bodies) + self.runtime.list_memory_wakeups()
        done = await self.context.commit(
            Step.END,
            tuple(EntryDraft(body=body, author=self._get_author(body), op=self.op) for body in bodies),
            op=self.op,
            update=update,
            wakeups=wakeups + self._list_compression_wakeups(task.reply) + self._list_review_wakeups(),
            spends=self._build_spends(tuple(bodies), given_up=task.abandoned_usage),
            beside=self._select_blobs(bodies),
            people_seen=people_seen,
        )
        more = self.own_upto_seq is None
        for seq, body in zip(done.seqs, bodies, strict=True):
            self._append_step(seq, body)
        if self.cached_context.generation == done.generation and task.ended.outcome not in RELEASING_OUTCOMES:
            self.context.contexts.put(self.session.id, self.cached_context.with_turn(self._build_current_turn()))
        self.gates.metrics.observe(
            ANSWER_SECONDS, self._get_seconds_since_message(), self.session.agent, task.ended.outcome
        )
        self.log.info(
            "turn.completed", outcome=task.ended.outcome, tokens=task.ended.usage.input + task.ended.usage.output
        )
        return more

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _build_current_turn(self) -> TurnEntries:
        return TurnEntries(
            op=self.op,
            heard=tuple(self.heard[seq] for seq in list_consumed_seqs(self.steps) if seq in self.heard),
            steps=tuple(self.steps),
        )

    def _append_step(self, seq: int, body: EntryBody) -> None:
        entry = Entry(
            session=self.session.id,
            seq=seq,
            pos=0,
            kind=get_body_kind(body),
            op=self.op,
            author=self._get_author(body),
            at=self.context.last_commit_at,
            version=BODY_VERSION,
            body=body,
            digest=b"",
        )
        self.steps.append(entry)
        self.own_upto_seq = seq if self.own_upto_seq == seq - 1 else None

    def _get_author(self, body: EntryBody) -> str:
        return "system" if isinstance(body, _SYSTEM_BODIES) else self.runtime.author

    def _list_wakeups(self, bodies: Iterable[EntryBody]) -> tuple[Wakeup, ...]:
        bodies = tuple(bodies)
        noted = any(isinstance(body, Noted) for body in bodies)
        return (
            *self.runtime.list_platform_wakeups(bodies),
            *(self.runtime.list_memory_wakeups() if noted else ()),
            *(
                Wakeup(consumer=consumers.task_consumer(body.change))
                for body in bodies
                if isinstance(body, Changed) and isinstance(body.change, TaskRequested)
            ),
        )

    def _list_compression_wakeups(self, reply: str) -> tuple[Wakeup, ...]:
        """Above the soft limit, wake up the compression worker to compress in background."""
        runtime = self.runtime
        if not runtime.compress_in_background:
            return ()
        answer = (ModelMessage(role="assistant", text=reply),)
        steps, asked = self.last_request_weight
        # The recalled text is part of the weight, so the weight without it is never higher.
        if steps == len(self.steps) and not self._is_compression_due(
            asked + compression.estimate_message_tokens(answer)
        ):
            return ()
        new = render_messages(SessionContext(turns=(self._build_current_turn(),))) + answer
        due = self._is_compression_due(
            self.cached_context.tokens + compression.estimate_message_tokens(new) + runtime.overhead_weight
        )
        return (Wakeup(consumer=consumers.COMPRESSION),) if due else ()

    def _is_compression_due(self, weight: int) -> bool:
        runtime = self.runtime
        used, window = runtime.meter.estimate_tokens(weight), runtime.models[0].context_tokens
        return bool(compression.measure_urgency(used, window, soft=runtime.soft_share, hard=runtime.hard_share))

    @functools.cached_property
    def turn_number(self) -> int:
        """The number of this turn among those that ended in the session since the start of the process."""
        return self.context.contexts.count_turn(self.session.id)

    def _list_review_wakeups(self) -> tuple[Wakeup, ...]:
        """Wake up the review after every so many turns."""
        every = self.runtime.review_every_turns
        due = bool(every) and self.turn_number % every == 0
        return (Wakeup(consumer=consumers.REVIEW, start=0),) if due else ()

    def _release_reservation(self) -> None:
        """Release the reservation of the last call, after its cost was committed or if it never will be."""
        if self.reservation is not None:
            self.reservation.release()
            self.reservation = None

    def _build_spends(
        self, bodies: tuple[EntryBody, ...], *, given_up: ModelUsage | None = None
    ) -> tuple[BudgetSpend, ...]:
        spends = []
        for usage in (given_up, *(body.usage for body in bodies if isinstance(body, Thought))):
            if usage is not None and (usage.input or usage.output):
                tokens = usage.input + usage.output
                for budget in self._list_payers():
                    spends.append(
                        BudgetSpend(budget=budget, day=self.context.get_today(), usd=usage.usd, tokens=tokens)
                    )
        return tuple(spends)

    @property
    def _is_asked_for_later(self) -> bool:
        """Whether a person asked for this turn before: with a schedule, or through a sub-agent. No person asks for the
        deliveries of a webhook."""
        return self.scheduled and not all(isinstance(it.body, Heard) and it.body.hook for it in self.heard.values())

    def _list_limits(self) -> tuple[BudgetLimit, ...]:
        """Return the budgets of which the turn reserves the highest cost of a call."""
        if self._is_asked_for_later:
            return self.runtime.list_asked_job_limits(self.stamp, self.payer_role)
        limits = self.runtime.job_limits() if self.scheduled else self.runtime.limits(self.stamp, self.payer_role)
        return tuple(limits)

    def _list_payers(self) -> tuple[str, ...]:
        budgets = list_turn_budgets(self.runtime.agent, self.stamp, scheduled=self.scheduled)
        return (*budgets, name_person_budget(self.stamp)) if self._is_asked_for_later else budgets


def _is_unanswered(task: asyncio.Future[TurnEvent]) -> bool:
    """Return whether the model has been asked, and could not answer."""
    return task.done() and task.exception() is None and isinstance(task.result(), ModelUnreachable)
