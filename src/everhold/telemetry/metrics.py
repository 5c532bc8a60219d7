"""The metrics that /metrics serves: each name, type, label and help text is declared here once.

Names follow `everhold_<noun>_<unit>` (prometheus.io/docs/practices/naming). tests/test_names.py checks them. The value
of a label comes from the configuration, from an enum or from the code. It is never a session, a person, a chat or the
text of an error, so the number of series does not grow with use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

MetricKind = Literal["gauge", "counter", "histogram"]
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
MAX_SERIES: Final = 200
"""Of one metric. What comes after them is added up under `_other`."""
MAX_LABEL_CHARS: Final = 120
OTHER_LABEL: Final = "_other"

FAST_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds, for what this process does itself."""
SLOW_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds, for what a model or another service does."""


@dataclass(frozen=True, eq=False)  # a key of dictionaries on every call, so its hash must be cheap
class MetricDefinition:
    """One metric. With `labels` it has a series for each combination of their values, without any it has one."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Of a histogram: the upper bounds, without the infinite one."""

    @property
    def full_name(self) -> str:
        return f"everhold_{self.name}"


@dataclass(frozen=True)
class HistogramValue:
    """How many observations fell into each bucket, the last of which has no bound, and their sum."""

    counts: tuple[int, ...]
    total: float

    def __add__(self, other: HistogramValue) -> HistogramValue:
        counts = tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
        return HistogramValue(counts, self.total + other.total)


MetricValue: TypeAlias = float | Mapping[str, float] | Mapping[tuple[str, ...], float | HistogramValue]
"""The value of a metric without labels, or of each label value, or of each combination of label values."""


def _gauge(name: str, help: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(name, "gauge", help, labels)


def _counter(name: str, help: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(name, "counter", help, labels)


def _histogram(name: str, help: str, buckets: tuple[float, ...], *labels: str) -> MetricDefinition:
    return MetricDefinition(name, "histogram", help, labels, buckets)


# -- work that waits, for the whole store ------------------------------------------------------------------------------

MESSAGES_PENDING: Final = _gauge("messages_pending", "Messages that wait for an answer.")
CURSORS_DUE: Final = _gauge("cursors_due", "Cursors with something to do.", "consumer")
CURSORS_FAILING: Final = _gauge("cursors_failing", "Cursors whose last attempt failed.", "consumer")
DUE_LAG_SECONDS: Final = _gauge(
    "due_lag_seconds", "How long the oldest due cursor without a worker has waited.", "consumer"
)
OLDEST_DUE_SECONDS: Final = _gauge(
    "oldest_due_seconds", "How long the oldest due cursor of any consumer has waited without a worker."
)
OUTBOX_OLDEST_SECONDS: Final = _gauge(
    "outbox_oldest_seconds", "How old the oldest reply is that was not delivered.", "consumer"
)
DEAD_LETTERS: Final = _gauge("dead_letters", "Items given up until replayed.", "consumer")
DEAD_LETTERS_IN_DOUBT: Final = _gauge("dead_letters_in_doubt", "Dead letters that may have arrived.")
RECEIPTS_IN_DOUBT: Final = _gauge("receipts_in_doubt", "Delivered items that may have arrived twice.")
MEMORY_BACKLOG_ITEMS: Final = _gauge("memory_backlog_items", "Items a memory has yet to receive.", "memory")
MEMORY_BACKLOG_AGE_SECONDS: Final = _gauge(
    "memory_backlog_age_seconds", "How long the oldest of these items has waited.", "memory"
)
MEMORY_FAILING: Final = _gauge("memory_failing", "Whether delivery to a memory fails.", "memory")
BACKLOG_MEASURED_AGE_SECONDS: Final = _gauge(
    "backlog_measured_age_seconds", "How long ago the backlogs of memories and the ages of replies were measured."
)
STORE_MEASURED_AGE_SECONDS: Final = _gauge("store_measured_age_seconds", "How long ago the waiting work was counted.")
SPEND_TODAY_TOKENS: Final = _gauge("spend_today_tokens", "Tokens an agent has used today.", "agent")
SPEND_TODAY_USD: Final = _gauge("spend_today_usd", "US dollars an agent has cost today.", "agent")
STORE_BYTES: Final = _gauge("store_bytes", "Size of the store.")

# -- the promises ------------------------------------------------------------------------------------------------------

PROMISE_BROKEN: Final = _gauge("promise_broken", "Findings of the last audit of the whole store.", "promise")
AUDIT_AGE_SECONDS: Final = _gauge("audit_age_seconds", "How long ago the last audit of the whole store ended.")
BACKUP_AGE_SECONDS: Final = _gauge("backup_age_seconds", "How old the newest backup is.")
DISK_FREE_BYTES: Final = _gauge("disk_free_bytes", "Free space on the disk of the home.")

# -- what this process did ---------------------------------------------------------------------------------------------

TURNS_TOTAL: Final = _counter("turns_total", "Turns ended since the start.")
COMMITS_TOTAL: Final = _counter("commits_total", "Commits since the start.", "step")
TOKENS_TOTAL: Final = _counter("tokens_total", "Tokens used since the start.", "agent", "model", "type")
COST_USD_TOTAL: Final = _counter("cost_usd_total", "US dollars spent since the start.", "agent", "model")
ACCEPT_SECONDS: Final = _histogram(
    "accept_seconds", "Time from a message's arrival to its commit.", FAST_BUCKETS, "platform"
)
COMMIT_SECONDS: Final = _histogram("commit_seconds", "Time of a worker's commit.", FAST_BUCKETS)
CLAIM_LAG_SECONDS: Final = _histogram(
    "claim_lag_seconds", "Time from when a cursor was due until a worker started on it.", FAST_BUCKETS, "consumer"
)
LOOP_LAG_SECONDS: Final = _histogram("loop_lag_seconds", "How late the event loop runs a timer.", FAST_BUCKETS)
FIRST_WORDS_SECONDS: Final = _histogram(
    "first_words_seconds", "Time from a message to the first text of its answer.", SLOW_BUCKETS, "agent"
)
ANSWER_SECONDS: Final = _histogram(
    "answer_seconds", "Time from a message to the end of its turn.", SLOW_BUCKETS, "agent", "outcome"
)
MODEL_SECONDS: Final = _histogram("model_seconds", "Time of a model call.", SLOW_BUCKETS, "model", "outcome")
RECALL_SECONDS: Final = _histogram(
    "recall_seconds", "Time of a memory's answer to a recall.", SLOW_BUCKETS, "memory", "outcome"
)
TOOL_SECONDS: Final = _histogram("tool_seconds", "Time of a tool call.", SLOW_BUCKETS, "tool", "outcome")
COMPRESSION_SECONDS: Final = _histogram(
    "compression_seconds", "Time of a compression.", SLOW_BUCKETS, "agent", "outcome"
)
DELIVERY_SECONDS: Final = _histogram(
    "delivery_seconds", "Time of an attempt to deliver a batch.", SLOW_BUCKETS, "consumer", "outcome"
)
LEASES_HELD: Final = _gauge("leases_held", "Cursors that workers of this process hold.", "consumer")
LEASE_TAKEOVERS_TOTAL: Final = _counter(
    "lease_takeovers_total", "Cursors taken over from a worker that did not release them.", "consumer"
)
LEASE_LOST_TOTAL: Final = _counter("lease_lost_total", "Leases that workers of this process lost.", "consumer")
HTTP_STREAMS: Final = _gauge("http_streams", "Open streams and requests that wait for a reply.")
HTTP_RESPONSES_TOTAL: Final = _counter("http_responses_total", "HTTP responses since the start.", "status")
HTTP_CONNECTIONS_CLOSED_TOTAL: Final = _counter(
    "http_connections_closed_total", "Idle connections that were closed to make room for others."
)
MESSAGES_LIMITED_TOTAL: Final = _counter(
    "messages_limited_total", "Messages that a quota refused since the start.", "quota"
)
MESSAGES_HELD: Final = _gauge("messages_held", "Stored messages whose files are being downloaded.")
UPDATES_UNPARSED_TOTAL: Final = _counter(
    "updates_unparsed_total", "Updates that no adapter could parse, by whether their sender is known.", "sender"
)

TRACE_SPANS_TOTAL: Final = _counter(
    "trace_spans_total", "Spans that were sent to the collector, by what became of them.", "outcome"
)
TRACE_EXPORTS_FAILED_TOTAL: Final = _counter(
    "trace_exports_failed_total", "Exports that the collector did not take. They are sent again."
)

# -- this process ------------------------------------------------------------------------------------------------------

PLATFORM_CONNECTED: Final = _gauge("platform_connected", "Whether an account is connected.", "platform", "account")
HOSTS: Final = _gauge("hosts", "Hosts that work on the same store.", "state")
ACCOUNTS_HELD: Final = _gauge("accounts_held", "Accounts that this host receives for.", "account")
DRAINING: Final = _gauge("draining", "Whether this host is draining.")
TRACE_BEHIND_SECONDS: Final = _gauge(
    "trace_behind_seconds", "How old the oldest entry is whose spans were not exported; 0 if traces are off."
)
AGENTS: Final = _gauge("agents", "Configured agents.")
READY: Final = _gauge("ready", "Whether messages can be accepted.")
INFO: Final = _gauge("info", "1, with the version of this process and its kind of store.", "version", "store")

METRICS: Final = tuple(found for found in list(globals().values()) if isinstance(found, MetricDefinition))
"""All metrics, in the order of the page."""


def render_prometheus(values: Mapping[MetricDefinition, MetricValue]) -> str:
    """Render `values` in the Prometheus text format. A metric with a label gets a mapping of label values."""
    return "".join(f"{line}\n" for metric in METRICS for line in _render_metric(metric, values[metric]))


def _render_metric(metric: MetricDefinition, value: MetricValue) -> list[str]:
    lines = [f"# HELP {metric.full_name} {metric.help}", f"# TYPE {metric.full_name} {metric.kind}"]
    if not isinstance(value, Mapping):
        return [*lines, f"{metric.full_name} {_format_number(value)}"]
    rows = [(key if isinstance(key, tuple) else (key,), each) for key, each in value.items()]
    for labels, each in sorted(bound_series(metric, rows).items()):
        lines += _render_series(metric, labels, each)
    return lines


def _render_series(metric: MetricDefinition, labels: tuple[str, ...], value: float | HistogramValue) -> list[str]:
    shown = [f'{name}="{each.translate(_ESCAPES)}"' for name, each in zip(metric.labels, labels, strict=True)]
    if not isinstance(value, HistogramValue):
        return [f"{metric.full_name}{_join_labels(shown)} {_format_number(value)}"]
    lines, below = [], 0
    for bound, count in zip((*(_format_number(it) for it in metric.buckets), "+Inf"), value.counts, strict=True):
        below += count
        bucket = _join_labels([*shown, f'le="{bound}"'])
        lines.append(f"{metric.full_name}_bucket{bucket} {below}")
    lines.append(f"{metric.full_name}_sum{_join_labels(shown)} {_format_number(value.total)}")
    return [*lines, f"{metric.full_name}_count{_join_labels(shown)} {below}"]


def _join_labels(shown: list[str]) -> str:
    return f"{{{','.join(shown)}}}" if shown else ""


def bound_series(
    metric: MetricDefinition, rows: Iterable[tuple[tuple[str, ...], float | HistogramValue]]
) -> dict[tuple[str, ...], float | HistogramValue]:
    """Return at most `MAX_SERIES` series and one for the rest: the sum of counts, or the highest of ages."""
    kept: dict[tuple[str, ...], float | HistogramValue] = {}
    rest = (OTHER_LABEL,) * len(metric.labels)
    for labels, value in sorted(rows, key=lambda row: row[0]):
        fits = len(kept) < MAX_SERIES and all(len(it) <= MAX_LABEL_CHARS for it in labels)
        key = labels if fits else rest
        before = kept.get(key)
        kept[key] = value if before is None else _merge_values(metric, before, value)
    return kept


def _merge_values(
    metric: MetricDefinition, one: float | HistogramValue, two: float | HistogramValue
) -> float | HistogramValue:
    if isinstance(one, HistogramValue) or isinstance(two, HistogramValue):
        assert isinstance(one, HistogramValue)
        assert isinstance(two, HistogramValue)
        return one + two
    is_age = metric.kind == "gauge" and metric.name.endswith("_seconds")
    return max(one, two) if is_age else one + two


def _format_number(value: float | HistogramValue) -> str:
    """Return every digit of the value, because a rounded counter would not rise with each event."""
    assert not isinstance(value, HistogramValue)
    return str(int(value)) if value == int(value) else repr(value)
