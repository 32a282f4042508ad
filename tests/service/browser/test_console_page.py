"""The page of the console in a real Chromium: the box, the keyboard, hostile texts, actions, also after a deployment
that was rolled back, and what it says while the console or Redis is away.

`make browser` runs this. axe-core comes from npm.
"""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from devstack.ports import free_port
from devstack.redis_server import RedisServer
from schemas import resources
from schemas.api_keys import key_hash, mint
from tests.harness import crm
from tests.harness.chromium import Page, open_page
from tests.harness.console import axe, find, running_console, says_the_same
from tests.harness.leadview import Leadview
from tests.harness.projectors import NEXT_MAPPING
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.apache]

KEY, REVOKED = mint(crm.ORGANIZATION), mint(crm.ORGANIZATION)
HOSTILE = "<script>document.title='hacked'</script><img src=x onerror=alert(1)>"
TURNED = "abc\u202edef\u2066"


@pytest.fixture
def leadview(leadview_with_own_redis: Leadview) -> Leadview:
    leadview_with_own_redis.topics.create(partitions=1)
    return leadview_with_own_redis


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with open_page(tmp_path) as page:
        page.size(1400)
        yield page


def test_console_says_where_an_event_went(page: Page, leadview: Leadview) -> None:
    leads = leadview.topics.name(resources.LEAD)
    leadview.start("run")
    hostile = crm.contact(first_name=HOSTILE, last_name=TURNED + "x" * 10_000, email="a@b.example")
    leadview.publish(
        crm.organization(),
        crm.lead(5, event_location=HOSTILE),
        crm.lead(4),
        crm.lead(1, id=crm.OTHER_LEAD, contact_id=crm.OTHER_CONTACT),
        hostile,
        crm.api_key(hash=key_hash(KEY)),
        crm.api_key(id=crm.uuid(0xF2), hash=key_hash(REVOKED), status="revoked"),
    )
    leadview.wait_until_served()
    with running_console(leadview, "--show-documents") as (_, console):
        page.open(console.url)
        page.wait_for("#verdict-text", "an older version was published behind a newer one")
        wait_until(lambda: re.search(r"data as of\s+\d+:\d\d", page.text("#stage-redis")), "it says Data-As-Of")
        find(page, f"{crm.ORGANIZATION}:{crm.LEAD}", "was ignored", "contact", "Readers see", "is what is stored")
        page.do("document.querySelectorAll('#answers details').forEach((each) => { each.open = true })")
        text = page.text("#answers")
        assert "document of generation 1 (live)" in text
        assert HOSTILE in text.replace("\\n", "")
        assert ("⟨U+202E⟩" in text, "\u202e" in text) == (True, False)
        assert page.do("document.querySelectorAll('#answers img, #answers script').length") == 0
        assert page.do("document.documentElement.scrollWidth <= innerWidth"), "a long name makes nothing wider"
        assert axe(page) == []
        find(page, f"{leads}:0:1", "was ignored")
        find(page, f"{crm.ORGANIZATION}:{crm.OTHER_LEAD}", "contact is null", "ever published")
        linked = page.do("[...document.querySelectorAll('#answers a')].map((each) => each.href)")
        assert linked == [*dict.fromkeys(linked)], "no page is named twice"
        assert page.do("document.title").endswith("Leadview console")

        # Keys: no part of them but the prefix leaves the page, except as a hash.
        find(page, KEY, "passes all checks")
        assert page.do("document.getElementById('find-text').value") == ""
        find(page, f"Bearer {REVOKED}", "401 invalid_api_key", "row 5", "is revoked")
        find(page, KEY[:-1] + ("0" if KEY[-1] != "0" else "1"), "401 invalid_api_key", "row 4", "checksum")
        find(page, KEY[:-1], "row 4", "58 base62 characters")
        assert [request for request in page.requested if "lv_live" in request or KEY[10:20] in request] == []
        assert any(key_hash(KEY) in request for request in page.requested)
        assert page.complaints == []


def test_console_page_works_with_the_keyboard_and_in_any_size(page: Page, leadview: Leadview) -> None:
    leadview.serve(crm.organization())
    with running_console(leadview) as (_, console):
        page.open(console.url)
        page.wait_for("#verdict-text", "all is well")
        page.press("Tab", 9)
        assert page.do("document.activeElement.className") == "skip"
        page.press("Enter", 13)
        wait_until(lambda: page.do("location.hash") == "#find-text", "the link skips to the box")
        page.wait_for("#lines figcaption", "Events per second")
        page.do("document.querySelector('.plot').focus()")
        page.press("ArrowLeft", 37)
        page.wait_for("#moment", "published", "applied")
        page.hover(".plot .u-over")
        page.wait_for(".u-legend", "time", ":")
        for width, dark in product((1400, 900, 360), (False, True)):
            page.size(width, dark=dark)
            wait_until(lambda: page.do("document.documentElement.scrollWidth <= innerWidth"), f"it fits {width}")
            assert axe(page) == [], (width, dark)
        page.open(f"{console.url}/docs/runbook.md#redis_full")
        page.wait_for("main", "Redis refuses writes")
        for width in (360, 1400):
            page.size(width)
            assert axe(page) == [], width
        assert page.complaints == []


def test_token_is_asked_for(page: Page, leadview: Leadview, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ada:{'a' * 40}\n")
    leadview.serve(crm.organization(), crm.contact(), crm.lead())
    with running_console(leadview, "--token-file", str(tokens), token="a" * 40) as (_, console):
        page.open(console.url)
        log_in(page, "b" * 40)
        page.wait_for("#login-text", "not known")
        assert axe(page) == []
        log_in(page, "a" * 40)
        page.wait_for("#connection", "live as ada")
        page.wait_for("#generations", "Generation 1")
        assert page.do("document.cookie") == ""


def log_in(page: Page, token: str) -> None:
    wait_until(lambda: page.do("document.getElementById('login').open"), "it asks for a token")
    page.do(
        f"(() => {{ const i = document.getElementById('login-token'); i.value = '{token}';"
        " i.form.requestSubmit(); })()"
    )


def test_deployment_that_was_rolled_back(page: Page, leadview: Leadview) -> None:
    """The newer program has filled a generation, and only the older one runs: it stands by."""
    leadview.serve(crm.organization(), crm.contact(), crm.lead())
    newer = leadview.start("run", command=NEXT_MAPPING)
    leadview.run("rebuild", "--max-latency", "0", command=NEXT_MAPPING).ends(0)
    newer.stop()
    with running_console(leadview) as (_, console):
        page.open(console.url)
        says_the_same(page, leadview, "line documents is standing by", "generation 2 requires mapping version")
        assert "docs/runbook.md, leadviewstandingby" in page.text("#problems")
    with running_console(leadview, command=NEXT_MAPPING) as (_, console):
        page.open(console.url)
        page.wait_for("#notes", "rebuild due")
        page.wait_for("#generations", "Generation 2", "is not written any more", "drop 2")
        assert "may be promoted" not in page.text("#generations")


def test_the_console_and_redis_are_away(page: Page, leadview: Leadview, own_redis: RedisServer) -> None:
    """The page says exactly what `status --json` says, and connects again by itself. What it says in each trouble is in
    test_console_pictures.py.
    """
    leadview.serve(crm.organization(), crm.contact(), crm.lead())
    port = free_port()
    with running_console(leadview, port=port) as (_, console):
        page.open(console.url)
        says_the_same(page, leadview, "all is well")
    page.wait_for("#connection", "✕", "what is below is")
    with running_console(leadview, port=port):
        page.wait_for("#connection", "live")
        says_the_same(page, leadview, "all is well")
        own_redis.pause()
        says_the_same(page, leadview, "Redis cannot be read")
        page.wait_for("#stage-redis", "cannot be read")
        own_redis.resume()
        says_the_same(page, leadview, "all is well")
    assert page.do("document.querySelectorAll('#lines .plot').length") > 0
