"""The tables of docs/metrics.md, derived from the declarations in `schemas.metrics`."""

from collections.abc import Iterable

from schemas import metrics
from schemas.metrics import Metric


def tables() -> dict[str, str]:
    """Returns each table in Markdown, by its name in the page."""
    return {
        "build": _table([metrics.BUILD]),
        "projector": _table(metrics.PROJECTOR),
        "api": _table(metrics.API),
        "verify": _table(metrics.VERIFY),
        "process": _table(metrics.PROCESS),
    }


def _table(declared: Iterable[Metric]) -> str:
    rows = ["| metric | type | unit | labels | what it says |", "|---|---|---|---|---|"]
    for metric in declared:
        name = metric.name if metric.type == "histogram" else metric.exported[0]
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        unit = "" if metric.unit == "1" else metric.unit
        rows.append(f"| `{name}` | {metric.type} | {unit} | {labels} | {metric.help} |")
    return "\n".join(rows)
