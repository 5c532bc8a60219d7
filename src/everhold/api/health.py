"""Handlers of /health, /ready and /metrics, for monitoring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from starlette.responses import Response

from everhold import __version__
from everhold.api.errors import ApiError, build_json_response
from everhold.api.middleware import GuardMiddleware
from everhold.api.request import ApiCall
from everhold.core.consumers import MEMORY_PREFIX
from everhold.ports.store import Backlog, Spend

PROMETHEUS_MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


async def get_health(call: ApiCall) -> Response:
    """Report that the process runs."""
    return build_json_response({"status": "ok", "version": __version__, "role": call.context.gateway.role()})


async def get_readiness(call: ApiCall) -> Response:
    """Report whether messages can be accepted."""
    trouble = call.context.get_trouble()
    if trouble:
        raise ApiError(503, "not_ready", call.context.redact_text(trouble), headers={"retry-after": "5"})
    return build_json_response({"status": "ready", "version": __version__, "role": call.context.gateway.role()})


class MetricsEndpoint:
    """Numbers in the text format Prometheus reads."""

    def __init__(self) -> None:
        self.guard: GuardMiddleware | None = None

    async def __call__(self, call: ApiCall) -> Response:
        """Numbers for Prometheus."""
        store, tail = call.context.store, call.context.tail
        cursors, dead_letters = await store.list_cursors(waiting=True), await store.list_dead_letters()
        behind, now = await store.list_backlogs(MEMORY_PREFIX), call.context.control.gates.clock.now()
        commits = {step: float(count) for step, count in tail.commits.items()}
        spent = await store.list_spends("agent:", call.context.agents.get_today())
        answers = {
            str(status): float(count) for status, count in (self.guard.response_counts if self.guard else {}).items()
        }
        lines = [
            *_format_metric(
                "messages_pending", "gauge", "Messages that wait for an answer.", await store.count_waiting()
            ),
            *_format_labelled_metric(
                "cursors_due",
                "consumer",
                "Cursors with something to do.",
                Counter(cursor.consumer for cursor in cursors),
            ),
            *_format_labelled_metric(
                "cursors_failing",
                "consumer",
                "Cursors whose last attempt failed.",
                Counter(cursor.consumer for cursor in cursors if cursor.error),
            ),
            *_format_labelled_metric(
                "dead_letters",
                "consumer",
                "Items given up until replayed.",
                Counter(item.consumer for item in dead_letters),
            ),
            *_format_metric(
                "dead_letters_in_doubt",
                "gauge",
                "Dead letters that may have arrived.",
                sum(item.in_doubt for item in dead_letters),
            ),
            *_format_labelled_metric(
                "memory_backlog_items", "memory", "Items a memory has yet to receive.", _sum_backlog_items(behind)
            ),
            *_format_labelled_metric(
                "memory_backlog_age_seconds",
                "memory",
                "How long the oldest of it has waited.",
                {memory: now - oldest for memory, oldest in _find_oldest_items(behind).items()},
            ),
            *_format_labelled_metric(
                "memory_failing",
                "memory",
                "Whether delivery to a memory fails.",
                {
                    reader.removeprefix(MEMORY_PREFIX): 1.0
                    for reader in {cursor.consumer for cursor in cursors if cursor.error}
                    if reader.startswith(MEMORY_PREFIX)
                },
            ),
            *_format_labelled_metric(
                "spend_today_tokens", "agent", "Tokens an agent has used today.", _sum_agent_spending(spent, "tokens")
            ),
            *_format_labelled_metric(
                "spend_today_usd", "agent", "US dollars an agent has cost today.", _sum_agent_spending(spent, "usd")
            ),
            *_format_metric("turns_total", "counter", "Turns ended since the start.", commits.get("end", 0.0)),
            *_format_labelled_metric("commits_total", "step", "Commits since the start.", commits, kind="counter"),
            *_format_metric("http_streams", "gauge", "Open streams and requests that wait for a reply.", tail.watchers),
            *_format_labelled_metric(
                "http_responses_total", "status", "Answered requests since the start.", answers, kind="counter"
            ),
            *_format_metric("agents", "gauge", "Configured agents.", len(call.context.agents.settings.agents)),
            *_format_metric("ready", "gauge", "Whether messages can be accepted.", int(not call.context.get_trouble())),
        ]
        return Response("\n".join(lines) + "\n", media_type=PROMETHEUS_MEDIA_TYPE)


def _sum_agent_spending(spent: Iterable[Spend], what: Literal["tokens", "usd"]) -> dict[str, float]:
    return {it.budget.removeprefix("agent:"): float(it.tokens if what == "tokens" else it.usd) for it in spent}


def _sum_backlog_items(behind: Iterable[Backlog]) -> dict[str, float]:
    lags: Counter[str] = Counter()
    for it in behind:
        lags[it.consumer.removeprefix(MEMORY_PREFIX)] += it.items
    return {memory: float(lag) for memory, lag in lags.items()}


def _find_oldest_items(behind: Iterable[Backlog]) -> dict[str, float]:
    oldest: dict[str, float] = {}
    for it in behind:
        memory = it.consumer.removeprefix(MEMORY_PREFIX)
        if it.oldest is not None:
            oldest[memory] = min(it.oldest, oldest.get(memory, it.oldest))
    return oldest


def _format_metric(name: str, kind: str, help: str, value: float) -> Iterable[str]:
    return (*_format_metric_head(name, kind, help), f"everhold_{name} {_format_number(value)}")


def _format_labelled_metric(
    name: str, label: str, help: str, values: Mapping[str, float], kind: str = "gauge"
) -> Iterable[str]:
    rows = (
        f'everhold_{name}{{{label}="{key.translate(_ESCAPES)}"}} {_format_number(values[key])}'
        for key in sorted(values)
    )
    return (*_format_metric_head(name, kind, help), *rows)


def _format_number(value: float) -> str:
    """Every digit of it: a counter that is rounded stands still, and then jumps."""
    return str(int(value)) if value == int(value) else repr(value)


def _format_metric_head(name: str, kind: str, help: str) -> tuple[str, str]:
    return f"# HELP everhold_{name} {help}", f"# TYPE everhold_{name} {kind}"
