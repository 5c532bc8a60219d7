"""Runs approved calls, each once, and ends requests that nobody answered in time. One worker at a time works on the
requests of a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct, structs

from everhold.core import approvals, consumers, facts
from everhold.core.approvals import ApprovalState
from everhold.core.builtin_tools import STATE_WRITING_TOOLS
from everhold.core.entries import (
    OWN_OPERATION,
    ApprovalDecided,
    ApprovalRequested,
    Began,
    Called,
    Ended,
    EntryBody,
    EntryDraft,
    Returned,
    TextPiece,
    list_consumed_seqs,
)
from everhold.core.policy import PolicyScope, ScopeOrigin, ScopePlace
from everhold.core.roles import PersonRole, list_role_refusals
from everhold.core.turn import RunTool, ToolFinished
from everhold.engine import effects
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.approvals.decisions import build_report, end_unanswered, find_ending, list_report_wakeups
from everhold.engine.approvals.records import (
    RequestedCall,
    StoredApproval,
    find_decision,
    find_request,
    get_approval,
    is_chat_halted,
    list_approvals,
)
from everhold.engine.approvals.requests import identify_call
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.roles import RoleSource, TurnRights, compute_turn_rights
from everhold.engine.tool_policy import find_policy_role, judge_tool_call
from everhold.errors import Conflict, EverholdError, LeaseLost
from everhold.ports.store import (
    Change,
    Claim,
    CommitResult,
    CursorUpdate,
    Operation,
    RetryDelay,
    Session,
    StateWrite,
    Step,
    Wakeup,
)
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult

HALT_CHECK_SECONDS: Final = 30.0
"""How soon it is looked again whether the agents of a chat may act."""
UNKNOWN_RESULT: Final = (
    "it was allowed and started before a restart, and it is unknown whether it was completed. It is not started "
    "again. Check before you ask for it again."
)
CHANGED_MEANWHILE_RESULT: Final = "it was not done, because what it was about changed at that moment."
NOT_STARTED: Final = "not run, although it was allowed: {why}. Ask for it again if it is still needed."


class ApprovedCall(Struct, frozen=True, kw_only=True):
    """An approved call, and with whose rights it runs."""

    requested: RequestedCall
    stored: StoredApproval
    rights: TurnRights
    role: PersonRole


class ApprovalWorker:
    """Works on the requests of one session."""

    def __init__(
        self, gates: Gates, claim: Claim, *, runtimes: AgentRuntimes, wakeups: Wakeups, roles: RoleSource
    ) -> None:
        self.gates = gates
        self.store = gates.store
        self.claim = claim
        self.runtimes = runtimes
        self.wakeups = wakeups
        self.roles = roles
        self.log = gates.log.bind(session=claim.session)
        self.resume_by_effect = _RESUME_BY_EFFECT

    async def run(self) -> None:
        """Work until nothing is left to do before the next request expires."""
        is_waited = False
        while True:
            session = await self.store.get_session(self.claim.session)
            runtime = self.runtimes.get_runtime(session.agent, session.choices)
            if runtime.wait_for_tools is not None and not is_waited:
                is_waited = await effects.wait_for_tools(self.gates, runtime.wait_for_tools)
                continue
            try:
                is_done = await self._work_once(session, runtime)
            except Conflict:
                continue  # somebody answered at this moment: read it again
            if is_done:
                return

    async def _work_once(self, session: Session, runtime: AgentRuntime) -> bool:
        """Do the next thing; return whether nothing is left to do now."""
        running = await self.store.list_operations(session.id, types=("action",), states=("running",))
        if running:
            await self._resume(runtime, running[0])
            return False
        now = await self.store.get_time()
        known = await list_approvals(self.store, session=session.id)
        for it in known:
            if it.record.state is ApprovalState.RUNNING:
                await self._report_lost(runtime, it)
                return False
        allowed = [it for it in known if it.record.state is ApprovalState.ALLOWED]
        is_held = bool(allowed) and await is_chat_halted(self.store, session.address)
        if allowed and not is_held:
            await self._start(runtime, allowed[0], now=now)
            return False
        for it in allowed if is_held else ():
            if now >= it.record.until:
                await self._start(runtime, it, now=now)  # it expired: that is said, and it does not run
                return False
        for it in known:
            is_over = approvals.is_over(at=it.record.at, until=it.record.until, now=now)
            if it.record.state is ApprovalState.DENIED and is_over:
                await self._commit(Step.CURSOR_SETTLE, (), state_writes=(it.stored.replace_with(None),))
                return False
            requested = await find_request(self.store, it.id) if it.record.state is ApprovalState.OPEN else None
            if requested is not None and (outcome := find_ending(requested, now=now)) is not None:
                await end_unanswered(self.gates, self.wakeups, runtime, requested, it, outcome, now=now)
                return False
        dues = [it.record.until - now for it in known if it.record.state is not ApprovalState.RUNNING]
        dues += [HALT_CHECK_SECONDS] if is_held else []
        update = CursorUpdate(
            idle_at=session.last_seq,
            wait=RetryDelay(seconds=max(0.0, min(dues))) if dues else None,
            attempts=0,
            error="",
            release=True,
        )
        await self._commit(Step.CURSOR_SETTLE, (), update=update)
        return True

    # -- starting ----------------------------------------------------------------------------------------------------

    async def _start(self, runtime: AgentRuntime, stored: StoredApproval, *, now: float) -> None:
        """Start an approved call, or say why it does not run. That it starts is committed first."""
        requested = await find_request(self.store, stored.id)
        assert requested is not None, "the record was made with the request"
        approved = await self._load_rights(runtime, requested, stored)
        if why := await self._find_obstacle(runtime, approved, now=now):
            await self._give_up(runtime, approved, why)
            return
        body, call = requested.body, requested.call
        assert call is not None, "otherwise there was an obstacle"
        key = f"{self.claim.session}:{approvals.name_run(body.id)}"
        began = Began(type="action", consumer=consumers.APPROVALS, trigger=approvals.name_run(body.id))
        called = Called(
            call=call.id,
            tool=call.tool,
            effect=body.effect,
            key=key,
            because=approvals.name_run(body.id),
            digest=body.digest,
        )
        record = approvals.change_state(stored.record, ApprovalState.RUNNING)
        done = await self._commit(
            Step.ACTION_BEGIN,
            (
                EntryDraft(body=began, author=runtime.author, op=OWN_OPERATION, dedup=approvals.start_key(body.id)),
                EntryDraft(body=called, author=runtime.author, op=OWN_OPERATION),
            ),
            state_writes=(stored.stored.replace_with(approvals.encode_record(record)),),
            at=now,
        )
        if done.duplicate:  # the log knows better than the record
            self.log.error("approval.started_before", request=body.id, tool=body.tool)
            return
        self.log.info("approval.started", request=body.id, tool=body.tool)
        begun = await get_approval(self.store, body.id)
        assert begun is not None, "its record is removed with its end"
        approved = structs.replace(approved, stored=begun)
        await self._run(runtime, approved, op=done.seqs[0], key=key, how="first")

    async def _load_rights(
        self, runtime: AgentRuntime, requested: RequestedCall, stored: StoredApproval
    ) -> ApprovedCall:
        """Return the rights that the turn that asked would have now; never more than it had."""
        op = requested.entry.op or 0
        entries = await self.store.list_entries(self.claim.session, after=op - 1, upto=requested.entry.seq)
        takes = list_consumed_seqs([entry for entry in entries if entry.op == op])
        heard = [await self.store.get_entry(self.claim.session, seq) for seq in takes]
        rights = await compute_turn_rights(self.roles, heard)
        role = min(requested.body.role, find_policy_role(runtime, rights.role, rights.speakers))
        return ApprovedCall(requested=requested, stored=stored, rights=rights, role=PersonRole(role))

    async def _find_obstacle(self, runtime: AgentRuntime, approved: ApprovedCall, *, now: float) -> str:
        """Return why an approved call does not run; empty if it does. Everything counts as it is now."""
        body, call = approved.requested.body, approved.requested.call
        if call is None or approved.requested.is_undone:
            return "the turn that asked for it was taken back or erased"
        decision = await find_decision(self.store, body.id)
        decided = decision.body if decision is not None else None
        if not (
            isinstance(decided, ApprovalDecided) and decided.outcome == "allowed" and decided.digest == body.digest
        ):
            return "nobody allowed it"
        if approvals.is_over(at=approved.requested.entry.at, until=body.expires, now=now):
            return "it expired before it could run"
        if call.tool not in runtime.tools:
            return f"there is no tool {call.tool} now"
        try:
            identity = await identify_call(self.gates, runtime, call, self._build_context(approved))
        except EverholdError as error:
            return f"it cannot be done now: {error}"
        if identity.digest != body.digest:
            return "the tool, or what the call depends on, changed since it was shown"
        if approved.rights.is_refused:
            return "the person who asked may no longer speak here"
        if call.tool in list_role_refusals(runtime.tool_rules, approved.role, approved.rights.place):
            return f"the person who asked is only {approved.role.label} here now"
        scope = PolicyScope(
            agent=runtime.agent,
            role=approved.role,
            place=ScopePlace(body.place),
            origin=ScopeOrigin(body.via),
            is_foreign_shown=body.foreign,
        )
        verdict = judge_tool_call(runtime, call, scope, ())
        return f"the policy ({verdict.because}) denies it now" if verdict.refusal and not verdict.asks else ""

    async def _give_up(self, runtime: AgentRuntime, approved: ApprovedCall, why: str) -> None:
        body = approved.requested.body
        report = build_report(runtime, body, NOT_STARTED.format(why=why), asks=await self._may_answer(body))
        bodies: tuple[EntryBody, ...] = (
            Began(type="action", consumer=consumers.APPROVALS, trigger=approvals.name_run(body.id)),
            Returned(call=body.call, error=True, approval=body.id),
            Ended(outcome="refused", reason=why),
        )
        drafts = [EntryDraft(body=it, author="system", op=OWN_OPERATION) for it in bodies]
        await self._commit(
            Step.ACTION_END,
            (*drafts, *report),
            state_writes=(approved.stored.stored.replace_with(None),),
            wakeups=list_report_wakeups(runtime, report),
        )
        self.log.warning("approval.not_started", request=body.id, tool=body.tool, reason=why)

    # -- running -----------------------------------------------------------------------------------------------------

    async def _resume(self, runtime: AgentRuntime, operation: Operation) -> None:
        """Go on with a call that another worker started. What a repeat would do decides."""
        entries = await self.store.list_entries(self.claim.session, after=operation.op - 1)
        began = entries[0].body
        assert isinstance(began, Began)
        id = began.trigger.removeprefix(approvals.REQUEST_REASON)
        called = next(it.body for it in entries if it.op == operation.op and isinstance(it.body, Called))
        requested = await find_request(self.store, id)
        stored = await get_approval(self.store, id)
        assert requested is not None
        assert stored is not None, "its record is removed with its end"
        approved = await self._load_rights(runtime, requested, stored)
        how = self.resume_by_effect.get(called.effect)
        if how is None or not await self._is_unchanged(runtime, approved):
            self.log.warning("approval.in_doubt", request=id, tool=called.tool)
            returned = Returned(call=called.call, error=True, unknown=True, approval=id)
            await self._finish(runtime, approved, operation.op, returned, ToolResult(text=""), UNKNOWN_RESULT)
            return
        self.log.info("approval.resumed", request=id, tool=called.tool)
        await self._run(runtime, approved, op=operation.op, key=called.key, how=how)

    async def _report_lost(self, runtime: AgentRuntime, stored: StoredApproval) -> None:
        """Settle a call whose operation an erasure ended while it ran. It is unknown whether it was completed."""
        requested = await find_request(self.store, stored.id)
        assert requested is not None, "the record was made with the request"
        report = build_report(runtime, requested.body, UNKNOWN_RESULT, asks=await self._may_answer(requested.body))
        await self._commit(
            Step.ACTION_END,
            tuple(report),
            state_writes=(stored.stored.replace_with(None),),
            wakeups=list_report_wakeups(runtime, report),
        )
        self.log.warning("approval.in_doubt", request=stored.id, tool=stored.record.tool)

    async def _is_unchanged(self, runtime: AgentRuntime, approved: ApprovedCall) -> bool:
        """Return whether the call would still do exactly what was shown."""
        call = approved.requested.call
        if call is None or call.tool not in runtime.tools:
            return False
        try:
            identity = await identify_call(self.gates, runtime, call, self._build_context(approved))
        except EverholdError:
            return False
        return identity.digest == approved.requested.body.digest

    async def _run(
        self,
        runtime: AgentRuntime,
        approved: ApprovedCall,
        *,
        op: int,
        key: str,
        how: Literal["first", "again", "probe"],
    ) -> None:
        body, call = approved.requested.body, approved.requested.call
        assert call is not None
        context = self._build_context(approved, op=op, key=key)

        async def check_ours() -> None:
            await self._check_running(op)

        task = RunTool(call=call, key=key, how=how)
        event, result = await effects.run_tool(
            self.gates, runtime.tools[call.tool], task, context, still_ours=check_ours
        )
        assert isinstance(event, ToolFinished)
        returned = Returned(call=call.id, error=result.error, files=event.returned.files, approval=body.id)
        outcome = "it was allowed and run, and it failed." if result.error else "it was allowed and run."
        await self._finish(runtime, approved, op, returned, result, outcome, context=context)

    def _build_context(self, approved: ApprovedCall, *, op: int = 0, key: str = "") -> ToolContext:
        body = approved.requested.body
        return ToolContext(
            session=self.claim.session,
            agent=body.agent,
            op=op,
            key=key,
            stamp=body.stamp,
            origin=body.origin,
            hops=body.hops,
            sources=(f"tool:{body.tool}",),
            role=approved.role,
            place=approved.rights.place,
            speakers=approved.rights.speakers,
            is_asked=ScopeOrigin(body.via) is ScopeOrigin.CHAT,
        )

    async def _may_answer(self, body: ApprovalRequested) -> bool:
        """Return whether a turn may answer a report. In a silenced chat it is only heard."""
        return not await is_chat_halted(self.store, body.stamp.address)

    async def _check_running(self, op: int) -> None:
        found = await self.store.list_operations(self.claim.session, after=op - 1, before=op + 1)
        if not found or found[0].state != "running" or found[0].fence != self.claim.fence:
            raise LeaseLost(f"session {self.claim.session}: another worker holds operation {op}")

    async def _finish(
        self,
        runtime: AgentRuntime,
        approved: ApprovedCall,
        op: int,
        returned: Returned,
        result: ToolResult,
        outcome: str,
        *,
        context: ToolContext | None = None,
    ) -> None:
        """Commit what became of a call, together with the message by which the conversation hears it."""
        body = approved.requested.body
        notes = (
            ()
            if context is None
            else tuple(facts.prepare_tool_note(note, tool=body.tool, context=context) for note in result.notes)
        )
        sayings = tuple(
            runtime.build_said(it.text, it.to, hops=it.hops, stamp=body.stamp) for it in result.send_requests
        )
        pieces = (TextPiece(source="embedded", name=body.tool, text=result.text),) if result.text else ()
        asks = await self._may_answer(body)
        report = build_report(runtime, body, outcome, asks=asks, pieces=pieces, files=returned.files)
        bodies: tuple[EntryBody, ...] = (returned, *notes, *sayings, Ended())
        drafts = tuple(
            EntryDraft(body=it, author="system" if isinstance(it, Ended) else runtime.author, op=op) for it in bodies
        )
        wakeups = (
            *list_report_wakeups(runtime, report),
            *runtime.list_platform_wakeups(bodies),
            *(runtime.list_memory_wakeups() if notes else ()),
        )
        writes = tuple(result.state_writes) if body.tool in STATE_WRITING_TOOLS else ()
        try:
            await self._commit(
                Step.ACTION_END,
                (*drafts, *report),
                op=op,
                state_writes=(approved.stored.stored.replace_with(None), *writes),
                wakeups=wakeups,
                files=tuple(file.data for file in result.files),
            )
        except Conflict:
            if not writes:
                raise
            failed = structs.replace(returned, error=True)
            await self._finish(runtime, approved, op, failed, ToolResult(text=""), CHANGED_MEANWHILE_RESULT)
            return
        self.log.info("approval.completed", request=body.id, tool=body.tool, failed=returned.error)

    async def _commit(
        self,
        step: Step,
        drafts: tuple[EntryDraft, ...],
        *,
        op: int | None = None,
        at: float | None = None,
        update: CursorUpdate | None = None,
        state_writes: tuple[StateWrite, ...] = (),
        wakeups: tuple[Wakeup, ...] = (),
        files: tuple[bytes, ...] = (),
    ) -> CommitResult:
        done = await self.gates.commit(
            Change(
                step=step,
                session=self.claim.session,
                at=self.gates.clock.now() if at is None else at,
                entries=drafts,
                claim=self.claim,
                op=op,
                cursor=update,
                state_writes=state_writes,
                wakeups=wakeups,
                blobs=files,
            )
        )
        if wakeups:
            self.wakeups.notify(self.claim.session)
        return done


_RESUME_BY_EFFECT: Final[Mapping[str, Literal["again", "probe"]]] = {
    ToolEffect.PURE: "again",
    ToolEffect.KEYED: "again",
    ToolEffect.PROBE: "probe",
}
"""How a call is continued by what a repeat would do. A call that is not in it is never repeated."""
