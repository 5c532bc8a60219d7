"""When a batch is due: never later than its reasons, never out of order, and never for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from everhold.core.pace import GATHER_SECONDS, REST_SECONDS, Due, Pace, Waiting, due, pace_of

PACES = st.builds(Pace, turns=st.integers(0, 5), rest=st.floats(0.1, 1_000))
LOGS = st.lists(st.builds(Waiting, st.floats(0, 1_000), st.booleans()), max_size=12)


@pytest.mark.parametrize(
    "write, pace",
    [
        ("turn", Pace()),
        ("async", Pace(turns=0, rest=GATHER_SECONDS)),
        ("session", Pace(turns=0, rest=REST_SECONDS)),
        (7, Pace(turns=7)),
    ],
)
def test_what_the_configuration_says(write: str | int, pace: Pace) -> None:
    assert pace_of(write) == pace


@given(log=LOGS, now=st.floats(0, 2_000))
def test_after_every_turn_means_that_nothing_is_ever_held_back(log: list[Waiting], now: float) -> None:
    assert due(Pace(), log, now=now) == Due(len(log))


@given(pace=PACES, log=LOGS, now=st.floats(0, 3_000), released=st.floats(0, 1_000))
def test_what_is_held_back_has_no_reason_to_go(pace: Pace, log: list[Waiting], now: float, released: float) -> None:
    verdict = due(pace, log, now=now, released=released)
    kept = log[verdict.count :]
    assert not any(it.urgent for it in kept)
    assert (verdict.seconds > 0) == bool(kept)
    if kept:
        assert not pace.turns or len(kept) < pace.turns
        assert kept[-1].at > released
        assert 0 <= now - kept[-1].at < pace.rest  # what is said in the future waits for nothing: the clock went back
        assert verdict.seconds <= pace.rest
        # nothing more is said: once that has passed, everything goes
        assert due(pace, log, now=max(now, kept[-1].at) + pace.rest + 0.01, released=released).count == len(log)
    gone = log[: verdict.count]
    if gone and kept:
        assert gone[-1].urgent
