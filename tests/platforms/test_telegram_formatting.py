"""Markdown is rendered; text that is not clearly marked stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from everhold.core.message_split import count_units, split_text
from everhold.platforms.telegram.formatting import format_markdown


def seen(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the plain text, and each entity with the text that it covers, in Telegram's units."""
    plain, entities = format_markdown(text)
    raw = plain.encode("utf-16-le")
    cut = [raw[2 * it.offset : 2 * (it.offset + it.length)].decode("utf-16-le") for it in entities]
    return plain, [(str(it.type), part) for it, part in zip(entities, cut, strict=True)]


@pytest.mark.parametrize(
    "text, plain, marks",
    [
        ("plain", "plain", []),
        ("**bold** and *italic*", "bold and italic", [("bold", "bold"), ("italic", "italic")]),
        ("__so bold__ and _italic_", "so bold and italic", [("bold", "so bold"), ("italic", "italic")]),
        ("😀 **bold** 😀", "😀 bold 😀", [("bold", "bold")]),
        ("use `x = *y*`", "use x = *y*", [("code", "x = *y*")]),
        ("~~gone~~", "gone", [("strikethrough", "gone")]),
        ("[here](https://example.org/x)", "here", [("text_link", "here")]),
        ("**bold _and italic_**", "bold and italic", [("italic", "and italic"), ("bold", "bold and italic")]),
        ("# Title\ntext", "Title\ntext", [("bold", "Title")]),
        ("- one\n* two\n  + three", "• one\n• two\n  • three", []),
        ("x\n```python\na = 1\n\nb = `2`\n```\ny", "x\na = 1\n\nb = `2`\ny", [("pre", "a = 1\n\nb = `2`")]),
    ],
)  # fmt: skip
def test_marked_text_is_rendered(text: str, plain: str, marks: list[tuple[str, str]]) -> None:
    assert seen(text) == (plain, marks)


@pytest.mark.parametrize(
    "text",
    [
        "2 * 3 * 4", "snake_case_name", "a_b and c_d", "* ", "**", "****", "__", "``", "~~", "**not closed", "*neither",
        "`nor this", "[x](javascript:alert(1))", "[x](file:///etc/passwd)", "#hashtag", "```\nnot closed", "5*3*2",
        "-5 degrees", "__init__.py", "https://example.org/a_b_c",
    ],
)  # fmt: skip
def test_ambiguous_marks_stay(text: str) -> None:
    assert seen(text) == (text, [])


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab *_~`[]()#-\n😀h:/", max_size=60))
def test_entities_are_always_within_the_text(text: str) -> None:
    plain, entities = format_markdown(text)
    assert count_units(plain) <= count_units(text)
    assert bool(plain.strip()) == bool(text.strip())
    for entity in entities:
        assert entity.offset >= 0
        assert entity.length >= 1
        assert entity.offset + entity.length <= count_units(plain)


def test_a_divided_code_block_is_code_in_each_part() -> None:
    text = "So:\n```python\n" + "print('a line of it')\n" * 500 + "```\nDone."
    parts = split_text(text, 4096)
    assert len(parts) > 2
    for part in parts:
        (entity,) = format_markdown(part)[1]
        assert (entity.type, entity.language) == ("pre", "python")
