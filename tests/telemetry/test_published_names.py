"""Users search logs and raise alarms by these names, so a rename must not happen by accident."""

from __future__ import annotations

from pathlib import Path

from everhold.telemetry.events import LogEvent
from everhold.telemetry.metrics import METRICS

FILE = Path(__file__).parent / "published_names.txt"


def list_names() -> list[str]:
    events = [f"event {event.value}" for event in LogEvent]
    return [
        *events,
        *(f"metric {metric.full_name} {metric.kind} {' '.join(metric.labels)}".rstrip() for metric in METRICS),
    ]


def test_events_and_metrics_are_named_as_before() -> None:
    known, present = FILE.read_text(encoding="utf-8").splitlines(), list_names()
    lost = [name for name in known if name not in present]
    assert not lost, f"if this is intended, say so in CHANGELOG.md and change {FILE.name}: {lost}"
    assert present == known, f"add to {FILE.name}: {[name for name in present if name not in known]}"
