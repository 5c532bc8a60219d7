"""When a batch is due: never later than its reasons, never out of order, and never for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from everhold.core.memory_pacing import (
    BATCHING_SECONDS,
    SILENCE_SECONDS,
    DueItems,
    MemoryPacing,
    PendingItem,
    parse_write_setting,
    select_due_items,
)

PACES = st.builds(MemoryPacing, turns_per_batch=st.integers(0, 5), silence_seconds=st.floats(0.1, 1_000))
LOGS = st.lists(st.builds(PendingItem, st.floats(0, 1_000), st.booleans()), max_size=12)


@pytest.mark.parametrize(
    "write, pace",
    [
        ("turn", MemoryPacing()),
        ("async", MemoryPacing(turns_per_batch=0, silence_seconds=BATCHING_SECONDS)),
        ("session", MemoryPacing(turns_per_batch=0, silence_seconds=SILENCE_SECONDS)),
        (7, MemoryPacing(turns_per_batch=7)),
    ],
)
def test_the_configured_write_interval_is_parsed(write: str | int, pace: MemoryPacing) -> None:
    assert parse_write_setting(write) == pace


@given(log=LOGS, now=st.floats(0, 2_000))
def test_writing_after_every_turn_holds_nothing_back(log: list[PendingItem], now: float) -> None:
    assert select_due_items(MemoryPacing(), log, now=now) == DueItems(len(log))


@given(pace=PACES, log=LOGS, now=st.floats(0, 3_000), released=st.floats(0, 1_000))
def test_a_batch_is_held_back_only_without_a_reason_to_send_it(
    pace: MemoryPacing, log: list[PendingItem], now: float, released: float
) -> None:
    verdict = select_due_items(pace, log, now=now, released=released)
    kept = log[verdict.count :]
    assert not any(it.urgent for it in kept)
    assert (verdict.seconds > 0) == bool(kept)
    if kept:
        assert not pace.turns_per_batch or len(kept) < pace.turns_per_batch
        assert kept[-1].at > released
        assert (
            0 <= now - kept[-1].at < pace.silence_seconds
        )  # an item with a future time is due at once, because the clock went back
        assert verdict.seconds <= pace.silence_seconds
        # without further messages, everything is due after the idle time
        assert select_due_items(
            pace, log, now=max(now, kept[-1].at) + pace.silence_seconds + 0.01, released=released
        ).count == len(log)
    gone = log[: verdict.count]
    if gone and kept:
        assert gone[-1].urgent
