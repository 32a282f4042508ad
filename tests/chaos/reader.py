"""Who looks on. Readers: external tools that send requests to the API all the time and note every answer. A pulse and a
probe note what the checker must know to judge the API: when the machine was too busy, and when all was well.
"""

import http.client
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from math import inf
from random import Random
from select import select
from typing import Any

import orjson
from confluent_kafka import KafkaException

from devstack.threads import Repeating
from devstack.topics import admin
from projector.record import Partition
from projector.reference import Entity
from schemas import resources
from tests.chaos.checker import SHOWN, Checker, Verdict
from tests.chaos.core import KEY_IDS, UNKNOWN, Core, Writer, key_text
from tests.chaos.history import BUSY, Beat, Response, Window, now
from tests.chaos.world import ABSENT, World, projectors
from tests.harness import control
from tests.harness.api_server import CONTACTS, LEADS
from tests.harness.services import client_of
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

_RATE, _ENOUGH = 50.0, 50
_PAUSE_SECONDS = 0.02
_LATE_SECONDS = 0.15
_AFTER_SECONDS = 1.0  # until a connection that was closed is open again
_PROBE_SECONDS = 0.2
_KAFKA_SECONDS = 1.0
_PATHS: dict[resources.Kind, str] = {resources.LEAD: LEADS, resources.CONTACT: CONTACTS}


class Reader(Repeating):
    """Sends about `rate` requests per second until `stop`, each over one of these connections: one to each API process.

    It never repeats a request. With `wait`, each one waits for so many seconds until the record is another one.
    """

    def __init__(
        self,
        connections: Sequence[http.client.HTTPConnection],
        core: Core,
        seed: int,
        rate: float,
        wait: int = 0,
    ) -> None:
        super().__init__(1 / rate)
        self._wait = wait
        self._core = core
        self._random = Random(seed)
        self._connections = connections
        self._known: dict[Entity, tuple[str, bytes]] = {}
        """ETag and body that each record had when it was last read, from any process."""
        self.answers: list[Response] = []

    def stop(self, timeout: float | None = None) -> None:
        super().stop(timeout)
        for connection in self._connections:
            connection.close()

    def read_all(self) -> None:
        """Read each lead and contact of all organizations once, with the key that is always active."""
        for organization in self._core.organizations:
            leads = [(resources.LEAD, organization, id_) for id_ in self._core.leads]
            contacts = [(resources.CONTACT, organization, id_) for id_ in self._core.contacts]
            for wanted in [*leads, *contacts]:
                self._read((resources.API_KEY, organization, KEY_IDS[0]), wanted)

    def _work(self) -> None:
        self._read(*self.chosen())

    def chosen(self) -> tuple[Entity, Entity]:
        """Returns the API key and the record of the next request."""
        organization, chance = self._random.choice(self._core.organizations), self._random.random()
        wanted = (resources.LEAD, organization, UNKNOWN)
        if 0.02 <= chance < 0.3:
            wanted = (resources.CONTACT, organization, self._random.choice(self._core.contacts))
        elif chance >= 0.3:
            wanted = (resources.LEAD, organization, self._random.choice(self._core.leads))
        return (resources.API_KEY, organization, self._random.choices(KEY_IDS, [3, 1])[0]), wanted

    def _read(self, key: Entity, wanted: Entity) -> None:
        process = self._random.randrange(len(self._connections))
        answer = Response(now(), inf, key, wanted, 0, process=process, wait=self._wait)
        try:
            self._request(self._connections[process], answer)
        except (OSError, http.client.HTTPException):
            self._connections[process].close()
            answer.answered_at = now()
        self.answers.append(answer)

    def _request(self, connection: http.client.HTTPConnection, answer: Response) -> None:
        headers = self.headers(answer)
        # As the pools of HTTP clients do: a process that was killed meanwhile has closed it.
        if connection.sock and select([connection.sock], [], [], 0)[0]:
            connection.close()
        connection.request("GET", path_of(answer.wanted), headers=headers)
        reply = connection.getresponse()
        self.note(answer, reply.status, reply.headers, reply.read())

    def headers(self, answer: Response) -> dict[str, str]:
        """Returns the headers of a request. Every other one is conditional, and each one that waits."""
        headers = {"Authorization": f"Bearer {key_text(answer.key)}"}
        tag, _ = self._known.get(answer.wanted, ("", b""))
        if answer.wait:
            headers["Prefer"] = f"wait={answer.wait}"
        if tag and (answer.wait or self._random.random() < 0.5):
            headers["If-None-Match"] = answer.other = tag
        return headers

    def note(
        self, answer: Response, status: int, headers: http.client.HTTPMessage | Mapping[str, str], body: bytes
    ) -> None:
        """Note status, body, ETag, `Data-As-Of`, and what the document shows. For 304, the body is the one that is
        known.
        """
        _, known = self._known.get(answer.wanted, ("", b""))
        answer.answered_at, answer.status, answer.tag = now(), status, headers.get("ETag") or ""
        answer.honoured = "Preference-Applied" in headers
        if text := headers.get("Data-As-Of"):
            # As a time of the history, whose clock is another one.
            answer.as_of = now() - (time.time() - datetime.fromisoformat(text).timestamp())
        if status == 200:
            self._known[answer.wanted] = answer.tag, body
        if status in SHOWN:
            answer.body = body if status == 200 else known
            document: dict[str, Any] = orjson.loads(answer.body)
            answer.organization_id = document["organization_id"]
            if answer.wanted[0] is resources.CONTACT:
                answer.shown = document["first_name"]
            else:
                answer.shown, answer.contact_id = document["referrer"], document["contact_id"]
                answer.contact_shown = document["contact"]["first_name"] if document["contact"] else None


def path_of(wanted: Entity) -> str:
    """Returns the path of a document."""
    return _PATHS[wanted[0]] + wanted[2]


class Pulse(Repeating):
    """Runs until `stop`. `windows` are the times in which even a thread that only sleeps did not wake up in time: then
    an unavailable API is not counted as wrong."""

    def __init__(self) -> None:
        super().__init__(_PAUSE_SECONDS)
        self._before = inf
        self.windows: list[Window] = []

    def _work(self) -> None:
        at = now()
        if at - self._before > _PAUSE_SECONDS + _LATE_SECONDS:
            self.windows.append(Window(BUSY, frozenset({0, 503}), self._before, at, at + _AFTER_SECONDS))
        self._before = at


class Probe(Repeating):
    """Runs until `stop`. `beats` say when Redis, Kafka and a projector were there, and how much was to be applied.

    It asks by connections of its own. While a server stands still, there is no beat.
    """

    def __init__(self, world: World) -> None:
        super().__init__(_PROBE_SECONDS)
        self._world = world
        self._url = ""
        self._redis: Any = None
        self._admin = admin(world.leadview.kafka.bootstrap_servers)
        self.beats: list[Beat] = []

    def stop(self, timeout: float | None = _KAFKA_SECONDS) -> None:
        """It may still wait for a server that stands still, and end later."""
        super().stop(timeout)

    def _work(self) -> None:
        behind = None
        with suppress(KafkaException):
            topics = self._admin.list_topics(timeout=_KAFKA_SECONDS).topics
            ours = [topics.get(self._world.leadview.topics.name(kind)) for kind in resources.KINDS]
            if all(topic and all(part.leader >= 0 for part in topic.partitions.values()) for topic in ours):
                try:
                    behind = self._behind()
                except ABSENT:
                    self._url = ""  # the next probe begins with a new connection
        self.beats.append(Beat(now(), behind))

    def _behind(self) -> int | None:
        """Returns how many records up to the mark are not applied, in all shards; None if no projector lives."""
        url = self._world.leadview.server.url
        if url != self._url:
            self._redis, self._url = client_of(url), url
        if not projectors(self._redis):
            return None
        behind = 0
        for copy in control.read_all(self._redis).values():
            for partition, end in self._world.mark.items():
                position = copy.positions.get(Partition(*partition)) if copy else None
                behind += max(0, end - (position.offset if position else 0))
        return behind


def check(writer: Writer, readers: Sequence[Reader], access_seconds: float = 1.0) -> Verdict:
    history = writer.stage.history
    history.answers += [answer for reader in readers for answer in reader.answers]
    return Checker(history, writer.bodies, access_seconds).check()


@contextmanager
def readers_of(writer: Writer, port: int, readers: int = 1) -> Iterator[None]:
    """Readers ask the API on this port until the block ends. Fails unless every answer was right. The API should be a
    patient one: no outage is expected, whatever the machine does meanwhile.
    """
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS) for _ in range(readers)]
    asking = [Reader([each], writer.core, seed, _RATE) for seed, each in enumerate(connections)]
    with ExitStack() as stack:
        for reader in asking:
            stack.enter_context(reader)
        wait_until(lambda: all(reader.answers for reader in asking), "the readers have begun")
        yield
        wait_until(lambda: all(len(reader.answers) > _ENOUGH for reader in asking), "the readers have read enough")
    verdict = check(writer, asking, access_seconds=inf)
    assert not verdict.anomalies, [str(anomaly) for anomaly in verdict.anomalies[:10]]
