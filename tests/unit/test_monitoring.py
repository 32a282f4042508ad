"""Alerts and dashboard name only what is exported, keep installations apart, and have sections in the runbook."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.generate.dashboard import dashboard
from docs.generate.monitoring import Options
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
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
OPTIONS = Options()
EXPORTED = {name: metric for metric in metrics.ALL for name in metric.exported}
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text("utf-8")
_NAME = re.compile(r"\b(?:leadview|process|python)_\w+")
_RECORDED = re.compile(r"\bleadview:[\w:]+")
_BY = re.compile(r"\b(?:by|on) \(([^)]*)\)")
_SELECTOR = re.compile(r"\b((?:leadview|process|python)_\w+)\{([^}]*)\}")


def unknown(expression: str) -> list[str]:
    """Returns the metrics and labels in an expression that no process exports."""
    found = [name for name in _NAME.findall(expression) if name not in EXPORTED]
    found += [name for name in _RECORDED.findall(expression) if name not in RECORDED]
    for name, matchers in _SELECTOR.findall(expression):
        labels = re.findall(r"(\w+)\s*[=!]~?", matchers)
        found += [f"{name}{{{label}}}" for label in labels if label not in (*OPTIONS.labels, *EXPORTED[name].labels)]
    return found


def test_rules_name_only_what_is_exported() -> None:
    for rule in RULES:
        assert _NAME.search(rule["expr"]) or _RECORDED.search(rule["expr"])
        assert unknown(rule["expr"]) == [], f"schemas/metrics.py has not all of {rule}"


def test_every_aggregation_keeps_installations_apart() -> None:
    for rule in RULES:
        kept = _BY.findall(rule["expr"])
        assert all(tuple(labels.split(", "))[: len(OPTIONS.labels)] == OPTIONS.labels for labels in kept), rule
        assert not re.search(r"\b(?:sum|max|min|avg|count|group) ?\(", rule["expr"]), rule


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_has_a_section_in_the_runbook(rule: dict[str, Any]) -> None:
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"{OPTIONS.runbook}#{rule['alert'].lower()}"
    assert f"\n## {rule['alert']}\n" in RUNBOOK, f"docs/runbook.md: add a section `## {rule['alert']}`"
    assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_dashboard_names_only_what_is_exported() -> None:
    shown = dashboard(OPTIONS.labels)
    panels = [panel for panel in shown["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert {panel["title"] for panel in panels} >= {metric.name for metric in metrics.ALL}
    assert [name for expression in expressions for name in unknown(expression)] == []
    places = [tuple(panel["gridPos"].values())[:2] for panel in shown["panels"]]
    assert len(set(places)) == len(places)


def test_the_dashboard_has_a_variable_for_each_label() -> None:
    shown = dashboard(("region", "stage"))
    assert [variable["name"] for variable in shown["templating"]["list"]] == ["datasource", "region", "stage"]
    expressions = [target["expr"] for panel in shown["panels"] for target in panel.get("targets", ())]
    assert [it for it in expressions if '{region=~"$region", stage=~"$stage"}' not in it] == []


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


@pytest.mark.parametrize("kind", metrics.PROBLEM_LABELS)
def test_a_problem_has_a_section_in_the_runbook(kind: str) -> None:
    assert f"\n### {kind}\n" in RUNBOOK


@pytest.mark.heavy
def test_promtool_agrees_with_the_configuration_and_its_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        not_available("promtool is not installed: on Debian it is in the package prometheus")
    done = subprocess.run(
        [promtool, "check", "config", MONITORING / "prometheus.yaml"], capture_output=True, text=True, check=False
    )
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
