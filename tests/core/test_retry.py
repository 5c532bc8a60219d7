"""Delays grow, stay bounded, and end in a dead letter: a long outage is survived, a dead service is given up."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from everhold.core.retry import (
    FIRST_DELAY_SECONDS,
    MAX_ATTEMPTS,
    MAX_DELAY_SECONDS,
    is_late_arrival_harmful,
    resolve_in_doubt,
    retry_delay_seconds,
)
from everhold.ports.platform import DeliveryGuarantee

JITTER = st.floats(0.0, 1.0, exclude_max=True)


@settings(deadline=None)
@given(st.integers(1, MAX_ATTEMPTS - 1), JITTER)
def test_a_delay_is_positive_and_bounded(attempt: int, jitter: float) -> None:
    wait = retry_delay_seconds(attempt, jitter=jitter)
    assert wait is not None
    assert FIRST_DELAY_SECONDS / 2 <= wait <= MAX_DELAY_SECONDS


@settings(max_examples=30, deadline=None)
@given(JITTER)
def test_a_later_attempt_never_waits_less(jitter: float) -> None:
    waits = [retry_delay_seconds(attempt, jitter=jitter) for attempt in range(1, MAX_ATTEMPTS)]
    assert all(a is not None and b is not None and a <= b for a, b in itertools.pairwise(waits))


@settings(deadline=None)
@given(st.integers(1, 1_000), JITTER, JITTER)
def test_jitter_spreads_retries_over_half_the_delay(attempt: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    first, second = retry_delay_seconds(attempt, jitter=low), retry_delay_seconds(attempt, jitter=high)
    assert first is not None
    assert second is not None
    assert first <= second <= 2 * first
    least, most = retry_delay_seconds(attempt, jitter=0.0), retry_delay_seconds(attempt, jitter=1 - 1e-9)
    assert least is not None
    assert most == pytest.approx(2 * least)


@settings(deadline=None)
@given(st.integers(MAX_ATTEMPTS, 10**30), JITTER)
def test_after_the_last_attempt_the_item_is_dead_lettered(attempt: int, jitter: float) -> None:
    assert retry_delay_seconds(attempt, jitter=jitter) is None


def test_an_outage_of_days_is_survived() -> None:
    waits = [retry_delay_seconds(attempt, jitter=0.0) or 0.0 for attempt in range(1, MAX_ATTEMPTS)]
    assert sum(waits) > 3 * 86_400, "even with the shortest waits chance can give"
    assert sum(waits) * 2 < 8 * 86_400


@pytest.mark.parametrize(
    "delivery, policy, what",
    [
        (DeliveryGuarantee.KEYED, "hold", "resend"),
        (DeliveryGuarantee.KEYED, "resend", "resend"),
        (DeliveryGuarantee.UPSERT, "hold", "resend"),
        (DeliveryGuarantee.PROBE, "hold", "probe"),
        (DeliveryGuarantee.PROBE, "resend", "probe"),
        (DeliveryGuarantee.BLIND, "hold", "hold"),
        (DeliveryGuarantee.BLIND, "resend", "blind_resend"),
        (DeliveryGuarantee.UNACKNOWLEDGED, "hold", "hold"),
        (DeliveryGuarantee.UNACKNOWLEDGED, "resend", "blind_resend"),
    ],
)
def test_an_in_doubt_item_is_resolved_by_the_delivery_guarantee(
    delivery: DeliveryGuarantee, policy: str, what: str
) -> None:
    assert resolve_in_doubt(delivery, policy=policy) == what


def test_only_keyed_delivery_needs_no_hold_after_a_takeover() -> None:
    assert [delivery for delivery in DeliveryGuarantee if not is_late_arrival_harmful(delivery)] == [
        DeliveryGuarantee.KEYED
    ]
