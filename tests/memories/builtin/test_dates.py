"""Dates in questions, in several languages, and what only resembles one."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from everhold.memories.builtin.dates import read_question

NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC).timestamp()


def list_days(text: str) -> list[tuple[date, date]]:
    """Return the first and the last day of each range that a question names."""
    return [
        (
            datetime.fromtimestamp(one.start, UTC).date(),
            (datetime.fromtimestamp(one.end, UTC) - timedelta(days=1)).date(),
        )
        for one in read_question(text, now=NOW).ranges
    ]


@pytest.mark.parametrize(
    "text, first, last",
    [
        ("what was said on 3 of march 2025?", date(2025, 3, 3), date(2025, 3, 3)),
        ("what was said on March 3rd, 2025?", date(2025, 3, 3), date(2025, 3, 3)),
        ("room 12 on Oct. 5 2024", date(2024, 10, 5), date(2024, 10, 5)),
        ("el 3 de Marzo de 2025", date(2025, 3, 3), date(2025, 3, 3)),
        ("im Februar 2024", date(2024, 2, 1), date(2024, 2, 29)),
        ("three rooms 4 may 2024", date(2024, 5, 4), date(2024, 5, 4)),
        ("जनवरी 2025 में", date(2025, 1, 1), date(2025, 1, 31)),
        ("3 फ़रवरी 2025", date(2025, 2, 3), date(2025, 2, 3)),
        ("two days ago", date(2026, 11, 16), date(2026, 11, 16)),
        ("all of two weeks ago", date(2026, 11, 2), date(2026, 11, 8)),
        ("vor 3 Tagen", date(2026, 11, 15), date(2026, 11, 15)),
        ("vor allem vor zwei Tagen", date(2026, 11, 16), date(2026, 11, 16)),
        ("ha detto due giorni fa", date(2026, 11, 16), date(2026, 11, 16)),
        ("il y a trois jours", date(2026, 11, 15), date(2026, 11, 15)),
        ("दो दिन पहले", date(2026, 11, 16), date(2026, 11, 16)),
    ],
)
def test_a_date_is_read(text: str, first: date, last: date) -> None:
    assert list_days(text) == [(first, last)]


@pytest.mark.parametrize(
    "text",
    [
        "you may go",
        "march on",
        "Mayor 5",
        "xmay 5",
        "may_5",
        "seven rooms ago",
        "many days ago",
        "vor allem heute_",
        "3 apples",
    ],
)
def test_another_word_is_no_date(text: str) -> None:
    assert list_days(text) == []


def test_an_ambiguous_month_counts_in_capitals_after_a_preposition() -> None:
    assert len(list_days("what did we do in May?")) == 10
    assert list_days("what did we do. in, May") == []
    assert list_days("what we may do in may") == []


def test_words_of_a_relative_date_do_not_belong_to_the_topic() -> None:
    assert read_question("what broke two days ago?", now=NOW).topic.split() == ["what", "broke", "?"]
    assert read_question("vor zwei Tagen kaputt", now=NOW).topic.split() == ["kaputt"]
