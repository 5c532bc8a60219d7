"""The policy decides by the reach of a call and by who asks, where and how: the default table, rules, foreign words."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everhold.core.builtin_tools import OWN_WORDS_TOOLS
from everhold.core.entries import (
    Attachment,
    ChatLocation,
    Entry,
    EntryBody,
    Heard,
    Returned,
    TextPiece,
    Thought,
    ToolCall,
    get_body_kind,
)
from everhold.core.policy import (
    DEFAULT_TABLE,
    CallJudgement,
    CallSubject,
    PolicyColumn,
    PolicyOutcome,
    PolicyRule,
    PolicyScope,
    ScopeOrigin,
    ScopePlace,
    ToolPolicy,
    ToolReach,
    does_pattern_fit,
    explain_judgement,
    find_column,
    find_scope_origin,
    has_foreign_words,
    is_simple_command,
    judge_call,
    list_own_words,
)
from everhold.core.roles import PersonRole

ALLOW, ASK, DENY = PolicyOutcome.ALLOW, PolicyOutcome.ASK, PolicyOutcome.DENY
EXPECTED = """
own     allow allow allow allow
public  allow allow allow deny
private allow ask   deny  deny
change  allow ask   deny  deny
outside ask   ask   deny  deny
"""


def make_scope(role: str = "owner", place: str = "dm", origin: str = "chat", **more: object) -> PolicyScope:
    return PolicyScope(
        agent="main",
        role=PersonRole[role.upper()],
        place=ScopePlace(place),
        origin=ScopeOrigin(origin),
        **more,  # type: ignore[arg-type]
    )


SCOPES = {
    PolicyColumn.OWNER_ALONE: [
        make_scope(place=place, origin=origin) for place in ("dm", "cli", "api") for origin in ("chat", "delegate")
    ],
    PolicyColumn.OWNER_ELSEWHERE: [
        *(make_scope(place="group", origin=origin) for origin in ("chat", "delegate")),
        *(make_scope(place=place, origin=origin) for place in ScopePlace for origin in ("schedule", "background")),
    ],
    PolicyColumn.PERSON_ALONE: [
        make_scope(role, place, origin)
        for role in ("member", "known")
        for place in ("dm", "cli", "api")
        for origin in ("chat", "delegate")
    ],
    PolicyColumn.EVERYBODY_ELSE: [
        *(make_scope("stranger", place, origin) for place in ScopePlace for origin in ScopeOrigin),
        *(
            make_scope(role.label, place, origin)
            for role in PersonRole
            for place in ScopePlace
            for origin in ("agent", "webhook")
        ),
        *(make_scope(role, "group", origin) for role in ("member", "known") for origin in ("chat", "delegate")),
        *(
            make_scope(role, place, origin)
            for role in ("member", "known")
            for place in ScopePlace
            for origin in ("schedule", "background")
        ),
    ],
}


@pytest.mark.parametrize("line", EXPECTED.strip().splitlines())
def test_the_default_table_cell_by_cell(line: str) -> None:
    reach, *outcomes = line.split()
    for column, outcome in zip(PolicyColumn, outcomes, strict=True):
        assert DEFAULT_TABLE[ToolReach(reach)][column].value == outcome
        for scope in SCOPES[column]:
            assert find_column(scope) is column, scope
            found = judge_call(CallSubject(tool="x", reach=ToolReach(reach)), scope, ToolPolicy())
            asks = outcome == "ask"
            assert found == CallJudgement(outcome=PolicyOutcome(outcome), because="default", can_remember=asks)


def test_every_scope_has_a_column_and_no_reach_means_outside() -> None:
    listed = {scope for scopes in SCOPES.values() for scope in scopes}
    every = {
        make_scope(role.label, place, origin) for role in PersonRole for place in ScopePlace for origin in ScopeOrigin
    }
    assert listed == every
    for origin in ("schedule", "background", "agent", "webhook"):
        assert find_column(make_scope(origin="delegate", caller=ScopeOrigin(origin))) is find_column(
            make_scope(origin=origin)
        ), "a sub-agent is in the column of the turn that gave it the task"
    assert CallSubject(tool="x").reach is ToolReach.OUTSIDE


# -- rules -------------------------------------------------------------------------------------------------------------


def rule(do: str, tool: str = "github_push", **more: object) -> PolicyRule:
    return PolicyRule(tool=tool, do=PolicyOutcome(do), **more)  # type: ignore[arg-type]


def judge(
    call: CallSubject, scope: PolicyScope, *rules: PolicyRule, after_foreign: PolicyOutcome = ASK
) -> CallJudgement:
    return judge_call(call, scope, ToolPolicy(rules=rules, after_foreign=after_foreign))


PUSH = CallSubject(tool="github_push")


@given(st.permutations([rule("allow"), rule("ask", tool="github_*"), rule("deny", tool="*_push")]))
def test_deny_beats_ask_beats_allow_in_any_order(rules: list[PolicyRule]) -> None:
    assert judge(PUSH, make_scope(), *rules).outcome is DENY
    without_deny = [one for one in rules if one.do is not DENY]
    assert judge(PUSH, make_scope(), *without_deny).outcome is ASK
    assert judge(PUSH, make_scope(), rule("allow")) == CallJudgement(outcome=ALLOW, because="config:1")


def test_a_rule_that_fits_replaces_the_default_in_both_directions() -> None:
    assert judge(PUSH, make_scope("stranger", "group"), rule("allow")).outcome is ALLOW
    own = CallSubject(tool="memory", reach=ToolReach.OWN)
    assert judge(own, make_scope(), rule("deny", tool="memory")).outcome is DENY


@pytest.mark.parametrize(
    "narrow, fits, fits_not",
    [
        ({"who": (PersonRole.OWNER,)}, make_scope(), make_scope("member")),
        ({"places": (ScopePlace.GROUP,)}, make_scope(place="group"), make_scope()),
        ({"origins": (ScopeOrigin.SCHEDULE,)}, make_scope(origin="schedule"), make_scope()),
        ({"agent": "main"}, make_scope(), PolicyScope(agent="coder", role=PersonRole.OWNER)),
    ],
)
def test_everything_that_a_rule_names_must_fit(
    narrow: dict[str, Any], fits: PolicyScope, fits_not: PolicyScope
) -> None:
    assert judge(PUSH, fits, rule("deny", **narrow)).because == "config:1"
    assert judge(PUSH, fits_not, rule("deny", **narrow)).because == "default"


@pytest.mark.parametrize("pattern", ["github_?ush", "github_[p]ush", "GITHUB_*", "github"])
def test_only_a_star_is_special_in_a_tool_name(pattern: str) -> None:
    assert judge(PUSH, make_scope(), rule("deny", tool=pattern)).because == "default"


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_a_pattern_fits_as_a_regular_expression_would(pattern: str, text: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None
    assert does_pattern_fit(pattern, text) is expected


# -- commands ----------------------------------------------------------------------------------------------------------


def run(command: str) -> CallSubject:
    return CallSubject(tool="shell", reach=ToolReach.CHANGE, command=command)


STATUS = rule("allow", tool="shell", command="git status*")
HIDDEN_COMMANDS = [
    "git status; rm -rf .",
    "git status && rm x",
    "git status || rm x",
    "git status | sh",
    "git status & rm x",
    "git status $(rm x)",
    "git status `rm x`",
    "git status > .bashrc",
    "git status < x",
    "git status\nrm x",
    "git status\rrm x",
    "git status ${IFS}x",
    'git status "$(rm x)"',
    "git status {a,b}",
    "git status (x)",
    "git status \\\nrm",
    "git status \x00 rm",
]


def test_an_allowed_command_is_one_simple_command() -> None:
    scope = make_scope(place="group")
    assert judge(run("git status --short 'a b'"), scope, STATUS).because == "config:1"
    assert judge(run("git stash"), scope, STATUS).because == "default"
    for command in HIDDEN_COMMANDS:
        assert not is_simple_command(command), command
        assert judge(run(command), scope, STATUS).outcome is ASK, command
    assert not is_simple_command("  ")


def test_a_denied_command_is_found_in_every_part() -> None:
    never = rule("deny", tool="shell", command="rm *")
    for command in ("rm x", " rm x", "ls; rm x", "ls && rm x", "ls | rm x", "echo $(rm x)", "echo `rm x`", "ls\nrm x"):
        assert judge(run(command), make_scope(), never).outcome is DENY, command
    assert judge(run("echo rm x"), make_scope(), never).because == "default"


def test_a_rule_with_a_command_is_about_no_other_tool() -> None:
    assert judge(PUSH, make_scope(), rule("allow", command="*")).because == "default"


# -- foreign words -----------------------------------------------------------------------------------------------------


def test_after_foreign_words_no_rule_allows_a_call_that_reaches_outside() -> None:
    scope = make_scope(is_foreign_shown=True)
    assert judge(PUSH, scope, rule("allow")) == CallJudgement(outcome=ASK, because="foreign")
    assert judge(PUSH, scope, rule("allow"), after_foreign=ALLOW).outcome is ALLOW
    assert judge(PUSH, scope, rule("deny")) == CallJudgement(outcome=DENY, because="config:1")
    assert judge(run("ls"), scope).outcome is ALLOW, "what stays on this machine is not asked about"


def test_an_address_that_the_person_did_not_write_may_carry_words_out() -> None:
    def fetch(url: str, **more: object) -> PolicyOutcome:
        call = CallSubject(tool="web_fetch", reach=ToolReach.PUBLIC, sends=url)
        return judge(call, make_scope("member", **more)).outcome  # type: ignore[arg-type]

    assert fetch("https://example.org/?q=secret") is ALLOW
    assert fetch("https://example.org/?q=secret", is_foreign_shown=True) is DENY
    own = ("read https://example.org/a please",)
    assert fetch("https://example.org/a", is_foreign_shown=True, own_words=own) is ALLOW
    assert fetch("https://example.org/a?q=secret", is_foreign_shown=True, own_words=own) is DENY
    assert fetch("", is_foreign_shown=True, own_words=own) is DENY


def entry(body: EntryBody, author: str = "person:fake:1") -> Entry:
    return Entry(
        session="s",
        seq=1,
        pos=1,
        kind=get_body_kind(body),
        op=None,
        author=author,
        at=0.0,
        version=1,
        body=body,
        digest=b"",
    )


def say(text: str = "hello", **more: object) -> Heard:
    return Heard(origin=ChatLocation(platform="fake"), text=text, **more)  # type: ignore[arg-type]


FOREIGN_MESSAGES = [
    entry(say(), "person:fake:2"),
    entry(say(bot=True)),
    entry(say(asks=False)),
    entry(say(attachments=(Attachment(blob="a" * 64),))),
    entry(say(pieces=(TextPiece(source="forwarded", by="fake:3", text="run it"),))),
    entry(say(pieces=(TextPiece(source="embedded", text="run it"),))),
]


def test_words_of_others_files_and_results_are_foreign() -> None:
    def is_foreign_shown(heard: list[Entry], steps: list[Entry]) -> bool:
        return has_foreign_words(heard, steps, ("fake:1",), OWN_WORDS_TOOLS)

    own = entry(say(pieces=(TextPiece(source="quoted", own=True, text="mine"), TextPiece(source="quoted", by="agent"))))
    assert not is_foreign_shown([own], [])
    for message in FOREIGN_MESSAGES:
        assert is_foreign_shown([own, message], []), message
    for tool, is_result_foreign in (("memory", False), ("web_fetch", True), ("mcp_x", True)):
        steps = [entry(Thought(calls=(ToolCall(id="1", tool=tool),))), entry(Returned(call="1", text="run it"))]
        assert is_foreign_shown([own], steps) is is_result_foreign
    assert is_foreign_shown([], [entry(Returned(call="unknown"))])


def test_the_least_trusted_message_decides_what_started_a_turn() -> None:
    chat, tick, bot = entry(say()), entry(say(scheduled=True)), entry(say(bot=True))
    assert find_scope_origin([chat]) is ScopeOrigin.CHAT
    assert find_scope_origin([chat, tick]) is ScopeOrigin.SCHEDULE
    assert find_scope_origin([tick, bot, chat]) is ScopeOrigin.AGENT
    assert list_own_words([chat, tick, bot, entry(say("aside", asks=False))]) == ("hello",)


# -- texts -------------------------------------------------------------------------------------------------------------


def test_a_refusal_names_the_tool_the_cause_and_the_remedy() -> None:
    asked = explain_judgement("github_push", CallJudgement(outcome=ASK, because="default"), make_scope(), ["ada"])
    assert "github_push was not run" in asked
    assert "nobody can be asked here" in asked
    assert "ada" in asked
    denied = explain_judgement("x", CallJudgement(outcome=DENY, because="config:2"), make_scope("member", "group"))
    assert "rule 2 of policy.rules" in denied
    assert "member in a group" in denied
