"""One table lists the built-in tools, which ones a config may name, and which ones return the agent's own words."""

from __future__ import annotations

from everhold.core.builtin_tools import BUILTIN_TOOLS, OWN_WORDS_TOOLS, SELECTABLE_TOOLS


def test_each_column_has_its_documented_tools() -> None:
    expected = "memory session_search attach send files delegate schedule skill shell web_fetch web_search"
    assert tuple(expected.split()) == SELECTABLE_TOOLS
    own = {"memory", "remember", "conclude", "send", "file_write", "file_edit", "delegate", "schedule", "skill"}
    assert own == OWN_WORDS_TOOLS


def test_a_tool_has_one_row_and_a_reason() -> None:
    names = [tool.name for tool in BUILTIN_TOOLS]
    assert len(names) == len(set(names))
    assert all(tool.selectable or tool.part_of in SELECTABLE_TOOLS for tool in BUILTIN_TOOLS)
