"""The pages of `docs`, as HTML: the runbook and what it links to. They come with the program, not from elsewhere."""

import re
import sysconfig
from html import escape
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

_BESIDE = Path(__file__).parents[2] / "docs"
_INSTALLED = Path(sysconfig.get_path("data")) / "share" / "leadview" / "docs"
_NAME = re.compile(r"[a-z][a-z-]*\.md")
_MARK = re.compile(r"^<!-- .* -->\n", re.MULTILINE)
"""What stands around a generated part of a page."""
_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - Leadview</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/console.css">
</head>
<body class="page">
<main>
<p><a href="/">Back to the console</a></p>
{body}
</main>
</body>
</html>
"""


def page(name: str) -> str | None:
    """Returns a page of `docs` as a whole HTML document; None if there is no such page."""
    if not _NAME.fullmatch(name):
        return None
    for folder in (_BESIDE, _INSTALLED):
        if (folder / name).is_file():
            return render((folder / name).read_text("utf-8"), name)
    return None


def render(markdown: str, name: str) -> str:
    """Returns Markdown of ours as HTML. Headings have the anchors that GitHub gives them; raw HTML is escaped."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(_MARK.sub("", markdown))
    title = name
    for opening, text in pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", anchor(text.content))
            title = text.content if opening.tag == "h1" else title
        if opening.type in ("th_open", "td_open"):
            opening.attrs.pop("style", None)  # the Content-Security-Policy allows no style in the document
        for child in opening.children or ():
            if child.type == "image":  # pictures are in the repository only
                child.type = "text"
        if opening.type in ("fence", "code_block", "table_open"):
            opening.attrSet("tabindex", "0")  # it may be wider than the page, and is scrolled with the keyboard
    html = parser.renderer.render(tokens, parser.options, {})
    return _FRAME.format(title=escape(title), body=html)


def anchor(heading: str) -> str:
    """Returns the anchor of a heading, as GitHub writes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
