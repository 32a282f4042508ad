"""Alerts and dashboard name only what is exported, every alert has a section in the runbook, and `promtool` agrees."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.generate.dashboard import dashboard
from projector.problem import LABELS
from schemas import metrics
from schemas.version import VERSION
from tests.harness.services import not_available

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((MONITORING / "rules.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
EXPORTED = {name: metric for metric in metrics.ALL for name in metric.exported}
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text("utf-8")
_NAME = re.compile(r"\b(?:leadview|process|python)_\w+")
_SELECTOR = re.compile(r"\b((?:leadview|process|python)_\w+)\{([^}]*)\}")


def unknown(expression: str) -> list[str]:
    """Returns the metrics and labels in an expression that no process exports."""
    found = [name for name in _NAME.findall(expression) if name not in EXPORTED]
    for name, matchers in _SELECTOR.findall(expression):
        labels = re.findall(r"(\w+)\s*[=!]~?", matchers)
        found += [f"{name}{{{label}}}" for label in labels if label not in EXPORTED[name].labels]
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_names_only_what_is_exported(rule: dict[str, Any]) -> None:
    assert _NAME.search(rule["expr"])
    missing = unknown(rule["expr"])
    assert not missing, (
        f"deploy/monitoring/rules.yaml: {rule['alert']} names what schemas/metrics.py has not: {missing}"
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_has_a_section_in_the_runbook(rule: dict[str, Any]) -> None:
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    assert f"\n## {rule['alert']}\n" in RUNBOOK, f"docs/runbook.md: add a section `## {rule['alert']}`"
    assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_dashboard_names_only_what_is_exported() -> None:
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert {panel["title"] for panel in panels} == {metric.name for metric in metrics.ALL}
    assert [name for expression in expressions for name in unknown(expression)] == []
    places = [tuple(panel["gridPos"].values())[:2] for panel in dashboard()["panels"]]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        pytest.param("max(leadview_projector_lag)", ["leadview_projector_lag"], id="name"),
        pytest.param("rate(leadview_api_requests[5m])", ["leadview_api_requests"], id="counter without its suffix"),
        pytest.param('leadview_api_requests_total{code="500"}', ["leadview_api_requests_total{code}"], id="label"),
        pytest.param('leadview_api_requests_total{status=~"5..", route!="x"}', [], id="nothing"),
    ],
)
def test_a_mistake_would_be_found(expression: str, found: list[str]) -> None:
    assert unknown(expression) == found


@pytest.mark.parametrize("kind", LABELS)
def test_a_problem_has_a_section_in_the_runbook(kind: str) -> None:
    assert f"\n### {kind}\n" in RUNBOOK


def test_every_alert_is_tested() -> None:
    tests = yaml.safe_load((MONITORING / "rules_test.yaml").read_text("utf-8"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    alerts, path = {rule["alert"] for rule in RULES}, "deploy/monitoring/rules_test.yaml"
    fires = {case["alertname"] for case in cases if case.get("exp_alerts")}
    assert fires == alerts, f"{path}: no test in which these fire: {alerts - fires}"
    silent = {case["alertname"] for case in tests[0]["alert_rule_test"] if not case.get("exp_alerts")}
    assert silent == alerts, f"{path}: `all is well` does not say that these are silent: {alerts - silent}"


@pytest.mark.parametrize("words", [("check", "rules", "rules.yaml"), ("test", "rules", "rules_test.yaml")])
def test_promtool_agrees(words: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        not_available("promtool is not installed: on Debian it is in the package prometheus")
    done = subprocess.run([promtool, *words], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_and_units_are_those_of_prometheus() -> None:
    assert len({metric.name for metric in metrics.ALL}) == len(metrics.ALL)
    assert [metric.name for metric in metrics.ALL if not re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)] == []
    assert [metric.name for metric in metrics.ALL if metric.name.endswith("_total")] == []
    for metric in metrics.ALL:
        assert (metric.unit == "seconds") == metric.name.endswith("_seconds"), metric.name
        assert (metric.unit == "bytes") == metric.name.endswith("_bytes"), metric.name
        assert (metric.unit == "ratio") == metric.name.endswith("_ratio"), metric.name
        assert bool(metric.buckets) == (metric.type == "histogram"), metric.name


def test_the_version_is_that_of_the_package() -> None:
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text("utf-8")
