"""The tables of roles say what PEOPLE.md promises, and a role follows from the lists of the configuration."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from everhold.assembly.agents import ToolCollection
from everhold.config import parse_settings
from everhold.config.display import show_settings
from everhold.core.roles import (
    COMMAND_ROLES,
    TOOL_ROLES,
    ChatPlace,
    PersonRole,
    RoleCell,
    RoleRow,
    SenderFacts,
    ToolAccess,
    ToolRule,
    compute_role,
    explain_refusal,
    find_lowest_role,
    list_role_refusals,
    lower_role,
)
from everhold.ports.tool import ToolEffect
from everhold.testing.fakes import FakeTool

LETTERS = {PersonRole.STRANGER: "S", PersonRole.KNOWN: "K", PersonRole.MEMBER: "M", PersonRole.OWNER: "O", None: "-"}
EXPECTED = """
help                M S S
whoami              M S S
status              M S S
halt                M S S
queue               M S S
steer               M S S
wake                M K K
stop                M S S/M
new                 M S O
title               M S O
title --memory      M O O
undo                M O O
retry               M O O
compress            M O O
pin                 M M M/O
unpin               M M M/O
pins                M S S
model               M O O
sessions            M S S
resume              M O O
branch              M O O
memory              M S S
memory why          M S S
memory search       M S S
memory note         M S K
memory forget       M S/O S/O
background          M M M
schedule            M M M
schedule make       M O O
schedule remove     M O O
usage               M S S
approvals           M S S
approve             M S S
deny                M S S
link                M - -
"""
EXPECTED_TOOLS = """
read    M S S
note    M K~ K~
change  M M/O M/O
act     M M M
"""


def spell(cell: RoleCell) -> str:
    return LETTERS[cell.role] + (f"/{LETTERS[cell.others]}" if cell.others is not None else "") + "~" * bool(cell.below)


def spell_table(rows: dict[str, RoleRow]) -> dict[str, list[str]]:
    return {name: [spell(row[place]) for place in ChatPlace] for name, row in rows.items()}


def parse_table(text: str) -> dict[str, list[str]]:
    lines = [line.split() for line in text.strip().splitlines()]
    return {" ".join(words[:-3]): words[-3:] for words in lines}


def test_the_table_of_commands_is_the_one_that_was_decided() -> None:
    assert spell_table(dict(COMMAND_ROLES)) == parse_table(EXPECTED)


def test_the_table_of_tools_is_the_one_that_was_decided() -> None:
    assert spell_table({str(access): row for access, row in TOOL_ROLES.items()}) == parse_table(EXPECTED_TOOLS)


def role(**more: Any) -> str | None:
    lists = {name: more.pop(name, ()) for name in ("owners", "direct", "group")}
    found = compute_role(SenderFacts(identity="p:1", **more), **lists)
    return None if found is None else found.label


@pytest.mark.parametrize(
    "given_, expected",
    [
        ({}, None),
        ({"is_direct": True}, None),
        ({"is_direct": True, "is_proven": True, "label": "ada"}, None),
        ({"is_direct": True, "direct": ["p:1"]}, "member"),
        ({"is_direct": True, "direct": ["ada"], "label": "ada"}, "member"),
        ({"is_direct": True, "direct": ["ada"]}, None),
        ({"is_direct": True, "direct": ["1", "p:", "P:1"]}, None),
        ({"is_direct": True, "direct": ["*"]}, "member"),
        ({"is_direct": True, "is_paired": True}, "member"),
        ({"is_direct": True, "owners": ["ada"], "label": "ada"}, "owner"),
        ({"is_direct": True, "owners": ["p:1"]}, None),
        ({"direct": ["p:1"]}, None),
        ({"is_paired": True}, None),
        ({"group": ["p:1"]}, "member"),
        ({"group": ["ada"], "label": "ada"}, "member"),
        ({"group": ["*"]}, "stranger"),
        ({"group": ["*"], "direct": ["*"]}, "stranger"),
        ({"group": ["*"], "is_proven": True}, "known"),
        ({"group": ["*"], "is_paired": True}, "member"),
        ({"group": ["*"], "direct": ["p:1"]}, "member"),
        ({"group": ["*", "p:1"]}, "member"),
        ({"group": ["*"], "owners": ["ada"], "label": "ada"}, "owner"),
        ({"owners": ["ada"], "label": "ada"}, "owner"),
        ({"owners": ["ada"]}, None),
    ],
)
def test_a_role_follows_from_the_lists(given_: dict[str, Any], expected: str | None) -> None:
    assert role(**given_) == expected


_LISTS = st.lists(st.sampled_from(["*", "p:1", "p:2", "ada", "bob"]), max_size=3)


@given(
    facts=st.builds(
        SenderFacts,
        identity=st.just("p:1"),
        label=st.sampled_from(["", "ada"]),
        is_proven=st.booleans(),
        is_paired=st.booleans(),
        is_direct=st.booleans(),
    ),
    owners=_LISTS,
    direct=_LISTS,
    group=_LISTS,
)
def test_nobody_below_member_is_heard_in_a_direct_chat(
    facts: SenderFacts, owners: list[str], direct: list[str], group: list[str]
) -> None:
    found = compute_role(facts, owners=owners, direct=direct, group=group)
    if facts.is_direct and found is not None:
        assert found >= PersonRole.MEMBER
    if found is PersonRole.OWNER:
        assert facts.label in owners
    assert found is None or "p:1" in (*direct, *group) or facts.label or facts.is_paired or "*" in (*direct, *group)


def test_the_lower_of_two_roles_counts() -> None:
    assert lower_role(PersonRole.OWNER, PersonRole.MEMBER) is PersonRole.MEMBER
    assert lower_role(PersonRole.MEMBER, PersonRole.OWNER) is PersonRole.MEMBER, "a role given later does not count"
    assert lower_role(PersonRole.OWNER, None) is None
    assert find_lowest_role([PersonRole.OWNER, PersonRole.KNOWN]) is PersonRole.KNOWN
    assert find_lowest_role([PersonRole.OWNER, None]) is PersonRole.STRANGER


def test_a_configured_need_denies_and_never_allows() -> None:
    shared = ChatPlace.SHARED
    assert ToolRule(ToolAccess.ACT, PersonRole.STRANGER).find_needed(PersonRole.STRANGER, shared) is PersonRole.MEMBER
    assert ToolRule(ToolAccess.ACT, PersonRole.OWNER).find_needed(PersonRole.MEMBER, shared) is PersonRole.OWNER
    assert ToolRule(ToolAccess.READ, PersonRole.KNOWN).find_needed(PersonRole.STRANGER, shared) is PersonRole.KNOWN
    assert ToolRule(ToolAccess.READ).find_needed(PersonRole.STRANGER, shared) is None
    refused = list_role_refusals(
        {"files_read": ToolRule(needs=PersonRole.OWNER), "search": ToolRule(ToolAccess.READ)}, PersonRole.MEMBER, shared
    )
    assert list(refused) == ["files_read"]
    assert "needs the role owner" in refused["files_read"]
    assert "is member" in refused["files_read"]


def test_a_refusal_says_what_is_missing_and_whom_to_ask() -> None:
    text = explain_refusal(
        "/undo", needed=PersonRole.OWNER, role=PersonRole.KNOWN, place=ChatPlace.SHARED, owners=("zoe", "ada")
    )
    assert text == (
        "/undo needs the role owner in this group. Your role here is known. Ask an owner (ada, zoe) to do it."
    )
    alone = explain_refusal("/new", needed=PersonRole.MEMBER, role=None, place=ChatPlace.DIRECT, owners=())
    assert alone.startswith("/new needs the role member in this chat. You may no longer speak here. Ask the operator")


def test_a_need_of_the_configuration_applies_to_all_tools_that_its_name_stands_for() -> None:
    config = """
agents: {main: {tools: [memory, {name: "mcp:files", needs: owner}, {name: dice}]}}
mcp: {files: {url: "http://127.0.0.1:1"}}
"""
    agent = parse_settings(config).get_agent()
    assert agent.tools == ("memory", "mcp:files", "dice")
    found = ToolCollection(agent.tool_needs)
    found.add("memory", {"memory": FakeTool("memory", ToolEffect.PURE)})
    read, write = FakeTool("files_read", ToolEffect.PURE), FakeTool("files_write", ToolEffect.ONCE)
    found.add("mcp:files", {"files_read": read, "files_write": write}, least=PersonRole.MEMBER)
    found.add("dice", {"dice": FakeTool("dice", ToolEffect.PURE)}, least=PersonRole.MEMBER)
    member, owner, stranger = PersonRole.MEMBER, PersonRole.OWNER, PersonRole.STRANGER
    assert found.needs == {"memory": stranger, "files_read": owner, "files_write": owner, "dice": member}


def test_the_shown_configuration_keeps_the_needs_of_tools() -> None:
    settings = parse_settings("agents: {main: {tools: [memory, {name: attach, needs: owner}]}}")
    shown = show_settings(settings)["agents"]["main"]["tools"]
    assert shown == ["memory", {"name": "attach", "needs": "owner"}]
