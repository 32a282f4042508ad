"""The alert rules and the dashboard in deploy/monitoring, and the rules as a resource of Kubernetes.

`python -m docs.generate.monitoring` writes them for labels, objectives and a runbook of one's own. Those that are
committed have the defaults.
"""

import argparse
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from textwrap import indent

import msgspec

from docs.generate.dashboard import dashboard
from docs.generate.tables import pretty
from schemas.resources import RESOURCES

_TEMPLATE = Path(__file__).with_name("rules.yaml")
_HEAD = "# Generated from docs/generate/rules.yaml by `python -m docs.generate`, so do not edit it.\n#\n"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from company to company.

    `labels` tell installations apart. `runbook` is the absolute URL of docs/runbook.md. The objectives are percentages:
    of the requests for documents that are served, and of the time in which every change of `fresh_seconds` ago is
    visible.
    """

    labels: tuple[str, ...] = ("cluster", "namespace", "installation")
    runbook: str = "https://leadview.example.com/docs/runbook.md"
    fresh_seconds: int = 30
    freshness: Decimal = Decimal("99.9")
    availability: Decimal = Decimal("99.9")


def rules(options: Options) -> str:
    """Returns the file of rules. In its template, words in capitals stand for the options."""
    values = {
        "INSTALLATION": ", ".join(options.labels),
        "RUNBOOK": options.runbook,
        "FRESH_SECONDS": str(options.fresh_seconds),
        "FRESHNESS_BUDGET": _budget(options.freshness),
        "AVAILABILITY_BUDGET": _budget(options.availability),
        "DOCUMENTS": "|".join(resource.noun for resource in RESOURCES),
    }
    words = re.compile(rf"\b({'|'.join(values)})\b")
    return _HEAD + words.sub(lambda found: values[found[1]], _TEMPLATE.read_text("utf-8"))


def prometheus_rule(options: Options) -> str:
    """Returns the same rules for the operator of Prometheus."""
    comments, groups = rules(options).split("\n\n", 1)
    resource = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: leadview\nspec:\n"
    return f"{comments}\n\n{resource}{indent(groups, '  ')}"


def _budget(objective: Decimal) -> str:
    return f"{((100 - objective) / 100).normalize():f}"


def _labels(text: str) -> tuple[str, ...]:
    labels = tuple(text.split(","))
    if not all(re.fullmatch(r"[a-zA-Z_]\w*", label, re.ASCII) for label in labels):
        raise ValueError(text)
    return labels


def _seconds(text: str) -> int:
    """Less than 10 s cannot be told from the time that measuring takes."""
    if int(text) < 10:
        raise ValueError(text)
    return int(text)


def _objective(text: str) -> Decimal:
    objective = Decimal(text)
    # Beyond this, 14.4 times the budget is more than everything, so that nothing would page.
    if not Decimal("93.1") <= objective < 100:
        raise ValueError(text)
    return objective


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s#\"']+", text):
        raise ValueError(text)
    return text


def _parser() -> argparse.ArgumentParser:
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m docs.generate.monitoring", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files are written")
    parser.add_argument("--labels", type=_labels, default=default.labels, help="which tell installations apart")
    parser.add_argument(
        "--runbook-base", dest="runbook", type=_url, default=default.runbook, help="absolute URL of docs/runbook.md"
    )
    parser.add_argument(
        "--fresh-seconds", type=_seconds, default=default.fresh_seconds, help="within which a change is visible"
    )
    parser.add_argument("--freshness", type=_objective, default=default.freshness, help="percentage of the time")
    parser.add_argument("--availability", type=_objective, default=default.availability, help="percentage of requests")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files."""
    given = vars(_parser().parse_args(arguments))
    folder, options = given.pop("folder"), Options(**given)
    (folder / "rules.yaml").write_text(rules(options), "utf-8")
    (folder / "prometheus-rule.yaml").write_text(prometheus_rule(options), "utf-8")
    (folder / "dashboard.json").write_text(pretty(dashboard(options.labels)), "utf-8")


if __name__ == "__main__":
    main()
