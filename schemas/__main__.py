"""Generates parts of the documentation from the Structs. A test checks that the committed files are up to date.

python -m schemas             writes docs/schemas/*.json, docs/api-keys.json, the generated parts of docs/api-keys.md,
                              docs/events.md and docs/limits.md, the README's table of resources, the tables of
                              docs/metrics.md and docs/control-record.md, and deploy/monitoring/dashboard.json
python -m schemas settings    prints the README's table of settings
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from schemas import asyncapi, events_page, key_vectors, limits_table, metrics_table, preconditions, resources_table
from schemas.dashboard import dashboard
from schemas.json_schema import event_schemas
from schemas.openapi.document import document
from schemas.settings_table import table

DOCS = Path(__file__).resolve().parent.parent / "docs"


def files(docs: Path) -> dict[Path, str]:
    """Returns the content of each generated file. Of the pages and the README, only tables are generated."""
    schemas = {**event_schemas(), "openapi": document(), "asyncapi": asyncapi.document()}
    page, events, limits = docs / "api-keys.md", docs / "events.md", docs / "limits.md"
    readme = docs.parent / "README.md"
    metrics, control = docs / "metrics.md", docs / "control-record.md"
    return {
        **{docs / "schemas" / f"{name}.json": _pretty(schema) for name, schema in schemas.items()},
        docs / "api-keys.json": _pretty(msgspec.to_builtins(key_vectors.vectors())),
        page: _with_tables(page.read_text("utf-8"), key_vectors.tables()),
        events: _with_tables(events.read_text("utf-8"), events_page.parts()),
        limits: _with_tables(limits.read_text("utf-8"), {"limits": limits_table.table()}),
        metrics: _with_tables(metrics.read_text("utf-8"), metrics_table.tables()),
        control: _with_tables(control.read_text("utf-8"), {"preconditions": preconditions.table()}),
        docs.parent / "deploy" / "monitoring" / "dashboard.json": _pretty(dashboard()),
        readme: _with_tables(readme.read_text("utf-8"), {"resources": resources_table.table()}),
    }


def main(arguments: list[str]) -> int:
    match arguments:
        case []:
            for path, text in files(DOCS).items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
        case ["settings"]:
            sys.stdout.write(table() + "\n")
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    return 0


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _with_tables(page: str, tables: dict[str, str]) -> str:
    """Returns `page` with the text between `<!-- name -->` and `<!-- /name -->` replaced by the table of that name."""
    for name, text in tables.items():
        before, _, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        page = f"{before}<!-- {name} -->\n{text}\n{end}{after}"
    return page


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
