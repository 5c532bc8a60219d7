"""One table says which tools ship with everhold, which of them a config may name, and whose words they return."""

from __future__ import annotations

from everhold.core.builtin_tools import BUILTIN_TOOLS, OWN_WORDS_TOOLS, SELECTABLE_TOOLS


def test_each_column_is_what_it_was_when_it_was_a_list_of_its_own() -> None:
    assert SELECTABLE_TOOLS == ("memory", "session_search", "attach", "send")
    assert {"memory", "remember", "conclude", "send"} == OWN_WORDS_TOOLS


def test_a_tool_has_one_row_and_a_reason_to_be_there() -> None:
    names = [tool.name for tool in BUILTIN_TOOLS]
    assert len(names) == len(set(names))
    assert all(tool.selectable or tool.own_words for tool in BUILTIN_TOOLS)
