"""Memory files read as entries, and written as the same."""

from __future__ import annotations

from hypothesis import example, given, strategies as st

from everhold.core import memory_files


def test_separator_lines_split_a_file_into_entries() -> None:
    assert memory_files.parse_memory_file("likes tea\n§\ntwo\nlines\n§\n\n§\nlikes tea\n") == [
        "likes tea",
        "two\nlines",
    ]


def test_lists_and_paragraphs_split_a_file_into_entries() -> None:
    text = (
        "# Facts\n\n- likes tea\n  and milk\n* has a cat\n1. lives in Rome\n\nA paragraph\nof two lines.\n## More\nlast"
    )
    assert memory_files.parse_memory_file(text) == [
        "likes tea and milk",
        "has a cat",
        "lives in Rome",
        "A paragraph of two lines.",
        "last",
    ]


@example(["- a\n- §"])
@given(st.lists(st.text(alphabet="ab §\n-", min_size=1, max_size=12), max_size=5))
def test_a_written_file_is_parsed_into_the_same_entries(texts: list[str]) -> None:
    entries = memory_files.parse_memory_file(memory_files.render_memory_file(texts))
    again = memory_files.parse_memory_file(memory_files.render_memory_file(entries))
    assert len(entries) < 2 or again == entries


def test_the_same_entry_of_the_same_memory_session_has_one_key() -> None:
    one = memory_files.build_file_entry_key(agent="main", names=("a", "b"), file="USER.md", text="tea")
    assert one == memory_files.build_file_entry_key(agent="main", names=("b", "a"), file="USER.md", text="tea")
    others = [("other", ("a", "b"), "USER.md"), ("main", ("a",), "USER.md"), ("main", ("a", "b"), "MEMORY.md")]
    assert all(memory_files.build_file_entry_key(agent=a, names=n, file=f, text="tea") != one for a, n, f in others)
