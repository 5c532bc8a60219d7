"""Each event of a turn is in its metric once."""

from __future__ import annotations

from pathlib import Path

from everhold.core.entries import Ended, ModelUsage, Said, ToolCall
from everhold.ports.model import ModelResponse
from everhold.ports.tool import ToolEffect
from everhold.telemetry import metrics
from everhold.telemetry.metrics import MetricDefinition
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway

USAGE = ModelUsage(input=100, output=7, cached=40, usd=0.25)
LOOK = ModelResponse(calls=(ToolCall(id="c", tool="look"),), model="m", usage=USAGE)
ANSWER = ModelResponse(text="done", model="m", usage=USAGE)


def count(gateway: InProcessGateway, metric: MetricDefinition) -> dict[tuple[str, ...], float]:
    """The counter, or how often the histogram was observed."""
    assert gateway.process is not None
    registry = gateway.process.gates.metrics
    if metric.kind == "histogram":
        return {labels: sum(it.counts) for labels, it in registry.get_histogram(metric).items()}
    return dict(registry.get_counts(metric))


def make_gateway(path: Path) -> InProcessGateway:
    gateway = InProcessGateway(path)
    gateway.runtimes.model = FakeModel([LOOK, ANSWER, ANSWER], name="m")
    gateway.runtimes.tools["look"] = FakeTool("look", ToolEffect.PURE)
    gateway.runtimes.memories["far"] = FakeMemoryProvider()
    gateway.runtimes.settings.update(recall_memories=("far",), recall_seconds=1.0)
    return gateway


def test_each_event_of_a_turn_is_counted_once(tmp_path: Path) -> None:
    gateway = make_gateway(tmp_path)
    with gateway.run_started():
        session = gateway.send_message("hello").session
        gateway.run_until_idle(300.0)
        assert len(gateway.read_bodies(session, Said)) == 1
        assert {metric.name: count(gateway, metric) for metric in METRICS_OF_A_TURN} == {
            "accept_seconds": {("fake",): 1},
            "claim_lag_seconds": {("turn",): 1, ("platform",): 1, ("memory",): 2},  # a memory waits for more at first
            "answer_seconds": {("main", "done"): 1},
            "model_seconds": {("m", "done"): 2},
            "tool_seconds": {("look", "done"): 1},
            "recall_seconds": {("far", "done"): 1},
            "delivery_seconds": {("platform:fake:main", "done"): 1, ("memory:far", "done"): 1},
            "lease_takeovers_total": {},
            "lease_lost_total": {},
            "tokens_total": {
                ("main", "m", "input"): 120.0,
                ("main", "m", "cached"): 80.0,
                ("main", "m", "output"): 14.0,
            },
            "cost_usd_total": {("main", "m"): 0.5},
        }
        (ended,) = gateway.read_bodies(session, Ended)
        assert ended.usage == USAGE + USAGE


METRICS_OF_A_TURN = [
    metrics.ACCEPT_SECONDS,
    metrics.CLAIM_LAG_SECONDS,
    metrics.ANSWER_SECONDS,
    metrics.MODEL_SECONDS,
    metrics.TOOL_SECONDS,
    metrics.RECALL_SECONDS,
    metrics.DELIVERY_SECONDS,
    metrics.LEASE_TAKEOVERS_TOTAL,
    metrics.LEASE_LOST_TOTAL,
    metrics.TOKENS_TOTAL,
    metrics.COST_USD_TOTAL,
]
