"""Judges the tool calls of turns and tasks by the policy in force. It collects what `core/policy.py` decides by."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from everhold.core.builtin_tools import OWN_WORDS_TOOLS, find_builtin_tool
from everhold.core.context import SessionContext
from everhold.core.entries import ChatLocation, Entry, TaskDelegation, TaskRequested, ToolCall
from everhold.core.people import PERSON_MEMBER
from everhold.core.policy import (
    CallJudgement,
    CallSubject,
    PolicyOutcome,
    PolicyScope,
    ScopeOrigin,
    ScopePlace,
    ToolReach,
    explain_judgement,
    find_scope_origin,
    find_scope_place,
    has_foreign_words,
    judge_call,
    list_own_words,
)
from everhold.core.recall import RecallRecord
from everhold.core.roles import PersonRole
from everhold.engine.agent_runtime import AgentRuntime
from everhold.engine.effects import call_plugin
from everhold.engine.roles import TurnRights
from everhold.errors import EverholdError
from everhold.ports.tool import Tool, get_reach


class CallVerdict(Struct, frozen=True, kw_only=True):
    """What the policy says about a call."""

    because: str = ""
    """Why it runs; recorded when it starts."""
    refusal: str = ""
    """What the model is told instead of a result; empty if the call runs."""
    asks: bool = False
    """A person has to approve it. Where nobody can be asked, `refusal` says so."""
    can_remember: bool = False
    """Whether the answer may become a rule."""


NO_POLICY_VERDICT = CallVerdict()


def judge_tool_call(
    runtime: AgentRuntime, call: ToolCall, scope: PolicyScope, owners: Collection[str], *, remembered: str = ""
) -> CallVerdict:
    """Return what the policy of an agent says about a call. `remembered` is the rule that covers exactly this call."""
    policy = runtime.get_policy()
    if policy is None or call.tool not in runtime.tools:
        return NO_POLICY_VERDICT
    judgement: CallJudgement = judge_call(describe_call(runtime, call), scope, policy, remembered=remembered)
    if judgement.outcome is PolicyOutcome.ALLOW:
        return CallVerdict(because=judgement.because)
    return CallVerdict(
        because=judgement.because,
        refusal=explain_judgement(call.tool, judgement, scope, sorted(owners)),
        asks=judgement.outcome is PolicyOutcome.ASK,
        can_remember=judgement.can_remember,
    )


def describe_call(runtime: AgentRuntime, call: ToolCall) -> CallSubject:
    """Return a call as far as the policy looks at it."""
    builtin = find_builtin_tool(call.tool)
    return CallSubject(
        tool=call.tool,
        reach=find_tool_reach(runtime.tools[call.tool], call),
        command=_get_text(call, builtin.command) if builtin is not None and builtin.command else None,
        sends=_get_text(call, builtin.sends) if builtin is not None and builtin.sends else None,
    )


def find_tool_reach(tool: Tool, call: ToolCall) -> ToolReach:
    try:
        return call_plugin(f"reach of {call.tool}", lambda: get_reach(tool, dict(call.arguments)))
    except EverholdError:  # what a tool fails to say is not trusted
        return ToolReach.OUTSIDE


def _get_text(call: ToolCall, argument: str) -> str:
    value = call.arguments.get(argument)
    return value if isinstance(value, str) else ""


def build_turn_scope(
    runtime: AgentRuntime,
    rights: TurnRights,
    origin: ChatLocation | None,
    *,
    heard: Collection[Entry],
    steps: Iterable[Entry],
    context: SessionContext,
    recalled: RecallRecord | None,
) -> PolicyScope:
    """Return who asks for the calls of a turn, and what the model was shown."""
    platform = origin.platform if origin is not None else ""
    is_shown = has_foreign_words(heard, steps, rights.speakers, OWN_WORDS_TOOLS)
    return PolicyScope(
        agent=runtime.agent,
        role=find_policy_role(runtime, rights.role, rights.speakers),
        place=find_scope_place(platform, rights.place),
        origin=find_scope_origin(heard),
        is_foreign_shown=is_shown
        or is_context_foreign(context, rights.speakers)
        or is_recall_foreign(recalled, rights.speakers),
        own_words=list_own_words(heard),
    )


def find_policy_role(runtime: AgentRuntime, role: PersonRole, speakers: Collection[str]) -> PersonRole:
    """Return the role that the policy looks at. An operator of this gateway is an owner to it."""
    return PersonRole.OWNER if speakers and all(map(runtime.is_operator, speakers)) else role


def is_context_foreign(context: SessionContext, speakers: Collection[str]) -> bool:
    """Return whether an earlier part of the conversation shows words of others. A summary may, so it counts as such,
    and so does what people pinned.
    """
    if context.compression is not None or context.pins:
        return True
    return any(has_foreign_words(turn.heard, turn.steps, speakers, OWN_WORDS_TOOLS) for turn in context.turns)


def is_recall_foreign(recalled: RecallRecord | None, speakers: Collection[str]) -> bool:
    """Return whether a memory showed words that do not come from `speakers` or this agent."""
    shown = recalled.shown if recalled is not None else ()
    return any(
        one.origin
        or not (one.session and one.seq)
        or (one.kind != "reply" and one.person.removeprefix(PERSON_MEMBER) not in speakers)
        for one in shown
    )


def build_delegate_scope(
    runtime: AgentRuntime, role: PersonRole, task: TaskRequested, delegation: TaskDelegation, *, steps: Iterable[Entry]
) -> PolicyScope:
    """Return who asks for the calls of a sub-agent: whoever asked the turn that gave it the task."""
    person = task.stamp.person
    return PolicyScope(
        agent=runtime.agent,
        role=find_policy_role(runtime, role, (person,) if person else ()),
        place=ScopePlace(delegation.place),
        origin=ScopeOrigin.DELEGATE,
        caller=ScopeOrigin(delegation.origin),
        is_foreign_shown=delegation.foreign or has_foreign_words((), steps, (), OWN_WORDS_TOOLS),
    )


def build_task_scope(
    runtime: AgentRuntime, role: PersonRole, person: str, *, text: str, context: SessionContext, used_tools: bool
) -> PolicyScope:
    """Return who asks for the calls of a task that runs beside the conversation."""
    return PolicyScope(
        agent=runtime.agent,
        role=find_policy_role(runtime, role, (person,)),
        origin=ScopeOrigin.BACKGROUND,
        is_foreign_shown=used_tools or is_context_foreign(context, (person,)),
        own_words=(text,),
    )
