"""Makes the request of a call that needs a person's permission, for the turn that wants to call it. Nothing here
commits: the turn commits the request together with the result that the model gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, structs

from everhold.core import approvals
from everhold.core.approvals import ApprovalRecord, ApprovalState, ApprovalTerms
from everhold.core.builtin_tools import DELEGATE_TOOL
from everhold.core.consumers import APPROVALS
from everhold.core.entries import ApprovalRequested, ChatLocation, Entry, Heard, Notified, ToolCall
from everhold.core.message_split import split_text
from everhold.core.policy import PolicyScope, ScopeOrigin
from everhold.core.roles import PersonRole
from everhold.core.schedule import format_local_time
from everhold.engine.agent_runtime import AgentRuntime
from everhold.engine.approvals.records import list_approvals, list_rules
from everhold.engine.effects import explain_invalid_arguments
from everhold.engine.gates import Gates
from everhold.engine.tool_policy import CallVerdict, find_tool_reach, judge_tool_call
from everhold.errors import EverholdError
from everhold.ports.store import RetryDelay, StateNamespace, StateWrite, Wakeup
from everhold.ports.tool import SupportsBinding, ToolContext, ToolEffect

BIND_SECONDS: Final = 20.0
"""How long a tool may take to say what a call depends on."""


class CallIdentity(Struct, frozen=True, kw_only=True):
    """What identifies a call for an approval."""

    effect: str
    reach: str
    spec: str
    bound: str
    digest: str


class ApprovalPlan(Struct, frozen=True, kw_only=True):
    """What the model is told instead of a result, and what is committed with it if a request is made."""

    text: str = ""
    rule: str = ""
    """Why the call runs, if a remembered rule allows it; nothing else is set then."""
    request: ApprovalRequested | None = None
    notices: tuple[Notified, ...] = ()
    """They show the request to people."""
    state_write: StateWrite | None = None
    wakeup: Wakeup | None = None


async def identify_call(gates: Gates, runtime: AgentRuntime, call: ToolCall, context: ToolContext) -> CallIdentity:
    """Return what identifies a call now. It changes with the tool's description, and with what the tool says that the
    call depends on. Raises what the tool raises.
    """
    tool = runtime.tools[call.tool]
    effect, reach = ToolEffect(tool.effect).value, find_tool_reach(tool, call).value
    spec, bound = approvals.compute_spec_digest(tool.spec), ""
    if isinstance(tool, SupportsBinding):
        text = await gates.call(
            f"what {call.tool} depends on", lambda: tool.bind(dict(call.arguments), context), deadline=BIND_SECONDS
        )
        bound = approvals.compute_spec_digest(text)
    digest = approvals.compute_call_digest(
        agent=runtime.agent, call=call, effect=effect, reach=reach, spec=spec, bound=bound
    )
    return CallIdentity(effect=effect, reach=reach, spec=spec, bound=bound, digest=digest)


def get_terms(runtime: AgentRuntime) -> ApprovalTerms:
    """Return how requests are made now."""
    policy = runtime.get_policy()
    return ApprovalTerms() if policy is None else policy.approvals


async def _find_covering_rule(gates: Gates, call: ToolCall, identity: CallIdentity, scope: PolicyScope) -> str:
    """Return the remembered rule that covers a call; empty if none does."""
    rules = {it.id: it.rule for it in await list_rules(gates.store) if it.rule.tool == call.tool}
    if not rules:
        return ""
    return approvals.find_rule(
        rules,
        digest=identity.digest,
        role=int(scope.role),
        place=scope.place.value,
        via=scope.origin.value,
        now=await gates.store.get_time(),
    )


async def plan_request(
    gates: Gates,
    runtime: AgentRuntime,
    call: ToolCall,
    verdict: CallVerdict,
    scope: PolicyScope,
    context: ToolContext,
    *,
    heard: Iterable[Entry],
) -> ApprovalPlan:
    """Return what becomes of a call that needs a person's permission: a remembered rule allows it, a request is made,
    or it is refused. `heard` are the messages that the turn answers;
    `context.key` names the call once and for all.
    """
    session = context.session
    if (written := call.unparsed_arguments) is not None:
        return ApprovalPlan(text=explain_invalid_arguments(call.tool, written))  # it would never run
    asking = [it for it in heard if isinstance(it.body, Heard) and it.body.asks]
    if not asking:
        return ApprovalPlan(text=verdict.refusal)  # what asked was erased
    if call.tool == DELEGATE_TOOL:  # the task would have to wait with the turn that gives it
        return ApprovalPlan(text=f"{call.tool} was not run: a person cannot approve it. Do the work in this turn.")
    try:
        identity = await identify_call(gates, runtime, call, context)
    except EverholdError as error:
        return ApprovalPlan(text=f"{call.tool} was not run: {error}")
    if rule := await _find_covering_rule(gates, call, identity, scope):
        verdict = judge_tool_call(runtime, call, scope, (), remembered=rule)
        if not verdict.refusal:
            return ApprovalPlan(rule=verdict.because)
    terms = get_terms(runtime)
    now = await gates.store.get_time()
    if refusal := await _find_obstacle(gates, call, identity, terms, session=session, now=now):
        return ApprovalPlan(text=refusal)
    body, author = asking[-1].body, asking[-1].author
    assert isinstance(body, Heard)
    request = ApprovalRequested(
        id=await _choose_id(gates, context.key),
        call=call.id,
        tool=call.tool,
        agent=runtime.agent,
        effect=identity.effect,
        reach=identity.reach,
        digest=identity.digest,
        spec=identity.spec,
        bound=identity.bound,
        because=verdict.because,
        expires=now + terms.expire_seconds,
        approvers=terms.approvers,
        remember=verdict.can_remember,
        author=author,
        speaker=body.speaker,
        origin=body.origin,
        stamp=body.stamp,
        role=scope.role,
        place=scope.place.value,
        via=scope.origin.value,
        foreign=scope.is_foreign_shown,
        hops=context.hops,
    )
    record = ApprovalRecord(
        session=session,
        digest=identity.digest,
        agent=runtime.agent,
        tool=call.tool,
        at=now,
        until=request.expires,
    )
    text = approvals.render_request(request, call, until=format_local_time(request.expires, runtime.zone))
    return ApprovalPlan(
        text=approvals.WAITING_TEXT.format(tool=call.tool, id=request.id),
        request=request,
        notices=tuple(
            _build_notice(runtime, request, text, to=to)
            for to in _list_places(
                request, terms, is_asked_by_owner=scope.role is PersonRole.OWNER and scope.origin is ScopeOrigin.CHAT
            )
        ),
        state_write=StateWrite(
            namespace=StateNamespace.APPROVAL, key=request.id, value=approvals.encode_record(record), version=0
        ),
        wakeup=Wakeup(consumer=APPROVALS, wait=RetryDelay(seconds=terms.expire_seconds)),
    )


def _list_places(request: ApprovalRequested, terms: ApprovalTerms, *, is_asked_by_owner: bool) -> list[ChatLocation]:
    """Return where a request is shown: in the chat that asks, and where the configuration says unless an owner asks."""
    assert request.origin is not None
    here = structs.replace(request.origin, message="")
    others = () if is_asked_by_owner else terms.to
    return [request.origin, *(it for it in others if it != here)]


def _build_notice(runtime: AgentRuntime, request: ApprovalRequested, text: str, *, to: ChatLocation) -> Notified:
    return Notified(
        text=text,
        about=approvals.APPROVAL_NOTICE,
        to=to,
        parts=split_text(text, runtime.text_limit(to)),
        choices=approvals.list_choices(request),
    )


async def _find_obstacle(
    gates: Gates, call: ToolCall, identity: CallIdentity, terms: ApprovalTerms, *, session: str, now: float
) -> str:
    """Return why no request is made for a call; empty if one is."""
    known = await list_approvals(gates.store, session=session)
    for it in known:
        if it.record.digest != identity.digest:
            continue
        if it.record.state is not ApprovalState.DENIED:
            return approvals.JOINED_TEXT.format(id=it.id)
        if now < it.record.until:
            return approvals.DENIED_LATELY_TEXT.format(id=it.id)
    count = sum(it.record.state is not ApprovalState.DENIED for it in known)
    if count >= terms.most_pending:
        return approvals.TOO_MANY_TEXT.format(count=count)
    chars = len(approvals.render_arguments(call.arguments))
    if chars > approvals.MAX_SHOWN_CHARS:
        return approvals.TOO_LONG_TEXT.format(tool=call.tool, count=chars, most=approvals.MAX_SHOWN_CHARS)
    return ""


async def _choose_id(gates: Gates, key: str) -> str:
    """Return an id that no request ever had."""
    attempt = 0
    while await gates.store.find_entry_place(approvals.request_key(id := approvals.make_approval_id(key, attempt))):
        attempt += 1
    return id
