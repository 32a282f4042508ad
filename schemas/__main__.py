"""Generates parts of the documentation from the Structs. A test checks that the committed files are up to date.

python -m schemas             writes docs/schemas/*.json, api/openapi.json, docs/api-keys.json, the generated parts of
                              docs/api-keys.md, docs/events.md and docs/limits.md, the README's table of
                              resources, the tables of
                              docs/metrics.md and docs/control-record.md, deploy/monitoring/dashboard.json, and
                              the topics in deploy/kubernetes/strimzi and docs/production.md
python -m schemas settings    prints the README's table of settings
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from schemas import (
    asyncapi,
    events_page,
    key_vectors,
    limits_table,
    metrics_table,
    preconditions,
    resources_table,
    topic_lists,
)
from schemas.dashboard import dashboard
from schemas.json_schema import event_schemas
from schemas.openapi.document import document
from schemas.settings_table import table

DOCS = Path(__file__).resolve().parent.parent / "docs"


def files(docs: Path) -> dict[Path, str]:
    """Returns the content of each generated file. Of the pages and the README, only parts are generated."""
    schemas = {**event_schemas(), "openapi": document(), "asyncapi": asyncapi.document()}
    page, events, limits = docs / "api-keys.md", docs / "events.md", docs / "limits.md"
    readme = docs.parent / "README.md"
    control = docs / "control-record.md"
    metrics, production = docs / "metrics.md", docs / "production.md"
    strimzi = docs.parent / "deploy" / "kubernetes" / "strimzi"
    topics, user = strimzi / "topics.yaml", strimzi / "user.yaml"
    return {
        **{docs / "schemas" / f"{name}.json": _pretty(schema) for name, schema in schemas.items()},
        docs.parent / "api" / "openapi.json": _pretty(document()),  # as the API serves it
        docs / "api-keys.json": _pretty(msgspec.to_builtins(key_vectors.vectors())),
        page: _with_tables(page.read_text("utf-8"), key_vectors.tables()),
        events: _with_tables(events.read_text("utf-8"), events_page.parts()),
        limits: _with_tables(limits.read_text("utf-8"), {"limits": limits_table.table()}),
        metrics: _with_tables(metrics.read_text("utf-8"), metrics_table.tables()),
        control: _with_tables(control.read_text("utf-8"), {"preconditions": preconditions.table()}),
        docs.parent / "deploy" / "monitoring" / "dashboard.json": _pretty(dashboard()),
        topics: _with_tables(topics.read_text("utf-8"), {"topics": topic_lists.strimzi_topics()}),
        user: _with_tables(user.read_text("utf-8"), {"topics": topic_lists.strimzi_rights()}),
        production: _with_tables(production.read_text("utf-8"), {"topics": topic_lists.sentence()}),
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
    """Returns `page` with the lines between those of `<!-- name -->` and `<!-- /name -->` replaced by the table of that
    name. In YAML the two are comments.
    """
    for name, text in tables.items():
        found = re.search(rf"<!-- {name} -->\n(.*?)[^\n]*<!-- /{name} -->", page, re.DOTALL)
        if found is None:
            raise ValueError(f"a page has lost its lines `<!-- {name} -->` and `<!-- /{name} -->`")
        page = f"{page[: found.start(1)]}{text}\n{page[found.end(1) :]}"
    return page


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
