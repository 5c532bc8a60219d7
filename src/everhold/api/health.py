"""Handlers of /health, /ready and /metrics, for monitoring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from starlette.responses import Response

from everhold import __version__
from everhold.api.auth import ANONYMOUS
from everhold.api.errors import ApiError, build_json_response
from everhold.api.middleware import GuardMiddleware
from everhold.api.request import ApiCall
from everhold.core.consumers import MEMORY_PREFIX
from everhold.ports.store import BudgetSpend, ConsumerCursor, MemoryBacklog
from everhold.telemetry import metrics

PROMETHEUS_MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def get_health(call: ApiCall) -> Response:
    """Report that the process runs."""
    return _build_health_response(call, "ok")


async def get_readiness(call: ApiCall) -> Response:
    """Report whether messages can be accepted, else 503."""
    trouble = call.context.get_trouble()
    if trouble:
        shown = "not ready" if call.caller is ANONYMOUS else call.context.redact_text(trouble)
        raise ApiError(503, "not_ready", shown, headers={"retry-after": "5"})
    return _build_health_response(call, "ready")


def _build_health_response(call: ApiCall, status: str) -> Response:
    if call.caller is ANONYMOUS:
        return build_json_response({"status": status})
    return build_json_response({"status": status, "version": __version__, "role": call.context.gateway.role()})


class MetricsEndpoint:
    """Serves the metrics of telemetry/metrics.py in the Prometheus text format."""

    def __init__(self) -> None:
        self.guard: GuardMiddleware | None = None

    async def __call__(self, call: ApiCall) -> Response:
        """Collect the values and render them."""
        store, tail = call.context.store, call.context.tail
        cursors, dead_letters = await store.list_cursors(waiting=True), await store.list_dead_letters()
        backlogs, now = await store.list_backlogs(MEMORY_PREFIX), call.context.control.gates.clock.now()
        commits = {step: float(count) for step, count in tail.commits.items()}
        spent = await store.list_spends("agent:", call.context.agents.get_today())
        responses = {
            str(status): float(count) for status, count in (self.guard.response_counts if self.guard else {}).items()
        }
        use = call.context.gateway.count_refusals()
        described = call.context.gateway.describe()
        listed = (await call.context.gateway.describe_hosts())["hosts"]
        hosts = Counter("draining" if it["draining"] else "alive" if it["alive"] else "dead" for it in listed)
        failing = {cursor.consumer for cursor in cursors if cursor.error}
        values: dict[metrics.MetricDefinition, float | Mapping[str, float]] = {
            metrics.MESSAGES_PENDING: await store.count_waiting(),
            metrics.CURSORS_DUE: Counter(cursor.consumer for cursor in cursors),
            metrics.CURSORS_FAILING: Counter(cursor.consumer for cursor in cursors if cursor.error),
            metrics.DEAD_LETTERS: Counter(item.consumer for item in dead_letters),
            metrics.DEAD_LETTERS_IN_DOUBT: sum(item.in_doubt for item in dead_letters),
            metrics.MEMORY_BACKLOG_ITEMS: _sum_backlog_items(backlogs),
            metrics.MEMORY_BACKLOG_AGE_SECONDS: {
                memory: now - oldest for memory, oldest in _find_oldest_items(backlogs).items()
            },
            metrics.MEMORY_FAILING: {
                consumer.removeprefix(MEMORY_PREFIX): 1.0 for consumer in failing if consumer.startswith(MEMORY_PREFIX)
            },
            metrics.SPEND_TODAY_TOKENS: _sum_agent_spending(spent, "tokens"),
            metrics.SPEND_TODAY_USD: _sum_agent_spending(spent, "usd"),
            metrics.TURNS_TOTAL: commits.get("end", 0.0),
            metrics.COMMITS_TOTAL: commits,
            metrics.HTTP_STREAMS: tail.watchers,
            metrics.HTTP_RESPONSES_TOTAL: responses,
            metrics.HTTP_CONNECTIONS_CLOSED_TOTAL: float(use.closed_connections),
            metrics.MESSAGES_LIMITED_TOTAL: use.limited,
            metrics.MESSAGES_HELD: float(use.held),
            metrics.UPDATES_UNPARSED_TOTAL: use.unparsed,
            metrics.HOSTS: hosts,
            metrics.ACCOUNTS_HELD: dict.fromkeys(described["held_accounts"], 1.0),
            metrics.OLDEST_DUE_SECONDS: _find_due_seconds(cursors, await store.get_time()),
            metrics.DRAINING: int(described["draining"]),
            metrics.AGENTS: len(call.context.agents.settings.agents),
            metrics.READY: int(not call.context.get_trouble()),
        }
        return Response(metrics.render_prometheus(values), media_type=PROMETHEUS_MEDIA_TYPE)


def _find_due_seconds(cursors: Iterable[ConsumerCursor], now: float) -> float:
    """How long the oldest cursor that is due and that nobody holds has waited; 0 if there is none."""
    free = (now - it.since - it.wait for it in cursors if not it.owner and it.since is not None)
    return max((waited for waited in free if waited > 0), default=0.0)


def _sum_agent_spending(spent: Iterable[BudgetSpend], what: Literal["tokens", "usd"]) -> dict[str, float]:
    return {it.budget.removeprefix("agent:"): float(it.tokens if what == "tokens" else it.usd) for it in spent}


def _sum_backlog_items(backlogs: Iterable[MemoryBacklog]) -> dict[str, float]:
    lags: Counter[str] = Counter()
    for it in backlogs:
        lags[it.consumer.removeprefix(MEMORY_PREFIX)] += it.items
    return {memory: float(lag) for memory, lag in lags.items()}


def _find_oldest_items(backlogs: Iterable[MemoryBacklog]) -> dict[str, float]:
    oldest: dict[str, float] = {}
    for it in backlogs:
        memory = it.consumer.removeprefix(MEMORY_PREFIX)
        if it.oldest is not None:
            oldest[memory] = min(it.oldest, oldest.get(memory, it.oldest))
    return oldest
