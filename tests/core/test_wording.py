"""Parts of sentences: a number and its noun."""

from __future__ import annotations

import pytest

from everhold.core.wording import describe_count


@pytest.mark.parametrize(
    "number, said", [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (12_345, "12,345 messages")]
)
def test_a_noun_agrees_with_its_number(number: int, said: str) -> None:
    assert describe_count(number, "message") == said


def test_an_irregular_plural_is_given() -> None:
    assert describe_count(2, "reply", "replies") == "2 replies"
