"""Decides whether a tool call runs, needs a person's approval, or is refused. One pure function, `judge_call`, decides.

What decides is the reach of the call, and who asks, where, and how. What a repeated call would do (its effect) does not
decide: a tool may act although a repeat is harmless.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from everhold.core.approvals import RULE_REASON, ApprovalTerms
from everhold.core.entries import Entry, Heard, Returned, Thought
from everhold.core.provenance import is_foreign
from everhold.core.roles import ChatPlace, PersonRole


class ToolReach(enum.StrEnum):
    """What a call touches. A tool that does not say it is `outside`."""

    OWN = "own"
    """This conversation, and what the people in it may know."""
    PUBLIC = "public"
    """It reads what everybody can read."""
    PRIVATE = "private"
    """It reads what is the owner's."""
    CHANGE = "change"
    """It changes something on this machine."""
    OUTSIDE = "outside"
    """It has effects elsewhere, or nothing is known about it."""


class PolicyOutcome(enum.StrEnum):
    """What happens to a call. The order of the members is that of their strength."""

    ALLOW = "allow"
    ASK = "ask"
    """It runs only after a person approved it."""
    DENY = "deny"


_STRENGTH: Final = {outcome: number for number, outcome in enumerate(PolicyOutcome)}


class ScopePlace(enum.StrEnum):
    """Where a turn answers. The values of `where` in a rule."""

    DIRECT = "dm"
    GROUP = "group"
    TERMINAL = "cli"
    API = "api"
    """The console and the HTTP API."""


class ScopeOrigin(enum.StrEnum):
    """What started a turn. The values of `via` in a rule."""

    CHAT = "chat"
    SCHEDULE = "schedule"
    BACKGROUND = "background"
    AGENT = "agent"
    """Another agent, or another bot."""
    WEBHOOK = "webhook"
    DELEGATE = "delegate"
    """A sub-agent, for a turn of another origin."""


class PolicyScope(Struct, frozen=True, kw_only=True):
    """Who asks for a call, where, and how."""

    agent: str
    role: PersonRole
    """The lowest role of all people whose words the turn takes."""
    place: ScopePlace = ScopePlace.DIRECT
    origin: ScopeOrigin = ScopeOrigin.CHAT
    caller: ScopeOrigin = ScopeOrigin.CHAT
    """Of a sub-agent: the origin of the turn that gave it the task."""
    is_foreign_shown: bool = False
    """The model was shown words that are nobody's who asks: results of tools, files, forwarded text, other senders."""
    own_words: tuple[str, ...] = ()
    """What the people who ask wrote in this turn, literally."""


class CallSubject(Struct, frozen=True, kw_only=True):
    """The call that is judged, as far as the policy looks at it."""

    tool: str
    reach: ToolReach = ToolReach.OUTSIDE
    command: str | None = None
    """Of a shell: what would run."""
    sends: str | None = None
    """Of a tool that reads from the network: the model's words that leave, such as the address."""


class PolicyRule(Struct, frozen=True, kw_only=True):
    """A rule of the configuration. Everything that it names must fit; what it does not name fits everything."""

    tool: str
    """A name, in which `*` stands for any characters."""
    do: PolicyOutcome
    who: tuple[PersonRole, ...] = ()
    places: tuple[ScopePlace, ...] = ()
    origins: tuple[ScopeOrigin, ...] = ()
    agent: str = ""
    command: str = ""
    """A shell command, in which `*` stands for any characters."""
    remember: bool = True
    """Of a rule that asks: whether the answer may become a rule."""


class ToolPolicy(Struct, frozen=True, kw_only=True):
    """The rules of a configuration."""

    rules: tuple[PolicyRule, ...] = ()
    after_foreign: PolicyOutcome = PolicyOutcome.ASK
    """What happens to a call that reaches outside after foreign words were shown, if a rule allows it."""
    approvals: ApprovalTerms = ApprovalTerms()
    """How a person is asked."""


class CallJudgement(Struct, frozen=True, kw_only=True):
    """What happens to a call, and why. It is recorded, and not made again when a turn resumes."""

    outcome: PolicyOutcome
    because: str
    """`default`, `config:N` for the Nth rule of the configuration, `rule:ID` for a remembered one, or `foreign`."""
    can_remember: bool = False
    """Of a call that asks: whether the answer may become a rule."""


# -- the default -------------------------------------------------------------------------------------------------------


class PolicyColumn(enum.StrEnum):
    """The columns of the default table."""

    OWNER_ALONE = "owner, alone"
    OWNER_ELSEWHERE = "owner in a group, owner's schedule or task"
    PERSON_ALONE = "member or known person, alone"
    EVERYBODY_ELSE = "everybody else, bots, agents and webhooks"


_A, _Q, _D = PolicyOutcome.ALLOW, PolicyOutcome.ASK, PolicyOutcome.DENY

DEFAULT_TABLE: Final[Mapping[ToolReach, Mapping[PolicyColumn, PolicyOutcome]]] = MappingProxyType(
    {
        reach: MappingProxyType(dict(zip(PolicyColumn, row, strict=True)))
        for reach, row in {
            ToolReach.OWN: (_A, _A, _A, _A),
            ToolReach.PUBLIC: (_A, _A, _A, _D),
            ToolReach.PRIVATE: (_A, _Q, _D, _D),
            ToolReach.CHANGE: (_A, _Q, _D, _D),
            ToolReach.OUTSIDE: (_Q, _Q, _D, _D),
        }.items()
    }
)
"""What happens to a call that no rule is about: reach -> column -> outcome."""


def find_column(scope: PolicyScope) -> PolicyColumn:
    """Return the column of the default table that a turn belongs to."""
    origin = scope.caller if scope.origin is ScopeOrigin.DELEGATE else scope.origin
    if origin in (ScopeOrigin.AGENT, ScopeOrigin.WEBHOOK):
        return PolicyColumn.EVERYBODY_ELSE
    is_alone = scope.place is not ScopePlace.GROUP and origin is ScopeOrigin.CHAT
    if scope.role is PersonRole.OWNER:
        return PolicyColumn.OWNER_ALONE if is_alone else PolicyColumn.OWNER_ELSEWHERE
    if scope.role >= PersonRole.KNOWN and is_alone:
        return PolicyColumn.PERSON_ALONE
    return PolicyColumn.EVERYBODY_ELSE


# -- the decision ------------------------------------------------------------------------------------------------------


def judge_call(call: CallSubject, scope: PolicyScope, policy: ToolPolicy, *, remembered: str = "") -> CallJudgement:
    """Return what happens to a call.

    Rules that fit replace the default table. All of them count: deny is stronger than ask, and ask is stronger than
    allow. `remembered` is the rule that a person's earlier answer made for exactly this call: it turns an ask into an
    allow, and nothing else. After foreign words no rule allows a call that reaches outside, unless the policy says so.
    """
    reach = find_effective_reach(call, scope)
    fitting = [(number, rule) for number, rule in enumerate(policy.rules, start=1) if _does_rule_fit(rule, call, scope)]
    if fitting:
        number, rule = max(fitting, key=lambda it: _STRENGTH[it[1].do])
        found = CallJudgement(outcome=rule.do, because=f"config:{number}")
    else:
        found = CallJudgement(outcome=DEFAULT_TABLE[reach][find_column(scope)], because="default")
    can_remember = all(rule.remember for _, rule in fitting)
    is_risky = reach is ToolReach.OUTSIDE and scope.is_foreign_shown and policy.after_foreign is not PolicyOutcome.ALLOW
    if found.outcome is PolicyOutcome.ASK and remembered and can_remember:
        found = CallJudgement(outcome=PolicyOutcome.ALLOW, because=f"{RULE_REASON}{remembered}")
    if is_risky and _STRENGTH[policy.after_foreign] > _STRENGTH[found.outcome]:
        return CallJudgement(outcome=policy.after_foreign, because="foreign")
    if found.outcome is PolicyOutcome.ASK:
        # A rule would not be used where foreign words are shown, so it is not offered there.
        return structs.replace(found, can_remember=can_remember and not is_risky)
    return found


def find_effective_reach(call: CallSubject, scope: PolicyScope) -> ToolReach:
    """Return the reach that counts. A public address can carry words out of the conversation, so once foreign words
    were shown it counts as outside, unless the people who ask wrote it themselves.
    """
    if call.reach is not ToolReach.PUBLIC or call.sends is None or not scope.is_foreign_shown:
        return call.reach
    is_theirs = bool(call.sends) and any(call.sends in words for words in scope.own_words)
    return ToolReach.PUBLIC if is_theirs else ToolReach.OUTSIDE


def _does_rule_fit(rule: PolicyRule, call: CallSubject, scope: PolicyScope) -> bool:
    return (
        does_pattern_fit(rule.tool, call.tool)
        and (not rule.who or scope.role in rule.who)
        and (not rule.places or scope.place in rule.places)
        and _does_origin_fit(rule, scope)
        and (not rule.agent or rule.agent == scope.agent)
        and (not rule.command or _does_command_fit(rule, call.command))
    )


def _does_origin_fit(rule: PolicyRule, scope: PolicyScope) -> bool:
    """Return whether a rule is about the origin of a turn. What a rule keeps from a turn it keeps from its sub-agents,
    too, and what it allows to a turn it does not allow to them.
    """
    if not rule.origins or scope.origin in rule.origins:
        return True
    is_delegate = scope.origin is ScopeOrigin.DELEGATE and rule.do is not PolicyOutcome.ALLOW
    return is_delegate and scope.caller in rule.origins


def _does_command_fit(rule: PolicyRule, command: str | None) -> bool:
    """Return whether a rule is about a command. A rule that allows is about one simple command only; a rule that asks
    or denies also fits if a part of the command fits, as far as that can be seen.
    """
    if command is None:
        return False
    if rule.do is PolicyOutcome.ALLOW:
        return is_simple_command(command) and does_pattern_fit(rule.command, command.strip())
    parts = (command, *_COMMAND_OPERATOR.split(command))
    return any(does_pattern_fit(rule.command, part.strip()) for part in parts)


_COMMAND_OPERATOR: Final = re.compile(r"[;&|\n\r(){}`]|\$\(")
_NOT_SIMPLE: Final = re.compile(r"[;&|<>`$(){}\\\x00-\x08\x0a-\x1f\x7f]")


def is_simple_command(command: str) -> bool:
    """Return whether a text is one command without operators, substitution, redirection or a line break, also inside
    quotes.
    """
    return bool(command.strip()) and not _NOT_SIMPLE.search(command)


def names_tools(policy: ToolPolicy, prefix: str) -> bool:
    """Return whether a rule may be about a tool whose name begins with `prefix`."""
    heads = (rule.tool.partition("*")[0] for rule in policy.rules)
    return any(head.startswith(prefix) or prefix.startswith(head) for head in heads)


def does_pattern_fit(pattern: str, text: str) -> bool:
    """Return whether a text fits a pattern in which only `*` is special. The time is linear in the text."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if not (text.startswith(first) and text.endswith(last) and len(text) >= len(first) + len(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


# -- the scope of a turn -----------------------------------------------------------------------------------------------


def find_scope_place(platform: str, place: ChatPlace) -> ScopePlace:
    """Return where a turn answers, by the platform and the kind of chat."""
    if place is not ChatPlace.DIRECT:
        return ScopePlace.GROUP
    return {"terminal": ScopePlace.TERMINAL, "http": ScopePlace.API}.get(platform, ScopePlace.DIRECT)


def find_scope_origin(heard: Iterable[Entry]) -> ScopeOrigin:
    """Return what started a turn that takes these messages: the least trusted of them decides."""
    bodies = [entry.body for entry in heard if isinstance(entry.body, Heard)]
    # A result, and what became of a request, are heard with the rights of the turn that asked.
    origins = {body.delegated for body in bodies}
    origins |= {body.approval.origin for body in bodies if body.approval is not None}
    if any(body.bot for body in bodies) or ScopeOrigin.AGENT in origins:
        return ScopeOrigin.AGENT
    if any(body.hook for body in bodies) or ScopeOrigin.WEBHOOK in origins:
        return ScopeOrigin.WEBHOOK
    is_scheduled = any(body.scheduled for body in bodies) or ScopeOrigin.SCHEDULE in origins
    return ScopeOrigin.SCHEDULE if is_scheduled else ScopeOrigin.CHAT


def list_own_words(heard: Iterable[Entry]) -> tuple[str, ...]:
    """Return what the people who ask wrote, without forwarded, quoted and embedded text."""
    return tuple(
        entry.body.text
        for entry in heard
        if isinstance(entry.body, Heard)
        and entry.body.asks
        and not (entry.body.bot or entry.body.is_automatic or entry.body.approval)
    )


def has_foreign_words(
    heard: Iterable[Entry], steps: Iterable[Entry], speakers: Collection[str], own_words_tools: Collection[str]
) -> bool:
    """Return whether entries of a turn show words that are nobody's of `speakers` (identities) and not the agent's:
    messages of others and of bots, observed chatter, files, forwarded text, and results of tools except
    `own_words_tools`.
    """
    for entry in heard:
        if not isinstance(entry.body, Heard):
            continue
        body = entry.body
        is_theirs = body.asks and entry.author.removeprefix("person:") in speakers
        if body.bot or body.hook or body.delegated or body.approval or body.attachments or not is_theirs:
            return True
        if any(map(is_foreign, body.pieces)):
            return True
    tools: dict[str, str] = {}
    for entry in steps:
        if isinstance(entry.body, Thought):
            tools = {call.id: call.tool for call in entry.body.calls}
        elif isinstance(entry.body, Returned) and tools.get(entry.body.call, "") not in own_words_tools:
            return True
    return False


# -- texts -------------------------------------------------------------------------------------------------------------


def explain_judgement(tool: str, judgement: CallJudgement, scope: PolicyScope, names: Sequence[str] = ()) -> str:
    """Return what the model is told about a call that does not run. `names` are the owners whom to ask."""
    who = f"{scope.role.label} in {_PLACE_NAMES[scope.place]}"
    owner = f"An owner ({', '.join(names)})" if names else "The owner of this gateway"
    if judgement.outcome is PolicyOutcome.DENY:
        why = f"rule {judgement.because.partition(':')[2]} of policy.rules" if ":" in judgement.because else "default"
        return (
            f"{tool} was not run: the policy ({why}) denies it to a turn of a {who}. "
            "Do not try it again in this turn. Say so if it matters; an owner can change `policy.rules`."
        )
    return (
        f"{tool} was not run: a person would have to approve it, and nobody can be asked here, because this works "
        f"beside the conversation. Say which call it needs and with which arguments. {owner} can allow it with a rule "
        "in `policy.rules` of config.yaml, or ask for it in the conversation."
    )


_PLACE_NAMES: Final = {
    ScopePlace.DIRECT: "a direct chat",
    ScopePlace.GROUP: "a group",
    ScopePlace.TERMINAL: "a terminal",
    ScopePlace.API: "the console or the API",
}
