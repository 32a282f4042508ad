"""What tests do with the page of the console in Chromium."""

from typing import Any

import orjson

from projector.console.picture import Picture
from tests.harness.chromium import Page
from tests.harness.leadview import Leadview
from tests.harness.pictures import FedConsole
from tests.harness.processes import ROOT
from tests.harness.services import not_available
from tests.harness.waiting import wait_until

_AXE = ROOT / "build" / "browser" / "node_modules" / "axe-core" / "axe.min.js"


_DRAWN = """
    ((at) => new Promise((resolve) => {
        const time = document.getElementById('sampled');
        const watch = new MutationObserver(look);
        function look() {
            if (Date.parse(time.dateTime) !== at) return;
            watch.disconnect();
            resolve();
        }
        watch.observe(time, {attributes: true});
        look();
    }))"""
"""Ends when the page has drawn the picture of a time, in ms since 1970."""


def show(page: Page, console: FedConsole, shown: Picture) -> None:
    """Publish a picture, and wait until the page shows it: its time must be another one than before."""
    console.publish(shown)
    page.do(f"{_DRAWN}({shown.at})")


def verdict(page: Page) -> str:
    """Returns the verdict without its sign."""
    return page.text("#verdict-text").removeprefix("✓ ").removeprefix("✕ ").strip()


def says_the_same(page: Page, leadview: Leadview, *words: str) -> None:
    """Wait until the page says these words, and then exactly what `status --json` says: the verdict, the problems and
    the notes. Figures that move are compared when they stand still for a moment, so the servers should be at rest.
    """
    page.wait_for("#verdict-text", *words)
    said: Any = None

    def agrees() -> bool:
        nonlocal said
        # The page shows what is between backticks in another font, without them.
        said = orjson.loads(leadview.run("status", "--json").stdout.replace("`", ""))
        problems, notes = page.text("#problems"), page.text("#notes")
        return bool(
            verdict(page) == said["verdict"]
            and (len(said["problems"]) == 1 or all(each in problems for each in said["problems"]))
            and all(each.partition(":")[0].partition(" for ")[0] in notes for each in said["notes"])
        )

    try:
        wait_until(agrees, "the page says what `status` says")
    except TimeoutError as error:
        raise AssertionError(f"{verdict(page)!r}, {page.text('#problems')!r}, not {said!r}") from error


def find(page: Page, text: str, *words: str) -> str:
    """Put a text into the box "Where did my event go?", and wait until these words are in the answers."""
    page.do(
        f"(() => {{ const i = document.getElementById('find-text'); i.value = {orjson.dumps(text).decode()};"
        " i.dispatchEvent(new Event('input')); i.form.requestSubmit(); })()"
    )
    return page.wait_for("#answers", *words)


def axe(page: Page) -> list[Any]:
    """Returns what axe-core finds. It is evaluated as a debugger does, past the page's Content-Security-Policy."""
    if not _AXE.is_file():
        not_available("axe-core is not installed: run `make browser`")
    page.do(_AXE.read_text("utf-8") + "; 0")
    found = page.do("axe.run(document).then((done) => done.violations)")
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]


def type_number(page: Page, number: str) -> None:
    """Type the number of a generation into the dialog that asks for it."""
    page.do(
        f"(() => {{ const i = document.getElementById('confirm-number'); i.value = '{number}';"
        " i.dispatchEvent(new Event('input')); })()"
    )
