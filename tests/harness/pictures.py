"""The console's own server and page, with pictures that a test makes: any time of day, as fast as the page draws them.

Only what samples Redis and Kafka is left out: the pictures go through the feed and its stream of events.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from devstack.ports import free_port
from projector.console.api_figures import ApiFigures
from projector.console.app import create_app
from projector.console.feed import Feed
from projector.console.picture import Picture, picture
from projector.kafka.topics import Retention, Topic
from projector.ledger.control import ControlRecord, Copy, Generation, Position, State
from projector.ledger.writers import Writer
from projector.mapping import VERSION
from projector.operate.explain.explainer import Explainer
from projector.operate.observe import KafkaPart, Observation, RedisPart
from projector.record import Partition
from projector.redis.store import Memory, Store
from schemas.control import Stamp
from schemas.heartbeat import Heartbeat
from schemas.settings import ApiSettings, ProjectorSettings
from tests.harness.generations import generation, ids
from tests.harness.waiting import wait_until

_TOPICS = ("crm.leads", "crm.contacts", "crm.organizations", "crm.api-keys")
_BEGIN = 1_800_000_000
REPEATS = 60
"""After so many seconds, the pictures say the same again; only times and counts of offsets have grown."""


class FedConsole:
    """A console whose pictures come from a test. Created by `fed_console`."""

    def __init__(self, url: str, feed: Feed, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self._feed = feed
        self._loop = loop

    def publish(self, shown: Picture) -> None:
        """Give a picture to every page that is open."""
        self._loop.call_soon_threadsafe(self._feed.publish, shown)


@contextmanager
def fed_console() -> Iterator[FedConsole]:
    """Serve the page in a separate thread until the block ends."""
    port, feed, settings = free_port(), Feed(), ProjectorSettings()
    loops: list[asyncio.AbstractEventLoop] = []

    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        loops.append(asyncio.get_running_loop())
        yield

    explainer = Explainer(Store(settings), settings, ApiSettings())
    app = create_app({}, feed, explainer, None, lifespan)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, name="fed-console")
    thread.start()
    try:
        wait_until(lambda: server.started, "the console serves")
        yield FedConsole(f"http://127.0.0.1:{port}", feed, loops[0])
    finally:
        if loops:
            loops[0].call_soon_threadsafe(feed.end)
        server.should_exit = True
        thread.join()


def picture_of(second: int) -> Picture:
    """Returns the picture of one second of a Leadview that works, is deployed again and again, and is full at times."""
    return picture(observation_of(second), None, _api(second), None, None, [])


def observation_of(second: int) -> Observation:
    """Returns what Redis and Kafka say in this second."""
    phase, end = second % REPEATS, 1000 + 20 * second
    partitions = [Partition(topic, number) for topic in _TOPICS for number in range(3)]
    lag = phase % 7
    state = State(generation(1), ids(1), {generation(1): Generation(VERSION, "2026-01-01T00:00:00Z")}, ("ledger",))
    positions = {partition: Position(end - lag, (_BEGIN + second) * 1000, 0) for partition in partitions}
    copy = Copy(Stamp.first(), state, "i", ids(1), ids(1), (), positions)
    said = Heartbeat("run", VERSION, Stamp.first().text, lines={"access": "running", "documents": "running"})
    writers = [Writer(f"host-{second // REPEATS}-{name}", 100, said) for name in ("a", "b")]
    memory = Memory(99 if phase in (30, 31, 32) else 10 + phase, 100, "noeviction")
    redis = RedisPart(ControlRecord(Stamp.first(), state, {b"ledger": copy}), phase // 20, [memory], writers)
    kept = Retention("compact", -1, -1)
    topics = [Topic(name, True, True, tuple(at for at in partitions if at.topic == name), (), kept) for name in _TOPICS]
    now = (_BEGIN + second) * 1000
    oldest = dict.fromkeys(partitions, now - phase * 100) if lag else {}
    kafka = KafkaPart(topics, dict.fromkeys(partitions, (0, end)))
    return Observation(at=now, redis=redis, kafka=kafka, oldest=oldest)


def _api(second: int) -> ApiFigures:
    phase = second % REPEATS
    answers = {"200": 100.0 + phase, "401": float(phase % 3), "503": float(phase == 31)}
    return ApiFigures(sum(answers.values()), answers, 1.0 + phase / 50, 9.0 + phase / 10, 2)
