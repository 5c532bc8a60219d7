"""Handlers of /health, /ready and /metrics, for monitoring."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from everhold import __version__
from everhold.api.auth import ANONYMOUS
from everhold.api.errors import ApiError, build_json_response
from everhold.api.middleware import GuardMiddleware
from everhold.api.request import ApiCall
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
        tail, use = call.context.tail, call.context.gateway.count_refusals()
        commits = {step: float(count) for step, count in tail.commits.items()}
        responses = {
            str(status): float(count) for status, count in (self.guard.response_counts if self.guard else {}).items()
        }
        values = await call.context.gateway.collect_metrics()
        values |= {
            metrics.TURNS_TOTAL: commits.get("end", 0.0),
            metrics.COMMITS_TOTAL: commits,
            metrics.HTTP_STREAMS: tail.watchers,
            metrics.HTTP_RESPONSES_TOTAL: responses,
            metrics.HTTP_CONNECTIONS_CLOSED_TOTAL: float(use.closed_connections),
            metrics.MESSAGES_LIMITED_TOTAL: use.limited,
            metrics.MESSAGES_HELD: float(use.held),
            metrics.UPDATES_UNPARSED_TOTAL: use.unparsed,
        }
        return Response(metrics.render_prometheus(values), media_type=PROMETHEUS_MEDIA_TYPE)
