"""Metrics are rendered in the Prometheus text format, each with its help text and type."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.telemetry.metrics import (
    COMMITS_TOTAL,
    METRICS,
    TURNS_TOTAL,
    MetricDefinition,
    MetricValue,
    render_prometheus,
)
from everhold.telemetry.reference import render_reference


def render(**values: MetricValue) -> list[str]:
    """The lines of these values, with nothing or zero for all other metrics."""
    whole: dict[MetricDefinition, MetricValue] = {
        metric: values.get(metric.name, {} if metric.labels else 0) for metric in METRICS
    }
    return render_prometheus(whole).splitlines()


def test_a_metric_has_a_help_text_a_type_and_a_value() -> None:
    lines = render(turns_total=3)
    at = lines.index(f"# HELP {TURNS_TOTAL.full_name} {TURNS_TOTAL.help}")
    assert lines[at + 1 : at + 3] == ["# TYPE everhold_turns_total counter", "everhold_turns_total 3"]


def test_a_labelled_metric_has_a_line_per_label_in_order() -> None:
    lines = render(commits_total={"end": 2.0, "accept": 1.0})
    at = lines.index(f"# TYPE {COMMITS_TOTAL.full_name} counter")
    assert lines[at + 1 : at + 3] == [
        'everhold_commits_total{step="accept"} 1',
        'everhold_commits_total{step="end"} 2',
    ]


def test_a_label_cannot_forge_a_line() -> None:
    (line,) = [line for line in render(dead_letters={'a"b\\c\nd': 1.0}) if line.startswith("everhold_dead_letters{")]
    assert line == r'everhold_dead_letters{consumer="a\"b\\c\nd"} 1'


@pytest.mark.parametrize("value, shown", [(0, "0"), (12345678901.0, "12345678901"), (0.1, "0.1"), (1e-9, "1e-09")])
def test_a_value_is_not_rounded(value: float, shown: str) -> None:
    assert f'everhold_spend_today_usd{{agent="main"}} {shown}' in render(spend_today_usd={"main": value})


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        render_prometheus({})


def test_the_reference_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs/reference/metrics.md"
    assert page.read_text() == render_reference(), (
        "run python -m everhold.telemetry.reference > docs/reference/metrics.md"
    )
