"""Counters and histograms of one process. Recording never waits, and its memory is bounded, whatever the labels are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
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


class MetricRegistry:
    """What a process counted and timed since its start. It belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._counters: dict[MetricDefinition, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[MetricDefinition, dict[tuple[str, ...], _HistogramSeries]] = {}

    def count(self, metric: MetricDefinition, *labels: str, amount: float = 1.0) -> None:
        try:
            self._counters[metric][labels] += amount
        except KeyError:  # the first of its series
            series = self._counters.setdefault(metric, {})
            key = _choose_series(series, labels)
            series[key] = series.get(key, 0.0) + amount

    def observe(self, metric: MetricDefinition, seconds: float, *labels: str) -> None:
        try:
            found = self._histograms[metric][labels]
        except KeyError:  # the first of its series
            series = self._histograms.setdefault(metric, {})
            found = series.setdefault(_choose_series(series, labels), _HistogramSeries(len(metric.buckets)))
        if seconds < 0.0:  # a clock that was set back must not lower a sum
            seconds = 0.0
        found.counts[bisect_left(metric.buckets, seconds)] += 1
        found.total += seconds

    def time_call(self, metric: MetricDefinition, label: str) -> CallTimer:
        """Observe how long a block takes, under `label` and its outcome."""
        return CallTimer(self, metric, label)

    def read_clock(self) -> float:
        return self._clock.monotonic()

    def get_counts(self, metric: MetricDefinition) -> Mapping[tuple[str, ...], float]:
        return self._counters.get(metric, {})

    def get_histogram(self, metric: MetricDefinition) -> dict[tuple[str, ...], HistogramValue]:
        found = self._histograms.get(metric, {})
        return {labels: HistogramValue(tuple(it.counts), it.total) for labels, it in found.items()}


class CallTimer:
    """Times a block. The block may set `outcome` before it ends. An exception of ours sets it to its type."""

    __slots__ = ("_label", "_metric", "_registry", "_since", "outcome")

    def __init__(self, registry: MetricRegistry, metric: MetricDefinition, label: str) -> None:
        self._registry, self._metric, self._label = registry, metric, label
        self.outcome = "done"

    def __enter__(self) -> CallTimer:
        self._since = self._registry.read_clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.outcome = _name_failure(kind)
        registry = self._registry
        registry.observe(self._metric, registry.read_clock() - self._since, self._label, self.outcome)


def _name_failure(kind: type[BaseException]) -> str:
    if issubclass(kind, EverholdError):
        return snake_case(kind.__name__)
    return "failed" if issubclass(kind, Exception) else "cancelled"


def _choose_series(series: Mapping[tuple[str, ...], object], labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels, or those of the rest if there are too many series already."""
    if labels in series:
        return labels
    if len(series) < MAX_SERIES and all(len(it) <= MAX_LABEL_CHARS for it in labels):
        return labels
    return (OTHER_LABEL,) * len(labels)
