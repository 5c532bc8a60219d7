"""P1: an id is made once, sorts by its time, and is unique."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from everhold.core.ids import make_session_id

AT = st.floats(0, 10_000_000_000, allow_nan=False)
CHANCE = st.binary(min_size=10, max_size=10)


@settings(max_examples=80, deadline=None)
@given(AT, CHANCE, AT, CHANCE)
def test_a_later_id_sorts_later(one: float, dice: bytes, other: float, more_dice: bytes) -> None:
    earlier, later = sorted((int(one * 1000), int(other * 1000)))
    first, second = make_session_id(earlier / 1000 + 1e-4, dice), make_session_id(later / 1000 + 1e-4, more_dice)
    if earlier < later:
        assert first < second


@settings(max_examples=80, deadline=None)
@given(st.tuples(st.integers(0, 2**47), CHANCE), st.tuples(st.integers(0, 2**47), CHANCE))
def test_another_time_or_another_random_value_gives_another_id(
    one: tuple[int, bytes], other: tuple[int, bytes]
) -> None:
    ids = [make_session_id((ms + 0.5) / 1000, chance) for ms, chance in (one, other)]
    assert (ids[0] == ids[1]) == (one == other)


@settings(max_examples=100, deadline=None)
@given(AT, CHANCE)
def test_an_id_needs_no_escaping_anywhere(at: float, chance: bytes) -> None:
    made = make_session_id(at, chance)
    assert len(made) == 26
    assert made.isascii()
    assert made.isalnum()
    assert made == made.lower()
    assert not set(made) & set("ilou"), "ids contain no ambiguous characters"


def test_every_random_bit_changes_the_id() -> None:
    ids = {make_session_id(1.0, (1 << bit).to_bytes(10)) for bit in range(80)}
    assert len(ids) == 80


def test_a_clock_before_the_epoch_still_gives_an_id() -> None:
    assert make_session_id(-5.0, bytes(10)) == make_session_id(0.0, bytes(10))


def test_too_few_random_bytes_are_refused() -> None:
    with pytest.raises(AssertionError):
        make_session_id(1.0, b"short")
