"""Renders docs/reference/metrics.md from the table of metrics: python -m everhold.telemetry.reference."""

from __future__ import annotations

import sys

from everhold.telemetry.metrics import METRICS, MetricDefinition

_HEAD = """\
# Metrics

`GET /metrics` serves these in Prometheus' text format, to a token with the role `metrics` or `operator`. This page is
generated from the table in `src/everhold/telemetry/metrics.py`. [Watch everhold](../how-to/watch-everhold.md) says how
to use them.

The value of a label comes from the configuration, from a list in the code, or from the name of a tool. It is never a
session, a person, a chat or the text of an error. A metric has at most 200 series. The rest is added up under `_other`.

Counters and histograms count what one process did since its start. If several hosts share a store, the gauges from
`everhold_messages_pending` to `everhold_store_bytes` are equal on all of them, so a dashboard takes their `max`.

| metric | type | labels | meaning |
|---|---|---|---|
"""


def render_reference() -> str:
    return _HEAD + "".join(f"{_render_row(metric)}\n" for metric in METRICS)


def _render_row(metric: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help} |"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
