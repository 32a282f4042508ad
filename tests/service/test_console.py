"""The console over HTTP, on real servers: it says where events went, and strangers get nothing.

`tests/troubles` compares what it says in each trouble with every other surface.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from devstack.programs import ROOT
from operate.console.feed import MOST_PAGES
from schemas import resources
from schemas.api_keys import key_hash
from tests.harness import crm
from tests.harness.console import Console, running_console
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka

pytestmark = pytest.mark.apache


@pytest.fixture
def leadview(leadview_with_own_redis: Leadview) -> Leadview:
    leadview_with_own_redis.topics.create(partitions=1)
    return leadview_with_own_redis


@pytest.mark.long
def test_where_events_went(leadview: Leadview) -> None:
    leads = leadview.topics.name(resources.LEAD)
    projector = leadview.serve(crm.organization(), crm.lead(5), crm.lead(4), crm.api_key(hash=key_hash("x")))
    with running_console(leadview, "--show-documents") as (_, console):
        # A lead whose contact never came, and an event that was ignored as older.
        key = f"{crm.ORGANIZATION}:{crm.LEAD}"
        lead, contact = console.find(key)
        states = (lead["kind"], lead["state"], contact["kind"], contact["state"])
        assert states == ("shown", "wrong", "not applied", "wrong")
        assert [(each["version"], each["kind"]) for each in lead["events"]] == [(4, "outranked"), (5, "shown")]
        assert [each["value"]["contact"] for each in lead["documents"]] == [None]
        for text, kinds in (
            (f"{leads}:0:1", ["outranked", "shown", "not applied"]),
            (f"{leads}:0:0", ["shown", "shown", "not applied"]),
            (f"{leads}:0:2", ["not yet"]),
            (f"{leads}:9:0", ["no partition"]),
            ("req-1", ["no question"]),
            (crm.LEAD, ["id alone"]),
            (crm.ORGANIZATION, ["accepted"]),
            (f"{crm.ORGANIZATION}:{crm.OTHER_LEAD}", ["unheard of"]),
            # Keys: only their hashes, and the check that refuses them.
            (key_hash("x"), ["accepted"]),
            (key_hash("y"), ["unknown key"]),
        ):
            assert [answer["kind"] for answer in console.find(text)] == kinds, text
        leadview.publish(crm.organization(2, api_access=False), crm.lead(6, stage="WRONG"))
        leadview.wait_until_current()
        for text in (key_hash("x"), crm.ORGANIZATION):
            refused = console.find(text)[0]
            assert (refused["kind"], refused["state"]) == ("access off", "wrong")
        assert console.find(f"{leads}:0:2")[0]["kind"] == "parked"
        projector.kill()
        leadview.redis.flushall()
        assert console.request("POST", "/api/find", {"text": key}).status == 409


def test_pages_cost_redis_nothing_and_are_limited(leadview: Leadview) -> None:
    with running_console(leadview) as (_, console), ExitStack() as stack:
        pages = [stack.enter_context(console.page()) for _ in range(MOST_PAGES)]
        assert console.request("GET", "/api/events").status == 503
        for page in pages:
            assert (next(page)[0], next(page)[0]) == ("hello", "history")
        leadview.redis.config_resetstat()
        taken = pictures_until(pages[0], time.time() * 1000 + 1)
        calls = leadview.redis.info("commandstats")["cmdstat_info"]["calls"]
        taken += pictures_until(pages[0], time.time() * 1000)
        assert calls < 3 * taken, "one sampler asks, for all pages together"


def pictures_until(page: Iterator[tuple[str, Any]], at: float) -> int:
    """Returns how many pictures came until one was taken after this time, in ms since 1970."""
    pictures = (data["at"] for name, data in page if name == "picture")
    return 1 + sum(1 for _ in takewhile(lambda taken: taken < at, pictures))


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        pytest.param("POST", {}, 200, id="the page"),
        pytest.param("POST", {"Host": "localhost:1234"}, 200, id="through a tunnel"),
        pytest.param("POST", {"Host": "[::1]"}, 200, id="IPv6"),
        pytest.param("POST", {"Host": "evil.example.org"}, 421, id="DNS rebinding"),
        pytest.param("POST", {"Host": "127.0.0.1.evil.example.org"}, 421, id="a name that begins like an address"),
        pytest.param("POST", {"X_Leadview_Console": ""}, 403, id="without the header"),
        pytest.param("POST", {"Origin": "http://evil.example.org"}, 403, id="another site"),
        pytest.param("POST", {"Origin": "null"}, 403, id="a sandboxed frame"),
        pytest.param("OPTIONS", {"X_Leadview_Console": "", "Origin": "http://evil.example.org"}, 403, id="a preflight"),
    ],
)
def test_strangers_get_nothing(open_console: Console, method: str, headers: dict[str, str], status: int) -> None:
    reply = open_console.request(method, "/api/find", {"text": "req-1"}, **headers)
    assert reply.status == status
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.fixture(scope="module")
def open_console(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory, redis_server: Any) -> Iterator[Console]:
    """A console whose servers do not matter."""
    leadview = Leadview(kafka, "none.", redis_server, tmp_path_factory.mktemp("console"))
    with leadview, running_console(leadview) as (_, console):
        yield console


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        pytest.param("/api/find", b"{", 400, id="not JSON"),
        pytest.param("/api/find", {"text": ""}, 400, id="nothing"),
        pytest.param("/api/find", {"text": "x" * 201}, 400, id="a long text"),
        pytest.param("/api/find", {"text": "x", "more": 1}, 400, id="another field"),
        pytest.param("/api/find", {"text": "x" * 5000}, 413, id="too much"),
        pytest.param("/api/find", {"text": "lv_live_secret"}, 409, id="a key"),
        pytest.param("/api/act", {"verb": "drop", "generation": 1}, 404, id="an action"),
        pytest.param("/static/../app.py", None, 404, id="a source"),
        pytest.param("/docs/..%2fREADME.md", None, 404, id="another file"),
    ],
)
def test_bad_questions(open_console: Console, path: str, body: object, status: int) -> None:
    reply = open_console.request("GET" if body is None else "POST", path, body)
    assert reply.status == status
    assert b"secret" not in reply.body


def test_only_those_with_a_token_may_ask(leadview: Leadview, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    ada, grace = "a" * 40, "g" * 40
    tokens.write_text(f"ada:{ada}\ngrace:{grace}\n")
    leadview.run("console", "--host", "0.0.0.0").ends(1, "needs --token-file")  # noqa: S104
    with running_console(leadview, "--token-file", str(tokens), token=grace) as (child, console):
        for wrong in ("", "Bearer ", f"Bearer {'b' * 40}", f"Basic {ada}", f"Bearer {ada[:-1]}"):
            reply = console.request("POST", "/api/find", {"text": "req-1"}, Authorization=wrong)
            assert reply.status == 401, wrong
        assert console.request("GET", "/", Authorization="").status == 200, "the page itself has nothing to hide"
        for token in (ada, grace):
            reply = console.request("POST", "/api/find", {"text": "req-1"}, Authorization=f"Bearer {token}")
            assert reply.status == 200
        assert not [token for token in (ada, grace) if token in child.log.read_text()]


def test_it_ends_while_pages_are_open(leadview: Leadview) -> None:
    with running_console(leadview) as (child, console):
        with console.page() as page:
            assert next(page)[0] == "hello"
            child.stop()
            assert {name for name, _ in page} <= {"history", "picture"}, "the stream ends"
        assert child.wait(0) == 0, child.log.read_text()
        assert "Traceback" not in child.log.read_text()
    taken = str(leadview.redis.connection_pool.connection_kwargs["port"])
    leadview.run("console", "--port", taken).ends(1, "choose another one with --port")
    assert (ROOT / "operate" / "console" / "static" / "vendor" / "uplot" / "LICENSE").is_file()
