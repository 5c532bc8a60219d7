"""The metrics that /metrics serves: each name, type, label and help text is declared here once.

Names follow `everhold_<noun>_<unit>` (prometheus.io/docs/practices/naming). tests/test_names.py checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

MetricKind = Literal["gauge", "counter"]
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True)
class MetricDefinition:
    """One metric. With a `label` it has a value for each value of the label, without one it has a single value."""

    name: str
    kind: MetricKind
    help: str
    label: str = ""

    @property
    def full_name(self) -> str:
        return f"everhold_{self.name}"


MESSAGES_PENDING: Final = MetricDefinition("messages_pending", "gauge", "Messages that wait for an answer.")
CURSORS_DUE: Final = MetricDefinition("cursors_due", "gauge", "Cursors with something to do.", "consumer")
CURSORS_FAILING: Final = MetricDefinition("cursors_failing", "gauge", "Cursors whose last attempt failed.", "consumer")
DEAD_LETTERS: Final = MetricDefinition("dead_letters", "gauge", "Items given up until replayed.", "consumer")
DEAD_LETTERS_IN_DOUBT: Final = MetricDefinition("dead_letters_in_doubt", "gauge", "Dead letters that may have arrived.")
MEMORY_BACKLOG_ITEMS: Final = MetricDefinition(
    "memory_backlog_items", "gauge", "Items a memory has yet to receive.", "memory"
)
MEMORY_BACKLOG_AGE_SECONDS: Final = MetricDefinition(
    "memory_backlog_age_seconds", "gauge", "How long the oldest of these items has waited.", "memory"
)
MEMORY_FAILING: Final = MetricDefinition("memory_failing", "gauge", "Whether delivery to a memory fails.", "memory")
SPEND_TODAY_TOKENS: Final = MetricDefinition("spend_today_tokens", "gauge", "Tokens an agent has used today.", "agent")
SPEND_TODAY_USD: Final = MetricDefinition("spend_today_usd", "gauge", "US dollars an agent has cost today.", "agent")
TURNS_TOTAL: Final = MetricDefinition("turns_total", "counter", "Turns ended since the start.")
COMMITS_TOTAL: Final = MetricDefinition("commits_total", "counter", "Commits since the start.", "step")
HTTP_STREAMS: Final = MetricDefinition("http_streams", "gauge", "Open streams and requests that wait for a reply.")
HTTP_RESPONSES_TOTAL: Final = MetricDefinition(
    "http_responses_total", "counter", "HTTP responses since the start.", "status"
)
MESSAGES_LIMITED_TOTAL: Final = MetricDefinition(
    "messages_limited_total", "counter", "Messages that a quota refused since the start.", "quota"
)
MESSAGES_HELD: Final = MetricDefinition("messages_held", "gauge", "Stored messages whose files are being downloaded.")
UPDATES_UNPARSED_TOTAL: Final = MetricDefinition(
    "updates_unparsed_total",
    "counter",
    "Updates that no adapter could parse, by whether their sender is known.",
    "sender",
)
HTTP_CONNECTIONS_CLOSED_TOTAL: Final = MetricDefinition(
    "http_connections_closed_total", "counter", "Idle connections that were closed to make room for others."
)
HOSTS: Final = MetricDefinition("hosts", "gauge", "Hosts that work on the same store.", "state")
ACCOUNTS_HELD: Final = MetricDefinition("accounts_held", "gauge", "Accounts that this host receives for.", "account")
OLDEST_DUE_SECONDS: Final = MetricDefinition(
    "oldest_due_seconds", "gauge", "How long the oldest due cursor without a worker has waited."
)
DRAINING: Final = MetricDefinition("draining", "gauge", "Whether this host is draining.")
AGENTS: Final = MetricDefinition("agents", "gauge", "Configured agents.")
READY: Final = MetricDefinition("ready", "gauge", "Whether messages can be accepted.")

METRICS: Final = (
    MESSAGES_PENDING,
    CURSORS_DUE,
    CURSORS_FAILING,
    DEAD_LETTERS,
    DEAD_LETTERS_IN_DOUBT,
    MEMORY_BACKLOG_ITEMS,
    MEMORY_BACKLOG_AGE_SECONDS,
    MEMORY_FAILING,
    SPEND_TODAY_TOKENS,
    SPEND_TODAY_USD,
    TURNS_TOTAL,
    COMMITS_TOTAL,
    HTTP_STREAMS,
    HTTP_RESPONSES_TOTAL,
    HTTP_CONNECTIONS_CLOSED_TOTAL,
    MESSAGES_LIMITED_TOTAL,
    MESSAGES_HELD,
    UPDATES_UNPARSED_TOTAL,
    HOSTS,
    ACCOUNTS_HELD,
    OLDEST_DUE_SECONDS,
    DRAINING,
    AGENTS,
    READY,
)
"""All metrics, in the order of the page."""


def render_prometheus(values: Mapping[MetricDefinition, float | Mapping[str, float]]) -> str:
    """Render `values` in the Prometheus text format. A metric with a label gets a mapping of label values."""
    return "".join(f"{line}\n" for metric in METRICS for line in _render_metric(metric, values[metric]))


def _render_metric(metric: MetricDefinition, value: float | Mapping[str, float]) -> list[str]:
    lines = [f"# HELP {metric.full_name} {metric.help}", f"# TYPE {metric.full_name} {metric.kind}"]
    if not isinstance(value, Mapping):
        return [*lines, f"{metric.full_name} {_format_number(value)}"]
    rows = sorted((key.translate(_ESCAPES), _format_number(each)) for key, each in value.items())
    return [*lines, *(f'{metric.full_name}{{{metric.label}="{key}"}} {number}' for key, number in rows)]


def _format_number(value: float) -> str:
    """Return every digit of the value, because a rounded counter would not rise with each event."""
    return str(int(value)) if value == int(value) else repr(value)
