"""Counters and histograms are bounded, and rendered as Prometheus reads them."""

from __future__ import annotations

import asyncio

import pytest

from everhold.errors import Refused
from everhold.telemetry.metric_registry import MetricRegistry
from everhold.telemetry.metrics import (
    COMMIT_SECONDS,
    LEASE_LOST_TOTAL,
    MAX_SERIES,
    MEMORY_BACKLOG_AGE_SECONDS,
    MEMORY_BACKLOG_ITEMS,
    METRICS,
    MODEL_SECONDS,
    TOOL_SECONDS,
    MetricDefinition,
    MetricValue,
    render_prometheus,
)


class ManualClock:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


def render(metric: MetricDefinition, value: MetricValue) -> list[str]:
    values: dict[MetricDefinition, MetricValue] = {it: {} for it in METRICS} | {metric: value}
    lines = render_prometheus(values).splitlines()
    return [line for line in lines if line.startswith(metric.full_name) and not line.startswith("#")]


def test_a_histogram_has_cumulative_buckets_a_sum_and_a_count() -> None:
    registry = MetricRegistry(ManualClock())
    for seconds in (0.0004, 0.001, 0.3, 99.0):
        registry.observe(COMMIT_SECONDS, seconds)
    lines = render(COMMIT_SECONDS, registry.get_histogram(COMMIT_SECONDS))
    assert 'everhold_commit_seconds_bucket{le="0.0005"} 1' in lines
    assert 'everhold_commit_seconds_bucket{le="0.001"} 2' in lines  # a bound is part of its bucket
    assert 'everhold_commit_seconds_bucket{le="0.5"} 3' in lines
    assert lines[-3:] == [
        'everhold_commit_seconds_bucket{le="+Inf"} 4',
        "everhold_commit_seconds_sum 99.3014",
        "everhold_commit_seconds_count 4",
    ]


def test_a_call_is_observed_with_how_it_ended() -> None:
    registry, clock = MetricRegistry(clock := ManualClock()), clock
    with registry.time_call(MODEL_SECONDS, "m"):
        clock.at += 2.0
    for error in (Refused("no"), ValueError("secret words"), asyncio.CancelledError()):
        with pytest.raises(type(error)), registry.time_call(MODEL_SECONDS, "m"):
            raise error
    found = registry.get_histogram(MODEL_SECONDS)
    assert set(found) == {("m", "done"), ("m", "refused"), ("m", "failed"), ("m", "cancelled")}
    assert found["m", "done"].total == 2.0
    assert not any("secret" in line for line in render(MODEL_SECONDS, found))


def test_the_number_of_series_is_bounded_and_nothing_is_lost() -> None:
    registry = MetricRegistry(ManualClock())
    for number in range(MAX_SERIES * 3):
        registry.count(LEASE_LOST_TOTAL, f"consumer{number}")
        registry.observe(TOOL_SECONDS, 1.0, f"tool{number}", "done")
    counts = registry.get_counts(LEASE_LOST_TOTAL)
    assert len(counts) == MAX_SERIES + 1
    assert sum(counts.values()) == MAX_SERIES * 3
    assert counts["_other",] == MAX_SERIES * 2
    assert len(registry.get_histogram(TOOL_SECONDS)) == MAX_SERIES + 1


def test_a_long_label_is_not_kept() -> None:
    registry = MetricRegistry(ManualClock())
    registry.count(LEASE_LOST_TOTAL, "x" * 100_000)
    assert list(registry.get_counts(LEASE_LOST_TOTAL)) == [("_other",)]


def test_gauges_beyond_the_limit_are_added_up_and_ages_are_not() -> None:
    many = {f"memory{number:04}": float(number) for number in range(MAX_SERIES * 2)}
    items, ages = render(MEMORY_BACKLOG_ITEMS, many), render(MEMORY_BACKLOG_AGE_SECONDS, many)
    assert len(items) == len(ages) == MAX_SERIES + 1
    assert f'everhold_memory_backlog_items{{memory="_other"}} {sum(range(MAX_SERIES, MAX_SERIES * 2))}' in items
    assert f'everhold_memory_backlog_age_seconds{{memory="_other"}} {MAX_SERIES * 2 - 1}' in ages


def test_a_clock_that_goes_back_lowers_no_sum() -> None:
    registry = MetricRegistry(ManualClock())
    registry.observe(COMMIT_SECONDS, -5.0)
    assert registry.get_histogram(COMMIT_SECONDS)[()].total == 0.0
