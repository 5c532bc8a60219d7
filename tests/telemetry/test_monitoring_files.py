"""The alert rules and the dashboard that ship: they are valid, they use metrics that exist, and every alert fires."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from everhold.telemetry.metrics import METRICS
from everhold.testing.model_server import ModelServer
from tests.api.conftest import ApiGateway
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
ALERTS, ALERT_TESTS = PROMETHEUS / "alerts.yml", PROMETHEUS / "alerts_test.yml"
DASHBOARD = ROOT / "deploy/grafana/everhold.json"
RUNBOOK = ROOT / "docs/how-to/watch-everhold.md"


def find_promtool() -> str:
    found = shutil.which("promtool") or shutil.which("promtool", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("there is no promtool on this machine: make deps")
    return found


def run_promtool(*arguments: str, text: str = "") -> None:
    done = subprocess.run([find_promtool(), *arguments], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text("utf-8"))


def list_alerts() -> list[dict[str, Any]]:
    return [rule for group in load(ALERTS)["groups"] for rule in group["rules"]]


def list_panel_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def list_metric_names() -> set[str]:
    """The names of all series: a histogram has three for each metric."""
    names = {"up"}
    for metric in METRICS:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.full_name + suffix for suffix in suffixes}
    return names


def find_unknown_names(expression: str) -> set[str]:
    """The series and labels of an expression that no metric has."""
    used = set(re.findall(r"\b(?:everhold_\w+|up\b)", expression))
    labels = {label for metric in METRICS for label in metric.labels} | {"instance", "le", "job"}
    grouped = {it.strip() for found in re.findall(r"\bby \(([^)]*)\)", expression) for it in found.split(",")}
    return (used - list_metric_names()) | (grouped - labels)


def test_a_wrong_name_in_an_expression_is_found() -> None:
    assert find_unknown_names("max by (consumer) (everhold_due_lag_second)") == {"everhold_due_lag_second"}
    assert find_unknown_names("max by (session) (everhold_due_lag_seconds)") == {"session"}


@pytest.mark.parametrize("expression", [*(it["expr"] for it in list_alerts()), *list_panel_expressions()])
def test_every_expression_uses_metrics_and_labels_that_exist(expression: str) -> None:
    assert find_unknown_names(expression) == set()


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = {name["name"] for name in load(ALERT_TESTS)["tests"]}
    names = [it["alert"] for it in list_alerts()]
    assert len(set(names)) == len(names)
    assert cases == {f"{name} {how}" for name in names for how in ("fires", "does not fire")}
    for case in load(ALERT_TESTS)["tests"]:
        for expected in case["alert_rule_test"]:
            assert bool(expected["exp_alerts"]) == case["name"].endswith(" fires"), case["name"]


def test_every_alert_has_an_entry_in_the_runbook() -> None:
    entries = set(re.findall(r"^### (\w+)$", RUNBOOK.read_text("utf-8"), re.MULTILINE))
    assert entries == {it["alert"] for it in list_alerts()}
    for alert in list_alerts():
        assert alert["annotations"]["runbook"] == f"docs/how-to/watch-everhold.md#{alert['alert'].lower()}"


def test_promtool_accepts_the_rules_and_every_alert_fires_in_its_test() -> None:
    run_promtool("check", "rules", str(ALERTS))
    run_promtool("test", "rules", str(ALERT_TESTS))


def test_a_rule_that_never_fires_is_found(tmp_path: Path) -> None:
    """The planted bug is a limit that no value reaches."""
    (tmp_path / ALERT_TESTS.name).write_text(ALERT_TESTS.read_text())
    (tmp_path / ALERTS.name).write_text(ALERTS.read_text().replace("> 120", "> 120000"))
    with pytest.raises(AssertionError, match="EverholdWorkWaits"):
        run_promtool("test", "rules", str(tmp_path / ALERT_TESTS.name))


def test_promtool_accepts_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(list_panel_expressions())
    ]
    file = tmp_path / "panels.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    run_promtool("check", "rules", str(file))


def test_every_group_of_metrics_is_on_the_dashboard() -> None:
    shown = " ".join(list_panel_expressions())
    missing = [it.name for it in METRICS if it.kind == "histogram" and it.full_name not in shown]
    assert not missing


async def test_promtool_accepts_a_live_scrape(tmp_path: Path) -> None:
    async with ModelServer() as server:
        gateway = ApiGateway(tmp_path, server)
        await gateway.start()
        try:
            async with gateway.client() as client:
                posted = await client.post("/api/messages", json={"chat": "x", "text": "hello"})
                await gateway.wait_until_idle(posted.json()["session"])

                text = ""

                async def is_timed() -> bool:  # what was committed is timed a moment later
                    nonlocal text
                    text = (await client.get("/metrics")).text
                    return 'everhold_answer_seconds_count{agent="main",outcome="done"} 1' in text

                await wait_until(is_timed)
        finally:
            await gateway.stop()
    assert 'everhold_model_seconds_count{model="fake",outcome="done"} 1' in text
    assert 'everhold_accept_seconds_count{platform="http"} 1' in text
    assert 'everhold_claim_lag_seconds_count{consumer="turn"} 1' in text
    assert 'everhold_tokens_total{agent="main",model="fake",type="output"}' in text
    assert posted.json()["session"] not in text
    run_promtool("check", "metrics", text=text)
