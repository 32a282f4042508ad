"""deploy/monitoring: what the alert rules say in troubles that `tests/troubles` does not make on real servers, or only
briefly, and that rules and dashboard name what is exported.

`promtool` runs the rules over series that are made here. Each trouble has an installation of its own, all of them in
one Prometheus, beside one that is well: an alert names the one that has the trouble. It comes after two hours in which
all is well, and all is well again after it. Everything is scraped as rarely as the rules allow.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import yaml

from docs.generate.dashboard import dashboard
from docs.generate.monitoring import Options, main
from docs.generate.troubles import ROWS
from schemas import metrics
from tests.harness.programs import Expected, Value, evaluate, named, promtool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/monitoring/rules.yaml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
EACH_RULE: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in EACH_RULE if "alert" in rule]
OPTIONS = Options()
EXPORTED = {name: metric for metric in metrics.ALL for name in metric.exported}
STEPS_PER_MINUTE = 2
WELL_BEFORE = 120

Values = float | Literal["gone"] | Callable[[int], float]
"""A value, the increase of a counter in each step, or how either follows from the step of the trouble."""

HEALTHY: Mapping[str, float] = {
    'leadview_build_info{instance="api", program="api"}': 1,
    'leadview_build_info{instance="a", program="projector"}': 1,
    'leadview_api_projectors{instance="api"}': 2,
    'leadview_api_ready_workers{instance="api"}': 2,
    'leadview_api_problems{instance="api", problem="not_written"}': 0,
    'leadview_api_served_age_seconds{instance="api"}': 3,
    'leadview_api_limiter_failures_total{instance="api"}': 0,
    'leadview_api_redis_errors_total{instance="api", reason="busy"}': 0,
    'leadview_api_redis_errors_total{instance="api", reason="error"}': 100,
    'leadview_api_requests_total{instance="api", route="lead", status="200"}': 15000,
    'leadview_api_requests_total{instance="api", route="lead", status="503"}': 1,
    'leadview_api_requests_total{instance="api", route="readyz", status="200"}': 5,
    'leadview_api_requests_total{instance="api", route="readyz", status="503"}': 3,
    'leadview_projector_unapplied_age_seconds{instance="a"}': 0,
    'leadview_projector_measured{instance="a", part="kafka"}': 1,
    'leadview_projector_measured{instance="a", part="redis"}': 1,
    'leadview_projector_line_standing_by{instance="a", line="documents"}': 0,
    'leadview_projector_open_transaction_age_seconds{instance="a", topic="crm.api-keys"}': 0,
    'leadview_projector_open_transaction_age_seconds{instance="a", topic="crm.leads"}': 0,
    'leadview_projector_problems{instance="a", problem="open_transaction"}': 0,
    'leadview_projector_problems{instance="a", problem="no_partitions"}': 0,
    'leadview_projector_problems{instance="a", problem="not_advancing"}': 0,
    'leadview_projector_problems{instance="a", problem="other_cluster"}': 0,
    'leadview_projector_problems{instance="a", problem="redis_full"}': 0,
    'leadview_projector_problems{instance="a", problem="standing_by"}': 0,
    'leadview_projector_redis_memory_ratio{instance="a"}': 0.5,
    'leadview_projector_rebuild_due{instance="a"}': 0,
    'leadview_projector_unverified_topic{instance="a", problem="deletes_missed", topic="crm.api-keys"}': 0,
    'leadview_projector_unverified_topic{instance="a", problem="partitions_raised", topic="crm.leads"}': 0,
    'leadview_verify_differences_total{instance="v", topic="leads"}': 0,
}
SERVED = 'leadview_api_requests_total{instance="api", route="lead", status="200"}'
FAILED = 'leadview_api_requests_total{instance="api", route="lead", status="503"}'
BUSY = 'leadview_api_redis_errors_total{instance="api", reason="busy"}'
LIMITER = 'leadview_api_limiter_failures_total{instance="api"}'
API = [name for name in HEALTHY if 'instance="api"' in name]
PROJECTOR = [name for name in HEALTHY if 'instance="a"' in name]
AGES = ('leadview_api_served_age_seconds{instance="api"}', 'leadview_projector_unapplied_age_seconds{instance="a"}')
NAN = float("nan")


def problem(name: str) -> str:
    return f'leadview_projector_problems{{instance="a", problem="{name}"}}'


def gone(names: Iterable[str]) -> dict[str, Values]:
    return dict.fromkeys(names, "gone")


def grows(step: int) -> float:
    """Seconds that have passed when a step of the trouble ends, after the three that it was old before."""
    return 3 + (step + 1) * 60 / STEPS_PER_MINUTE


def once(step: int) -> float:
    return 1.0 if step == 0 else 0.0


OLDER: dict[str, Values] = dict.fromkeys(AGES, grows)


class Trouble(msgspec.Struct, frozen=True):
    """`fires`: which alerts ever fire. All are silent `silent_after` minutes after the trouble."""

    minutes: int
    changed: Mapping[str, Values]
    fires: frozenset[str]
    silent_after: int


def trouble(minutes: int, changed: Mapping[str, Values], *fires: str, silent_after: int = 32) -> Trouble:
    return Trouble(minutes, changed, frozenset(f"Leadview{name}" for name in fires), silent_after)


TROUBLES: dict[str, Trouble] = {
    "the projectors have died, and with them what they export": trouble(
        10,
        {**gone(PROJECTOR), 'leadview_api_projectors{instance="api"}': 0, AGES[0]: grows},
        *("NoProjector", "NotMeasured", "Stale", "FreshnessBurnsFast"),
    ),
    "a worker of the API reads another Redis than the projectors write": trouble(
        10, {'leadview_api_problems{instance="api", problem="not_written"}': 1}, "ApiProblem"
    ),
    "the API is no longer scraped": trouble(10, gone(API), "NoApi", "AvailabilityBurnsFast"),
    "nothing is scraped any more": trouble(
        10,
        gone(name for name in HEALTHY if 'instance="v"' not in name),
        *("NoApi", "NotMeasured", "AvailabilityBurnsFast", "FreshnessBurnsFast"),
    ),
    "no worker is ready, so no request comes": trouble(
        10,
        {'leadview_api_ready_workers{instance="api"}': 0, SERVED: 0, FAILED: 0},
        *("NoApi", "AvailabilityBurnsFast"),
    ),
    "`/readyz` is answered with 503, so no other request comes": trouble(
        10,
        {'leadview_api_requests_total{instance="api", route="readyz", status="200"}': 0, SERVED: 0, FAILED: 0},
        *("NoApi", "AvailabilityBurnsFast"),
    ),
    "everything is answered with 503": trouble(10, {SERVED: 0, FAILED: 15000}, "ServerErrors", "AvailabilityBurnsFast"),
    "everything that few ask for is answered with 503": trouble(
        20, {SERVED: 0, FAILED: 3}, "ServerErrors", "AvailabilityBurnsFast"
    ),
    "the API may not read the heartbeats": trouble(
        10,
        {'leadview_api_projectors{instance="api"}': NAN, AGES[0]: NAN},
        *("NotMeasured", "FreshnessBurnsFast"),
    ),
    "records wait, and no cause is known": trouble(
        10, {problem("not_advancing"): 1, **OLDER}, "Problem", "Stale", "FreshnessBurnsFast"
    ),
    "a deployment was rolled back, and a newer program still works": trouble(
        20,
        {
            'leadview_projector_line_standing_by{instance="a", line="documents"}': 1,
            problem("standing_by"): 1,
            problem("no_partitions"): 1,
            'leadview_projector_rebuild_due{instance="a"}': 1,
        },
        *("StandingBy", "RebuildDue"),
        silent_after=1,
    ),
    "Redis is full": trouble(
        10,
        {
            'leadview_projector_redis_memory_ratio{instance="a"}': 1.01,
            problem("redis_full"): 1,
            problem("not_advancing"): 1,
            LIMITER: 30,
            **OLDER,
        },
        *("RedisMemory", "LimiterFailing", "Problem", "Stale", "FreshnessBurnsFast"),
    ),
    "a script does not end": trouble(
        10, {SERVED: 0, FAILED: 15000, BUSY: 15000}, "RedisBusy", "ServerErrors", "AvailabilityBurnsFast"
    ),
    "a transaction is open in a topic of access": trouble(
        2,
        {
            'leadview_projector_open_transaction_age_seconds{instance="a", topic="crm.api-keys"}': grows,
            problem("open_transaction"): 1,
        },
        "AccessHeldBack",
    ),
    "another Kafka cluster answers": trouble(5, {problem("other_cluster"): 1}, "OtherCluster"),
    "deletions of API keys were missed, and nothing compares them": trouble(
        20,
        {'leadview_projector_unverified_topic{instance="a", problem="deletes_missed", topic="crm.api-keys"}': 1},
        *("AccessUnverified", "Unverified"),
    ),
    "partitions were added, and deleted leads may come back": trouble(
        20,
        {'leadview_projector_unverified_topic{instance="a", problem="partitions_raised", topic="crm.leads"}': 1},
        "Unverified",
    ),
    "verification finds a difference": trouble(
        1,
        {'leadview_verify_differences_total{instance="v", topic="leads"}': once},
        "VerifyFoundDifferences",
        silent_after=61,
    ),
    "in a quiet hour, one request meets a busy and full Redis, and fails": trouble(
        10, {SERVED: 0} | dict.fromkeys((BUSY, LIMITER, FAILED), lambda step: 1.0 if step == 6 else 0.0)
    ),
    "what lasts for half a minute": trouble(
        1,
        {
            'leadview_api_projectors{instance="api"}': lambda step: 2.0 if step else 0.0,
            'leadview_api_ready_workers{instance="api"}': lambda step: 2.0 if step else 0.0,
            problem("not_advancing"): once,
            LIMITER: once,
            BUSY: once,
            AGES[0]: 18,
        },
    ),
}


WELL = trouble(0, {}, silent_after=0)
DEAD, NO_WORKER = "the projectors have died, and with them what they export", "no worker is ready, so no request comes"
NO_PROJECTORS = TROUBLES[DEAD]


@pytest.mark.heavy
def test_trouble_alerts_for_the_installation_that_has_it(tmp_path: Path) -> None:
    """What has ever fired before, in and after the trouble of each installation. Any of the labels tells them apart,
    and one may have none. An outage pages within two minutes.
    """
    every = TROUBLES | {"all is well": WELL}
    installations: list[tuple[dict[str, str], Trouble]] = [
        *(({"installation": name}, every[name]) for name in every),
        ({"cluster": "a", "namespace": "crm"}, NO_PROJECTORS),
        ({"cluster": "b", "namespace": "crm"}, WELL),
        ({}, NO_PROJECTORS),
    ]
    series: dict[str, Sequence[Value]] = {}
    end = max(last_minute(given) for _, given in installations)
    for labels, given in installations:
        assert given.changed.keys() <= HEALTHY.keys()
        for name, healthy in HEALTHY.items():
            series[named(name, labels)] = samples(name, healthy, given, 1 + end * STEPS_PER_MINUTE)
    # Those that look at days have a test of their own.
    fired, apart = 'ALERTS{alertstate="firing", alertname!~".*Slowly"}', ", ".join(("alertname", *OPTIONS.labels))
    ever = f"group by ({apart}) (count_over_time({fired}[1d]))"
    everything = [{"alertname": name, **labels} for labels, given in installations for name in sorted(given.fires)]
    expected: list[Expected] = [(WELL_BEFORE - 1, ever, []), (end, ever, everything)]
    for labels, given in installations:
        its = named(fired, {label: labels.get(label, "") for label in OPTIONS.labels})
        expected.append((last_minute(given), f"group by ({apart}) ({its})", []))
    pages = f'alertstate="firing", alertname=~".*Fast", installation=~"{NO_WORKER}|{DEAD}"'
    soon = f"group by (alertname, installation) (ALERTS{{{pages}}})"
    found = [
        {"alertname": f"Leadview{objective}BurnsFast", "installation": name}
        for objective, name in (("Availability", NO_WORKER), ("Freshness", DEAD))
    ]
    expected += [(WELL_BEFORE, soon, []), (WELL_BEFORE + 2, soon, found)]
    evaluate(tmp_path, RULES, "30s", series, expected)


def test_labels_and_runbook_can_be_chosen(tmp_path: Path) -> None:
    """The rules differ from the committed ones in nothing else."""
    main([str(tmp_path), "--labels", "region,stage", "--runbook-base", "https://wiki.example.com/leadview"])
    text = (tmp_path / "rules.yaml").read_text("utf-8")
    for chosen, default in (
        ("region, stage", ", ".join(OPTIONS.labels)),
        ("https://wiki.example.com/leadview", OPTIONS.runbook),
    ):
        assert chosen in text
        text = text.replace(chosen, default)
    how = "write rules into docs/generate/rules.yaml, and run `.venv/bin/python -m docs.generate`"
    assert text == RULES.read_text("utf-8"), how


@pytest.mark.heavy
def test_prometheus_that_has_never_seen_leadview_says_so(tmp_path: Path) -> None:
    fired = 'ALERTS{alertstate="firing"}'
    evaluate(
        tmp_path,
        RULES,
        "30s",
        {'up{job="other"}': [1] * 20},
        [
            (
                5,
                fired,
                [
                    {
                        "__name__": "ALERTS",
                        "alertname": "LeadviewNotMeasured",
                        "alertstate": "firing",
                        "severity": "page",
                    }
                ],
            )
        ],
    )


@pytest.mark.heavy
def test_budget_that_is_used_up_slowly_is_a_ticket(tmp_path: Path) -> None:
    """For 16 hours, four of 1,000 requests fail, and two minutes of 40 are not fresh. Six hours later, all is silent.
    Metrics are scraped every two minutes.
    """
    main([str(tmp_path), "--freshness", "99"])
    begin, end, minutes = 4 * 60, 20 * 60, 26 * 60
    labels, scraped = {"installation": "production"}, range(0, minutes + 1, 2)
    series = {
        'leadview_api_ready_workers{instance="api"}': [2 for _ in scraped],
        AGES[0]: [60 if begin < minute <= end and minute % 40 == 0 else 3 for minute in scraped],
        SERVED: [60_000 * minute for minute in scraped],
        FAILED: [240 * (min(max(minute, begin), end) - begin) for minute in scraped],
    }
    fired = 'ALERTS{alertstate="firing", alertname=~".*Burns.*"}'
    ever, now = f"group by (alertname, installation) (count_over_time({fired}[3d]))", f"group ({fired})"
    expected = [{"alertname": f"Leadview{it}BurnsSlowly"} | labels for it in ("Availability", "Freshness")]
    evaluate(
        tmp_path,
        tmp_path / "rules.yaml",
        "2m",
        {named(name, labels): values for name, values in series.items()},
        [
            (begin, ever, []),
            (end, ever, expected),
            (minutes, ever, expected),
            (minutes, now, []),
            # Of 20 hours, 0.32 % of 0.1 % that may fail, and 4 % of 1 % that may be late.
            (end + 10, "round(10 * leadview:availability:budget_left_ratio) == bool -22", [labels]),
            (end + 10, "round(10 * leadview:freshness:budget_left_ratio) == bool -30", [labels]),
        ],
    )


def test_every_alert_fires_in_a_test() -> None:
    fire = {f"Leadview{name}" for row in ROWS.values() for name in row.alerts}
    fire |= {name for each in TROUBLES.values() for name in each.fires}
    slowly = {"LeadviewAvailabilityBurnsSlowly", "LeadviewFreshnessBurnsSlowly"}
    how = "name the alert where it fires: in docs/generate/troubles.py, or in tests/unit/test_monitoring.py"
    assert fire == {rule["alert"] for rule in ALERTS} - slowly, how


def last_minute(given: Trouble) -> int:
    return WELL_BEFORE + given.minutes + given.silent_after


def samples(name: str, healthy: float, given: Trouble, steps: int) -> list[Value]:
    """Returns the values of a series: well, in trouble, and well again. Counters go on from where they were."""
    found: list[Value] = []
    begin = WELL_BEFORE * STEPS_PER_MINUTE
    trouble, total = range(begin, begin + given.minutes * STEPS_PER_MINUTE), 0.0
    for step in range(steps):
        value = given.changed.get(name, healthy) if step in trouble else healthy
        if callable(value):
            value = value(step - begin)
        if value != "gone" and "_total{" in name:
            total += value
            value = total
        found.append(value)
    return found


@pytest.mark.heavy
def test_promtool_agrees_with_the_configuration_and_its_rules() -> None:
    promtool("check", "config", RULES.with_name("prometheus.yaml"))


def unknown(expression: str) -> list[str]:
    """Returns the metrics and labels in an expression that no process exports."""
    recorded = {rule["record"] for rule in EACH_RULE if "record" in rule}
    found = [name for name in re.findall(r"\b(?:leadview|process|python)_\w+", expression) if name not in EXPORTED]
    found += [name for name in re.findall(r"\bleadview:[\w:]+", expression) if name not in recorded]
    for name, matchers in re.findall(r"\b((?:leadview|process|python)_\w+)\{([^}]*)\}", expression):
        labels = re.findall(r"(\w+)\s*[=!]~?", matchers)
        found += [f"{name}{{{label}}}" for label in labels if label not in (*OPTIONS.labels, *EXPORTED[name].labels)]
    return found


def test_rules_name_only_what_is_exported_and_keep_installations_apart() -> None:
    for rule in EACH_RULE:
        assert "leadview" in rule["expr"]
        assert unknown(rule["expr"]) == [], f"schemas/metrics.py has not all of {rule}"
        kept = [tuple(labels.split(", ")) for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"])]
        assert all(labels[: len(OPTIONS.labels)] == OPTIONS.labels for labels in kept), rule
        assert not re.search(r"\b(?:sum|max|min|avg|count|group) ?\(", rule["expr"]), rule
    wrong = 'rate(leadview_api_requests_total{code="500"}[5m]) > rate(leadview_api_requests[5m])'
    assert unknown(wrong) == ["leadview_api_requests", "leadview_api_requests_total{code}"]


def test_alerts_and_problems_have_sections_in_the_runbook() -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text("utf-8")
    for rule in ALERTS:
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"{OPTIONS.runbook}#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert f"\n## {rule['alert']}\n" in runbook, f"docs/runbook.md: add a section `## {rule['alert']}`"
    assert [
        kind for kind in (*metrics.PROBLEM_LABELS, *metrics.API_PROBLEM_LABELS) if f"\n### {kind}\n" not in runbook
    ] == []


@pytest.mark.parametrize("labels", [OPTIONS.labels, ("region", "stage")])
def test_the_dashboard_shows_every_metric_and_nothing_else(labels: tuple[str, ...]) -> None:
    """It has a variable for each label, which each panel compares."""
    shown = dashboard(labels)
    assert [variable["name"] for variable in shown["templating"]["list"]] == ["datasource", *labels]
    compared = ", ".join(f'{label}=~"${label}"' for label in labels)
    assert {panel["title"] for panel in shown["panels"]} >= {metric.name for metric in metrics.ALL}
    for expression in (target["expr"] for panel in shown["panels"] for target in panel.get("targets", ())):
        assert f"{{{compared}}}" in expression
        assert unknown(expression.replace(f"{{{compared}}}", "")) == []
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in shown["panels"]]
    assert len(set(places)) == len(places)


def test_names_and_units_are_those_of_prometheus() -> None:
    assert len({metric.name for metric in metrics.ALL}) == len(metrics.ALL)
    for metric in metrics.ALL:
        assert re.fullmatch(r"[a-z][a-z0-9_]*(?<!_total)", metric.name), metric.name
        for unit in ("seconds", "bytes", "ratio"):
            assert (metric.unit == unit) == metric.name.endswith(f"_{unit}"), metric.name
        assert bool(metric.buckets) == (metric.type == "histogram"), metric.name
