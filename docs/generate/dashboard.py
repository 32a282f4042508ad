"""The Grafana dashboard in deploy/monitoring: the objectives, and a panel for each metric that is declared.

Variables choose the installations. `All` is any value or none, so that a label that nobody sets does no harm.
"""

from collections.abc import Sequence
from typing import Any

from schemas import metrics
from schemas.metrics import Metric

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_UNITS = {"seconds": "s", "bytes": "bytes", "ratio": "percentunit"}
_COLUMNS, _HEIGHT, _WIDTH = 3, 8, 24

_SERVICE = (
    *(metrics.SERVED_AGE, metrics.PROJECTORS, metrics.UNAPPLIED_AGE, metrics.LAG, metrics.MEASURED),
    *(metrics.DEAD_LETTERS, metrics.DOCUMENTS_AS_BEFORE, metrics.OLDER_PUBLISHED),
    *(metrics.REBUILD_DUE, metrics.REDIS_MEMORY),
)
_ROWS = {
    "The whole service": _SERVICE,
    "Projectors": tuple(metric for metric in metrics.PROJECTOR if metric not in _SERVICE),
    "API": tuple(metric for metric in metrics.API if metric not in _SERVICE),
    "Continuous verification": metrics.VERIFY,
    "Processes": (metrics.BUILD, *metrics.PROCESS),
}


def dashboard(labels: Sequence[str]) -> dict[str, Any]:
    """Returns the dashboard as Grafana imports it. `labels` tell installations apart."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, shown in (("Objectives", _objectives(labels)), *((title, _of(title, labels)) for title in _ROWS)):
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, y, _WIDTH, 1), "panels": []}
        )
        width = _WIDTH // _COLUMNS
        for number, panel in enumerate(shown):
            place = _place(number % _COLUMNS * width, y + 1 + number // _COLUMNS * _HEIGHT, width, _HEIGHT)
            panels.append(panel | {"gridPos": place})
        y += 1 + _HEIGHT * -(-len(shown) // _COLUMNS)
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "uid": "leadview",
        "title": "Leadview",
        "description": "Generated from schemas/metrics.py by `python -m docs.generate`.",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}, *_variables(labels)],
        },
        "panels": panels,
    }


def _variables(labels: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a variable for each label. Each offers what the ones before it leave."""
    return [
        {
            "name": label,
            "type": "query",
            "datasource": _SOURCE,
            "query": f"label_values(leadview_build_info{_chosen(labels[:number])}, {label})",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
        for number, label in enumerate(labels)
    ]


def _objectives(labels: Sequence[str]) -> list[dict[str, Any]]:
    """Returns panels of what deploy/monitoring/rules.yaml records."""
    where, legend = _chosen(labels), _legend(labels)
    return [
        _panel(
            "Error budget left",
            "Of the last 30 days. Less than 0: the objective is missed. docs/objectives.md says what to do about it",
            "percentunit",
            [
                (f"leadview:availability:budget_left_ratio{where}", f"availability {legend}"),
                (f"leadview:freshness:budget_left_ratio{where}", f"freshness {legend}"),
            ],
        ),
        _panel(
            "Requests for documents that fail",
            "A share of all. 1 while no worker of the API is ready, or none is scraped",
            "percentunit",
            [(f"leadview:unavailable:ratio{where}", legend)],
        ),
        _panel(
            "Not fresh",
            "1 while what is served is older than the objective allows, or this is not known; otherwise 0",
            "short",
            [(f"leadview:stale:ratio{where}", legend)],
        ),
    ]


def _of(row: str, labels: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the panels of the metrics in a row."""
    return [
        _panel(
            metric.name,
            metric.help,
            _UNITS.get(metric.unit, "short"),
            _queries(metric, labels, per_instance=row != "The whole service"),
        )
        for metric in _ROWS[row]
    ]


def _panel(title: str, description: str, unit: str, queries: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {"refId": letter, "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for letter, (expression, legend) in zip("AB", queries, strict=False)
        ],
    }


def _queries(metric: Metric, installation: Sequence[str], *, per_instance: bool) -> list[tuple[str, str]]:
    """Returns the expressions of a panel, with the names of their curves."""
    where, labels = _chosen(installation), [*installation, *metric.labels]
    legend = _legend(labels)
    match metric.type:
        case "counter":
            return [(f"sum by ({', '.join(labels)}) (rate({metric.exported[0]}{where}[$__rate_interval]))", legend)]
        case "histogram":
            rate = f"rate({metric.exported[0]}{where}[$__rate_interval])"
            bucket = f"sum by ({', '.join(['le', *labels])}) ({rate})"
            return [
                (f"histogram_quantile({share}, {bucket})", f"{name} {legend}")
                for share, name in ((0.5, "p50"), (0.99, "p99"))
            ]
        case "gauge":
            if per_instance:
                return [(f"{metric.exported[0]}{where}", f"{{{{instance}}}} {legend}")]
            return [(f"max by ({', '.join(labels)}) ({metric.exported[0]}{where})", legend)]


def _chosen(labels: Sequence[str]) -> str:
    """Returns the selector of what the variables choose."""
    matchers = ", ".join(f'{label}=~"${label}"' for label in labels)
    return f"{{{matchers}}}" if matchers else ""


def _legend(labels: Sequence[str]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels)


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}
