"""The console: as a process, its page in Chromium, and its own server with pictures that a test makes.

Such pictures are of any time of day, as fast as the page draws them. They go through the feed and its stream of events;
only what samples Redis and Kafka is left out.
"""

import asyncio
import http.client
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import orjson
import uvicorn
from msgspec.structs import replace
from starlette.applications import Starlette

from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import PROJECTOR, ROOT, while_running
from operate.console.app import create_app
from operate.console.feed import Feed
from operate.console.picture import Picture, picture
from operate.explain.explainer import Explainer
from projector.health.observe import ApiPart, KafkaPart, Observation, RedisPart
from projector.kafka.topics import Retention, Topic
from projector.ledger.writers import Writer
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.store import Memory, Store
from schemas.heartbeat import Heartbeat
from schemas.settings import ApiSettings, ProjectorSettings
from tests.harness import control
from tests.harness.api_server import ApiServer, Response, running_uvicorn
from tests.harness.chromium import Page
from tests.harness.leadview import Leadview
from tests.harness.services import not_available
from tests.harness.waiting import PATIENCE_SECONDS, wait_for, wait_until

PAGE = {"X-Leadview-Console": "page"}


class Console:
    """A console that listens on a port of loopback. `headers` are those of every request."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.headers = headers

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Response:
        """`headers` replace those of the page; an empty one is left out. `_` stands for `-`."""
        given = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in given.items() if value}
        data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        return ApiServer(self.port).get(path, method=method, headers=sent, data=data)

    def find(self, text: str) -> list[Any]:
        """Returns the answers of the box."""
        reply = self.request("POST", "/api/find", {"text": text})
        assert reply.status == 200, reply
        found: list[Any] = reply.json
        return found

    @contextmanager
    def page(self) -> Iterator[Iterator[tuple[str, Any]]]:
        """Open a page. The block gets its events: their names and their JSON."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)) as connection:
            connection.request("GET", "/api/events", headers=self.headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            with response:
                yield events(response)

    def picture(self) -> Any:
        with self.page() as heard:
            return next(data for name, data in heard if name == "picture")


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """Yields server-sent events, until the stream ends."""
    name = ""
    while line := response.readline():
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, orjson.loads(value)


@contextmanager
def running_console(
    leadview: Leadview,
    *words: str,
    port: int = 0,
    token: str = "",
    command: Sequence[str] = PROJECTOR,
    **settings: object,
) -> Iterator[tuple[Child, Console]]:
    """Run `python -m projector console` until the block ends. The block begins when it answers."""
    headers = PAGE | ({"Authorization": f"Bearer {token}"} if token else {})
    console = Console(port or free_port(), headers)
    child = leadview.start("console", "--port", str(console.port), *words, command=command, log="console", **settings)

    wait_until(while_running(child, lambda: ApiServer(console.port).answers("/")), "the console answers")
    try:
        yield child, console
    finally:
        child.stop()


_AXE = ROOT / "build" / "browser" / "node_modules" / "axe-core" / "axe.min.js"


def verdict(page: Page) -> str:
    """Returns the verdict without its sign."""
    return page.text("#verdict-text").removeprefix("✓ ").removeprefix("✕ ").strip()


def says_the_same(page: Page, leadview: Leadview, *words: str) -> None:
    """Wait until the page says these words, and then exactly what `status --json` says: the verdict, the problems and
    the notes. Figures that move are compared when they stand still for a moment, so the servers should be at rest.
    """
    page.wait_for("#verdict-text", *words)

    def agrees(said: Any) -> bool:
        problems, notes = page.text("#problems"), page.text("#notes")
        return bool(
            verdict(page) == said["verdict"]
            and (len(said["problems"]) == 1 or all(each in problems for each in said["problems"]))
            and all(each.partition(":")[0].partition(" for ")[0] in notes for each in said["notes"])
        )

    # The page shows what is between backticks in another font, without them.
    wait_for(lambda: orjson.loads(leadview.run("status", "--json").stdout.replace("`", "")), agrees, "the page agrees")


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


_TOPICS = ("crm.leads", "crm.contacts", "crm.organizations", "crm.api-keys")
_BEGIN = 1_800_000_000
REPEATS = 60
"""After so many seconds, the pictures say the same again; only times and counts of offsets have grown."""


class FedConsole(NamedTuple):
    """A console whose pictures come from a test. Created by `fed_console`."""

    url: str
    feed: Feed
    loop: asyncio.AbstractEventLoop

    def publish(self, shown: Picture) -> None:
        self.loop.call_soon_threadsafe(self.feed.publish, shown)


@contextmanager
def fed_console() -> Iterator[FedConsole]:
    port, feed, settings = free_port(), Feed(), ProjectorSettings()
    loops: list[asyncio.AbstractEventLoop] = []

    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        loops.append(asyncio.get_running_loop())
        yield

    explainer = Explainer(Store(settings), settings, ApiSettings())
    app = create_app({}, feed, explainer, lifespan)
    configuration = uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, access_log=False)
    with running_uvicorn(uvicorn.Server(configuration)):
        try:
            yield FedConsole(f"http://127.0.0.1:{port}", feed, loops[0])
        finally:
            loops[0].call_soon_threadsafe(feed.end)


def picture_of(second: int) -> Picture:
    """Returns the picture of one second of a Leadview that works, is deployed again and again, and is full at times."""
    return picture(replace(observation_of(second), api=_api(second)), None, None, [])


def observation_of(second: int) -> Observation:
    phase, end = second % REPEATS, 1000 + 20 * second
    partitions = [Partition(topic, number) for topic in _TOPICS for number in range(3)]
    lag = phase % 7
    record = control.record_of(control.state_of(), dict.fromkeys(partitions, end - lag), time=(_BEGIN + second) * 1000)
    said = Heartbeat("run", VERSION, record.stamp.text, lines={"access": "running", "documents": "running"})
    writers = [Writer(f"host-{second // REPEATS}-{name}", 100, said) for name in ("a", "b")]
    memory = Memory(99 if phase in (30, 31, 32) else 10 + phase, 100, "noeviction")
    redis = RedisPart(record, phase // 20, [memory], writers)
    kept = Retention("compact", -1, -1)
    topics = [Topic(name, True, True, tuple(at for at in partitions if at.topic == name), (), kept) for name in _TOPICS]
    now = (_BEGIN + second) * 1000
    oldest = dict.fromkeys(partitions, now - phase * 100) if lag else {}
    kafka = KafkaPart(topics, dict.fromkeys(partitions, (0, end)))
    return Observation(at=now, redis=redis, kafka=kafka, oldest=oldest)


def _api(second: int) -> ApiPart:
    phase = second % REPEATS
    answers = {"200": 100.0 + phase, "401": float(phase % 3), "503": float(phase == 31)}
    return ApiPart(sum(answers.values()), answers, 1.0 + phase / 50, 9.0 + phase / 10, 2)


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
