"""`python -m docs.generate` writes all that is generated: see `files`. A test checks that the committed files are up to
date.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

from docs.generate import answers, asyncapi, events_page, key_vectors, monitoring, preconditions, tables, troubles
from docs.generate.dashboard import dashboard
from docs.generate.json_schema import event_schemas
from docs.generate.openapi import document
from docs.generate.tables import pretty

ROOT = Path(__file__).resolve().parents[2]


def files(root: Path) -> dict[Path, str]:
    """Returns the content of each generated file. Of the pages, the README and some YAML, only parts are generated; of
    any page, the ETags of the examples.
    """
    docs, deploy = root / "docs", root / "deploy"
    whole: dict[Path, Any] = {
        **{docs / "schemas" / f"{name}.json": schema for name, schema in event_schemas().items()},
        docs / "schemas" / "asyncapi.json": asyncapi.document(),
        root / "api" / "openapi.json": document(),
        docs / "api-keys.json": msgspec.to_builtins(key_vectors.vectors()),
        deploy / "monitoring" / "dashboard.json": dashboard(monitoring.Options().labels),
    }
    parts = {
        root / "README.md": {"resources": tables.of_resources()},
        docs / "reading.md": key_vectors.parts(),
        docs / "how-it-works.md": {"preconditions": preconditions.table()},
        docs / "events.md": events_page.parts() | {"limits": tables.of_limits()},
        docs / "runbook.md": tables.of_metrics() | {"troubles": troubles.runbook()},
        docs / "production.md": {"topics": tables.sentence_of_topics(), "versions": tables.of_versions()},
        docs / "settings.md": tables.of_settings(),
        docs / "generate" / "reference" / "pages" / "errors.md": {"error": answers.error()},
        docs / "generate" / "reference" / "pages" / "index.md": {"lead": tables.lead()},
        root / "compose.yaml": {"topics": tables.loop_over_topics()},
        deploy / "kubernetes" / "strimzi" / "topics.yaml": {"topics": tables.strimzi_topics()},
        deploy / "kubernetes" / "strimzi" / "user.yaml": {"topics": tables.strimzi_rights()},
    }
    texts = {path: pretty(value) for path, value in whole.items()}
    texts[deploy / "monitoring" / "rules.yaml"] = monitoring.rules(monitoring.Options())
    in_kubernetes = deploy / "kubernetes" / "components" / "monitoring" / "prometheus-rule.yaml"
    texts[in_kubernetes] = monitoring.prometheus_rule(monitoring.Options())
    texts[docs / "examples" / "gitleaks.toml"] = key_vectors.scanner_rule()
    pages = {*parts, *docs.rglob("*.md")}
    texts |= {path: answers.with_answers(path.read_text("utf-8")) for path in sorted(pages)}
    texts |= {path: _with_parts(texts[path], named) for path, named in parts.items()}
    return texts


def _with_parts(page: str, texts: dict[str, str]) -> str:
    """Returns `page` with the lines between those of `<!-- name -->` and `<!-- /name -->` replaced by the text of that
    name. In YAML the two are comments.
    """
    for name, text in texts.items():
        found = re.search(rf"<!-- {name} -->[^\n]*\n(.*?)[^\n]*<!-- /{name} -->", page, re.DOTALL)
        if found is None:
            raise ValueError(f"a page has lost its lines `<!-- {name} -->` and `<!-- /{name} -->`")
        page = f"{page[: found.start(1)]}{text}\n{page[found.end(1) :]}"
    return page


def main() -> None:
    """Write those that change, and print their names."""
    for path, text in files(ROOT).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
