"""The pages of the reference: their sources in Markdown, how Markdown becomes HTML, and what a search finds in it.

A link in Markdown names another page as `name.md`, which is what programs read. In HTML it becomes `name.html`.
"""

import re
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from msgspec import Struct
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from docs.generate.tables import all_resources

HERE = Path(__file__).parent
DOCS = HERE.parents[1]
SCHEMAS = "schemas"
API = "api"
"""The page of the renderer, which is not written in Markdown."""
TOOLS, PRODUCERS = "For tools", "For producers"

LANGUAGES = {"sh": "curl", "python": "Python", "typescript": "TypeScript"}
"""The samples that stand beside each other, by the language of their block."""

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_FORMATTER = HtmlFormatter(nowrap=True)


class Page(Struct, frozen=True):
    """One page. `name` is its file without the extension, `title` what the navigation shows, below its `group`."""

    name: str
    title: str
    group: str
    markdown: str


class Found(Struct, frozen=True):
    """A part of a page that a search can find: a heading with the text below it."""

    page: str
    title: str
    text: str
    href: str


def pages(contact: str | None = None) -> list[Page]:
    """Returns all pages in Markdown, in the order of the navigation. `contact` is whom readers ask for help: an email
    address or a URL.
    """
    own = HERE / "pages"
    whom = f"Write to <{contact}>" if contact else "Ask whoever gave you your key"
    start = _read(own / "index.md").replace("$contact", whom).replace("$resources", all_resources())
    sources = [
        ("index", "Start", TOOLS, start),
        ("reading", "Guide", TOOLS, _read(DOCS / "reading.md")),
        ("sandbox", "Sandbox", TOOLS, _read(DOCS / "sandbox.md")),
        ("keys", "Keys", TOOLS, _read(own / "keys.md")),
        ("rate-limits", "Limits and retries", TOOLS, _read(own / "rate-limits.md")),
        ("etags", "ETags", TOOLS, _read(own / "etags.md")),
        ("errors", "Errors", TOOLS, _read(own / "errors.md")),
        ("versioning", "Versions and changes", TOOLS, _read(own / "versioning.md")),
        ("events", "Events", PRODUCERS, _read(DOCS / "events.md")),
        (SCHEMAS, "Schemas", PRODUCERS, "\n".join(_schemas())),
    ]
    written = {f"{API}.html", "llms.txt", "openapi.json", *files(), *(f"{name}.md" for name, *_ in sources)}
    return [Page(name, title, group, _with_own_links(text, written)) for name, title, group, text in sources]


def files() -> dict[str, Path]:
    """Returns the files that are copied, by their paths in the reference."""
    named = {"api-keys.json": DOCS / "api-keys.json"}
    named |= {f"examples/{path.name}": path for path in sorted((DOCS / "examples").iterdir()) if path.is_file()}
    return named | {f"{SCHEMAS}/{path.name}": path for path in _schema_files()}


def parts(page: Page) -> Iterator[Found]:
    """Yields what a search finds in a page."""
    title, anchor, words = page.title, "", list[str]()
    tokens = _parsed(page.markdown)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following:
            if words:
                yield Found(page.title, title, " ".join(words), f"{page.name}.html{anchor}")
            title, anchor, words = _plain(following), f"#{token.attrs['id']}", []
        elif token.type == "fence":
            words.append(token.content)
        elif token.type == "inline" and (not words or _plain(token) != title):
            words.append(_plain(token))
    yield Found(page.title, title, " ".join(words), f"{page.name}.html{anchor}")


def contents(page: Page) -> Iterator[tuple[str, str]]:
    """Yields the id and the text of each part of a page: of its headings of the second level."""
    for token, following in pairwise(_parsed(page.markdown)):
        if token.type == "heading_open" and token.tag == "h2":
            yield str(token.attrs["id"]), _plain(following)


def _plain(token: Token) -> str:
    return "".join(child.content for child in token.children or ())


def _parsed(markdown: str) -> list[Token]:
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    _name_headings(tokens)
    return tokens


def to_html(markdown: str) -> str:
    """Returns the body of a page."""
    parser = MarkdownIt("commonmark").enable("table")
    parser.add_render_rule("fence", _fence)
    tokens = _parsed(markdown)
    for token in tokens:
        for child in token.children or ():
            if child.type == "link_open":
                child.attrs["href"] = re.sub(r"^([\w-]+)\.md(?=#|$)", r"\1.html", str(child.attrs["href"]))
    html: str = parser.renderer.render(tokens, parser.options, {})
    return html.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")


def _read(path: Path) -> str:
    return path.read_text("utf-8")


def _schemas() -> Iterator[str]:
    yield "# Schemas\n\nThe contract of the events as files, for tools: an AsyncAPI document, and a JSON Schema of each event and its\n`data`. The API is described by [openapi.json](openapi.json).\n"  # noqa: E501
    for path in _schema_files():
        yield f"- [{path.name}]({SCHEMAS}/{path.name})"


def _schema_files() -> list[Path]:
    return sorted((DOCS / "schemas").glob("*.json"))


def _with_own_links(text: str, written: set[str]) -> str:
    """Returns the text with links to other files of the repository as text alone: they are for operators."""

    def own(match: re.Match[str]) -> str:
        name, target = match[1], match[2].removeprefix("generate/reference/pages/")
        path = target.partition("#")[0]
        if path == SCHEMAS:
            return f"[{name}]({SCHEMAS}.md)"
        if path == "../api/openapi.json":
            return f"[{name}](openapi.json)"
        return f"[{name}]({target})" if "://" in target or not path or path in written else name

    return _LINK.sub(own, text)


def _name_headings(tokens: list[Token]) -> None:
    for token, content in pairwise(tokens):
        if token.type == "heading_open":
            words = re.sub(r"[^\w\s.-]", "", content.content.lower())
            token.attrs["id"] = re.sub(r"\s+", "-", words.strip())


def _fence(renderer: RendererHTML, tokens: list[Token], place: int, options: Any, env: Any) -> str:  # noqa: ARG001
    language, text = tokens[place].info.strip(), tokens[place].content
    try:
        code = highlight(text, get_lexer_by_name(language or "text"), _FORMATTER)
    except ClassNotFound:
        code = escape(text)
    label = f' data-language="{LANGUAGES[language]}"' if language in LANGUAGES else ""
    return f'<div class="sample"{label}><pre tabindex="0"><code>{code}</code></pre></div>\n'
