"""Writes the folder of the reference. Nothing in it is loaded from elsewhere."""

import shutil
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

import msgspec
import orjson
from pygments.formatters import HtmlFormatter

from docs.generate.reference.pages import (
    API,
    DOCS,
    HERE,
    TOOLS,
    Found,
    Page,
    contents,
    files,
    pages,
    parts,
    to_html,
)
from docs.generate.tables import all_resources, pretty
from schemas.resources import ROOT

RENDERER = Path("node_modules/@scalar/api-reference/dist/browser/standalone.js")
_SEARCH = Path("node_modules/minisearch/dist/umd/index.js")
SAMPLE_SERVER = {"url": "http://127.0.0.1:8000", "description": "make run, on your machine"}

_PAGE = Template((HERE / "page.html").read_text("utf-8"))
_API = (HERE / "api.html").read_text("utf-8")


def write(folder: Path, packages: Path, servers: Sequence[str], contact: str | None = None) -> None:
    """Writes all files into the folder, whose former content is removed. `packages` has the npm packages.

    Requests from the page of the API go to the first of `servers`, unless the reader chooses another one. `contact` is
    whom readers ask for help.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    document = _document(servers)
    found = pages(contact)
    operations = [*_operations(document)]
    for page in found:
        (folder / f"{page.name}.md").write_text(page.markdown, "utf-8")
        html = _html(page.name, page.title, to_html(page.markdown), found, operations)
        (folder / f"{page.name}.html").write_text(html, "utf-8")
    html = _html(API, "API reference", _renderer(document), found, operations)
    (folder / f"{API}.html").write_text(html, "utf-8")
    (folder / "openapi.json").write_text(pretty(document), "utf-8")
    (folder / "llms.txt").write_text("\n".join(_for_programs(found)), "utf-8")
    (folder / "site.css").write_text("\n".join(_styles()), "utf-8")
    shutil.copy(HERE / "site.js", folder)
    shutil.copy(packages / RENDERER, folder / "renderer.js")
    shutil.copy(packages / _SEARCH, folder / "search.js")
    searched = [*(part for page in found for part in parts(page)), *operations]
    # A page that was opened from a file can load a script, but no other file.
    (folder / "searched.js").write_text(f"const SEARCHED = {msgspec.json.encode(searched).decode()};\n", "utf-8")
    for name, source in files().items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(source, folder / name)


def _document(servers: Sequence[str]) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads((DOCS.parent / "api" / "openapi.json").read_bytes())
    return document | {"servers": [*({"url": server} for server in servers), SAMPLE_SERVER]}


def _html(name: str, title: str, content: str, found: list[Page], operations: list[Found]) -> str:
    return _PAGE.substitute(
        name=name,
        title=escape(title),
        navigation="\n".join(_navigation(name, found, operations)),
        kind="renderer" if name == API else "text",
        content=content,
    )


def _navigation(current: str, found: list[Page], operations: list[Found]) -> Iterator[str]:
    """Yields links to all pages and endpoints, and to the parts of the current page."""
    entries = [(page.group, page.name, page.title, [*contents(page)] if page.name == current else []) for page in found]
    entries.insert(3, (TOOLS, API, "API reference", []))
    for group, members in groupby(entries, key=lambda entry: entry[0]):
        yield f"<strong>{group}</strong>"
        for _, name, title, inner in members:
            marked = ' aria-current="page"' if name == current else ""
            yield f'<a href="{name}.html"{marked}>{title}</a>'
            shown = [(f"#{anchor}", text) for anchor, text in inner]
            if name == API:
                shown = [(each.href, each.title.replace(ROOT, "")) for each in operations if "HEAD" not in each.title]
            if shown:
                yield '<div class="parts">'
                yield from (f'<a href="{href}">{escape(text)}</a>' for href, text in shown)
                yield "</div>"


def _operations(document: dict[str, Any]) -> Iterator[Found]:
    """Yields what a search finds on the page of the API: each operation, with the fields of what it returns."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if "operationId" not in operation:
                continue  # parameters that all methods of the path share
            tag, slug = operation["tags"][0].lower(), operation["operationId"]
            href = f"{API}.html#api-1/tag/{tag}/{slug}"
            words = dict.fromkeys((operation["summary"], operation["description"], *_fields(operation, document)))
            yield Found("API reference", f"{method.upper()} {path}", " ".join(words), href)


def _fields(part: Any, document: dict[str, Any]) -> Iterator[str]:
    """Yields the names of all headers, and the names and descriptions of all fields, in a part of the document."""
    if isinstance(part, list):
        for value in part:
            yield from _fields(value, document)
    elif isinstance(part, dict):
        yield from part.get("headers", ())
        if (reference := part.get("$ref", "")).startswith("#/components/"):
            _, _, kind, name = reference.split("/")
            yield from _fields(document["components"][kind][name], document)
        for name, field in part.get("properties", {}).items():
            yield f"{name} {field.get('description', '')}"
        for value in part.values():
            yield from _fields(value, document)


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
    yield f"# Leadview\n\n> Read-only access to the {all_resources()} of one organization over HTTP.\n"
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
