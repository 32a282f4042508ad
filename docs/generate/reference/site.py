"""Writes the folder of the reference. Nothing in it is loaded from elsewhere."""

import shutil
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import orjson
from pygments.formatters import HtmlFormatter

from docs.generate.__main__ import pretty
from docs.generate.reference.pages import API, DOCS, HERE, SCHEMAS, Page, pages, schema_files, to_html

RENDERER = Path("node_modules/@scalar/api-reference/dist/browser/standalone.js")
SAMPLE_SERVER = {"url": "http://127.0.0.1:8000", "description": "make run, on your machine"}

_PAGE = Template((HERE / "page.html").read_text("utf-8"))
_API = (HERE / "api.html").read_text("utf-8")


def write(folder: Path, packages: Path, servers: Sequence[str]) -> None:
    """Writes all files into the folder, whose former content is removed. `packages` has the npm packages.

    Requests from the page of the API go to the first of `servers`, unless the reader chooses another one.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / SCHEMAS).mkdir(parents=True)
    document = _document(servers)
    found = pages()
    for page in found:
        (folder / f"{page.name}.md").write_text(page.markdown, "utf-8")
        (folder / f"{page.name}.html").write_text(_html(page.name, page.title, to_html(page.markdown), found), "utf-8")
    (folder / f"{API}.html").write_text(_html(API, "API reference", _renderer(document), found), "utf-8")
    (folder / "openapi.json").write_text(pretty(document), "utf-8")
    (folder / "llms.txt").write_text("\n".join(_for_programs(found)), "utf-8")
    (folder / "site.css").write_text("\n".join(_styles()), "utf-8")
    shutil.copy(HERE / "site.js", folder)
    shutil.copy(packages / RENDERER, folder / "renderer.js")
    for path in schema_files():
        shutil.copy(path, folder / SCHEMAS)


def _document(servers: Sequence[str]) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads((DOCS.parent / "api" / "openapi.json").read_bytes())
    return document | {"servers": [*({"url": server} for server in servers), SAMPLE_SERVER]}


def _html(name: str, title: str, content: str, found: list[Page]) -> str:
    entries = [(page.name, page.title) for page in found]
    entries.insert(1, (API, "API reference"))
    current = ' aria-current="page"'
    links = [f'<a href="{each}.html"{current if each == name else ""}>{label}</a>' for each, label in entries]
    return _PAGE.substitute(
        name=name,
        title=escape(title),
        navigation="\n".join(links),
        kind="renderer" if name == API else "text",
        content=content,
    )


def _renderer(document: dict[str, Any]) -> str:
    """Returns the content of the API's page. The document is part of it, because a page that was opened from a file
    cannot read another file.

    The examples of optional headers are left out: the box would send them, and get 304 for its first request.
    """
    parameters = {
        name: {field: value for field, value in parameter.items() if parameter["required"] or field != "example"}
        for name, parameter in document["components"]["parameters"].items()
    }
    shown = document | {"components": document["components"] | {"parameters": parameters}}
    return _API.replace("$document", pretty(shown).replace("</", "<\\/"))


def _for_programs(found: list[Page]) -> Iterator[str]:
    """Yields the lines of llms.txt."""
    yield "# Leadview\n\n> Read-only access to the leads and contacts of one organization over HTTP.\n"
    yield "- [The API as an OpenAPI 3.1 document](openapi.json)"
    yield "- [The events as an AsyncAPI 3 document](schemas/asyncapi.json)"
    for page in found:
        yield f"- [{page.title}]({page.name}.md)"
    yield ""


def _styles() -> Iterator[str]:
    yield (HERE / "site.css").read_text("utf-8")
    yield HtmlFormatter(style="default").get_style_defs(".sample")
    yield "@media (prefers-color-scheme: dark) {"
    yield HtmlFormatter(style="github-dark").get_style_defs(".sample")
    yield "}\n.sample, .sample pre { background: var(--code); }\n"
