"""The files in deploy/ are valid, and agree with the program: readiness, drain, grace periods and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from everhold.app import DRAIN_SECONDS
from everhold.cli.commands.up import CLOSE_SECONDS
from everhold.config import parse_settings
from everhold.config.secrets import SecretEnvironment
from everhold.telemetry.metrics import METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SECRETS = {
    "EVERHOLD_STORE_URL": "postgresql://everhold:hunter22@db/everhold",
    "EVERHOLD_OPERATOR_TOKEN": "0123456789abcdef" * 3,
}


def load_documents(path: Path) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(path.read_text()))


def find_kind(kind: str) -> Any:
    found = [it for path in MANIFESTS for it in load_documents(path) if it["kind"] == kind]
    assert len(found) == 1, kind
    return found[0]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_each_manifest_is_valid(path: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for document in load_documents(path):
        validator.validate(document, "1.33", strict=True)


def test_a_pod_has_time_to_drain() -> None:
    pod = find_kind("Deployment")["spec"]["template"]["spec"]
    settings = parse_settings(find_kind("ConfigMap")["data"]["config.yaml"], environment=SecretEnvironment(SECRETS))
    needed = settings.drain.settle_seconds + DRAIN_SECONDS + CLOSE_SECONDS
    assert pod["terminationGracePeriodSeconds"] > needed
    container = pod["containers"][0]
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["everhold", "drain"]
    probe = container["readinessProbe"]
    assert probe["httpGet"]["path"] == "/ready"
    noticed = probe["periodSeconds"] * probe["failureThreshold"]
    assert noticed < settings.drain.settle_seconds, "it settles until the probe has seen that it drains"


def test_a_rollout_never_has_fewer_pods_than_the_budget() -> None:
    deployment = find_kind("Deployment")["spec"]
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert find_kind("PodDisruptionBudget")["spec"]["minAvailable"] < deployment["replicas"]
    assert find_kind("HorizontalPodAutoscaler")["spec"]["minReplicas"] == deployment["replicas"]


def test_the_autoscaler_follows_a_metric_that_exists() -> None:
    (metric,) = find_kind("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in {it.full_name for it in METRICS}


def test_compose_runs_two_gateways_on_one_database_with_the_same_configuration() -> None:
    (compose,) = load_documents(DEPLOY / "compose.yaml")
    gateways = [it for it in compose["services"].values() if it.get("image") == "everhold"]
    assert len(gateways) == 2
    for gateway in gateways:
        assert gateway["environment"]["EVERHOLD_STORE_URL"].startswith("postgresql://everhold:${POSTGRES_PASSWORD")
        grace = float(gateway["stop_grace_period"].removesuffix("s"))
        settings = parse_settings((DEPLOY / "config.yaml").read_text(), environment=SecretEnvironment(SECRETS))
        assert settings.store.is_server
        assert grace > settings.drain.settle_seconds + DRAIN_SECONDS + CLOSE_SECONDS
    hosts = {it["hostname"] for it in gateways}
    proxy = (DEPLOY / "nginx.conf").read_text()
    assert all(f"server {host}:8765" in proxy for host in hosts)
