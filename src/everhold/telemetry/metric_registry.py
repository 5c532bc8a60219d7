"""Counters and histograms of one process. Recording never waits, and its memory is bounded, whatever the labels are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from everhold.core.entries import snake_case
from everhold.errors import EverholdError
from everhold.ports.clock import Clock
from everhold.telemetry.metrics import (
    MAX_LABEL_CHARS,
    MAX_SERIES,
    OTHER_LABEL,
    HistogramValue,
    MetricDefinition,
)


class _HistogramSeries:
    """The observations of one series."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.total = 0.0


class CallTimer:
    """How a timed call ended. The block may set `outcome` before it ends. An exception of ours sets it to its type."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome = "done"


class MetricRegistry:
    """What a process counted and timed since its start. It belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._counters: dict[MetricDefinition, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[MetricDefinition, dict[tuple[str, ...], _HistogramSeries]] = {}

    def count(self, metric: MetricDefinition, *labels: str, amount: float = 1.0) -> None:
        series = self._counters.setdefault(metric, {})
        key = _choose_series(series, labels)
        series[key] = series.get(key, 0.0) + amount

    def observe(self, metric: MetricDefinition, seconds: float, *labels: str) -> None:
        series = self._histograms.setdefault(metric, {})
        key = _choose_series(series, labels)
        found = series.get(key)
        if found is None:
            found = series[key] = _HistogramSeries(len(metric.buckets))
        seconds = max(seconds, 0.0)  # a clock that was set back must not lower a sum
        found.counts[bisect_left(metric.buckets, seconds)] += 1
        found.total += seconds

    @contextmanager
    def time_call(self, metric: MetricDefinition, label: str) -> Iterator[CallTimer]:
        """Observe how long a block takes, under `label` and its outcome."""
        since, timer = self._clock.monotonic(), CallTimer()
        try:
            yield timer
        except EverholdError as error:
            timer.outcome = snake_case(type(error).__name__)
            raise
        except Exception:
            timer.outcome = "failed"
            raise
        except BaseException:
            timer.outcome = "cancelled"
            raise
        finally:
            self.observe(metric, self._clock.monotonic() - since, label, timer.outcome)

    def get_counts(self, metric: MetricDefinition) -> Mapping[tuple[str, ...], float]:
        return self._counters.get(metric, {})

    def get_histogram(self, metric: MetricDefinition) -> dict[tuple[str, ...], HistogramValue]:
        found = self._histograms.get(metric, {})
        return {labels: HistogramValue(tuple(it.counts), it.total) for labels, it in found.items()}


def _choose_series(series: Mapping[tuple[str, ...], object], labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels, or those of the rest if there are too many series already."""
    if labels in series:
        return labels
    if len(series) < MAX_SERIES and all(len(it) <= MAX_LABEL_CHARS for it in labels):
        return labels
    return (OTHER_LABEL,) * len(labels)
