"""The page of the console with pictures that the test makes, so that no servers are needed. `make browser` runs this.

In every trouble of `docs/generate/troubles.py`, and with every problem: what it says, and what is green. It draws every
picture that it gets, so it says what changes within two seconds, and an hour of pictures grows no memory.
"""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from docs.generate.troubles import ROWS
from operate.console.feed import EVERY_SECONDS, HISTORY_SECONDS, pause
from operate.console.picture import Picture, picture
from projector.health.observe import ApiPart, Observation
from projector.ledger.acts import Act
from projector.problem import Problem
from projector.words import Said, headline, say
from tests.harness.chromium import Page, open_page
from tests.harness.console import REPEATS, FedConsole, axe, fed_console, picture_of, show, verdict
from tests.harness.troubled import EVERY, OBSERVED, WELL, shards

pytestmark = pytest.mark.browser

_API = ApiPart(100.0, {"200": 100.0}, 1.0, 9.0, 2, workers=2)
PARTS = ("kafka", "projectors", "redis", "api")
AWAY = {"projectors": ["not known: Redis cannot be read"], "redis": ["cannot be read"], "api": ["not known: Redis"]}
SAID_IN_PARTS = {
    "no projector": {"projectors": ["no projector is running", "documents: unknown"]},
    "Kafka is away": {"kafka": ["cannot be read"], "projectors": ["documents: running"]},
    "a topic is missing": {"kafka": ["missing"]},
    "Redis is away": AWAY,
    "one shard is away": AWAY,
    "Redis was emptied, and no projector fills it": {"redis": ["empty"], "api": ["answers 503 to all"]},
    "Redis is full": {"projectors": ["documents: waits", "access: waits"]},
    "a line is halted": {"projectors": ["documents: halted", "access: running"]},
    "the API's password is changed": {"api": ["answers 503 to all: no worker is ready"]},
    "an older program": {"projectors": ["documents: standing by", "access: running"]},
    "one shard was emptied, and no projector fills it": {
        "redis": ["1 of 3 shards not complete"],
        "api": ["answers 503 for the organizations of 1 of 3 shards"],
    },
}
"""Words in the parts of the picture, by the name of the trouble."""


@pytest.fixture(scope="module")
def console() -> Iterator[FedConsole]:
    with fed_console() as console:
        yield console


@pytest.fixture(scope="module")
def page(console: FedConsole, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(tmp_path_factory.mktemp("page")) as page:
        page.open(console.url)
        yield page
        assert page.complaints == []
        assert {request.split("/")[2] for request in page.requested} == {console.url.split("/")[2]}


_numbers = count(1)


def pictured(found: Observation) -> Picture:
    """Returns the next picture: the page is known to show it by its time."""
    shown = picture(replace(found, api=found.api or _API), None, None, [])
    moving = [replace(topic, published=5.0, applied=5.0) for topic in shown.topics]
    return replace(shown, topics=moving, at=shown.at + 1000 * next(_numbers))


def items(page: Page, selector: str) -> list[str]:
    found: list[str] = page.do(f"[...document.querySelectorAll('{selector} > li')].map((each) => each.innerText)")
    return found


def marked(page: Page) -> set[str]:
    return set(page.do("[...document.querySelectorAll('.stage.wrong')].map((it) => it.id.slice('stage-'.length))"))


def green(page: Page) -> set[str]:
    """Returns the parts in which something is shown as working."""
    script = "[...document.querySelectorAll('.stage:has(.badge.well)')].map((it) => it.id.slice('stage-'.length))"
    return set(page.do(script))


def flowing(page: Page) -> set[str]:
    return set(page.do("[...document.querySelectorAll('.arrow.flows')].map((it) => it.id.slice('arrow-'.length))"))


def plain(text: str) -> str:
    """Text as the page shows it: what is between backticks has another font."""
    return " ".join(text.replace("`", "").split())


def is_said(page: Page, selector: str, said: list[Said], *, alone: bool) -> None:
    """The page has these findings and no others, each with what is not well and what to do: a single one in the first
    line."""
    shown = [plain(each) for each in items(page, selector)]
    assert len(shown) == len(said), (shown, said)
    for text, one in zip(shown, said, strict=True):
        there = plain(page.text("#verdict-text")) if alone else text
        assert [part for part in (one.what, one.advice) if plain(part) not in there] == []
        assert [part for part in (one.detail, one.command) if plain(part) not in text] == []
        assert one.page.partition("#")[0] in text


@pytest.mark.parametrize("name", OBSERVED)
def test_console_says_each_trouble(page: Page, console: FedConsole, name: str) -> None:
    shown, row = pictured(OBSERVED[name]()), ROWS[name]
    assert (shown.status.kinds, shown.status.note_kinds) == ([*row.problems], [*row.notes])
    show(page, console, shown)
    assert verdict(page) == plain(shown.status.verdict)
    assert (verdict(page) == "all is well") == (not row.problems)
    assert page.text("#verdict-text").startswith("✕" if row.problems else "✓")
    is_said(page, "#problems", shown.problems, alone=len(shown.problems) == 1)
    is_said(page, "#notes", shown.notes, alone=False)
    assert marked(page) == {part for said in shown.problems for part in said.where}
    assert ("stopped" in page.text("#arrow-projectors")) == any(said.stops == "all" for said in shown.problems)
    for part, words in SAID_IN_PARTS.get(name, {}).items():
        page.wait_for(f"#stage-{part}", *words)
    assert axe(page) == []


def test_console_shows_all_shards_of_a_cluster_that_is_well(page: Page, console: FedConsole) -> None:
    show(page, console, pictured(replace(WELL, redis=shards(True, True, True))))
    assert verdict(page) == "all is well"
    page.wait_for("#stage-redis", "all 3 shards complete")


@pytest.mark.parametrize("about", [pytest.param(it, id=f"{number}-{it.kind}") for number, it in enumerate(EVERY)])
def test_nothing_is_green_that_has_a_problem(page: Page, console: FedConsole, about: Problem) -> None:
    """Whatever else the picture has, which is that of a Leadview that works."""
    said = say(about)
    is_problem = about.severity == "problem"
    assert bool(said.where) == is_problem, "each problem is one of a part"
    well = pictured(WELL)
    show(page, console, well)
    assert (marked(page), green(page), flowing(page)) == (set(), set(PARTS), set(PARTS[:-1]))
    status = replace(well.status, well=not is_problem, verdict=headline([said] if is_problem else []))
    findings = {"problems": [said]} if is_problem else {"notes": [said]}
    show(page, console, replace(well, at=well.at + 1, status=status, **findings))
    wrong = set(said.where)
    assert (marked(page), green(page)) == (wrong, set(PARTS) - wrong)
    assert ("projectors" in flowing(page)) == (said.stops != "all")
    for part in wrong:
        assert "✕" in page.text(f"#stage-{part} .body"), "it is not said by colour alone"


def test_figures_stand_beside_their_names_and_times_are_of_utc(page: Page, console: FedConsole) -> None:
    shown = replace(
        pictured(WELL), history=[Act("drop", [], "ada", "done", "", "2026-01-01T00:00:00Z", "1", {"generation": 1})]
    )
    show(page, console, replace(shown, status=replace(shown.status, data_as_of="2026-01-01T23:59:58.765Z")))
    beside = "document.querySelector('#stage-redis meter').previousElementSibling.lastElementChild.innerText"
    assert "memory" in page.do(beside)
    assert "23:59:58Z" in page.text("#stage-redis")
    assert page.text("#sampled") == f"as of {datetime.fromtimestamp(shown.at // 1000, UTC):%H:%M:%S}Z"
    assert page.text("#history") == "2026-01-01T00:00:00Z ada: drop (generation 1): done"


_HOUR = 3600
_MOST_GROWTH = 300_000
"""Bytes: a tenth of a kilobyte for each picture after the window is full."""


def test_hour_open_grows_no_memory(tmp_path: Path) -> None:
    """3,600 pictures through the stream of events, each drawn before the next one is sent. What the page holds is
    measured when its window of 15 minutes is full, and at the end, in seconds that show the same.

    The console takes a picture at least once a second as long as Redis is quick, and the page draws each one, so it
    says what `status --json` says within two seconds.
    """
    assert EVERY_SECONDS <= 1.0
    assert pause(0.01, 0.3) <= 0.7
    assert HISTORY_SECONDS % REPEATS == _HOUR % REPEATS == 0
    with fed_console() as console, open_page(tmp_path) as page:
        page.open(console.url)
        for second in range(HISTORY_SECONDS + REPEATS + 1):
            show(page, console, picture_of(second))
        full = page.held()
        for second in range(HISTORY_SECONDS + REPEATS + 1, _HOUR + 1):
            show(page, console, picture_of(second))
        ended = page.held()
        sys.stdout.write(f"\n{full} when the window was full, {ended} after an hour\n")
        assert ended.heap - full.heap < _MOST_GROWTH
        assert ended.nodes <= full.nodes + REPEATS, "no node is kept"
        assert (ended.listeners, page.complaints) == (full.listeners, [])
