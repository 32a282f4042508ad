"""The Grafana dashboard in deploy/monitoring, derived from the declarations: a panel for each metric."""

from collections.abc import Sequence
from typing import Any

from schemas import metrics
from schemas.metrics import Metric

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_UNITS = {"seconds": "s", "bytes": "bytes", "ratio": "percentunit"}
_COLUMNS, _HEIGHT, _WIDTH = 3, 8, 24

_SERVICE = (
    *(metrics.SERVED_AGE, metrics.PROJECTORS, metrics.UNAPPLIED_AGE, metrics.LAG, metrics.MEASURED),
    *(metrics.DEAD_LETTERS, metrics.REBUILD_DUE, metrics.REDIS_MEMORY),
)
_PROJECTORS = tuple(metric for metric in metrics.PROJECTOR if metric not in _SERVICE)
_API = tuple(metric for metric in metrics.API if metric not in _SERVICE)
_PROCESSES = (metrics.BUILD, *metrics.PROCESS)
_ROWS = (
    ("The whole service", _SERVICE),
    ("Projectors", _PROJECTORS),
    ("API", _API),
    ("Continuous verification", metrics.VERIFY),
    ("Processes", _PROCESSES),
)


def dashboard() -> dict[str, Any]:
    """Returns the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, shown in _ROWS:
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, y, _WIDTH, 1), "panels": []}
        )
        for number, metric in enumerate(shown):
            panels.append(_panel(metric, number, y + 1, per_instance=shown is not _SERVICE))
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
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }


def _panel(metric: Metric, number: int, y: int, *, per_instance: bool) -> dict[str, Any]:
    width = _WIDTH // _COLUMNS
    return {
        "type": "timeseries",
        "title": metric.name,
        "description": metric.help,
        "datasource": _SOURCE,
        "gridPos": _place(number % _COLUMNS * width, y + number // _COLUMNS * _HEIGHT, width, _HEIGHT),
        "fieldConfig": {"defaults": {"unit": _UNITS.get(metric.unit, "short")}, "overrides": []},
        "targets": [
            {"refId": letter, "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for letter, (expression, legend) in zip("AB", _queries(metric, per_instance=per_instance), strict=False)
        ],
    }


def _queries(metric: Metric, *, per_instance: bool) -> list[tuple[str, str]]:
    """Returns the expressions of a panel, with the names of their curves."""
    labels = list(metric.labels)
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    match metric.type:
        case "counter":
            return [(f"{_by('sum', labels)} (rate({metric.exported[0]}[$__rate_interval]))", legend or "all")]
        case "histogram":
            bucket = f"{_by('sum', ['le', *labels])} (rate({metric.exported[0]}[$__rate_interval]))"
            return [
                (f"histogram_quantile({share}, {bucket})", f"{name} {legend}".strip())
                for share, name in ((0.5, "p50"), (0.99, "p99"))
            ]
        case "gauge":
            if per_instance:
                return [(metric.exported[0], f"{{{{instance}}}} {legend}".strip())]
            return [(f"{_by('max', labels)} ({metric.exported[0]})", legend or "all")]


def _by(function: str, labels: Sequence[str]) -> str:
    return f"{function} by ({', '.join(labels)})" if labels else function


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}
