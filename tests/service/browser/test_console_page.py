"""The page of the console in a real Chromium: it says what `status` says, and nothing that it shows can act.

`make browser` runs this. axe-core comes from npm.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from devstack.ports import free_port
from devstack.redis_server import RedisServer
from schemas import resources
from schemas.api_keys import key_hash, mint
from tests.harness import crm
from tests.harness.chromium import Page, open_page
from tests.harness.console import running_console
from tests.harness.faulty_proxy import Faults, faulty_proxy
from tests.harness.leadview import Leadview
from tests.harness.next_mapping import PROGRAM as NEXT
from tests.harness.processes import ROOT
from tests.harness.services import not_available
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.apache]

AXE = ROOT / "build" / "browser" / "node_modules" / "axe-core" / "axe.min.js"
KEY = mint(crm.ORGANIZATION)
REVOKED = mint(crm.ORGANIZATION)
HOSTILE = "<script>document.title='hacked'</script><img src=x onerror=alert(1)>"
HOURS = """
    (async (hours) => {
        const [lines, way, rebuild] = await Promise.all(
            ['lines', 'way', 'rebuild'].map((name) => import(`/static/${name}.js`)));
        window.at ??= Date.now() + 60_000;
        const status = {lag: 1, freshness: 1, redis_used_memory: 5, redis_max_memory: 9, projectors: 1, writers: [],
            generations: [], partitions: [], generation: 1, dead_letters: 0, writing: [1], incomplete_shards: 0};
        const topics = [{name: 'crm.leads', partitions: 1, problem: '', published: 3, applied: 3}];
        for (let second = 0; second < hours * 3600; second++) {
            window.at += 1000;
            const picture = {at: window.at, status: {...status, lag: second % 7}, topics, problems: [], notes: [],
                shards: 1, api: null, replay: null, action: null};
            lines.addPoint(picture); way.showWay(picture); rebuild.showRebuild(picture, {});
            if (second % 200 === 0) await new Promise((resolve) => setTimeout(resolve));
        }
    })"""
TURNED = "abc\u202edef\u2066"


@pytest.fixture
def leadview(leadview_with_own_redis: Leadview) -> Leadview:
    return leadview_with_own_redis


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with open_page(tmp_path) as page:
        page.size(1400)
        yield page


def said(leadview: Leadview) -> Any:
    return msgspec.json.decode(leadview.run("status", "--json").stdout)


def says_the_same(page: Page, leadview: Leadview, *words: str) -> None:
    """Wait until the page says these words, and then exactly what `status --json` says, without figures that move."""
    page.wait_for("#verdict-text", *words)

    def agrees() -> bool:
        shown = page.text("#verdict-text").removeprefix("✓ ").removeprefix("✕ ").strip()
        return bool(shown == said(leadview)["verdict"])

    wait_until(agrees, f"the page says what `status` says: {page.text('#verdict-text')!r}")


def find(page: Page, text: str, *words: str) -> str:
    page.do(
        f"(() => {{ const i = document.getElementById('find-text'); i.value = {json.dumps(text)};"
        " i.dispatchEvent(new Event('input')); i.form.requestSubmit(); })()"
    )
    return page.wait_for("#answers", *words)


def axe(page: Page) -> list[Any]:
    """Returns what axe-core finds. It is evaluated as a debugger does, past the page's Content-Security-Policy."""
    if not AXE.is_file():
        not_available("axe-core is not installed: run `make browser`")
    page.do(AXE.read_text("utf-8") + "; 0")
    found = page.do("axe.run(document).then((done) => done.violations)")
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]


def test_states(page: Page, leadview: Leadview) -> None:
    """Missing topics, a stopped line, dead projectors, a full and an emptied Redis."""
    with running_console(leadview) as (_, console):
        page.open(console.url)
        says_the_same(page, leadview, "topics", "missing", "no projector is running")
        assert "missing" in page.text("#stage-kafka")
        leadview.topics.create(partitions=1)
        says_the_same(page, leadview, "Redis is empty")
        projector = leadview.start("run", dead_letter_row=3)
        leadview.publish(crm.organization(), crm.contact(), crm.lead())
        says_the_same(page, leadview, "all is well")
        assert "documents: running" in page.text("#stage-projectors")
        assert axe(page) == []

        leadview.publish(*[crm.lead(2 + number, stage="WRONG") for number in range(3)])
        page.wait_for("#verdict-text", "line documents is stopped", "3 consecutive bad records")
        page.wait_for("#stage-projectors", "documents: halted")
        assert "docs/dead-letters.md" in page.text("#problems")
        assert axe(page) == []
        projector.kill()
        page.wait_for("#verdict-text", "no projector is running")
        page.wait_for("#arrow-projectors", "stopped")
        leadview.redis.config_set("maxmemory", leadview.redis.info("memory")["used_memory"] // 2)
        page.wait_for("#verdict-text", "Redis is full")
        leadview.redis.config_set("maxmemory", 0)
        leadview.redis.flushall()
        page.wait_for("#verdict-text", "Redis is empty", "no projector is running")
        page.wait_for("#stage-redis", "empty")
        page.open(f"{console.url}/docs/runbook.md#redis_full")
        page.wait_for("main", "Redis refuses writes")
        assert axe(page) == []
        assert page.complaints == []
        assert {request.split("/")[2] for request in page.requested} == {f"127.0.0.1:{console.port}"}


def test_a_deployment_that_was_rolled_back(page: Page, leadview: Leadview) -> None:
    """The newer program has begun a generation, and only the older one runs: it stands by."""
    leadview.topics.create(partitions=1)
    leadview.start("run")
    leadview.publish(crm.organization(), crm.contact(), crm.lead())
    leadview.wait_until_served()
    newer = leadview.start("run", command=NEXT)
    assert leadview.run("rebuild", "--max-latency", "0", command=NEXT).status == 0
    newer.stop()
    with running_console(leadview, "--allow-actions", command=NEXT) as (_, console):
        page.open(console.url)
        page.wait_for("#verdict-text", "line documents is standing by", "generation 2 requires mapping version")
        assert "docs/runbook.md, leadviewstandingby" in page.text("#problems")
        page.wait_for("#notes", "rebuild due")
        page.wait_for("#stage-projectors", "documents: standing by", "access: running")
        page.wait_for("#generations", "Generation 2", "may be promoted")
        page.do("document.querySelector('button[data-verb=compare]').click()")
        type_number(page, "2")
        page.do("document.getElementById('confirm-yes').click()")
        page.wait_for("#action", "2 documents were compared, and 1 differ", "leads.referrer_length")
        assert axe(page) == []


def test_an_emptied_shard(page: Page, leadview_on_cluster: Leadview) -> None:
    leadview = leadview_on_cluster
    projector = leadview.start("run")
    leadview.publish(crm.organization(), crm.lead())
    leadview.wait_until_served()
    with running_console(leadview) as (_, console):
        page.open(console.url)
        page.wait_for("#stage-redis", "all 3 shards complete")
        projector.stop()
        leadview.redis.get_primaries()[0].redis_connection.flushdb()
        page.wait_for("#verdict-text", "not complete: 1 of the parts (shards) of Redis")
        page.wait_for("#stage-redis", "1 of 3 shards not complete")


def test_an_hour_open_grows_no_memory(page: Page, leadview: Leadview) -> None:
    """An hour of pictures, one a second, as fast as the page can draw them."""
    leadview.topics.create(partitions=1)
    with running_console(leadview) as (_, console):
        page.open(console.url)
        page.wait_for("#lines figcaption", "Events per second")
        page.do(f"{HOURS}(0.5)")
        before = page.heap()
        page.do(f"{HOURS}(1)")
        assert page.heap() - before < 1_000_000


def test_where_did_my_event_go(page: Page, leadview: Leadview) -> None:
    leadview.topics.create(partitions=1)
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
        page.wait_for("#verdict-text", "all is well")
        shown = find(page, f"{crm.ORGANIZATION}:{crm.LEAD}", "was ignored: it is older than version 5", "contact")
        assert "is what readers see" in shown
        page.do("document.querySelectorAll('#answers details').forEach((each) => { each.open = true })")
        text = page.text("#answers")
        assert HOSTILE in text.replace("\\n", "")
        assert "⟨U+202E⟩" in text
        assert "\u202e" not in text
        assert page.do("document.querySelectorAll('#answers img, #answers script').length") == 0
        assert page.do("document.documentElement.scrollWidth <= innerWidth"), "a long name makes nothing wider"
        assert axe(page) == []
        find(page, f"{leads}:0:1", "was ignored: it is older")
        find(page, crm.OTHER_LEAD, "No event of its contact was applied", "was never published")
        assert page.do("document.title").endswith("Leadview console")

        # Keys: no part of them but the prefix leaves the page, except as a hash.
        find(page, KEY, "passes all checks of access")
        assert page.do("document.getElementById('find-text').value") == ""
        find(page, f"Bearer {REVOKED}", "401 invalid_api_key", "row 5", "is revoked")
        find(page, KEY[:-1] + ("0" if KEY[-1] != "0" else "1"), "401 invalid_api_key", "row 4", "checksum")
        find(page, KEY[:-1], "row 4", "58 base62 characters")
        assert [request for request in page.requested if "lv_live" in request or KEY[10:20] in request] == []
        assert any(key_hash(KEY) in request for request in page.requested)
        assert page.complaints == []


def test_keyboard_lines_and_sizes(page: Page, leadview: Leadview) -> None:
    leadview.topics.create(partitions=1)
    leadview.start("run")
    leadview.publish(crm.organization())
    leadview.wait_until_served()
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
        for width in (1400, 900, 360):
            for dark in (False, True):
                page.size(width, dark=dark)
                wait_until(lambda: page.do("document.documentElement.scrollWidth <= innerWidth"), f"it fits {width}")
                assert axe(page) == [], (width, dark)
        assert page.complaints == []


def test_it_connects_again(page: Page, leadview: Leadview, own_redis: RedisServer) -> None:
    leadview.topics.create(partitions=1)
    leadview.start("run")
    leadview.publish(crm.organization())
    leadview.wait_until_served()
    port = free_port()
    with running_console(leadview, port=port) as (_, console):
        page.open(console.url)
        page.wait_for("#verdict-text", "all is well")
    page.wait_for("#connection", "✕", "what is below is")
    with (
        faulty_proxy(int(leadview.kafka.bootstrap_servers.rpartition(":")[2])) as kafka,
        running_console(leadview, port=port, kafka_bootstrap_servers=f"127.0.0.1:{kafka.port}"),
    ):
        page.wait_for("#connection", "live")
        page.wait_for("#verdict-text", "all is well")
        kafka.faults = Faults(stalled=True)
        page.wait_for("#verdict-text", "Kafka cannot be read")
        page.wait_for("#stage-kafka", "cannot be read")
        kafka.faults = Faults()
        page.wait_for("#verdict-text", "all is well")
        own_redis.pause()
        page.wait_for("#verdict-text", "Redis cannot be read")
        own_redis.resume()
        page.wait_for("#verdict-text", "all is well")
        assert page.do("document.querySelectorAll('#lines .plot').length") > 0


def test_actions_ask_for_the_number(page: Page, leadview: Leadview, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ada:{'a' * 40}\n")
    leadview.topics.create(partitions=1)
    leadview.start("run")
    leadview.publish(crm.organization(), crm.contact(), crm.lead())
    leadview.wait_until_served()
    assert leadview.run("rebuild", "--max-latency", "0").status == 0
    words = ("--allow-actions", "--token-file", str(tokens))
    with running_console(leadview, *words, token="a" * 40) as (child, console):
        page.open(console.url)
        wait_until(lambda: page.do("document.getElementById('login').open"), "it asks for a token")
        log_in(page, "b" * 40)
        page.wait_for("#login-text", "not known")
        log_in(page, "a" * 40)
        page.wait_for("#connection", "live as ada")
        page.wait_for("#generations", "Generation 2", "may be promoted")
        page.do("document.querySelector('button[data-verb=promote]').click()")
        page.wait_for("#confirm-title", "Promote generation 2?")
        assert page.do("document.getElementById('confirm-yes').disabled")
        assert axe(page) == []
        type_number(page, "3")
        assert page.do("document.getElementById('confirm-yes').disabled")
        type_number(page, "2")
        page.do("document.getElementById('confirm-yes').click()")
        page.wait_for("#action", "done", "Promote 2, by ada", "Generation 2 is served")
        page.wait_for("#generations", "Generation 1", "a rollback returns to it")
        assert '"who":"ada"' in child.log.read_text()
        assert page.do("document.cookie") == ""


def log_in(page: Page, token: str) -> None:
    wait_until(lambda: page.do("document.getElementById('login').open"), "it asks for a token")
    page.do(
        f"(() => {{ const i = document.getElementById('login-token'); i.value = '{token}';"
        " i.form.requestSubmit(); })()"
    )


def type_number(page: Page, number: str) -> None:
    page.do(
        f"(() => {{ const i = document.getElementById('confirm-number'); i.value = '{number}';"
        " i.dispatchEvent(new Event('input')); })()"
    )
